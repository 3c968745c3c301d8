//! `CommContext`: the group as a kernel sees it.

use core::mem::{align_of, offset_of, size_of};

use bytemuck::{Pod, Zeroable};
use static_assertions::const_assert_eq;

use super::{AbiError, DeviceAddr};

/// The most ranks that a context has room for.
pub const COMM_MAX_RANK_NUM: usize = 64;

/// What a kernel gets: its rank, and the address of every rank's window as this rank reaches it.
///
/// Windows at and beyond `rank_num` are null in contexts built here; readers must not rely on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CommContext {
    /// `workSpace`: null. Reserved for a workspace of the vendor's.
    pub work_space: u64,
    /// `workSpaceSize`: zero.
    pub work_space_size: u64,
    /// `rankId`: this rank.
    pub rank_id: u32,
    /// `rankNum`: how many ranks there are.
    pub rank_num: u32,
    /// `winSize`: the size of every window in bytes.
    pub win_size: u64,
    /// `windowsIn`: where the window of each rank starts.
    pub windows_in: [u64; COMM_MAX_RANK_NUM],
    /// `windowsOut`: the same shape; in the simulation a copy of `windows_in`.
    pub windows_out: [u64; COMM_MAX_RANK_NUM],
}

const_assert_eq!(size_of::<CommContext>(), 1056);
const_assert_eq!(align_of::<CommContext>(), 8);
const_assert_eq!(offset_of!(CommContext, work_space), 0);
const_assert_eq!(offset_of!(CommContext, work_space_size), 8);
const_assert_eq!(offset_of!(CommContext, rank_id), 16);
const_assert_eq!(offset_of!(CommContext, rank_num), 20);
const_assert_eq!(offset_of!(CommContext, win_size), 24);
const_assert_eq!(offset_of!(CommContext, windows_in), 32);
const_assert_eq!(offset_of!(CommContext, windows_out), 544);

/// What follows a [`CommContext`] in memory: where the two words are that kernels read, and the record that they
/// write; and how much of the machine the ranks have. Kernels use none of it if the magic number is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CommContextTail {
    /// [`MAGIC`](Self::MAGIC).
    pub magic: u64,
    /// Where the abort word is, a `u32`: zero while the run goes on. While it is not zero, every `comm_wait` and
    /// barrier of the kernel returns false. It is reset between runs, when no kernel is running.
    pub abort: u64,
    /// Where the generation is, a `u32`: it changes when the abort word is reset. Barriers of kernels start again
    /// with every generation.
    pub generation: u64,
    /// Where this rank's [`CommWait`] is; zero where there is none.
    pub wait: u64,
    /// How many cores all ranks may use at once, the CPU quotas of their cgroups included: kernels of more ranks
    /// yield where they would spin. Zero where it is not known; then kernels count the cores that they may run on.
    pub cores: u64,
}

const_assert_eq!(size_of::<CommContextTail>(), 40);
const_assert_eq!(align_of::<CommContextTail>(), 8);
const_assert_eq!(offset_of!(CommContextTail, magic), 0);
const_assert_eq!(offset_of!(CommContextTail, abort), 8);
const_assert_eq!(offset_of!(CommContextTail, generation), 16);
const_assert_eq!(offset_of!(CommContextTail, wait), 24);
const_assert_eq!(offset_of!(CommContextTail, cores), 32);

impl CommContextTail {
    /// "chipcomm" in ASCII.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"chipcomm");

    /// A tail whose words are at these addresses, without a record of waits and a number of cores.
    pub const fn new(abort: DeviceAddr, generation: DeviceAddr) -> Self {
        Self { magic: Self::MAGIC, abort: abort.0, generation: generation.0, wait: 0, cores: 0 }
    }

    /// The same with the record of this rank's waits at `wait`.
    #[must_use]
    pub const fn with_wait(self, wait: DeviceAddr) -> Self {
        Self { wait: wait.0, ..self }
    }

    /// The same for ranks that may use so many cores at once.
    #[must_use]
    pub const fn with_cores(self, cores: usize) -> Self {
        Self { cores: cores as u64, ..self }
    }
}

/// What a rank's kernel waits for, once a wait has become slow. The kernel writes it, each field on its own; whoever
/// reports why a run takes so long reads it, and may see two waits mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CommWait {
    /// The address of the awaited word; zero while no wait is slow.
    pub word: u64,
    /// The value that ends the wait.
    pub wanted: u64,
    /// The value that was found last.
    pub seen: u64,
    /// The window of the rank that writes the word; zero when any rank may.
    pub writer: u64,
}

impl CommWait {
    /// The record from its bytes, which a kernel may have written as it likes.
    pub fn decode(bytes: [u8; size_of::<Self>()]) -> Self {
        bytemuck::pod_read_unaligned(&bytes)
    }
}

const_assert_eq!(size_of::<CommWait>(), 32);
const_assert_eq!(align_of::<CommWait>(), 8);
const_assert_eq!(offset_of!(CommWait, word), 0);
const_assert_eq!(offset_of!(CommWait, wanted), 8);
const_assert_eq!(offset_of!(CommWait, seen), 16);
const_assert_eq!(offset_of!(CommWait, writer), 24);

/// A context with its tail: what a backend writes where a kernel's context address points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct PlacedContext {
    /// The context.
    pub context: CommContext,
    /// What follows it.
    pub tail: CommContextTail,
}

const_assert_eq!(size_of::<PlacedContext>(), 1096);
const_assert_eq!(offset_of!(PlacedContext, context), 0);
const_assert_eq!(offset_of!(PlacedContext, tail), 1056);

impl PlacedContext {
    /// Reads a context and its tail from bytes of any origin and alignment, and checks the context. Bytes after it
    /// are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, AbiError> {
        let need = size_of::<Self>();
        let bytes =
            bytes.get(..need).ok_or(AbiError::Length { what: "CommContext", need, have: bytes.len() })?;
        let placed: Self = bytemuck::pod_read_unaligned(bytes);
        placed.context.check()?;
        Ok(placed)
    }

    /// The bytes as kernels read them.
    pub fn as_bytes(&self) -> &[u8] {
        bytemuck::bytes_of(self)
    }
}

/// Breaks the build when a field is added without a line above.
const _: fn(PlacedContext) = |placed| {
    let PlacedContext { context, tail } = placed;
    let CommContext {
        work_space: _,
        work_space_size: _,
        rank_id: _,
        rank_num: _,
        win_size: _,
        windows_in: _,
        windows_out: _,
    } = context;
    let CommContextTail { magic: _, abort: _, generation: _, wait: _, cores: _ } = tail;
};

const _: fn(CommWait) = |wait| {
    let CommWait { word: _, wanted: _, seen: _, writer: _ } = wait;
};

impl CommContext {
    /// The context of rank `rank` in a group whose windows, in the order of the ranks, start at `bases`.
    pub fn new(rank: u32, bases: &[DeviceAddr], win_size: u64) -> Result<Self, AbiError> {
        let nranks = u32::try_from(bases.len()).unwrap_or(u32::MAX);
        let mut context = Self { rank_id: rank, rank_num: nranks, win_size, ..Self::zeroed() };
        context.check_ranks()?;
        for (slot, base) in context.windows_in.iter_mut().zip(bases) {
            *slot = base.0;
        }
        context.windows_out = context.windows_in;
        context.check()?;
        Ok(context)
    }

    /// The view that a subset has of the slice `offset..offset + size` of every window: `ranks` in their new
    /// order, of which this rank is number `domain_rank`.
    pub fn subset(&self, ranks: &[u32], domain_rank: u32, offset: u64, size: u64) -> Result<Self, AbiError> {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.win_size);
        if !inside {
            return Err(AbiError::SliceOutside { offset, size, window: self.win_size });
        }
        let mut bases = [DeviceAddr::NULL; COMM_MAX_RANK_NUM];
        let nranks = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        let bases = bases.get_mut(..ranks.len()).ok_or(AbiError::Ranks { rank: domain_rank, nranks })?;
        for (slot, &rank) in bases.iter_mut().zip(ranks) {
            let base = self.window_in(rank)?;
            *slot = base.checked_add(offset).ok_or(AbiError::Window { rank, base, size: self.win_size })?;
        }
        Self::new(domain_rank, bases, size)
    }

    /// Reads a context from bytes of any origin and alignment and checks all of it. Bytes after it are
    /// ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, AbiError> {
        let need = size_of::<Self>();
        let bytes =
            bytes.get(..need).ok_or(AbiError::Length { what: "CommContext", need, have: bytes.len() })?;
        let context: Self = bytemuck::pod_read_unaligned(bytes);
        context.check()?;
        Ok(context)
    }

    /// Checks the ranks and every window.
    pub fn check(&self) -> Result<(), AbiError> {
        self.check_ranks()?;
        (0..self.rank_num).try_for_each(|rank| self.window_in(rank).map(drop))
    }

    /// The bytes as kernels read them.
    pub fn as_bytes(&self) -> &[u8] {
        bytemuck::bytes_of(self)
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank_id
    }

    /// How many ranks there are.
    pub fn nranks(&self) -> u32 {
        self.rank_num
    }

    /// Where the window of `rank` starts, as this rank reaches it.
    pub fn window_in(&self, rank: u32) -> Result<DeviceAddr, AbiError> {
        let nranks = self.rank_num;
        let known = (rank < nranks).then(|| self.windows_in.get(rank as usize)).flatten();
        let base = DeviceAddr(*known.ok_or(AbiError::NoSuchRank { rank, nranks })?);
        let possible = !base.is_null() && self.win_size > 0 && base.checked_add(self.win_size).is_some();
        if possible { Ok(base) } else { Err(AbiError::Window { rank, base, size: self.win_size }) }
    }

    /// The address in `peer`'s window that corresponds to `local` in this rank's: a bounds-checked
    /// `CommRemotePtr`.
    pub fn remote(&self, local: DeviceAddr, peer: u32) -> Result<DeviceAddr, AbiError> {
        let base = self.window_in(self.rank_id)?;
        let offset = local.0.checked_sub(base.0).filter(|offset| *offset < self.win_size);
        let offset = offset.ok_or(AbiError::NotInWindow { addr: local, base, size: self.win_size })?;
        let theirs = self.window_in(peer)?;
        // `window_in` has checked that the peer's window lies in the address space.
        Ok(DeviceAddr(theirs.0 + offset))
    }

    fn check_ranks(&self) -> Result<(), AbiError> {
        let possible =
            (1..=COMM_MAX_RANK_NUM as u32).contains(&self.rank_num) && self.rank_id < self.rank_num;
        if possible { Ok(()) } else { Err(AbiError::Ranks { rank: self.rank_id, nranks: self.rank_num }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> CommContext {
        let bases = [DeviceAddr(0x1000), DeviceAddr(0x9000), DeviceAddr(0x5000)];
        CommContext::new(1, &bases, 0x800).unwrap()
    }

    // CC-2
    #[test]
    fn the_remote_address_has_the_same_offset_in_the_peers_window() {
        let context = three();
        assert_eq!(context.remote(DeviceAddr(0x9000), 0), Ok(DeviceAddr(0x1000)));
        assert_eq!(context.remote(DeviceAddr(0x97ff), 2), Ok(DeviceAddr(0x57ff)));
        assert_eq!(context.remote(DeviceAddr(0x9010), 1), Ok(DeviceAddr(0x9010)));
    }

    // CC-2
    #[test]
    fn addresses_outside_the_window_and_ranks_outside_the_group_are_refused() {
        let context = three();
        for addr in [0, 0x8fff, 0x9800, 0x1000, u64::MAX].map(DeviceAddr) {
            let want = AbiError::NotInWindow { addr, base: DeviceAddr(0x9000), size: 0x800 };
            assert_eq!(context.remote(addr, 0), Err(want));
        }
        for rank in [3, 64, u32::MAX] {
            assert_eq!(
                context.remote(DeviceAddr(0x9000), rank),
                Err(AbiError::NoSuchRank { rank, nranks: 3 })
            );
        }
    }

    #[test]
    fn impossible_groups_and_windows_are_refused() {
        let base = [DeviceAddr(0x1000); 65];
        assert_eq!(CommContext::new(0, &[], 1), Err(AbiError::Ranks { rank: 0, nranks: 0 }));
        assert_eq!(CommContext::new(0, &base, 1), Err(AbiError::Ranks { rank: 0, nranks: 65 }));
        assert_eq!(CommContext::new(2, &base[..2], 1), Err(AbiError::Ranks { rank: 2, nranks: 2 }));
        for (base, size) in [(0, 1), (0x1000, 0), (u64::MAX, 1)] {
            let want = AbiError::Window { rank: 0, base: DeviceAddr(base), size };
            assert_eq!(CommContext::new(0, &[DeviceAddr(base)], size), Err(want));
        }
        assert_eq!(CommContext::new(63, &base[..64], 1).map(|c| c.nranks()), Ok(64));
    }

    #[test]
    fn a_subset_sees_its_slice_under_its_own_ranks() {
        let view = three().subset(&[2, 1], 1, 0x100, 0x200).unwrap();
        assert_eq!((view.rank(), view.nranks(), view.win_size), (1, 2, 0x200));
        assert_eq!((view.work_space, view.work_space_size), (0, 0));
        assert_eq!(view.window_in(0), Ok(DeviceAddr(0x5100)));
        assert_eq!(view.remote(DeviceAddr(0x9180), 0), Ok(DeviceAddr(0x5180)));
        assert_eq!(view.windows_out, view.windows_in);
        for (offset, size) in [(0x700, 0x101), (u64::MAX, 1), (1, u64::MAX)] {
            let want = AbiError::SliceOutside { offset, size, window: 0x800 };
            assert_eq!(three().subset(&[1], 0, offset, size), Err(want));
        }
        assert_eq!(three().subset(&[0; 65], 0, 0, 1), Err(AbiError::Ranks { rank: 0, nranks: 65 }));
        assert_eq!(three().subset(&[3], 0, 0, 1), Err(AbiError::NoSuchRank { rank: 3, nranks: 3 }));
    }

    #[test]
    fn bytes_come_back_as_they_went() {
        let context = three();
        let mut shifted = [0; 1 + size_of::<CommContext>()];
        shifted[1..].copy_from_slice(context.as_bytes());
        assert_eq!(CommContext::decode(&shifted[1..]), Ok(context));
        let have = size_of::<CommContext>() - 1;
        assert_eq!(
            CommContext::decode(&context.as_bytes()[..have]),
            Err(AbiError::Length { what: "CommContext", need: 1056, have })
        );
    }
}
