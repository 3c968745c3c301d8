//! Kernels through the public ACL calls.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid. Launching is `unsafe` for the caller too:
//! nothing can check what a kernel does with its addresses.
#![allow(unsafe_code)]

use crate::device::{Device, Handle};
use crate::error::{DeviceError, acl};
use crate::stream::Stream;
use crate::sys::{aclrtBinHandle, aclrtFuncHandle};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A loaded kernel binary.
#[derive(Debug)]
pub struct KernelBinary {
    device: Device,
    /// `None` once released.
    handle: Option<Handle>,
}

/// A kernel of a binary.
#[derive(Debug)]
pub struct Kernel<'b> {
    binary: &'b KernelBinary,
    handle: Handle,
}

impl KernelBinary {
    /// Loads a binary for the device.
    pub fn load(device: &Device, path: &Path) -> Result<Self, DeviceError> {
        let text = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| DeviceError::NulByte { what: "kernel path", text: path.display().to_string() })?;
        let mut handle: aclrtBinHandle = std::ptr::null_mut();
        // SAFETY: `text` ends in NUL and outlives the call; null means no options; `handle` is a valid place.
        unsafe {
            acl!(device.vendor(), aclrtBinaryLoadFromFile(text.as_ptr(), std::ptr::null_mut(), &mut handle))
        }?;
        Ok(Self { device: device.clone(), handle: Some(Handle(handle)) })
    }

    /// Finds a kernel by name.
    pub fn kernel(&self, name: &str) -> Result<Kernel<'_>, DeviceError> {
        let text = CString::new(name)
            .map_err(|_| DeviceError::NulByte { what: "kernel name", text: name.to_owned() })?;
        let mut function: aclrtFuncHandle = std::ptr::null_mut();
        let binary = self.handle.map_or(std::ptr::null_mut(), |h| h.0);
        // SAFETY: the binary is alive while `self` is; `text` ends in NUL; `function` is a valid place.
        unsafe { acl!(self.device.vendor(), aclrtBinaryGetFunction(binary, text.as_ptr(), &mut function)) }?;
        Ok(Kernel { binary: self, handle: Handle(function) })
    }

    /// Unloads it.
    pub fn release(mut self) -> Result<(), DeviceError> {
        self.release_once()
    }

    fn release_once(&mut self) -> Result<(), DeviceError> {
        match self.handle.take() {
            Some(handle) if !self.device.is_abandoned() => {
                // SAFETY: given by aclrtBinaryLoadFromFile, and taken out so that it is unloaded once.
                unsafe { acl!(self.device.vendor(), aclrtBinaryUnLoad(handle.0)) }
            }
            _ => Ok(()),
        }
    }
}

impl Drop for KernelBinary {
    fn drop(&mut self) {
        let released = self.release_once();
        self.device.keep_first_error(released);
    }
}

impl Kernel<'_> {
    /// Queues the kernel as one block and waits for its end, so that everything it uses has only to outlive the call.
    ///
    /// The call is as safe as the kernel, which runs on the device (on the double, in this process) with the addresses that
    /// it is given. By naming the kernel file the user vouches for it, as in the simulation.
    pub fn run(&self, stream: &Stream, args: &[u64]) -> Result<(), DeviceError> {
        // SAFETY: the user vouches for the kernel; binary and arguments outlive the wait below.
        unsafe { self.launch(stream, 1, args) }?;
        stream.synchronize()
    }

    /// Queues the kernel on a stream with `args` as its block of 64-bit arguments.
    ///
    /// # Safety
    /// The kernel takes these arguments, and every address among `args` is one that it may use. They stay valid, and the
    /// binary is not released, until the stream is synchronised.
    pub unsafe fn launch(&self, stream: &Stream, blocks: u32, args: &[u64]) -> Result<(), DeviceError> {
        // SAFETY: function and stream are alive; the block is copied before the call returns; the caller
        // vouches for what the kernel does with it.
        unsafe {
            acl!(
                self.binary.device.vendor(),
                aclrtLaunchKernel(
                    self.handle.0,
                    blocks,
                    args.as_ptr().cast(),
                    size_of_val(args),
                    stream.as_raw()
                )
            )
        }
    }
}
