//! Kernels that were compiled to shared objects.
//!
//! # Safety
//! Calls functions of a loaded object by the types that their names stand for.
#![allow(unsafe_code)]

use super::LoadError;
use super::lane;
use super::library::Object;
use super::shim::{self, Function};
use comm_context::abi::orchestration::HOOKS_SYMBOL;
use std::ffi::c_void;
use std::path::Path;

/// The symbol of a kernel, unless the caller names another.
const KERNEL_SYMBOL: &str = "kernel_entry";

/// A kernel in a shared object: `void kernel_entry(int64_t *args)`.
///
/// It stays loaded for as long as the process lives.
#[derive(Clone, Copy, Debug)]
pub struct KernelObject {
    entry: Function,
}

impl KernelObject {
    /// Loads an object. `symbol` is that of the kernel, `kernel_entry` for `None`.
    pub fn load(path: &Path, symbol: Option<&str>) -> Result<Self, LoadError> {
        let object = Object::open(path)?;
        let found = object.symbol(symbol.unwrap_or(KERNEL_SYMBOL), "is the kernel")?;
        // SAFETY: by contract these symbols are functions of these types.
        let entry = unsafe { std::mem::transmute::<*mut c_void, Function>(found.as_ptr()) };
        if let Some(hooks) = object.find(HOOKS_SYMBOL) {
            type Hooks = unsafe extern "C" fn(*const c_void, *const c_void);
            // SAFETY: as above; the two functions have the types that it expects and live as long as the process.
            unsafe {
                let hooks = std::mem::transmute::<*mut c_void, Hooks>(hooks.as_ptr());
                hooks(lane::sub_block as *const c_void, lane::cluster_state as *const c_void);
            }
        }
        Ok(Self { entry })
    }

    /// Runs one block. What the kernel throws is an error in words.
    ///
    /// # Safety
    /// `args` is the argument list of the block, with everything that the kernel expects in it.
    pub unsafe fn call(&self, args: *mut i64) -> Result<(), String> {
        // SAFETY: as the caller promises; the object stays loaded.
        unsafe { shim::call(self.entry, args.cast()) }
    }
}
