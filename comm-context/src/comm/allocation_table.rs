//! What a rank has allocated, the same for every backend.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use super::reachable::ReachableRanges;
use super::{AllocationId, ArgumentError, CommError, Membership, SubsetView, Window, validate};
use crate::abi::{CommContext, DeviceAddr};

/// The base window, or a domain's.
pub type Key = Option<AllocationId>;

/// A window that every member has: this rank's part of it, and the context that describes all parts.
#[derive(Clone, Debug)]
pub struct Allocated {
    /// This rank's part.
    pub window: Window,
    /// What is written at [`Window::context`].
    pub context: CommContext,
}

/// A domain that is about to be released.
#[derive(Debug)]
pub struct Released {
    /// Its members, in the order of the domain.
    pub members: Vec<u32>,
    /// This rank's part.
    pub window: Window,
}

/// The windows of a rank, and the memory that it may touch because of them.
///
/// A window is in the table from [`begin`](Self::begin) on, so that a second thread cannot begin it too, and
/// usable from [`end`](Self::end) on. A backend keeps its table under a lock that it never holds while it
/// waits, so that calls that concern other domains proceed.
#[derive(Debug, Default)]
pub struct AllocationTable {
    reachable: ReachableRanges,
    /// `None` while it is being allocated or released.
    windows: BTreeMap<Key, Option<Held>>,
}

#[derive(Debug)]
struct Held {
    members: Vec<u32>,
    made: Allocated,
}

impl AllocationTable {
    /// Begins an allocation; refused when there is one under this key.
    pub fn begin(&mut self, key: Key) -> Result<(), CommError> {
        match (self.windows.entry(key), key) {
            (Entry::Vacant(place), _) => {
                place.insert(None);
                Ok(())
            }
            (Entry::Occupied(_), None) => Err(CommError::WindowsExist),
            (Entry::Occupied(_), Some(id)) => Err(CommError::DomainExists { id }),
        }
    }

    /// Ends an allocation: the window becomes reachable, or after a failure the key is free again.
    pub fn end(
        &mut self,
        key: Key,
        members: &[u32],
        made: Result<Allocated, CommError>,
    ) -> Result<Window, CommError> {
        let made = made.inspect_err(|_| drop(self.windows.remove(&key)))?;
        let window = made.window;
        self.reachable.add_windows(starts(&made.context), window.size);
        self.add_context(window.context);
        self.windows.insert(key, Some(Held { members: members.to_vec(), made }));
        Ok(window)
    }

    /// The base window.
    pub fn base(&self) -> Result<Window, CommError> {
        self.held_base().map(|made| made.window)
    }

    fn held_base(&self) -> Result<&Allocated, CommError> {
        let base = self.windows.get(&None).and_then(Option::as_ref);
        base.map(|held| &held.made).ok_or(CommError::NoWindow)
    }

    /// The context of a subset's view of the base windows.
    pub fn derive(&self, me: Membership, view: &SubsetView<'_>) -> Result<CommContext, CommError> {
        let base = self.held_base()?;
        validate::subset(me, view, base.window.size)?;
        let (offset, size) = (view.offset as u64, view.size as u64);
        base.context.subset(view.ranks, view.domain_rank, offset, size).map_err(CommError::impossible)
    }

    /// Makes a context readable that was written at `at`.
    pub fn add_context(&mut self, at: DeviceAddr) {
        self.reachable.add_context(context_range(at));
    }

    /// Begins the release of a domain: it is no longer reachable, and its id stays taken until
    /// [`forget`](Self::forget).
    pub fn release(&mut self, id: AllocationId) -> Result<Released, CommError> {
        let held = self.windows.get_mut(&Some(id)).and_then(Option::take);
        let Held { members, made } = held.ok_or(CommError::UnknownDomain { id })?;
        self.reachable.remove(starts(&made.context), &context_range(made.window.context));
        Ok(Released { members, window: made.window })
    }

    /// Ends the release of a domain: its memory is gone, and its id is free.
    pub fn forget(&mut self, id: AllocationId) {
        self.windows.remove(&Some(id));
    }

    /// Whether all of a range may be read.
    pub fn check_read(&self, at: DeviceAddr, len: usize) -> Result<(), CommError> {
        check(at, len, |range| self.reachable.may_read(range))
    }

    /// Whether all of a range may be written.
    pub fn check_write(&self, at: DeviceAddr, len: usize) -> Result<(), CommError> {
        check(at, len, |range| self.reachable.may_write(range))
    }
}

fn check(at: DeviceAddr, len: usize, allowed: impl Fn(&Range<u64>) -> bool) -> Result<(), CommError> {
    match at.checked_add(len as u64) {
        Some(end) if allowed(&(at.0..end.0)) => Ok(()),
        _ => Err(ArgumentError::Unreachable { addr: at, len }.into()),
    }
}

/// Where the members' windows start.
fn starts(context: &CommContext) -> &[u64] {
    &context.windows_in[..context.nranks() as usize]
}

fn context_range(at: DeviceAddr) -> Range<u64> {
    at.0..at.0.saturating_add(size_of::<CommContext>() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: AllocationId = AllocationId(7);

    /// What rank 0 of two has: windows of 0x100 bytes at `at` and `at + 0x1000`, and a context at
    /// `at + 0x2000`.
    fn made(at: u64) -> Allocated {
        let bases = [DeviceAddr(at), DeviceAddr(at + 0x1000)];
        let window = Window { context: DeviceAddr(at + 0x2000), base: bases[0], size: 0x100 };
        Allocated { window, context: CommContext::new(0, &bases, 0x100).unwrap() }
    }

    fn with_base() -> AllocationTable {
        let mut allocations = AllocationTable::default();
        allocations.begin(None).unwrap();
        allocations.end(None, &[0, 1], Ok(made(0x1_0000))).unwrap();
        allocations
    }

    #[test]
    fn an_allocation_begins_once_and_again_after_a_failure() {
        let mut allocations = AllocationTable::default();
        for (key, taken) in
            [(None, CommError::WindowsExist), (Some(DOMAIN), CommError::DomainExists { id: DOMAIN })]
        {
            allocations.begin(key).unwrap();
            assert_eq!(allocations.begin(key).unwrap_err().to_string(), taken.to_string());
            assert!(matches!(allocations.end(key, &[0], Err(CommError::Closed)), Err(CommError::Closed)));
            allocations.begin(key).unwrap();
            allocations.end(key, &[0, 1], Ok(made(0x1_0000))).unwrap();
            assert!(allocations.begin(key).is_err());
        }
    }

    #[test]
    fn a_window_is_usable_only_after_its_allocation_ended() {
        let mut allocations = AllocationTable::default();
        allocations.begin(None).unwrap();
        let view = SubsetView { ranks: &[0], domain_rank: 0, offset: 0, size: 8 };
        let me = Membership::new(0, 2).unwrap();
        assert!(matches!(allocations.base(), Err(CommError::NoWindow)));
        assert!(matches!(allocations.derive(me, &view), Err(CommError::NoWindow)));
        assert!(allocations.check_read(DeviceAddr(0x1_0000), 1).is_err());
        allocations.end(None, &[0, 1], Ok(made(0x1_0000))).unwrap();
        assert_eq!(allocations.base().unwrap(), made(0x1_0000).window);
        assert_eq!(allocations.derive(me, &view).unwrap().win_size, 8);
        assert!(allocations.derive(me, &SubsetView { offset: 0xf9, ..view }).is_err(), "beyond the window");
    }

    #[test]
    fn windows_are_writable_and_contexts_read_only() {
        let mut allocations = with_base();
        for at in [0x1_0000, 0x1_1000] {
            allocations.check_write(DeviceAddr(at), 0x100).unwrap();
            allocations.check_read(DeviceAddr(at), 0x100).unwrap();
            assert!(allocations.check_write(DeviceAddr(at), 0x101).is_err());
        }
        let size = size_of::<CommContext>();
        allocations.add_context(DeviceAddr(0x5_0000));
        for at in [0x1_2000, 0x5_0000] {
            allocations.check_read(DeviceAddr(at), size).unwrap();
            assert!(allocations.check_read(DeviceAddr(at), size + 1).is_err());
            assert!(allocations.check_write(DeviceAddr(at), 1).is_err());
        }
        assert!(allocations.check_read(DeviceAddr(u64::MAX), 2).is_err(), "beyond the last address");
    }

    #[test]
    fn a_released_domain_is_unreachable_at_once_and_its_id_free_when_forgotten() {
        let mut allocations = with_base();
        assert!(matches!(allocations.release(DOMAIN), Err(CommError::UnknownDomain { id: DOMAIN })));
        allocations.begin(Some(DOMAIN)).unwrap();
        assert!(allocations.release(DOMAIN).is_err(), "it is not there yet");
        allocations.end(Some(DOMAIN), &[1, 0], Ok(made(0x2_0000))).unwrap();
        allocations.check_write(DeviceAddr(0x2_1000), 0x100).unwrap();
        let released = allocations.release(DOMAIN).unwrap();
        assert_eq!((released.members, released.window), (vec![1, 0], made(0x2_0000).window));
        assert!(allocations.check_read(DeviceAddr(0x2_0000), 1).is_err());
        assert!(allocations.check_read(DeviceAddr(0x2_2000), 1).is_err());
        assert!(allocations.release(DOMAIN).is_err() && allocations.begin(Some(DOMAIN)).is_err());
        allocations.forget(DOMAIN);
        allocations.begin(Some(DOMAIN)).unwrap();
        allocations.check_write(DeviceAddr(0x1_1000), 0x100).unwrap();
    }
}
