//! Plans: schedules of [`ccl_schedule`] that run on windows.
//!
//! The schedule that is proved is the one that runs. [`Plan::new`] proves a schedule, translates it for every rank into four kinds of
//! instructions, and checks the translation by itself:
//! - **Publish** adds one to this rank's stamp: what it did before is there, and what it read before it has read;
//! - **Wait** waits for a peer's stamp: for data that it sends, or until it has read what this rank is about to overwrite;
//! - **Fold** combines up to 64 sources in one pass, in their order, where they stand: in this rank's memory or in windows of others;
//! - **Copy** moves a chunk.
//!
//! # Contract
//! - **PL-1** Only what is proved runs: no deadlock with the slots that there are (by value) or although writes wait for borrowers (by
//!   reference), and every contribution exactly once where the goal says so. Anything else is refused with the prover's sentence.
//! - **PL-2** A plan gives byte for byte what its schedule gives in a replay: chunks are those of [`ccl_schedule::Cut`], and sums are added
//!   in the order of the schedule. With [`Sums::RoundedOnce`] a run of additions to one tile is rounded once for `f16` and `bf16`, as in the other
//!   calls of this crate; with [`Sums::RoundedEach`] after each addition. Other types have the same bits with both.
//! - **PL-3** A direct schedule has the bits of the call of this crate that does the same.
//! - **PL-4** The call is on record with a hash of the plan. Ranks that run different plans, or a plan and another call, get
//!   an error that names both. Deaths, deadlines and aborts end its waits as those of any other call.
//! - **PL-5** One writer for each word: a rank writes its own stamp, its own label beside it, and rooms in its own window.
//!
//! # How it runs
//! The stamp of a rank counts on over all plans of the group. All ranks run the same plans, so everybody knows where the stamps of a plan
//! begin. Rooms that others read lie in one half of the staging area. A plan, or a piece of one whose chunks do not fit, is one step of the
//! group: it waits until all have finished the step that used the half before, and says at its end that it has read everything. So plans
//! and other calls follow each other in any order. Piece `p` of a tensor is part `p` of every chunk, so pieces do not change a bit.
//!
//! # What it does not do
//! It has no started form: started calls of the group are finished first. Tensors in windows are copied like any other memory. Where devices
//! make the calls, plans are refused.

mod acts;
mod check;
mod code;
mod lower;
mod run;
#[cfg(test)]
mod tests;

use crate::element::Op;
use ccl_schedule::{CreditPoint, Goal, Program, algo, prove, prove_by_reference};
use code::{Code, Instr};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

pub(crate) use run::{RECORD_KIND, Runner, describe};

/// How the data of a schedule goes from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Passing {
    /// Every send copies its tile to a slot, of which every channel has so many; a slot is free again when it has been read.
    Value {
        /// Slots of a channel.
        slots: u32,
    },
    /// A send lends its tile, which the receiver reads where it stands; whoever writes the tile waits for those who borrowed it.
    Reference,
}

/// How often a sum of 16-bit floating point is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sums {
    /// A run of additions to one tile is one sum in `f32`.
    RoundedOnce,
    /// After every addition, as `ipcq-sim` does it.
    RoundedEach,
}

/// Why there is no plan of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The schedule is wrong, as the prover says.
    #[error("the schedule {name} of {ranks} ranks is refused: {why}", name = .name, ranks = .ranks, why = .why)]
    Refused {
        /// Its name.
        name: String,
        /// Its ranks.
        ranks: u32,
        /// What the prover says.
        why: String,
    },
    /// More ranks than a group has.
    #[error("a group has at most 64 ranks, the schedule has {0}")]
    TooManyRanks(u32),
    /// No schedule of that name, or none for that many ranks.
    #[error(transparent)]
    Unknown(#[from] algo::BuildError),
    /// A computation that is not a sum.
    #[error("rank {rank}, step {step}: a plan copies and combines, and has no other computations")]
    Math {
        /// The rank.
        rank: u32,
        /// Its step.
        step: u32,
    },
    /// The channels of the schedule are wrong.
    #[error("{0}")]
    Wrong(String),
    /// The translation failed: a defect of this crate.
    #[error("the schedule is right, but its plan stops at rank {rank}; report this with the schedule")]
    Untranslatable {
        /// The rank.
        rank: u32,
    },
    /// The translation is wrong: a defect of this crate.
    #[error("the schedule is right, but its plan is not: {0}; report this with the schedule")]
    Mistranslated(String),
}

/// A schedule that was proved, as instructions for every rank of a group. Cheap to clone.
#[derive(Clone)]
pub struct Plan {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    /// The first 16 bytes of the name, for the record.
    short_name: [u64; 2],
    goal: Goal,
    chunks: u32,
    passing: Passing,
    codes: Vec<Code>,
    hash: u64,
    /// The most rooms in a window, and the most stamps, of any rank.
    rooms: u32,
    publishes: u32,
    /// Whether every sum of all ranks is one fold.
    whole_sums: bool,
    folds: bool,
}

impl Plan {
    /// Proves a schedule, translates it, and checks the translation.
    pub fn new(program: &dyn Program, passing: Passing, sums: Sums) -> Result<Self, PlanError> {
        let ranks = program.ranks();
        if ranks > 64 {
            return Err(PlanError::TooManyRanks(ranks));
        }
        let refused = |why: String| PlanError::Refused { name: program.name().to_owned(), ranks, why };
        match passing {
            Passing::Value { slots } => {
                prove(program, slots, CreditPoint::LastUse).map_err(|error| refused(error.to_string()))?;
            }
            Passing::Reference => {
                prove_by_reference(program).map_err(|error| refused(error.to_string()))?;
            }
        }
        let codes = lower::lower(program, passing, sums == Sums::RoundedOnce)?;
        check::check(program, &codes).map_err(PlanError::Mistranslated)?;
        let folds = |code: &Code, whole: bool| {
            code.instrs.iter().any(|instr| match instr {
                Instr::Fold { count, .. } => !whole || *count != ranks,
                _ => false,
            })
        };
        Ok(Self {
            inner: Arc::new(Inner {
                name: program.name().to_owned(),
                short_name: short(program.name()),
                goal: program.goal(),
                chunks: program.chunks(),
                passing,
                hash: code::hash(&codes, program.chunks()),
                rooms: codes.iter().map(|code| code.rooms).max().unwrap_or(0),
                publishes: codes.iter().map(|code| code.publishes).max().unwrap_or(0),
                whole_sums: !codes.iter().any(|code| folds(code, true)),
                folds: codes.iter().any(|code| folds(code, false)),
                codes,
            }),
        })
    }

    /// The plan of a schedule of the library ([`algo::NAMES`]).
    pub fn named(name: &str, ranks: u32, passing: Passing) -> Result<Self, PlanError> {
        let window = if let Passing::Value { slots } = passing { slots } else { 4 };
        let program = algo::build(name, ranks, &algo::Shape { window, ..Default::default() })?;
        Self::new(&*program, passing, Sums::RoundedOnce)
    }

    /// The name of the schedule.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What every rank has at the end.
    pub fn goal(&self) -> Goal {
        self.inner.goal
    }

    /// How many ranks run it.
    pub fn ranks(&self) -> usize {
        self.inner.codes.len()
    }

    /// Into how many chunks the tensor is cut.
    pub fn chunks(&self) -> u32 {
        self.inner.chunks
    }

    /// How data is passed.
    pub fn passing(&self) -> Passing {
        self.inner.passing
    }

    /// Whether it combines anything, so that a call needs an operation.
    pub fn combines(&self) -> bool {
        self.inner.folds
    }

    /// A number that two plans share only when all their instructions are the same. Never 0.
    pub fn hash(&self) -> u64 {
        self.inner.hash
    }

    /// How many instructions a rank has: publishes, waits, folds and copies.
    pub fn instructions(&self, rank: usize) -> [usize; 4] {
        let mut counts = [0; 4];
        for instr in self.inner.codes.get(rank).map_or(&[][..], |code| &code.instrs) {
            counts[match instr {
                Instr::Publish => 0,
                Instr::Wait { .. } => 1,
                Instr::Fold { .. } => 2,
                Instr::Copy { .. } => 3,
            }] += 1;
        }
        counts
    }

    /// Whether the operation is one that partial results can be combined with.
    fn allows(&self, op: Op) -> bool {
        op != Op::Avg || self.inner.whole_sums
    }
}

/// The same instructions for all ranks.
impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        self.inner.codes == other.inner.codes && self.inner.chunks == other.inner.chunks
    }
}

impl Eq for Plan {}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plan({} of {} ranks, {:016x})", self.name(), self.ranks(), self.hash())
    }
}

fn short(name: &str) -> [u64; 2] {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    let (words, _) = bytes.as_chunks::<8>();
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

/// The plans that a group has made, by name and passing: the ranks are those of the group.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    made: HashMap<(String, Passing), Plan>,
}

impl Plans {
    pub(crate) fn get(&mut self, name: &str, ranks: u32, passing: Passing) -> Result<Plan, PlanError> {
        let name = algo::canonical(name).unwrap_or(name);
        if let Some(plan) = self.made.get(&(name.to_owned(), passing)) {
            return Ok(plan.clone());
        }
        let plan = Plan::named(name, ranks, passing)?;
        self.made.insert((name.to_owned(), passing), plan.clone());
        Ok(plan)
    }
}
