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
    /// `workSpace`: the address of a [`CommWorkspace`], or null.
    pub work_space: u64,
    /// `workSpaceSize`: how many bytes lie there.
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

/// What `workSpace` points at: the abort word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CommWorkspace {
    /// Zero while the run goes on. While it is not zero, every `comm_wait` and barrier of the kernel returns
    /// false. It is reset between runs, when no kernel is running.
    pub abort: u32,
    /// Zero.
    pub reserved: [u32; 15],
}

const_assert_eq!(size_of::<CommWorkspace>(), 64);
const_assert_eq!(align_of::<CommWorkspace>(), 4);
const_assert_eq!(offset_of!(CommWorkspace, abort), 0);
const_assert_eq!(offset_of!(CommWorkspace, reserved), 4);

/// Breaks the build when a field is added without a line above.
const _: fn(CommContext, CommWorkspace) = |context, workspace| {
    let CommContext {
        work_space: _,
        work_space_size: _,
        rank_id: _,
        rank_num: _,
        win_size: _,
        windows_in: _,
        windows_out: _,
    } = context;
    let CommWorkspace { abort: _, reserved: _ } = workspace;
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

    /// The same context with an abort word for its kernels.
    pub fn with_workspace(mut self, workspace: DeviceAddr) -> Self {
        self.work_space = workspace.0;
        self.work_space_size = size_of::<CommWorkspace>() as u64;
        self
    }

    /// The view that a subset has of the slice `offset..offset + size` of every window: `ranks` in their new
    /// order, of which this rank is number `domain_rank`. Keeps the workspace.
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
        let view = Self::new(domain_rank, bases, size)?;
        Ok(Self { work_space: self.work_space, work_space_size: self.work_space_size, ..view })
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
        let view = three().with_workspace(DeviceAddr(0x40)).subset(&[2, 1], 1, 0x100, 0x200).unwrap();
        assert_eq!((view.rank(), view.nranks(), view.win_size), (1, 2, 0x200));
        assert_eq!((view.work_space, view.work_space_size), (0x40, 64));
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
