//! What every kernel gets beside its own arguments: where it runs, and where it may ask for its task's completion to
//! wait.

use core::mem::{align_of, offset_of, size_of};

use bytemuck::{Pod, Zeroable};
use static_assertions::const_assert_eq;

use super::DeviceAddr;

/// Where a kernel's argument list has the address of its [`LocalContext`]. Tensors and scalars come before, so there
/// are at most so many of them.
pub const KERNEL_LOCAL_CONTEXT_ARG: usize = 48;
/// Where it has the address of its [`GlobalContext`].
pub const KERNEL_GLOBAL_CONTEXT_ARG: usize = 49;
/// How many entries an argument list has.
pub const KERNEL_ARGS: usize = 50;
/// On a chip, how many words after the argument list of a block that of the next one starts. Whole cache lines: cores do
/// not see each other's caches.
pub const KERNEL_ARGS_STRIDE: usize = 56;
/// The most words that the completion of a task can wait for.
pub const KERNEL_COMPLETIONS: usize = 64;

/// The id of no task.
const NO_TASK: u64 = u64::MAX;

/// A word that the completion of a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CompletionEntry {
    /// Where the word is, a `u32` in device memory.
    pub address: u64,
    /// The kernel's own.
    pub cookie: u64,
    /// The value that the word must reach.
    pub expected: u32,
    /// What writes the word.
    pub engine: u32,
    /// `type`: 0, a counter that reaches `expected`.
    pub kind: i32,
    /// Zero.
    pub reserved: u32,
}

const_assert_eq!(size_of::<CompletionEntry>(), 32);
const_assert_eq!(align_of::<CompletionEntry>(), 8);
const_assert_eq!(offset_of!(CompletionEntry, address), 0);
const_assert_eq!(offset_of!(CompletionEntry, cookie), 8);
const_assert_eq!(offset_of!(CompletionEntry, expected), 16);
const_assert_eq!(offset_of!(CompletionEntry, engine), 20);
const_assert_eq!(offset_of!(CompletionEntry, kind), 24);
const_assert_eq!(offset_of!(CompletionEntry, reserved), 28);

/// Where a kernel asks for the completion of its task to wait for words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CompletionSlab {
    /// How many entries the kernel wrote. Zero when it starts.
    pub count: u32,
    /// Not zero: the kernel failed. Zero when it starts.
    pub error: i32,
    /// The words to wait for.
    pub entries: [CompletionEntry; KERNEL_COMPLETIONS],
    /// Zero.
    pub reserved: [u8; 56],
}

const_assert_eq!(size_of::<CompletionSlab>(), 2112);
const_assert_eq!(align_of::<CompletionSlab>(), 8);
const_assert_eq!(offset_of!(CompletionSlab, count), 0);
const_assert_eq!(offset_of!(CompletionSlab, error), 4);
const_assert_eq!(offset_of!(CompletionSlab, entries), 8);
const_assert_eq!(offset_of!(CompletionSlab, reserved), 2056);

impl CompletionSlab {
    /// "failtext" in ASCII: the first word of the entries when they are a text instead.
    pub const TEXT_MAGIC: u64 = u64::from_le_bytes(*b"failtext");

    /// What a kernel that failed says to people, if it left a text where its entries would be (`chip::fail_task`). Any
    /// bytes may stand there.
    #[cfg(feature = "std")]
    pub fn failure_text(entries: &[CompletionEntry; KERNEL_COMPLETIONS]) -> Option<String> {
        let bytes = bytemuck::bytes_of(entries).strip_prefix(&Self::TEXT_MAGIC.to_le_bytes())?;
        let text = String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next()?);
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        (!text.is_empty()).then_some(text)
    }
}

/// Where a kernel runs: its block of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct LocalContext {
    /// This block, from 0.
    pub block_idx: i32,
    /// How many blocks the launch has.
    pub block_num: i32,
    /// Where the slab's count is.
    pub completion_count: u64,
    /// Where the slab's error is.
    pub completion_error: u64,
    /// Where the slab's entries start.
    pub completion_entries: u64,
    /// How many entries there are.
    pub completion_capacity: u32,
    /// Zero.
    pub reserved: u32,
    /// The id of the task; all ones: none.
    pub task: u64,
}

const_assert_eq!(size_of::<LocalContext>(), 48);
const_assert_eq!(align_of::<LocalContext>(), 8);
const_assert_eq!(offset_of!(LocalContext, block_idx), 0);
const_assert_eq!(offset_of!(LocalContext, block_num), 4);
const_assert_eq!(offset_of!(LocalContext, completion_count), 8);
const_assert_eq!(offset_of!(LocalContext, completion_error), 16);
const_assert_eq!(offset_of!(LocalContext, completion_entries), 24);
const_assert_eq!(offset_of!(LocalContext, completion_capacity), 32);
const_assert_eq!(offset_of!(LocalContext, reserved), 36);
const_assert_eq!(offset_of!(LocalContext, task), 40);

/// Which core of a cluster runs the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct GlobalContext {
    /// 0 or 1; 0 where a cluster has one core.
    pub sub_block_id: i32,
    /// Zero.
    pub reserved: u32,
    /// Zero.
    pub words: [u64; 2],
}

const_assert_eq!(size_of::<GlobalContext>(), 24);
const_assert_eq!(align_of::<GlobalContext>(), 8);
const_assert_eq!(offset_of!(GlobalContext, sub_block_id), 0);
const_assert_eq!(offset_of!(GlobalContext, reserved), 4);
const_assert_eq!(offset_of!(GlobalContext, words), 8);

/// Breaks the build when a field is added without a line above.
const _: fn(CompletionEntry, CompletionSlab, LocalContext, GlobalContext) = |entry, slab, local, global| {
    let CompletionEntry { address: _, cookie: _, expected: _, engine: _, kind: _, reserved: _ } = entry;
    let CompletionSlab { count: _, error: _, entries: _, reserved: _ } = slab;
    let LocalContext {
        block_idx: _,
        block_num: _,
        completion_count: _,
        completion_error: _,
        completion_entries: _,
        completion_capacity: _,
        reserved: _,
        task: _,
    } = local;
    let GlobalContext { sub_block_id: _, reserved: _, words: _ } = global;
};

/// All that a launch places for its kernel, in one piece at a multiple of 64. How the parts follow each other is ours;
/// kernels get their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct KernelContexts {
    /// Where the kernel asks for its completion to wait.
    pub slab: CompletionSlab,
    /// Where it runs.
    pub local: LocalContext,
    /// Which core runs it.
    pub global: GlobalContext,
}

impl KernelContexts {
    /// What block `block_idx` of `block_num` gets when this value is placed at `at`.
    pub fn of_block(at: DeviceAddr, block_idx: u32, block_num: u32) -> Self {
        let slab = at.0 + offset_of!(Self, slab) as u64;
        let local = LocalContext {
            block_idx: block_idx as i32,
            block_num: block_num as i32,
            completion_count: slab + offset_of!(CompletionSlab, count) as u64,
            completion_error: slab + offset_of!(CompletionSlab, error) as u64,
            completion_entries: slab + offset_of!(CompletionSlab, entries) as u64,
            completion_capacity: KERNEL_COMPLETIONS as u32,
            reserved: 0,
            task: NO_TASK,
        };
        Self { slab: CompletionSlab::zeroed(), local, global: GlobalContext::zeroed() }
    }

    /// The two last entries of the argument list when the value is placed at `at`.
    pub fn arguments(at: DeviceAddr) -> [u64; KERNEL_ARGS - KERNEL_LOCAL_CONTEXT_ARG] {
        [at.0 + offset_of!(Self, local) as u64, at.0 + offset_of!(Self, global) as u64]
    }

    /// The bytes as kernels read them.
    pub fn as_bytes(&self) -> &[u8] {
        bytemuck::bytes_of(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stands_where_the_entries_would_be_and_is_made_harmless() {
        let text = |bytes: &[u8]| {
            let mut entries = [CompletionEntry::zeroed(); KERNEL_COMPLETIONS];
            bytemuck::bytes_of_mut(&mut entries)[..bytes.len()].copy_from_slice(bytes);
            CompletionSlab::failure_text(&entries)
        };
        assert_eq!(text(b"failtextno room\0left over").as_deref(), Some("no room"));
        assert_eq!(text("failtext2 × 3\u{1b}[1m\n".as_bytes()).as_deref(), Some("2 × 3[1m"));
        assert_eq!(text(b"failtext\xffx").as_deref(), Some("\u{fffd}x"));
        // To the end, without a 0.
        let full = [b"failtext".as_slice(), &[b'x'; 2040]].concat();
        assert_eq!(text(&full).map(|text| text.len()), Some(2040));
        // None, or entries.
        assert_eq!((text(b"failtext"), text(b"failtexu"), text(&[])), (None, None, None));
    }
}
