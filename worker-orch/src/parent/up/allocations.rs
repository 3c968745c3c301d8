//! Which memory of the chips is allocated: what a copy may touch, and what is still to be freed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory that users have of the chips of one Worker, from its bring-up to its end.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocations(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The lengths, by chip and address: two devices use the same numbers for different memory.
    live: BTreeMap<(usize, u64), u64>,
    /// Memory on devices that users have dropped. It is freed with the next command, since a `Drop` cannot
    /// send one.
    dropped: Vec<(usize, u64)>,
}

/// An entry of [`Allocations`], which goes when it is dropped.
#[derive(Debug)]
pub(super) struct Allocation {
    of: Allocations,
    chip: usize,
    addr: u64,
    /// Whether the memory must be freed by a command.
    on_device: bool,
}

impl Allocations {
    /// Enters `len` bytes of memory that the Worker's heap frees.
    pub(super) fn enter(&self, chip: usize, addr: u64, len: usize) -> Allocation {
        self.lock().live.insert((chip, addr), len as u64);
        Allocation { of: self.clone(), chip, addr, on_device: false }
    }

    /// Enters `len` bytes of memory that a command to the chip frees.
    pub(super) fn enter_on_device(&self, chip: usize, addr: u64, len: usize) -> Allocation {
        let mut entry = self.enter(chip, addr, len);
        entry.on_device = true;
        entry
    }

    /// Whether `range` lies in one allocation of `chip`.
    pub(super) fn hold(&self, chip: usize, range: &Range<u64>) -> bool {
        let state = self.lock();
        let before = state.live.range((chip, 0)..=(chip, range.start)).next_back();
        before.is_some_and(|((_, start), len)| range.end - start <= *len)
    }

    /// How many bytes of `chip` are allocated.
    pub(super) fn bytes_of(&self, chip: usize) -> u64 {
        self.lock().live.range((chip, 0)..=(chip, u64::MAX)).map(|(_, len)| len).sum()
    }

    /// The memory that users have dropped since the last call.
    pub(super) fn take_dropped(&self) -> Vec<(usize, u64)> {
        std::mem::take(&mut self.lock().dropped)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        state.live.remove(&(self.chip, self.addr));
        if self.on_device {
            state.dropped.push((self.chip, self.addr));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f67_an_address_is_of_one_chip_and_ends_with_its_allocation() {
        let all = Allocations::default();
        let (first, second) = (all.enter(0, 0x1000, 64), all.enter_on_device(1, 0x1040, 64));
        for (chip, range, held) in [
            (0, 0x1000..0x1040, true),
            (0, 0x1040..0x1040, true),
            (0, 0x1020..0x1041, false),
            (0, 0xfff..0x1000, false),
            (0, 0x1040..0x1050, false),
            (1, 0x1040..0x1080, true),
            (1, 0x1000..0x1010, false),
            (2, 0x1000..0x1010, false),
            (0, 0x1000..u64::MAX, false),
        ] {
            assert_eq!(all.hold(chip, &range), held, "chip {chip}, {range:x?}");
        }
        assert_eq!([0, 1, 2].map(|chip| all.bytes_of(chip)), [64, 64, 0]);
        drop((first, second));
        assert!(!all.hold(0, &(0x1000..0x1001)) && !all.hold(1, &(0x1040..0x1041)));
        assert_eq!(all.take_dropped(), [(1, 0x1040)]);
        assert_eq!(all.take_dropped(), []);
    }
}
