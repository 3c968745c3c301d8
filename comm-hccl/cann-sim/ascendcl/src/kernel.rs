//! Kernels: host shared objects that run in the process of their device.
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the vendor's headers
//! say. Null, sizes and handles are checked here; each unsafe block says what the caller must ensure.
#![allow(unsafe_code)]

use crate::device_process::{DeviceProcess, Ended};
use crate::gate::{Answer, Refusal, answer, call, ensure, refuse, with_state};
use crate::state::{Binary, Fault, Function, State};
use cann_sim::Kind;
use comm_hccl::KernelType;
use comm_hccl::sys::*;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

fn text<'a>(pointer: *const c_char) -> Result<&'a CStr, Refusal> {
    ensure(!pointer.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
    // SAFETY: not null; the caller provides a text that ends in NUL and outlives the call.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// The magic number among the load options.
fn magic(options: *const aclrtBinaryLoadOptions) -> Result<Option<u32>, Refusal> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: not null; the caller provides a valid struct.
    let options = unsafe { *options };
    ensure(!options.options.is_null() && options.numOpt > 0, ACL_ERROR_INVALID_PARAM, "no options")?;
    let mut magic = None;
    for index in 0..options.numOpt {
        // SAFETY: the caller provides as many options as it says.
        let option = unsafe { *options.options.add(index) };
        match option.r#type {
            // SAFETY: the type says which member counts.
            ACL_RT_BINARY_LOAD_OPT_MAGIC => magic = Some(unsafe { option.value.magic }),
            ACL_RT_BINARY_LOAD_OPT_LAZY_LOAD => {}
            _ => return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown load option"),
        }
    }
    let known = [
        ACL_RT_BINARY_MAGIC_ELF_AICORE,
        ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE,
        ACL_RT_BINARY_MAGIC_ELF_CUBE_CORE,
    ];
    ensure(magic.is_none_or(|magic| known.contains(&magic)), ACL_ERROR_RT_PARAM_INVALID, "unknown magic")?;
    Ok(magic)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtBinaryLoadFromFile(
    path: *const c_char,
    options: *mut aclrtBinaryLoadOptions,
    binary: *mut aclrtBinHandle,
) -> aclError {
    call("aclrtBinaryLoadFromFile", |state| {
        ensure(!binary.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let path = PathBuf::from(OsStr::from_bytes(text(path)?.to_bytes()));
        let magic = magic(options)?;
        let device = state.device()?;
        state.healthy(device)?;
        let Some(name) = path.to_str() else {
            return refuse(ACL_ERROR_RT_FILE_OPEN, "the path is not UTF-8");
        };
        let process = state.process(device)?;
        let library = process.load(name).or_else(|error| refuse(ACL_ERROR_RT_FILE_OPEN, error))?;
        let handle = state.handle();
        state.binaries.insert(handle, Binary { device, library, path, magic });
        state.attachment.created(Kind::Binary);
        // SAFETY: not null; the caller provides a place for one handle.
        unsafe { binary.write(handle as aclrtBinHandle) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtBinaryGetFunction(
    binary: aclrtBinHandle,
    name: *const c_char,
    function: *mut aclrtFuncHandle,
) -> aclError {
    call("aclrtBinaryGetFunction", |state| {
        ensure(!function.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let name = text(name)?.to_string_lossy().into_owned();
        let Some(found) = state.binaries.get(&(binary as usize)) else {
            return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown binary");
        };
        let (device, library) = (found.device, found.library);
        let typed = found.magic.is_some() || KernelType::of(&found.path, &name).is_ok();
        let entry = state.process(device)?.find(library, &name);
        let entry = entry.or_else(|error| refuse(ACL_ERROR_RT_KERNEL_LOOKUP, error))?;
        let handle = state.handle();
        state.functions.insert(handle, Function { binary: binary as usize, entry, typed });
        // SAFETY: not null; the caller provides a place for one handle.
        unsafe { function.write(handle as aclrtFuncHandle) };
        Ok(())
    })
}

/// The limit among the attributes of a launch.
fn limit(config: *const aclrtLaunchKernelCfg) -> Result<Option<Duration>, Refusal> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: not null; the caller provides a valid struct.
    let config = unsafe { *config };
    ensure(!config.attrs.is_null() && config.numAttrs > 0, ACL_ERROR_INVALID_PARAM, "no attributes")?;
    let mut limits = Vec::new();
    for index in 0..config.numAttrs {
        // SAFETY: the caller provides as many attributes as it says.
        let attribute = unsafe { *config.attrs.add(index) };
        match attribute.id {
            ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT => {
                // SAFETY: the id says which member counts.
                limits.push(Duration::from_secs(unsafe { attribute.value.timeout }.into()));
            }
            ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT_US => {
                // SAFETY: as above.
                let time = unsafe { attribute.value.timeoutUs };
                let micros = u64::from(time.timeoutHigh) << 32 | u64::from(time.timeoutLow);
                limits.push(Duration::from_micros(micros));
            }
            ACL_RT_LAUNCH_KERNEL_ATTR_SCHEM_MODE
            | ACL_RT_LAUNCH_KERNEL_ATTR_ENGINE_TYPE
            | ACL_RT_LAUNCH_KERNEL_ATTR_BLOCKDIM_OFFSET => {}
            _ => return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown launch attribute"),
        }
    }
    ensure(
        limits.len() <= 1,
        ACL_ERROR_RT_PARAM_INVALID,
        "TIMEOUT and TIMEOUT_US cannot be carried at the same time",
    )?;
    Ok(limits.pop())
}

/// The number of blocks is 16 bits wide in a task of the device.
const MAX_BLOCKS: u32 = 65_535;

/// What both kinds of launch check first.
fn check_launch(state: &State, blocks: u32, size: usize, stream: aclrtStream) -> Answer {
    ensure(
        size > 0 && size.is_multiple_of(8),
        ACL_ERROR_INVALID_PARAM,
        "the arguments are not a block of 64-bit words",
    )?;
    ensure(
        (1..=MAX_BLOCKS).contains(&blocks),
        ACL_ERROR_RT_PARAM_INVALID,
        "the number of blocks is not one of 1 to 65535",
    )?;
    let device = state.device()?;
    state.healthy(device)?;
    ensure(state.streams.contains_key(&(stream as usize)), ACL_ERROR_RT_PARAM_INVALID, "unknown stream")
}

fn start(
    state: &mut State,
    function: aclrtFuncHandle,
    blocks: u32,
    words: &[u64],
    stream: aclrtStream,
    limit: Option<Duration>,
) -> Answer {
    let device = state.device()?;
    let Some(function) = state.functions.get(&(function as usize)) else {
        return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown kernel");
    };
    ensure(
        function.typed,
        ACL_ERROR_RT_AICORE_EXCEPTION,
        "the object has no kernel type and was loaded without a magic number, so it is taken for a cube kernel on A2/A3",
    )?;
    let entry = function.entry;
    let Ok(running) = state.process(device)?.run(entry, blocks, words, limit) else {
        return fail(state, device, Ended::Crashed);
    };
    if let Some(stream) = state.streams.get_mut(&(stream as usize)) {
        stream.running = Some(Arc::new(running));
    }
    Ok(())
}

/// Waits for what runs on a stream, without the state's lock: a kernel may wait long for a peer.
pub(crate) fn finish(stream: aclrtStream) -> Answer {
    let of_stream = |state: &mut State| {
        let stream = state.streams.get(&(stream as usize))?;
        let awaited = stream.waits.iter().flat_map(|(_, kernels)| kernels);
        Some((stream.device, stream.running.iter().chain(awaited).cloned().collect::<Vec<_>>()))
    };
    let Some((device, kernels)) = with_state(of_stream).flatten() else { return Ok(()) };
    let failed = kernels.iter().map(|kernel| kernel.wait()).find(|ended| *ended != Ended::Returned);
    with_state(|state| {
        if let Some(stream) = state.streams.get_mut(&(stream as usize)) {
            stream.running = None;
            stream.waits.clear();
        }
        failed.map_or(Ok(()), |ended| fail(state, device, ended))
    })
    .unwrap_or(Ok(()))
}

/// A kernel has failed: its device answers with the same code until it is reset.
pub(crate) fn fail(state: &mut State, device: u32, ended: Ended) -> Answer {
    if state.faults.contains_key(&device) {
        // Another stream has learnt it first.
        return state.healthy(device);
    }
    let process = state.processes.remove(&device);
    let (code, reason) = match ended {
        Ended::TooLate => {
            process.map(DeviceProcess::end);
            (ACL_ERROR_RT_AICORE_TIMEOUT, "a kernel ran longer than its launch allows".to_owned())
        }
        _ => {
            let how = process.and_then(|mut process| {
                process.settle();
                process.end()
            });
            let how = how.unwrap_or("an unknown cause".to_owned());
            (ACL_ERROR_RT_AICORE_EXCEPTION, format!("a kernel faulted ({how}); check its addresses"))
        }
    };
    cann_sim::log(&format!("device {device}: {reason}"));
    state.faults.insert(device, Fault { code, reason });
    state.healthy(device)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtLaunchKernelWithHostArgs(
    function: aclrtFuncHandle,
    blocks: u32,
    stream: aclrtStream,
    config: *mut aclrtLaunchKernelCfg,
    host_args: *mut c_void,
    args_size: usize,
    place_holders: *mut aclrtPlaceHolderInfo,
    place_holder_count: usize,
) -> aclError {
    const NAME: &str = "aclrtLaunchKernelWithHostArgs";
    let mut words = Vec::new();
    let mut allowed = None;
    let code = call(NAME, |state| {
        ensure(!host_args.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        ensure(
            place_holders.is_null() && place_holder_count == 0,
            ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
            "the double has no place holders",
        )?;
        check_launch(state, blocks, args_size, stream)?;
        allowed = limit(config)?;
        state.host_memory(host_args as usize, args_size)?;
        words = vec![0_u64; args_size / 8];
        // SAFETY: not null and not device memory; the caller provides `args_size` bytes, and `words` has as many.
        unsafe {
            std::ptr::copy_nonoverlapping(host_args.cast(), words.as_mut_ptr().cast::<u8>(), args_size)
        };
        Ok(())
    });
    if code != ACL_SUCCESS {
        return code;
    }
    launch(NAME, function, blocks, &words, stream, allowed)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtLaunchKernel(
    function: aclrtFuncHandle,
    blocks: u32,
    args: *const c_void,
    args_size: usize,
    stream: aclrtStream,
) -> aclError {
    const NAME: &str = "aclrtLaunchKernel";
    let mut words = Vec::new();
    let code = call(NAME, |state| {
        check_launch(state, blocks, args_size, stream)?;
        let Ok(place) = state.locate(args as usize, args_size) else {
            return refuse(
                ACL_ERROR_RT_PARAM_INVALID,
                "the argument block is not device memory; a block in host memory needs aclrtLaunchKernelWithHostArgs",
            );
        };
        let mut bytes = vec![0; args_size];
        place.view.read(place.offset, &mut bytes);
        words.extend(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(std::array::from_fn(|i| word[i]))));
        Ok(())
    });
    if code != ACL_SUCCESS {
        return code;
    }
    launch(NAME, function, blocks, &words, stream, None)
}

/// Starts a kernel after what runs on its stream already.
fn launch(
    name: &'static str,
    function: aclrtFuncHandle,
    blocks: u32,
    words: &[u64],
    stream: aclrtStream,
    limit: Option<Duration>,
) -> aclError {
    let started = finish(stream).and_then(|()| {
        with_state(|state| start(state, function, blocks, words, stream, limit)).unwrap_or(Ok(()))
    });
    answer(name, started)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtBinaryUnLoad(binary: aclrtBinHandle) -> aclError {
    call("aclrtBinaryUnLoad", |state| {
        let Some(found) = state.binaries.remove(&(binary as usize)) else {
            return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown binary");
        };
        state.functions.retain(|_, function| function.binary != binary as usize);
        // Without its process there is nothing to unload.
        if let Some(process) = state.processes.get_mut(&found.device) {
            let _ = process.unload(found.library);
        }
        state.attachment.destroyed(Kind::Binary);
        Ok(())
    })
}
