//! Argument lists of C++ orchestrations as [`TaskArgs`].
//!
//! # Safety
//! An orchestration passes addresses. They are followed once, while it waits for the call to return; what is found there
//! is copied, and the copy is checked. An address that points nowhere is beyond any check.
#![allow(unsafe_code)]

use super::shim;
use crate::args::{Compare, Predicate, TaskArgs, TensorArg};
use crate::error::{ArgumentError, RuntimeError};
use crate::task::{KernelId, Kernels, TaskId};
use crate::tensor::Create;
use bytemuck::{Pod, Zeroable};
use comm_context::abi::orchestration::{self as abi, Comparison, Launch, TensorTag};
use comm_context::abi::{AbiError, DType, DeviceAddr, TENSOR_MAX_DIMS, TensorDesc};
use std::ffi::c_void;
use std::mem::offset_of;

/// More dependencies than a graph has slots are a mistake.
const MOST_DEPENDENCIES: u32 = 1 << 24;

/// Which of the two layouts an argument list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    /// [`abi::TaskArgs`].
    Ring,
    /// [`abi::PrebuiltTaskArgs`].
    Prebuilt,
}

fn malformed(what: impl Into<String>) -> RuntimeError {
    ArgumentError::Malformed(what.into()).into()
}

/// A copy of the value at an address; `None` for null.
///
/// # Safety
/// Null, or the address of such a value, aligned or not.
unsafe fn copy<T: Pod>(at: u64) -> Option<T> {
    let at = at as *const T;
    // SAFETY: not null, and a `T` as the caller promises; any bytes are one.
    (!at.is_null()).then(|| unsafe { at.read_unaligned() })
}

/// Reads the argument list at `list` into `args`, which keeps what it has of waits and signals.
///
/// # Safety
/// `list` is null or the address of an argument list of this flavour, with valid addresses in it.
pub(super) unsafe fn task_args(
    list: *const c_void,
    flavour: Flavour,
    args: &mut TaskArgs,
) -> Result<(), RuntimeError> {
    // The two agree up to what follows the launch.
    const HEAD: usize = offset_of!(abi::TaskArgs, dump);
    const { assert!(HEAD == offset_of!(abi::PrebuiltTaskArgs, dump)) };
    if list.is_null() {
        return Err(malformed("there is no argument list (null); pass the address of an OrchTaskArgs"));
    }
    let mut head = abi::TaskArgs::zeroed();
    // SAFETY: a list of either flavour starts with so many bytes of these fields.
    unsafe {
        std::ptr::copy_nonoverlapping(list.cast(), bytemuck::bytes_of_mut(&mut head).as_mut_ptr(), HEAD)
    };
    let launch = head.launch;
    if launch.has_error != 0 {
        // SAFETY: the text of an argument list is null or a NUL-terminated literal.
        let text = unsafe { shim::owned(launch.error_text as *const _) };
        return Err(malformed(if text.is_empty() {
            "the argument list is marked as invalid without a reason; check the calls that filled it".into()
        } else {
            text
        }));
    }
    let tensors = count(launch.tensor_count, abi::TASK_TENSORS, "tensors")?;
    let scalars = count(launch.scalar_count, abi::TASK_SCALARS, "scalars")?;
    for index in 0..tensors {
        // SAFETY: the first so many are addresses of what their tags say.
        args.push(unsafe { tensor_arg(index, head.tags[index], head.tensors[index])? });
    }
    args.scalars.extend(&head.scalars[..scalars]);
    args.blocks = u32::try_from(launch.block_num).unwrap_or(0);
    args.sync_start = launch.sync_start != 0;
    // SAFETY: its tensor is null or the address of a descriptor.
    args.predicate = unsafe { predicate(&launch)? };

    let (dependencies, kinds, number) = match flavour {
        // SAFETY: a list of this flavour has these fields.
        Flavour::Ring => unsafe {
            let list = list.cast::<abi::TaskArgs>();
            (
                (&raw const (*list).dependencies).read_unaligned(),
                (&raw const (*list).dependency_kinds).read_unaligned(),
                (&raw const (*list).dependency_count).read_unaligned(),
            )
        },
        // SAFETY: as above.
        Flavour::Prebuilt => unsafe {
            let list = list.cast::<abi::PrebuiltTaskArgs>();
            (
                (&raw const (*list).dependencies).read_unaligned(),
                0,
                (&raw const (*list).dependency_count).read_unaligned(),
            )
        },
    };
    if number > MOST_DEPENDENCIES || (number > 0 && dependencies == 0) {
        return Err(malformed(format!(
            "{number} dependencies at {dependencies:#x} cannot be read; pass the address of an array, and its length"
        )));
    }
    for index in 0..u64::from(number) {
        // SAFETY: so many ids are there.
        let id = unsafe { copy::<u64>(dependencies + 8 * index) }.unwrap_or(u64::MAX);
        // SAFETY: null, or so many bytes.
        let kind = if kinds == 0 { None } else { unsafe { copy::<u8>(kinds + index) } };
        let kind = kind.unwrap_or(abi::DEPENDENCY_WAIT);
        if kind == 0 || kind & !(abi::DEPENDENCY_WAIT | abi::DEPENDENCY_RETAIN) != 0 {
            return Err(malformed(format!(
                "dependency {index} is of the unknown kind {kind}; use an OrchDependency"
            )));
        }
        if kind & abi::DEPENDENCY_WAIT != 0 {
            args.after.push(TaskId(id));
        }
        if kind & abi::DEPENDENCY_RETAIN != 0 {
            args.retained.push(TaskId(id));
        }
    }
    Ok(())
}

fn count(count: i32, most: usize, what: &'static str) -> Result<usize, RuntimeError> {
    let given = usize::try_from(count).unwrap_or(usize::MAX);
    if given > most {
        return Err(ArgumentError::TooMany { what, most, given }.into());
    }
    Ok(given)
}

/// # Safety
/// `at` is null or the address of what `tag` says.
unsafe fn tensor_arg(index: usize, tag: i32, at: u64) -> Result<TensorArg, RuntimeError> {
    let tag = TensorTag::from_code(tag)
        .ok_or_else(|| malformed(format!("tensor {index} has the unknown tag {tag}; use an OrchTag")))?;
    if tag == TensorTag::Output {
        // SAFETY: a description of a tensor, or null.
        let info = unsafe { copy::<abi::CreateInfo>(at) };
        return Ok(TensorArg::Output(create(index, info)?));
    }
    // SAFETY: a descriptor, or null.
    let desc = unsafe { tensor(index, at)? };
    Ok(match tag {
        TensorTag::Input => TensorArg::Input(desc),
        TensorTag::InOut => TensorArg::InOut(desc),
        TensorTag::OutputExisting => TensorArg::OutputExisting(desc),
        TensorTag::NoDependency | TensorTag::Output => TensorArg::NoDep(desc),
    })
}

fn create(index: usize, info: Option<abi::CreateInfo>) -> Result<Create, RuntimeError> {
    let wrong = |source| RuntimeError::from(ArgumentError::Tensor { index, source });
    let info = info.ok_or_else(|| wrong(AbiError::Null { what: "the description of the tensor" }))?;
    let ndims = info.ndims as usize;
    let shape = info.shapes.get(..ndims).ok_or_else(|| wrong(AbiError::Dims { ndims, strides: ndims }))?;
    let dtype = DType::from_code(info.dtype).map_err(wrong)?;
    Ok(Create {
        initial: (info.has_initial != 0).then_some(info.initial),
        manual_dep: u8::from(info.manual_dep != 0),
        version: info.version,
        ..Create::new(dtype, shape)
    })
}

/// The descriptor at an address, with what follows from its shape and strides made anew.
///
/// # Safety
/// Null, or the address of a descriptor.
pub(super) unsafe fn tensor(index: usize, at: u64) -> Result<TensorDesc, RuntimeError> {
    let wrong = |source| RuntimeError::from(ArgumentError::Tensor { index, source });
    // SAFETY: as the caller promises.
    let found = unsafe { copy::<TensorDesc>(at) };
    let found = found.ok_or_else(|| wrong(AbiError::Null { what: "the descriptor of the tensor" }))?;
    let shape = found.shape().map_err(wrong)?;
    let dtype = found.dtype().map_err(wrong)?;
    let builder = TensorDesc::builder(DeviceAddr(found.addr), found.size, dtype, shape)
        .strides(&found.strides[..shape.len()])
        .start_offset(found.start_offset)
        .owner(found.owner_task_id)
        .version(found.version);
    let builder = if found.manual_dep != 0 { builder.manual_dependencies() } else { builder };
    builder.build().map_err(wrong)
}

/// # Safety
/// The tensor of the predicate is null or the address of a descriptor.
unsafe fn predicate(launch: &Launch) -> Result<Option<Predicate>, RuntimeError> {
    let given = &launch.predicate;
    let compare = match Comparison::from_code(given.op) {
        Some(Comparison::None) => return Ok(None),
        Some(Comparison::Eq) => Compare::Eq,
        Some(Comparison::Ne) => Compare::Ne,
        Some(Comparison::Gt) => Compare::Gt,
        Some(Comparison::Lt) => Compare::Lt,
        Some(Comparison::Ge) => Compare::Ge,
        Some(Comparison::Le) => Compare::Le,
        None => {
            return Err(malformed(format!("the predicate compares by {}; use an OrchComparison", given.op)));
        }
    };
    let ndims = given.ndims as usize;
    if ndims > TENSOR_MAX_DIMS {
        return Err(malformed(format!(
            "the predicate has {ndims} indices; pass one for each dimension, at most {TENSOR_MAX_DIMS}"
        )));
    }
    // SAFETY: as the caller promises.
    let tensor = unsafe { tensor(0, given.tensor)? };
    Ok(Some(Predicate { tensor, ndims, index: given.indices, compare, target: given.target }))
}

/// # Safety
/// Null, or the address of the kernels of a task.
pub(super) unsafe fn kernels(at: *const abi::KernelIds) -> Result<Kernels, RuntimeError> {
    // SAFETY: as the caller promises.
    let ids = unsafe { copy::<abi::KernelIds>(at as u64) };
    let ids =
        ids.ok_or_else(|| malformed("there are no kernels (null); pass the address of an OrchKernelIds"))?;
    let kernel = |id: i32| (id != -1).then_some(KernelId(id as u32));
    Ok(Kernels { aic: kernel(ids.aic), aiv0: kernel(ids.aiv0), aiv1: kernel(ids.aiv1) })
}

/// The indices of an element.
///
/// # Safety
/// `at` is null or the address of `ndims` numbers.
pub(super) unsafe fn indices(ndims: u32, at: *const u32) -> Result<[u32; TENSOR_MAX_DIMS], RuntimeError> {
    if ndims as usize > TENSOR_MAX_DIMS || (ndims > 0 && at.is_null()) {
        return Err(malformed(format!(
            "{ndims} indices; pass one for each dimension, at most {TENSOR_MAX_DIMS}"
        )));
    }
    let mut indices = [0; TENSOR_MAX_DIMS];
    for (place, index) in indices[..ndims as usize].iter_mut().enumerate() {
        // SAFETY: so many are there.
        *index = unsafe { at.add(place).read_unaligned() };
    }
    Ok(indices)
}
