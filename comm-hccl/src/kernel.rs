//! Kernels through the public ACL calls.
//!
//! A kernel is `void kernel(int64_t *args)`. The words of a launch's argument block are the kernel's parameters, so the block
//! has one word: the device address of the argument list (F68).
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid. Launching is `unsafe` for the caller too:
//! nothing can check what a kernel does with its addresses.
#![allow(unsafe_code)]

use crate::device::{Device, Handle};
use crate::error::{DeviceError, acl, acl_optional};
use crate::kernel_type::KernelType;
use crate::stream::Stream;
use crate::sys::*;
use comm_context::abi::DeviceAddr;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

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

/// How a kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchSpec {
    /// On how many cores it runs. All of them get the same parameter; the kernel knows its block by `get_block_idx()`.
    pub blocks: u32,
    /// After this time the device ends it; whole seconds, rounded up. `None` leaves the vendor's own limit.
    pub limit: Option<Duration>,
}

impl Default for LaunchSpec {
    fn default() -> Self {
        Self { blocks: 1, limit: None }
    }
}

impl LaunchSpec {
    /// The limit as an attribute: in seconds where they fit, else in microseconds.
    fn attribute(&self) -> Option<aclrtLaunchKernelAttr> {
        let limit = self.limit?;
        let seconds = limit.as_secs().saturating_add(u64::from(limit.subsec_nanos() > 0)).max(1);
        // The members that are not set stay 0.
        let mut value = aclrtLaunchKernelAttrValue { rsv: [0; 4] };
        let id = match u16::try_from(seconds) {
            Ok(seconds) => {
                value.timeout = seconds;
                ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT
            }
            Err(_) => {
                let micros = seconds.saturating_mul(1_000_000);
                value.timeoutUs =
                    aclrtTimeoutUs { timeoutLow: micros as u32, timeoutHigh: (micros >> 32) as u32 };
                ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT_US
            }
        };
        Some(aclrtLaunchKernelAttr { id, value })
    }
}

impl KernelBinary {
    /// Loads the binary with the kernel `symbol` for the device. Its [type](KernelType) must be known.
    pub fn load(device: &Device, path: &Path, symbol: &str) -> Result<Self, DeviceError> {
        let text = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| DeviceError::NulByte { what: "kernel path", text: path.display().to_string() })?;
        let magic = match KernelType::of(path, symbol)? {
            KernelType::Section(_) => None,
            KernelType::Magic(magic) => Some(magic),
        };
        let mut option = magic.map(|magic| aclrtBinaryLoadOption {
            r#type: ACL_RT_BINARY_LOAD_OPT_MAGIC,
            value: aclrtBinaryLoadOptionValue { magic },
        });
        let mut options =
            option.as_mut().map(|option| aclrtBinaryLoadOptions { options: &raw mut *option, numOpt: 1 });
        let options = options.as_mut().map_or(std::ptr::null_mut(), |options| &raw mut *options);
        let mut handle: aclrtBinHandle = std::ptr::null_mut();
        // SAFETY: `text` ends in NUL; it and the options, which are null or one option, outlive the call; `handle` is a
        // valid place.
        unsafe { acl!(device.vendor(), aclrtBinaryLoadFromFile(text.as_ptr(), options, &mut handle)) }?;
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
    /// Queues the kernel and waits for its end, so that everything it uses has only to outlive the call. `args` is its
    /// argument list, in device memory.
    ///
    /// The call is as safe as the kernel, which runs on the device (on the double, in the device's process) with the
    /// addresses that it is given. By naming the kernel file the user vouches for it, as in the simulation.
    pub fn run(&self, stream: &Stream, spec: &LaunchSpec, args: DeviceAddr) -> Result<(), DeviceError> {
        // SAFETY: the user vouches for the kernel; binary and arguments outlive the wait below.
        unsafe { self.launch(stream, spec, args) }?;
        stream.synchronize()
    }

    /// Queues the kernel on a stream. `args` is its argument list, in device memory.
    ///
    /// # Safety
    /// The kernel takes these arguments, and every address among them is one that it may use on the device. They and the
    /// list stay valid, and the binary is not released, until the stream is synchronised.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        spec: &LaunchSpec,
        args: DeviceAddr,
    ) -> Result<(), DeviceError> {
        let mut attribute = spec.attribute();
        let mut config = attribute
            .as_mut()
            .map(|attribute| aclrtLaunchKernelCfg { attrs: &raw mut *attribute, numAttrs: 1 });
        let config = config.as_mut().map_or(std::ptr::null_mut(), |config| &raw mut *config);
        let mut block = [args.0];
        // SAFETY: function and stream are alive; configuration and block outlive the call, which copies them; the caller
        // vouches for what the kernel does with the list.
        unsafe {
            acl_optional!(
                self.binary.device.vendor(),
                aclrtLaunchKernelWithHostArgs(
                    self.handle.0,
                    spec.blocks,
                    stream.as_raw(),
                    config,
                    block.as_mut_ptr().cast(),
                    size_of_val(&block),
                    std::ptr::null_mut(),
                    0
                )
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(limit: Duration) -> (i32, u64) {
        let attribute = LaunchSpec { blocks: 1, limit: Some(limit) }.attribute().unwrap();
        // SAFETY: every byte of the union is set, and any bits are a number.
        let rsv = unsafe { attribute.value.rsv };
        (attribute.id, u64::from(rsv[0]) | u64::from(rsv[1]) << 32)
    }

    #[test]
    fn a_limit_is_in_seconds_rounded_up_and_in_microseconds_where_they_do_not_fit() {
        assert!(LaunchSpec::default().attribute().is_none());
        assert_eq!(attribute(Duration::ZERO), (ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT, 1));
        assert_eq!(attribute(Duration::from_millis(1500)), (ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT, 2));
        assert_eq!(attribute(Duration::from_secs(65_535)), (ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT, 65_535));
        let longer = attribute(Duration::from_secs(65_536));
        assert_eq!(longer, (ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT_US, 65_536_000_000));
    }
}
