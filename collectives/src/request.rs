//! A call as it was made: its kind, what it moves, and how that is checked and written down.

use crate::element::{DType, Op};
use crate::error::BadArgument;
use mailbox_atomics::RECORD_WORDS;
use std::fmt;
use worker_errors::code_table;

code_table! {
    /// The kind of a collective.
    pub enum Kind: u8, code, from_code {
        /// Returns when everybody has come.
        Barrier = 1, "barrier";
        /// Everybody gets the combination of all.
        AllReduce = 2, "all_reduce";
        /// Everybody gets what all have.
        AllGather = 3, "all_gather";
        /// The same, with a count for each rank.
        AllGatherV = 4, "all_gather_v";
        /// Everybody gets its block of the combination of all.
        ReduceScatter = 5, "reduce_scatter";
        /// The same, with a count for each rank.
        ReduceScatterV = 6, "reduce_scatter_v";
        /// Everybody gets what the root has.
        Broadcast = 7, "broadcast";
        /// The root gets the combination of all.
        Reduce = 8, "reduce";
        /// Everybody gets a block from everybody.
        AllToAll = 9, "all_to_all";
        /// The same, with a count for each pair.
        AllToAllV = 10, "all_to_all_v";
        /// The root gets what all have.
        Gather = 11, "gather";
        /// Everybody gets its block of what the root has.
        Scatter = 12, "scatter";
    }
}

impl Kind {
    pub(crate) const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::ReduceScatterV | Self::Reduce)
    }

    const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }
}

/// A collective call in raw parts, as the C libraries make it. Pointers may be null where their part is not used or empty.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What to do.
    pub kind: Kind,
    /// Of which elements; any for a barrier.
    pub dtype: DType,
    /// How they are combined, where they are.
    pub op: Option<Op>,
    /// The root, where there is one; otherwise 0.
    pub root: u32,
    /// Elements: of the whole for `AllReduce`, `Broadcast` and `Reduce`; of one rank's block for the others; 0 where `counts` says it.
    pub count: usize,
    /// Elements of each rank's block, for `AllGatherV` and `ReduceScatterV`; of what goes to each rank, for `AllToAllV`.
    pub counts: *const usize,
    /// Elements that come from each rank, for `AllToAllV`.
    pub receive_counts: *const usize,
    /// What this rank gives.
    pub input: *const u8,
    /// Where the result goes.
    pub output: *mut u8,
    /// What peers may touch where it stands, if it lies in the group's pool.
    pub shared: Shared,
}

/// Which buffers of a call peers may touch where they stand, if they lie in the group's pool. After the call failed, its caller must not
/// use them any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// None: everything is staged.
    Nothing,
    /// They may read the input.
    Input,
    /// They may read the input and write the output.
    Both,
}

impl Request {
    /// A barrier.
    pub const BARRIER: Self = Self {
        kind: Kind::Barrier,
        dtype: DType::U8,
        op: None,
        root: 0,
        count: 0,
        counts: std::ptr::null(),
        receive_counts: std::ptr::null(),
        input: std::ptr::null(),
        output: std::ptr::null_mut(),
        shared: Shared::Nothing,
    };

    /// Checks what can be checked without a peer: operation, root, overflow. Inlined, since a caller that knows the kind needs few of them.
    #[inline(always)]
    pub(crate) fn check(&self, nranks: usize) -> Result<(), BadArgument> {
        let blocks = match self.kind {
            Kind::Barrier => return Ok(()),
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce => 1,
            _ => nranks,
        };
        let bytes = self.count.checked_mul(self.dtype.size()).and_then(|bytes| bytes.checked_mul(blocks));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(BadArgument::TooManyBytes { count: self.count, dtype: self.dtype, blocks });
        }
        match self.op {
            Some(op) if !op.applies_to(self.dtype) => {
                return Err(BadArgument::Operation { op, dtype: self.dtype });
            }
            Some(_) if self.kind.reduces() => {}
            None if !self.kind.reduces() => {}
            _ => return Err(BadArgument::NoOperation { kind: self.kind }),
        }
        if self.root as usize >= nranks {
            return Err(BadArgument::Root { root: self.root, nranks });
        }
        Ok(())
    }

    /// How many elements this rank reads and writes.
    #[inline]
    pub(crate) fn extent(&self, rank: usize, nranks: usize) -> (usize, usize) {
        let sum = |list: *const usize| {
            let all = (0..nranks).map(|rank| crate::moves::count_at(list, rank));
            all.into_iter().try_fold(0_usize, usize::checked_add).unwrap_or(usize::MAX)
        };
        let (count, all) = (self.count, self.count.saturating_mul(nranks));
        let own = crate::moves::count_at(self.counts, rank);
        let root = rank == self.root as usize;
        match self.kind {
            Kind::Barrier => (0, 0),
            Kind::AllReduce => (count, count),
            Kind::AllGather => (count, all),
            Kind::AllGatherV => (own, sum(self.counts)),
            Kind::ReduceScatter => (all, count),
            Kind::ReduceScatterV => (sum(self.counts), own),
            Kind::Broadcast if root => (count, 0),
            Kind::Broadcast => (0, count),
            Kind::Reduce => (count, if root { count } else { 0 }),
            Kind::AllToAll => (all, all),
            Kind::AllToAllV => (sum(self.counts), sum(self.receive_counts)),
            Kind::Gather => (count, if root { all } else { 0 }),
            Kind::Scatter => (if root { all } else { 0 }, count),
        }
    }

    /// What must be equal on all ranks, in two words: kind, type, operation and root; and the counts, or their hash.
    #[inline]
    pub(crate) fn signature(&self, nranks: usize) -> (u64, u64) {
        let op = self.op.map_or(0xff, |op| op as u64);
        let head = self.kind as u64 | (self.dtype as u64) << 8 | op << 16 | u64::from(self.root) << 32;
        let counts = match self.kind {
            Kind::AllGatherV | Kind::ReduceScatterV => self.counts_hash(nranks),
            // Every pair has a count of its own: compared when they are exchanged.
            Kind::AllToAllV => 0,
            _ => self.count as u64,
        };
        (head, counts)
    }

    #[cold]
    fn counts_hash(&self, nranks: usize) -> u64 {
        (0..nranks).fold(0x9e37_79b9_7f4a_7c15, |hash, rank| {
            mix(hash, crate::moves::count_at(self.counts, rank) as u64)
        })
    }
}

/// A hash of a hash and a word.
#[inline]
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let x = (hash ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 32
}

/// The words of a record, as [`Request::signature`] makes them, with the hash over all calls so far.
pub(crate) fn record(signature: (u64, u64), chain: u32, step: u64) -> [u64; RECORD_WORDS] {
    [u64::from(chain), signature.0, signature.1, step, 0, 0, 0]
}

/// A call as its record says it, perhaps of another process: every byte may be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallText(String);

impl CallText {
    /// From the seven words of a record. Kernels have the same words (`comm_collectives_fault.h`).
    #[doc(hidden)]
    pub fn of(words: &[u64]) -> Self {
        let (head, counts) = (words[1], words[2]);
        if head as u8 == crate::schedule::RECORD_KIND {
            return Self(crate::schedule::describe(words));
        }
        let Some(kind) = Kind::from_code(head as u8) else {
            return Self(format!("an unknown call {:#x}", head & 0xff));
        };
        if kind == Kind::Barrier {
            return Self(kind.name().to_owned());
        }
        let dtype = DType::from_code((head >> 8) as u8).map_or("?", DType::name);
        let mut text = format!("{} {dtype}", kind.name());
        if let Some(op) = Op::from_code((head >> 16) as u8) {
            text += &format!(" {op}");
        }
        match kind {
            Kind::AllGatherV | Kind::ReduceScatterV => text += &format!(" with counts of hash {counts:016x}"),
            Kind::AllToAllV => {}
            _ => text += &format!(" × {counts}"),
        }
        match kind {
            Kind::Broadcast | Kind::Scatter => text += &format!(" from {}", head >> 32),
            _ if kind.has_root() => text += &format!(" to {}", head >> 32),
            _ => {}
        }
        Self(text)
    }

    pub(crate) fn plain(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for CallText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_described_from_its_record() {
        let sum = Request {
            kind: Kind::AllReduce,
            dtype: DType::F32,
            op: Some(Op::Sum),
            count: 1024,
            ..Request::BARRIER
        };
        let text = |request: &Request| CallText::of(&record(request.signature(4), 7, 1)).to_string();
        assert_eq!(text(&sum), "all_reduce f32 sum × 1024");
        let broadcast = Request { kind: Kind::Broadcast, op: None, root: 3, ..sum };
        assert_eq!(text(&broadcast), "broadcast f32 × 1024 from 3");
        assert_eq!(text(&Request { kind: Kind::Gather, ..broadcast }), "gather f32 × 1024 to 3");
        assert_eq!(text(&Request::BARRIER), "barrier");
        assert_eq!(CallText::of(&[0, 99, 0]).to_string(), "an unknown call 0x63");
    }

    #[test]
    fn what_cannot_be_is_refused_before_anybody_knows_of_it() {
        let good = Request { kind: Kind::AllReduce, op: Some(Op::Sum), count: 8, ..Request::BARRIER };
        assert_eq!(good.check(2), Ok(()));
        let refused = |request: Request| request.check(2).unwrap_err().to_string();
        assert!(refused(Request { op: Some(Op::Avg), ..good }).contains("avg"));
        assert!(refused(Request { op: None, ..good }).contains("all_reduce"));
        assert!(refused(Request { kind: Kind::Gather, op: None, root: 2, ..good }).contains("root is 2"));
        let huge = Request { dtype: DType::F64, count: usize::MAX / 4, ..good };
        assert!(refused(huge).contains("bytes"));
        let half = Request { kind: Kind::AllGather, op: None, count: isize::MAX as usize / 2 + 1, ..good };
        assert!(refused(half).contains("bytes"));
    }
}
