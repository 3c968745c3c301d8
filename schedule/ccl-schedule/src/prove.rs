//! The two proofs: every contribution exactly once, and no deadlock with the given number of slots.

use crate::multiset::{EXACT_RANKS, Fingerprints, Multisets};
use crate::op::{Dir, Op};
use crate::program::{Expect, Goal, Program};
use crate::untimed::{Algebra, Counts, CreditPoint, Run};
use crate::wiring::{Wiring, WiringError};
use std::fmt;
use thiserror::Error;

/// The most tiles and slots of all ranks that a proof keeps; 2^29 need 2 to 8 GiB.
pub const MAX_CELLS: u64 = 1 << 29;

/// What has been proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Ranks in the schedule.
    pub ranks: u32,
    /// Chunks of the tensor.
    pub chunks: u32,
    /// Messages of one run.
    pub messages: u64,
    /// How contributions were counted.
    pub method: Method,
}

/// How contributions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Exact multisets of ranks.
    Multisets,
    /// Sums of random elements of GF(2^61 − 1), two seeds.
    Fingerprints,
    /// Not at all: the goal is [`Goal::Any`](crate::Goal::Any), and only completion was proved.
    Completion,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Multisets => "exact multisets",
            Method::Fingerprints => "two fingerprints in GF(2^61-1)",
            Method::Completion => "completion only",
        })
    }
}

/// Why an operation is invalid at its step.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Misuse {
    /// The direction has no peer.
    #[error("direction {0} has no peer there")]
    NoPeer(Dir),
    /// A tile or chunk outside the rank's memory.
    #[error("there is no tile {0}")]
    NoTile(u32),
    /// Data of one chunk would get into another.
    #[error("data of chunk {holds} would be used as chunk {wants}")]
    OtherChunk {
        /// What the data is.
        holds: u32,
        /// What it is used as.
        wants: u32,
    },
    /// A receive while the direction holds a slot or a posted receive, or an asynchronous forward.
    #[error("direction {0} still holds a slot or a posted receive")]
    Busy(Dir),
    /// A held slot is used, but none is held.
    #[error("no slot of direction {0} is held")]
    NothingHeld(Dir),
    /// A wait without a posted receive.
    #[error("nothing is posted in direction {0}")]
    NothingPosted(Dir),
    /// A chunk is written after it was stored.
    #[error("chunk {0} has been stored already")]
    Stored(u32),
    /// A computation that the program does not know.
    #[error("there is no computation {0}")]
    NoMath(u32),
    /// A computation that does not add contributions, in a schedule whose goal is about them.
    #[error(
        "{0} does not add up contributions, so that nothing can be proved about them; with the goal `any` the \
         schedule is checked for deadlock only"
    )]
    NotASum(&'static str),
}

/// Why a schedule is not right.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProofError {
    /// The program cannot be wired.
    #[error(transparent)]
    Wiring(#[from] WiringError),
    /// Queues without slots.
    #[error("n_slots is 0; a queue needs at least one slot")]
    NoSlots,
    /// Too large for memory.
    #[error(
        "{ranks} ranks with {cells} tiles and slots each are more than the {MAX_CELLS} that a proof keeps; prove fewer \
         ranks"
    )]
    TooLarge {
        /// Ranks.
        ranks: u32,
        /// Tiles and slots of a rank.
        cells: u64,
    },
    /// An operation is invalid at its step.
    #[error("rank {rank}, step {step}, {op}: {what}")]
    Misuse {
        /// Rank.
        rank: u32,
        /// Its step.
        step: u32,
        /// The operation.
        op: String,
        /// What is wrong.
        what: Misuse,
    },
    /// No rank can proceed.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
    /// Tokens are left over.
    #[error("rank {dst} leaves {count} tokens of rank {src} ({dir}) unreceived")]
    Unreceived {
        /// Sender.
        src: u32,
        /// Its direction.
        dir: Dir,
        /// Receiver.
        dst: u32,
        /// Tokens left.
        count: u32,
    },
    /// A slot or a posted receive is left over.
    #[error("rank {rank} ends with a held slot or a posted receive in direction {dir}")]
    Unreleased {
        /// Rank.
        rank: u32,
        /// The direction.
        dir: Dir,
    },
    /// A rank ends with the wrong data.
    #[error("{0}")]
    Contribution(Wrong),
}

/// The first wrong chunk of a schedule, by rank, then chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Rank.
    pub rank: u32,
    /// Chunk.
    pub chunk: u32,
    /// Ranks whose contribution is missing (empty for fingerprints).
    pub missing: Vec<u32>,
    /// Ranks that are counted too often, with their count (empty for fingerprints).
    pub extra: Vec<(u32, u32)>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ends with a wrong chunk {}:", self.rank, self.chunk)?;
        let list = |f: &mut fmt::Formatter<'_>, items: Vec<String>| {
            write!(f, "{}", items.iter().take(8).cloned().collect::<Vec<_>>().join(", "))?;
            if items.len() > 8 { write!(f, " and {} more", items.len() - 8) } else { Ok(()) }
        };
        if !self.missing.is_empty() {
            f.write_str(" missing rank ")?;
            list(f, self.missing.iter().map(u32::to_string).collect())?;
        }
        if !self.extra.is_empty() {
            f.write_str(if self.missing.is_empty() { " too much: rank " } else { "; too much: rank " })?;
            list(f, self.extra.iter().map(|(rank, times)| format!("{rank} ({times} times)")).collect())?;
        }
        if self.missing.is_empty() && self.extra.is_empty() {
            f.write_str(" its fingerprint is not the sum of the contributions")?;
        }
        Ok(())
    }
}

/// What a blocked rank waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The rank.
    pub rank: u32,
    /// Its step.
    pub step: u32,
    /// The operation that blocks.
    pub op: Op,
    /// The rank that would have to act.
    pub peer: u32,
}

/// A run in which no rank can proceed, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Deadlock {
    /// Slots per queue in the run that blocked.
    pub slots: u32,
    /// The ranks that wait for each other, in order. If the last one's peer is not the first rank, that peer
    /// has already finished.
    pub cycle: Vec<Blocked>,
    /// The smallest slot count that works; `None` when no count does.
    pub smallest: Option<u32>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.cycle[0].rank, &self.cycle[self.cycle.len() - 1]);
        write!(f, "deadlock with n_slots = {}: ", self.slots)?;
        for (i, b) in self.cycle.iter().enumerate() {
            if i >= 6 {
                write!(f, " … {} ranks in all … ", self.cycle.len())?;
                break;
            }
            let arrow = if i > 0 { " -> " } else { "" };
            write!(f, "{arrow}rank {} at step {} in {}", b.rank, b.step, b.op)?;
        }
        if last.peer == first {
            write!(f, " -> back to rank {first}")?;
        } else {
            write!(f, " -> rank {}, which has finished", last.peer)?;
        }
        match self.smallest {
            Some(slots) => write!(f, "; the smallest n_slots that works is {slots}"),
            None => write!(
                f,
                "; no n_slots helps: the schedule itself waits in a cycle or for a message that is never sent"
            ),
        }
    }
}

/// Proves a schedule: wiring one to one, no deadlock with `slots`, every contribution exactly once.
pub fn prove<P: Program + ?Sized>(program: &P, slots: u32, credit: CreditPoint) -> Result<Proof, ProofError> {
    let tiles = u64::from(program.chunks()) + u64::from(program.scratch());
    let cells = tiles + program.dirs().len() as u64 * u64::from(used_slots(program, slots));
    if u64::from(program.ranks()) * cells > MAX_CELLS {
        return Err(ProofError::TooLarge { ranks: program.ranks(), cells });
    }
    let wiring = Wiring::install(program)?;
    if program.goal() == Goal::Any {
        let run = finished(program, &wiring, Counts, slots, credit)?;
        return Ok(proof(program, run.messages, Method::Completion));
    }
    if program.ranks() <= EXACT_RANKS {
        let sets = Multisets::new(program.ranks());
        let run = finished(program, &wiring, sets, slots, credit)?;
        let sets = &run.algebra;
        first_wrong(program, |rank, chunk, expect| {
            let wanted = match expect {
                Expect::All => sets.run(0, program.ranks()),
                Expect::One(rank) => sets.run(rank, 1),
                Expect::Any => return None,
            };
            let set = run.value(rank, chunk);
            (set != wanted).then(|| sets.difference(set, wanted))
        })?;
        Ok(proof(program, run.messages, Method::Multisets))
    } else {
        let run = finished(program, &wiring, Fingerprints::new(), slots, credit)?;
        let prints = &run.algebra;
        let (mut sum_of, mut sum) = (u32::MAX, [0; 2]);
        // By chunk, so that the sum over all ranks is computed once per chunk; the lowest wrong rank is
        // reported.
        let mut wrong: Option<Wrong> = None;
        for chunk in 0..program.chunks() {
            for rank in 0..program.ranks() {
                let wanted = match program.goal().expect(program.ranks(), rank, chunk) {
                    Expect::All => {
                        if sum_of != chunk {
                            sum_of = chunk;
                            let all = (0..program.ranks()).map(|r| prints.element(r, chunk));
                            sum = all.fold([0; 2], Fingerprints::plus);
                        }
                        sum
                    }
                    Expect::One(rank) => prints.element(rank, chunk),
                    Expect::Any => continue,
                };
                if run.value(rank, chunk) != wanted
                    && wrong.as_ref().is_none_or(|w| (rank, chunk) < (w.rank, w.chunk))
                {
                    wrong = Some(Wrong { rank, chunk, missing: Vec::new(), extra: Vec::new() });
                }
            }
        }
        match wrong {
            Some(wrong) => Err(ProofError::Contribution(wrong)),
            None => Ok(proof(program, run.messages, Method::Fingerprints)),
        }
    }
}

fn proof<P: Program + ?Sized>(program: &P, messages: u64, method: Method) -> Proof {
    Proof { ranks: program.ranks(), chunks: program.chunks(), messages, method }
}

type Difference = (Vec<u32>, Vec<(u32, u32)>);

fn first_wrong<P: Program + ?Sized>(
    program: &P,
    check: impl Fn(u32, u32, Expect) -> Option<Difference>,
) -> Result<(), ProofError> {
    for rank in 0..program.ranks() {
        for chunk in 0..program.chunks() {
            if let Some((missing, extra)) =
                check(rank, chunk, program.goal().expect(program.ranks(), rank, chunk))
            {
                return Err(ProofError::Contribution(Wrong { rank, chunk, missing, extra }));
            }
        }
    }
    Ok(())
}

/// No channel carries more than every message, so a larger slot count only costs memory.
fn used_slots<P: Program + ?Sized>(program: &P, slots: u32) -> u32 {
    slots.min(program.messages().clamp(1, 1 << 16) as u32)
}

/// Runs to the end, or returns why that is impossible.
pub(crate) fn finished<'a, P: Program + ?Sized, A: Algebra>(
    program: &'a P,
    wiring: &'a Wiring,
    algebra: A,
    slots: u32,
    credit: CreditPoint,
) -> Result<Run<'a, P, A>, ProofError> {
    if slots == 0 {
        return Err(ProofError::NoSlots);
    }
    let mut run = Run::new(program, wiring, algebra, used_slots(program, slots), credit);
    if !run.run()? {
        let cycle = cycle(program, wiring, |rank| run.at_step(rank));
        let smallest = smallest_slots(program, credit)?;
        return Err(Deadlock { slots, cycle, smallest }.into());
    }
    for (id, channel) in wiring.channels().iter().enumerate() {
        let count = run.unreceived(id);
        if count > 0 {
            return Err(ProofError::Unreceived {
                src: channel.src,
                dir: channel.src_dir,
                dst: channel.dst,
                count,
            });
        }
        if run.unreleased(id) {
            return Err(ProofError::Unreleased { rank: channel.dst, dir: channel.dst_dir });
        }
    }
    Ok(run)
}

/// Decides whether a schedule completes with `slots` slots per queue, without its data.
pub fn completes<P: Program + ?Sized>(
    program: &P,
    slots: u32,
    credit: CreditPoint,
) -> Result<bool, ProofError> {
    if slots == 0 {
        return Err(ProofError::NoSlots);
    }
    let wiring = Wiring::install(program)?;
    Run::new(program, &wiring, Counts, slots, credit).run()
}

/// The smallest slot count with which a schedule completes, `None` if no count does.
///
/// More slots never block a run that completes with fewer, so a binary search finds the smallest.
pub fn smallest_slots<P: Program + ?Sized>(
    program: &P,
    credit: CreditPoint,
) -> Result<Option<u32>, ProofError> {
    let wiring = Wiring::install(program)?;
    let mut free = Run::new(program, &wiring, Counts, u32::MAX, credit);
    if !free.run()? {
        return Ok(None);
    }
    let (mut low, mut high) = (1, free.most_sent().max(1));
    while low < high {
        let middle = low + (high - low) / 2;
        if Run::new(program, &wiring, Counts, middle, credit).run()? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(Some(high))
}

/// Follows the wait-for edges from the lowest blocked rank until a rank repeats or has finished.
fn cycle<P: Program + ?Sized>(program: &P, wiring: &Wiring, step_of: impl Fn(u32) -> u32) -> Vec<Blocked> {
    let blocked = |rank: u32| -> Option<Blocked> {
        let step = step_of(rank);
        let op = program.op(rank, step)?;
        let peer = match op {
            Op::Send { dir, .. } => wiring.channels()[wiring.tx(rank, dir) as usize].dst,
            Op::Recv { dir, .. } | Op::Wait { dir } => wiring.channels()[wiring.rx(rank, dir) as usize].src,
            _ => return None,
        };
        Some(Blocked { rank, step, op, peer })
    };
    let mut path: Vec<Blocked> = Vec::new();
    let mut seen = vec![u32::MAX; program.ranks() as usize];
    let mut next = (0..program.ranks()).find_map(blocked);
    while let Some(b) = next {
        if seen[b.rank as usize] != u32::MAX {
            path.drain(..seen[b.rank as usize] as usize);
            break;
        }
        seen[b.rank as usize] = path.len() as u32;
        next = blocked(b.peer);
        path.push(b);
    }
    path
}
