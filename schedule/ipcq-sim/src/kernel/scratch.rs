//! The scratch memory of a PE: first fit, so that addresses depend on the kernel alone.

/// Addresses are multiples of this.
const ALIGN: u64 = 64;

#[derive(Debug)]
pub(super) struct Scratch {
    base: u64,
    size: u64,
    /// Free pieces by address: start and length, none next to another.
    free: Vec<(u64, u64)>,
    /// The highest address that was ever in use.
    pub(super) peak: u64,
}

impl Scratch {
    pub(super) fn new(base: u64, size: u64) -> Scratch {
        let base = base.next_multiple_of(ALIGN);
        Scratch { base, size, free: vec![(base, size)], peak: base }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The end of the memory.
    pub(super) fn end(&self) -> u64 {
        self.base + self.size
    }

    /// The largest piece that is free.
    pub(super) fn largest(&self) -> u64 {
        self.free.iter().map(|piece| piece.1).max().unwrap_or(0)
    }

    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        let at = self.free.iter().position(|piece| piece.1 >= bytes)?;
        let (start, len) = self.free[at];
        if len == bytes {
            self.free.remove(at);
        } else {
            self.free[at] = (start + bytes, len - bytes);
        }
        self.peak = self.peak.max(start + bytes);
        Some(start)
    }

    pub(super) fn give(&mut self, start: u64, bytes: u64) {
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        let at = self.free.partition_point(|piece| piece.0 < start);
        self.free.insert(at, (start, bytes));
        for left in [Some(at), at.checked_sub(1)].into_iter().flatten() {
            if left + 1 < self.free.len() && self.free[left].0 + self.free[left].1 == self.free[left + 1].0 {
                self.free[left].1 += self.free[left + 1].1;
                self.free.remove(left + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_reused_and_joined() {
        let mut scratch = Scratch::new(100, 1024);
        let [a, b, c] = [64, 1, 200].map(|bytes| scratch.take(bytes).unwrap());
        assert_eq!([a, b, c], [128, 192, 256]);
        scratch.give(a, 64);
        scratch.give(c, 200);
        assert_eq!(scratch.largest(), 1024 - 128);
        assert_eq!(scratch.take(10), Some(128));
        scratch.give(128, 10);
        scratch.give(b, 1);
        assert_eq!((scratch.free.clone(), scratch.peak), (vec![(128, 1024)], 512));
        assert_eq!((scratch.take(1025), scratch.take(1024)), (None, Some(128)));
    }
}
