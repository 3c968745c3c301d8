//! What a schedule is: a function from (rank, step) to an operation, and the channels between ranks.

use crate::op::{Dir, Math, Op};
use std::any::Any;
use std::fmt;

/// A schedule for a number of ranks. It stores nothing per rank: every method is a function of its arguments.
///
/// A rank runs `op(rank, 0)`, `op(rank, 1)`, … until `None`. The same arguments must always yield the same
/// result.
pub trait Program: Sync {
    /// The algorithm's name.
    fn name(&self) -> &str;

    /// What every rank holds at the end.
    fn goal(&self) -> Goal;

    /// How many ranks take part.
    fn ranks(&self) -> u32;

    /// Into how many chunks the tensor is cut.
    fn chunks(&self) -> u32;

    /// How many scratch tiles a rank has beside its chunks; scratch tile i is tile `chunks + i`.
    fn scratch(&self) -> u32 {
        0
    }

    /// The directions in use, each once.
    fn dirs(&self) -> &[Dir];

    /// The destination of a send of `rank` in direction `dir`, and the direction from which it receives.
    /// `None` when `rank` never sends in that direction.
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)>;

    /// The operation of a rank at a step, `None` after the last one.
    fn op(&self, rank: u32, step: u32) -> Option<Op>;

    /// What the computation `number` of a rank is, for [`Op::Math`].
    fn math(&self, _rank: u32, _number: u32) -> Option<Math> {
        None
    }

    /// The number of a tile's size, in a program whose tiles are not all chunks of one tensor.
    fn size_class(&self, _rank: u32, _tile: u32) -> Option<u32> {
        None
    }

    /// How many messages all ranks send together.
    fn messages(&self) -> u64;

    /// The program as a value of its concrete type, so that a runner can be compiled for the types that it
    /// recognises: behind `dyn Program`, the call of [`Self::op`] is a large part of the cost of a message.
    fn known(&self) -> Option<&dyn Any> {
        None
    }
}

impl<P: Program + ?Sized> Program for Box<P>
where
    Box<P>: Sync,
{
    fn name(&self) -> &str {
        (**self).name()
    }
    fn goal(&self) -> Goal {
        (**self).goal()
    }
    fn ranks(&self) -> u32 {
        (**self).ranks()
    }
    fn chunks(&self) -> u32 {
        (**self).chunks()
    }
    fn scratch(&self) -> u32 {
        (**self).scratch()
    }
    fn dirs(&self) -> &[Dir] {
        (**self).dirs()
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        (**self).peer(rank, dir)
    }
    fn op(&self, rank: u32, step: u32) -> Option<Op> {
        (**self).op(rank, step)
    }
    fn math(&self, rank: u32, number: u32) -> Option<Math> {
        (**self).math(rank, number)
    }
    fn size_class(&self, rank: u32, tile: u32) -> Option<u32> {
        (**self).size_class(rank, tile)
    }
    fn messages(&self) -> u64 {
        (**self).messages()
    }
    fn known(&self) -> Option<&dyn Any> {
        (**self).known()
    }
}

/// What a schedule promises about the data at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Every chunk of every rank holds one contribution of each rank.
    AllReduce,
    /// Rank r's chunks `r·per_rank ..` hold one contribution of each rank; its other chunks are not defined.
    ReduceScatter {
        /// Chunks that a rank owns.
        per_rank: u32,
    },
    /// Rank r starts with its chunks `r·per_rank ..` only; at the end every rank holds all chunks.
    AllGather {
        /// Chunks that a rank owns.
        per_rank: u32,
    },
    /// Rank r holds what rank r − 1 (mod ranks) started with.
    Shift,
    /// Every chunk of every rank holds what `root` started with; the others start with nothing.
    Broadcast {
        /// The rank that sends.
        root: u32,
    },
    /// Every chunk of `root` holds one contribution of each rank; those of the others are not defined.
    Reduce {
        /// The rank that receives.
        root: u32,
    },
    /// Rank r starts with its chunks `r·per_rank ..`; at the end `root` holds all chunks.
    Gather {
        /// The rank that receives.
        root: u32,
        /// Chunks that a rank owns.
        per_rank: u32,
    },
    /// `root` starts with all chunks; at the end rank r holds its chunks `r·per_rank ..`.
    Scatter {
        /// The rank that sends.
        root: u32,
        /// Chunks that a rank owns.
        per_rank: u32,
    },
    /// Rank s starts with the chunks `s·ranks ..`, one for each rank; at the end rank d holds chunk `s·ranks + d` of every s.
    AllToAll,
    /// Nothing: only that it completes is proved.
    Any,
}

/// What one chunk of one rank must hold at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// One contribution of each rank.
    All,
    /// One contribution of this rank and nothing else.
    One(u32),
    /// Anything.
    Any,
}

impl Goal {
    /// What `rank` must hold in `chunk` at the end.
    pub fn expect(self, ranks: u32, rank: u32, chunk: u32) -> Expect {
        match self {
            Goal::AllReduce => Expect::All,
            Goal::ReduceScatter { per_rank } if chunk / per_rank == rank => Expect::All,
            Goal::ReduceScatter { .. } => Expect::Any,
            Goal::AllGather { per_rank } => Expect::One(chunk / per_rank),
            Goal::Shift => Expect::One(if rank == 0 { ranks - 1 } else { rank - 1 }),
            Goal::Broadcast { root } => Expect::One(root),
            Goal::Reduce { root } if rank == root => Expect::All,
            Goal::Gather { root, per_rank } if rank == root => Expect::One(chunk / per_rank),
            Goal::Scatter { root, per_rank } if chunk / per_rank == rank => Expect::One(root),
            Goal::AllToAll if chunk % ranks == rank => Expect::One(chunk / ranks),
            Goal::Reduce { .. } | Goal::Gather { .. } | Goal::Scatter { .. } | Goal::AllToAll => Expect::Any,
            Goal::Any => Expect::Any,
        }
    }

    /// The goal of a text, as it is printed.
    pub fn parse(text: &str) -> Option<Goal> {
        let mut parts = text.split(':');
        let name = parts.next()?;
        let numbers: Vec<u32> = parts.map(|part| part.parse().ok()).collect::<Option<_>>()?;
        let some = |count: u32| (count > 0).then_some(count);
        match (name, numbers.as_slice()) {
            ("all_reduce", []) => Some(Goal::AllReduce),
            ("shift", []) => Some(Goal::Shift),
            ("all_to_all", []) => Some(Goal::AllToAll),
            ("any", []) => Some(Goal::Any),
            ("reduce_scatter", &[per_rank]) => Some(Goal::ReduceScatter { per_rank: some(per_rank)? }),
            ("all_gather", &[per_rank]) => Some(Goal::AllGather { per_rank: some(per_rank)? }),
            ("broadcast", &[root]) => Some(Goal::Broadcast { root }),
            ("reduce", &[root]) => Some(Goal::Reduce { root }),
            ("gather", &[root, per_rank]) => Some(Goal::Gather { root, per_rank: some(per_rank)? }),
            ("scatter", &[root, per_rank]) => Some(Goal::Scatter { root, per_rank: some(per_rank)? }),
            _ => None,
        }
    }

    /// Whether `rank`, of so many, contributes to `chunk` at the start.
    pub fn contributes(self, ranks: u32, rank: u32, chunk: u32) -> bool {
        match self {
            Goal::AllGather { per_rank } | Goal::Gather { per_rank, .. } => chunk / per_rank == rank,
            Goal::Broadcast { root } | Goal::Scatter { root, .. } => rank == root,
            Goal::AllToAll => chunk / ranks == rank,
            _ => true,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::AllReduce => f.write_str("all_reduce"),
            Goal::ReduceScatter { per_rank } => write!(f, "reduce_scatter:{per_rank}"),
            Goal::AllGather { per_rank } => write!(f, "all_gather:{per_rank}"),
            Goal::Shift => f.write_str("shift"),
            Goal::Broadcast { root } => write!(f, "broadcast:{root}"),
            Goal::Reduce { root } => write!(f, "reduce:{root}"),
            Goal::Gather { root, per_rank } => write!(f, "gather:{root}:{per_rank}"),
            Goal::Scatter { root, per_rank } => write!(f, "scatter:{root}:{per_rank}"),
            Goal::AllToAll => f.write_str("all_to_all"),
            Goal::Any => f.write_str("any"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_read_as_they_are_printed() {
        let goals = [
            Goal::AllReduce,
            Goal::ReduceScatter { per_rank: 3 },
            Goal::AllGather { per_rank: 1 },
            Goal::Shift,
            Goal::Broadcast { root: 5 },
            Goal::Reduce { root: 0 },
            Goal::Gather { root: 2, per_rank: 4 },
            Goal::Scatter { root: 1, per_rank: 2 },
            Goal::AllToAll,
            Goal::Any,
        ];
        for goal in goals {
            assert_eq!(Goal::parse(&goal.to_string()), Some(goal));
        }
        for text in
            ["", "all_reduce:1", "all_gather", "all_gather:0", "gather:1", "broadcast:x", "scatter:1:0"]
        {
            assert_eq!(Goal::parse(text), None, "{text}");
        }
    }
}
