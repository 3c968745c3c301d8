//! Collectives between processing elements as schedules: written once, proved, and dumped.
//!
//! A chip has many processing elements (PEs); each has queues to its neighbours with a few slots. A
//! collective is a [`Program`]: a function from (rank, step) to one [`Op`] (send, recv, copy, reduce, store),
//! so a schedule of a million ranks stores nothing. [`prove`] runs it once without time and decides whether
//! every rank ends with every contribution exactly once, and whether it can deadlock with the slots that the
//! queues have. `ipcq-sim` computes how long it takes.
//!
//! # Contract
//! - **SC-1** A channel is one (source, direction) → (destination, direction) pair with one id; a pairing
//!   that is not one to one is refused, and two ranks that send to each other in both directions have two
//!   channels.
//! - **SC-2** The contribution proof is exact up to [`EXACT_RANKS`] ranks, and wrong with a chance below
//!   2^-100 beyond.
//! - **SC-3** Whether a schedule deadlocks is decided for every timing: it does not depend on the order in
//!   which ranks run.
//! - **SC-4** The smallest slot count is exact: one less blocks.
//! - **SC-5** Data of one chunk never counts for another; every token is received, every held slot is
//!   released.
//! - **SC-6** [`Program::messages`] of every algorithm here is what a run counts.
//! - **SC-7** [`prove_rank_order`] accepts a schedule exactly when every sum is added rank by rank, from 0 on.
//! - **SC-8** By reference ([`prove_by_reference`]) a send lends its tile, and a write waits until all who borrowed the tile have
//!   read it; [`unguarded_writes`] names the writes that no message of the schedule holds back until then.
//!
//! # An algorithm in 30 lines
//! Every rank passes its tile to the east and adds what arrives from the west, n − 1 times. The
//! whole program:
//! ```
//! use ccl_schedule::{CreditPoint, Dir, Goal, Land, Op, Program, Tile, prove};
//!
//! struct PassAround(u32);
//!
//! impl Program for PassAround {
//!     fn name(&self) -> &str { "pass_around" }
//!     fn goal(&self) -> Goal { Goal::AllReduce }
//!     fn ranks(&self) -> u32 { self.0 }
//!     fn chunks(&self) -> u32 { 1 }
//!     fn dirs(&self) -> &[Dir] { &[Dir::E, Dir::W] }
//!     fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
//!         (dir == Dir::E).then_some(((rank + 1) % self.0, Dir::W))
//!     }
//!     fn op(&self, _rank: u32, step: u32) -> Option<Op> {
//!         let Some(step) = step.checked_sub(1) else {
//!             return Some(Op::Send { dir: Dir::E, chunk: 0, from: Tile::Mem(0) });
//!         };
//!         let last = step / 3 == self.0 - 2;
//!         match step % 3 {
//!             0 => Some(Op::Recv { dir: Dir::W, tile: 0, land: Land::Forward }),
//!             1 if last => Some(Op::Reduce { from: Tile::Take(Dir::W), to: 0 }),
//!             1 => Some(Op::Reduce { from: Tile::Held(Dir::W), to: 0 }),
//!             _ if last => None,
//!             _ => Some(Op::Send { dir: Dir::E, chunk: 0, from: Tile::Take(Dir::W) }),
//!         }
//!     }
//!     fn messages(&self) -> u64 { u64::from(self.0) * u64::from(self.0 - 1) }
//! }
//!
//! let proof = prove(&PassAround(8), 4, CreditPoint::LastUse).unwrap();
//! assert_eq!(proof.messages, 56);
//! // Forwarding out of a slot needs a second one, and the proof finds that.
//! let error = prove(&PassAround(8), 1, CreditPoint::LastUse).unwrap_err().to_string();
//! assert!(error.ends_with("the smallest n_slots that works is 2"));
//! ```
//!
//! # What it does not do
//! No time, no data types, no rounding: a contribution is a rank, not a number. Programs cannot choose by
//! arrival order (there is no receive from any source), which is why one run decides for all. Nothing here
//! starts a thread, and only [`dump`] does I/O.

#![forbid(unsafe_code)]

pub mod algo;
mod cut;
mod dump;
mod lend;
mod listed;
mod multiset;
pub mod mutate;
mod op;
mod order;
mod program;
mod prove;
mod untimed;
mod wiring;

pub use cut::Cut;
pub use dump::{dump, dump_c};
pub use lend::{LendError, Lent, UnguardedWrite, prove_by_reference, unguarded_writes};
pub use listed::ListedProgram;
pub use multiset::EXACT_RANKS;
pub use op::{Dir, Function, Land, Math, Op, Operand, Tile};
pub use order::{OrderError, OtherOrder, prove_rank_order};
pub use program::{Expect, Goal, Program};
pub use prove::{
    Blocked, Deadlock, MAX_CELLS, Method, Misuse, Proof, ProofError, Wrong, completes, prove, smallest_slots,
};
pub use untimed::CreditPoint;
pub use wiring::{Channel, NONE, Wiring, WiringError};
