//! What an orchestration object and the runtime that calls it exchange, as of `pto2-2026-08`.
//!
//! Addresses are 64-bit numbers, so that the structs are plain old data. Nothing in an object says for which version
//! it was compiled: the caller has to know ([`VERSION`]).

use core::mem::{align_of, offset_of, size_of};

use bytemuck::{Pod, Zeroable};
use static_assertions::const_assert_eq;

use super::TENSOR_MAX_DIMS;

/// The version of the layouts in this module. A caller names it, and any other name is refused.
pub const VERSION: &str = "pto2-2026-08";

/// The entry of an orchestration object, unless the caller names another: `void(const EntryArgs *)`.
pub const ENTRY_SYMBOL: &str = "aicpu_orchestration_entry";
/// A function that may say how many arguments the entry expects: `int(const EntryArgs *)`.
pub const CONFIG_SYMBOL: &str = "aicpu_orchestration_config";
/// The function that gets the address of the [`RuntimeHandle`], and null when the run is over.
pub const BIND_SYMBOL: &str = "framework_bind_runtime";
/// What a kernel object may export, to be called after it is loaded with the functions of the simulation.
pub const HOOKS_SYMBOL: &str = "pto_sim_register_hooks";

/// The most tensors and the most scalars of a task.
pub const TASK_TENSORS: usize = 32;
/// See [`TASK_TENSORS`].
pub const TASK_SCALARS: usize = 16;
/// The most tensors and the most scalars of an entry.
pub const ENTRY_TENSORS: usize = 256;
/// See [`ENTRY_TENSORS`].
pub const ENTRY_SCALARS: usize = 128;

/// How many functions the table of a runtime has.
pub const OPS: usize = 18;
/// How many it has for graphs that are built before they start.
pub const PREBUILT_OPS: usize = 23;
/// Bit of a dependency's kind: the task starts when the other has completed.
pub const DEPENDENCY_WAIT: u8 = 1;
/// Bit of a dependency's kind: the tensors that the other made stay until the task has completed.
pub const DEPENDENCY_RETAIN: u8 = 2;
/// The functions beyond those of upstream, behind the size of their table and whether it is of the prebuilt flavour. Later
/// versions append.
pub const EXTENSION_OPS: usize = 7;

/// How a task uses a tensor. The numbers are those of the `tags` of an argument list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum TensorTag {
    /// The task reads it.
    Input = 0,
    /// The runtime makes it; the address is that of a [`CreateInfo`].
    Output = 1,
    /// The task reads and writes it.
    InOut = 2,
    /// The task writes it.
    OutputExisting = 3,
    /// The task uses it, and no order follows from that.
    NoDependency = 4,
}

impl TensorTag {
    /// Every tag, in the order of the numbers.
    pub const ALL: [Self; 5] =
        [Self::Input, Self::Output, Self::InOut, Self::OutputExisting, Self::NoDependency];

    /// The tag of a number, if there is one.
    pub fn from_code(code: i32) -> Option<Self> {
        usize::try_from(code).ok().and_then(|at| Self::ALL.get(at)).copied()
    }
}

/// How the element of a predicate is compared with its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Comparison {
    /// There is no predicate.
    None = 0,
    /// Equal.
    Eq = 1,
    /// Not equal.
    Ne = 2,
    /// Greater.
    Gt = 3,
    /// Less.
    Lt = 4,
    /// Greater or equal.
    Ge = 5,
    /// Less or equal.
    Le = 6,
}

impl Comparison {
    /// Every comparison, in the order of the numbers.
    pub const ALL: [Self; 7] = [Self::None, Self::Eq, Self::Ne, Self::Gt, Self::Lt, Self::Ge, Self::Le];

    /// The comparison of a number, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Whether a task runs: an element of a tensor, compared when the task is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Predicate {
    /// Address of the tensor's descriptor.
    pub tensor: u64,
    /// How many indices are used.
    pub ndims: u32,
    /// Which element.
    pub indices: [u32; TENSOR_MAX_DIMS],
    /// The number of the [`Comparison`].
    pub op: u8,
    /// Unused.
    pub reserved: [u8; 7],
    /// What the element is compared with.
    pub target: i64,
}

/// What argument lists have after their tensors and scalars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Launch {
    /// How many tensors there are.
    pub tensor_count: i32,
    /// How many scalars there are.
    pub scalar_count: i32,
    /// Not 0: the list could not be made.
    pub has_error: u8,
    /// Unused.
    pub reserved0: [u8; 7],
    /// Address of a text that says why.
    pub error_text: u64,
    /// How many blocks the task has.
    pub block_num: i16,
    /// Not 0: all blocks start at once.
    pub sync_start: u8,
    /// Unused.
    pub reserved1: u8,
    /// Not 0: a task that depends on this one may be prepared early. A hint.
    pub early: u8,
    /// Unused.
    pub reserved2: [u8; 3],
    /// Whether the task runs.
    pub predicate: Predicate,
    /// A hint for tracing.
    pub timing: i32,
    /// Unused.
    pub reserved3: u32,
}

/// The argument list of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TaskArgs {
    /// The numbers of the [`TensorTag`]s.
    pub tags: [i32; TASK_TENSORS],
    /// Addresses of descriptors, and of [`CreateInfo`]s where the tag says so.
    pub tensors: [u64; TASK_TENSORS],
    /// The scalars, bit for bit.
    pub scalars: [u64; TASK_SCALARS],
    /// Counts, blocks, predicate.
    pub launch: Launch,
    /// Which arguments to write to a file; not supported.
    pub dump: [u8; 160],
    /// Address of the ids of tasks that come first.
    pub dependencies: u64,
    /// Address of a byte for each of them; null: all are waited for.
    pub dependency_kinds: u64,
    /// How many there are.
    pub dependency_count: u32,
    /// Unused.
    pub reserved: u32,
}

/// The argument list of a task of a graph that is built before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct PrebuiltTaskArgs {
    /// The numbers of the [`TensorTag`]s.
    pub tags: [i32; TASK_TENSORS],
    /// Addresses of descriptors, and of [`CreateInfo`]s where the tag says so.
    pub tensors: [u64; TASK_TENSORS],
    /// The scalars, bit for bit.
    pub scalars: [u64; TASK_SCALARS],
    /// Counts, blocks, predicate.
    pub launch: Launch,
    /// Which arguments to write to a file; not supported.
    pub dump: [u8; 304],
    /// Address of the ids of tasks that come first.
    pub dependencies: u64,
    /// How many there are.
    pub dependency_count: u32,
    /// Unused.
    pub reserved: u32,
}

/// The arguments of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct EntryArgs {
    /// The numbers of the [`TensorTag`]s.
    pub tags: [i32; ENTRY_TENSORS],
    /// Addresses of descriptors.
    pub tensors: [u64; ENTRY_TENSORS],
    /// The scalars, bit for bit.
    pub scalars: [u64; ENTRY_SCALARS],
    /// Counts; the rest is unused.
    pub launch: Launch,
    /// Unused.
    pub dump: [u8; 160],
    /// Unused.
    pub dependencies: u64,
    /// Unused.
    pub dependency_kinds: u64,
    /// Unused.
    pub dependency_count: u32,
    /// Unused.
    pub reserved: u32,
}

/// A tensor that the runtime is to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CreateInfo {
    /// The bits of the value that every element starts with.
    pub initial: u64,
    /// Not 0: there is such a value.
    pub has_initial: u8,
    /// Unused.
    pub reserved0: [u8; 23],
    /// The version of the contents.
    pub version: i32,
    /// How many dimensions are used.
    pub ndims: u32,
    /// The number of the data type.
    pub dtype: u8,
    /// 1 when the dependencies are declared by the caller, not derived.
    pub manual_dep: u8,
    /// 1: what is made is always contiguous.
    pub is_contiguous: u8,
    /// Unused.
    pub reserved1: u8,
    /// How many elements each dimension has.
    pub shapes: [u32; TENSOR_MAX_DIMS],
}

/// What submitting a task returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TaskOutputs {
    /// The id of the task; all ones: none.
    pub task_id: u64,
    /// How many tensors were made.
    pub count: u32,
    /// Unused.
    pub reserved: u32,
    /// Addresses of their descriptors, which stay where they are until the scope ends.
    pub tensors: [u64; TASK_TENSORS],
}

/// The kernels of a task; -1 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct KernelIds {
    /// On the matrix core.
    pub aic: i32,
    /// On the first vector core.
    pub aiv0: i32,
    /// On the second vector core.
    pub aiv1: i32,
}

/// A runtime as an orchestration sees it, followed by what only headers of this workspace know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RuntimeHandle {
    /// Address of the table of functions.
    pub ops: u64,
    /// The mode of the next scope: 0 dependencies are inferred, 1 they are not.
    pub pending_scope_mode: u8,
    /// Unused.
    pub reserved: [u8; 7],
    /// [`EXTENSION_MAGIC`] where `extension` is set.
    pub magic: u64,
    /// Address of the table of the functions beyond those of upstream.
    pub extension: u64,
}

/// What [`RuntimeHandle::magic`] has where there are functions beyond those of upstream: "chiprun1" in ASCII, first
/// character in the lowest byte.
pub const EXTENSION_MAGIC: u64 = u64::from_le_bytes(*b"chiprun1");

/// A word that a task waits for before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct WaitSpec {
    /// Where it is in this rank's window, in bytes.
    pub offset: u64,
    /// The domain of the window; 0 is the base communicator.
    pub domain: u32,
    /// What it must reach.
    pub value: u32,
    /// The rank whose tasks signal it; -1: a kernel, the host, or not known.
    pub signaller: i32,
    /// Unused.
    pub reserved: u32,
}

/// A word that is raised when a task has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SignalSpec {
    /// Where it is in the rank's window, in bytes.
    pub offset: u64,
    /// The domain of the window; 0 is the base communicator.
    pub domain: u32,
    /// The rank in the domain.
    pub rank: u32,
    /// What is added or stored.
    pub value: u32,
    /// 0: `value` is added, 1: it is stored.
    pub set: u32,
}

macro_rules! pin {
    ($($type:ident: $size:literal, $align:literal { $($field:ident $offset:literal),+ $(,)? })+) => {$(
        const_assert_eq!(size_of::<$type>(), $size);
        const_assert_eq!(align_of::<$type>(), $align);
        $(const_assert_eq!(offset_of!($type, $field), $offset);)+
        // Breaks the build when a field is added without a line below.
        const _: fn($type) = |value| {
            let $type { $($field: _),+ } = value;
        };
    )+};
}

pin! {
    Predicate: 48, 8 { tensor 0, ndims 8, indices 12, op 32, reserved 33, target 40 }
    Launch: 88, 8 {
        tensor_count 0, scalar_count 4, has_error 8, reserved0 9, error_text 16, block_num 24, sync_start 26,
        reserved1 27, early 28, reserved2 29, predicate 32, timing 80, reserved3 84,
    }
    TaskArgs: 784, 8 {
        tags 0, tensors 128, scalars 384, launch 512, dump 600, dependencies 760, dependency_kinds 768,
        dependency_count 776, reserved 780,
    }
    PrebuiltTaskArgs: 920, 8 {
        tags 0, tensors 128, scalars 384, launch 512, dump 600, dependencies 904, dependency_count 912,
        reserved 916,
    }
    EntryArgs: 4368, 8 {
        tags 0, tensors 1024, scalars 3072, launch 4096, dump 4184, dependencies 4344, dependency_kinds 4352,
        dependency_count 4360, reserved 4364,
    }
    CreateInfo: 64, 8 {
        initial 0, has_initial 8, reserved0 9, version 32, ndims 36, dtype 40, manual_dep 41, is_contiguous 42,
        reserved1 43, shapes 44,
    }
    TaskOutputs: 272, 8 { task_id 0, count 8, reserved 12, tensors 16 }
    WaitSpec: 24, 8 { offset 0, domain 8, value 12, signaller 16, reserved 20 }
    SignalSpec: 24, 8 { offset 0, domain 8, rank 12, value 16, set 20 }
    KernelIds: 12, 4 { aic 0, aiv0 4, aiv1 8 }
    RuntimeHandle: 32, 8 { ops 0, pending_scope_mode 8, reserved 9, magic 16, extension 24 }
}

#[cfg(test)]
mod tests {
    use super::*;

    // CC-7
    #[test]
    fn every_tag_and_comparison_survives_its_number_and_every_other_number_is_refused() {
        for code in -1..300 {
            let known = (0..5).contains(&code);
            assert_eq!(TensorTag::from_code(code).map(|tag| tag as i32), known.then_some(code));
        }
        for code in 0..=u8::MAX {
            assert_eq!(Comparison::from_code(code).map(|op| op as u8), (code < 7).then_some(code));
        }
    }
}
