//! The two engines. Both run the same PEs; they differ in how a token crosses its path.
//!
//! A (`dataflow`) moves a token over its whole path as soon as it is sent: exact as long as its links are not
//! shared. B (`events`) moves tokens hop by hop in time order, so that channels that share a link queue
//! there.

mod calendar;
mod dataflow;
mod events;
mod machine;

use crate::net::Exclusive;
use crate::plan::Plan;
use crate::probe::Probe;
use crate::units::Ps;
use ccl_schedule::Program;
use machine::Machine;
use thiserror::Error;

/// Evaluates an expression with a program in its concrete type if that is a ring or a tree, which large
/// systems run.
macro_rules! with_known {
    ($dyn:expr, $program:ident => $body:expr) => {{
        use ccl_schedule::algo::{Ring, RingAccumulate, TreeAllReduce};
        let known = $dyn.known();
        if let Some($program) = known.and_then(|any| any.downcast_ref::<Ring>()) {
            $body
        } else if let Some($program) = known.and_then(|any| any.downcast_ref::<RingAccumulate>()) {
            $body
        } else if let Some($program) = known.and_then(|any| any.downcast_ref::<TreeAllReduce>()) {
            $body
        } else {
            let $program = $dyn;
            $body
        }
    }};
}
pub(crate) use with_known;

/// Which engine to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A where it is exact, else B.
    Auto,
    /// Data flow without an event queue.
    A,
    /// Events, one per hop.
    B,
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SimError {
    /// Engine A was asked for where it is not exact.
    #[error("engine A is not exact here: {link} serves several channels; use --engine b or auto")]
    Shared {
        /// A link that is shared.
        link: String,
    },
    /// An operation is invalid at its step.
    #[error("rank {rank}, step {step}: {op} is invalid at this step; `ipcq verify` reports why")]
    Misuse {
        /// The rank.
        rank: u32,
        /// Its step.
        step: u32,
        /// The operation.
        op: String,
    },
    /// Ranks are left that cannot proceed.
    #[error(
        "deadlock: {blocked} of {ranks} ranks are blocked, the first is rank {first}; `ipcq verify` shows the cycle"
    )]
    Deadlock {
        /// Ranks that wait.
        blocked: u32,
        /// All ranks.
        ranks: u32,
        /// The lowest of them.
        first: u32,
    },
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The engine that ran (never `Auto`).
    pub engine: Engine,
    /// When each rank finished.
    pub finish: Vec<Ps>,
    /// How long each rank waited for tokens and credits.
    pub blocked: Vec<Ps>,
    /// Messages sent.
    pub messages: u64,
    /// Hop events processed (0 with engine A).
    pub events: u64,
    /// When each link is free again.
    pub(crate) links: Vec<Ps>,
}

impl Timing {
    /// When the last rank finished.
    pub fn time(&self) -> Ps {
        self.finish.iter().copied().max().unwrap_or(0)
    }

    /// A number that differs when any rank's finish or waiting time differs.
    pub fn hash(&self) -> u64 {
        // FNV-1a over 64-bit words, with a final mix so that close times have unrelated hashes.
        let words = self.finish.iter().chain(&self.blocked).copied();
        let mut hash = words
            .chain([self.messages])
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, word| (h ^ word).wrapping_mul(0x0100_0000_01b3));
        hash ^= hash >> 32;
        hash.wrapping_mul(0xd6e8_feb8_6659_fd93)
    }
}

/// Runs a plan; `probe` receives everything that happens.
pub fn run<P: Probe>(plan: &Plan<'_>, engine: Engine, probe: &mut P) -> Result<Timing, SimError> {
    with_known!(plan.program, program => run_as(plan, program, engine, probe))
}

fn run_as<G: Program + ?Sized, P: Probe>(
    plan: &Plan<'_>,
    program: &G,
    engine: Engine,
    probe: &mut P,
) -> Result<Timing, SimError> {
    let shared = match plan.net.exclusive() {
        Exclusive::Yes => None,
        Exclusive::No(link) => Some(link),
    };
    match (engine, shared) {
        (Engine::A, Some(link)) => Err(SimError::Shared { link: plan.net.name(link, &plan.wiring) }),
        (Engine::A | Engine::Auto, None) => dataflow::run(Machine::new(plan, program, probe)),
        (Engine::B, _) | (Engine::Auto, Some(_)) => events::run(Machine::new(plan, program, probe)),
    }
}
