//! What the benchmark programs of this workspace share. It is a dev-dependency and not a layer.
//!
//! A figure means nothing without its limit. So the limits are measured in the same run, in turns
//! with what they limit ([`alternate`]), and through bare system calls and atomics, so that they
//! include none of our costs: [`SpinPingPong`] and [`FutexPingPong`] of two processes,
//! [`fork_and_wait`] for the start and end of n processes. A [`Bench`] reads the command line and
//! prints one line for each figure, in the form that `cargo xtask bench` reads.
//!
//! # Contract
//! - **BK-1** Contestants take turns in the same processes on the same cores; while one runs, the
//!   others use no processor.
//! - **BK-2** A figure is one line: a JSON object with `bench`, `case`, `value`, `unit`, `limit`,
//!   `limit_value` and `ratio`, where the ratio is the value over the limit, and is absent only
//!   together with it.
//! - **BK-3** No process of a benchmark outlives it, also when a contestant panics.
//!
//! # Example
//! ```
//! use bench_support::{Contestant, SpinPingPong, alternate};
//!
//! let bare = SpinPingPong::new()?;
//! let mut played = 0;
//! let mut spin = |me: usize, rounds: u64| bare.play(me, rounds, &mut played);
//! let samples = alternate(2, 3, &mut [Contestant { rounds: 10, play: &mut spin }])?;
//! println!("{:.0} ns a round trip", samples[0].median());
//! # Ok::<_, std::io::Error>(())
//! ```
//!
//! # What it does not do
//! It does not decide whether a figure is good: other programs run on the machine, so no test
//! asserts a time. A contestant must end by itself: the harness cannot stop one that waits for ever.

mod alternate;
mod limits;
mod pin;
mod raw;
mod report;
mod stats;

pub use alternate::{Contestant, alternate};
pub use limits::{FutexPingPong, SpinPingPong, fork_and_wait};
pub use raw::{futex_wait, futex_wake, processor_time};
pub use report::{Bench, Figure};
pub use stats::Samples;
