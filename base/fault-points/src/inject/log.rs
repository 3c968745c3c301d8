//! The file in which a test outside the program reads which points its processes passed.

use super::plan::Plan;
use super::state::{Kind, Pass};
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

/// The variable that names a log file for a program and all processes that it starts. With a plan, each
/// fault is appended to it just before it happens; without one, each pass of a point. Every line is a
/// [`LogLine`].
pub const LOG_VARIABLE: &str = "CHIPCOMM_FAULT_LOG";

/// Where to append, and what.
pub(super) struct Log {
    path: PathBuf,
    /// Every pass; otherwise only faults.
    pub(super) passes: bool,
}

impl Log {
    pub(super) fn from_environment(plan: &Plan) -> Option<Self> {
        let path = std::env::var_os(LOG_VARIABLE)?.into();
        Some(Self { path, passes: plan.faults.is_empty() })
    }

    /// Opens the file each time: a forked process has closed the descriptors that it does not know. One
    /// write, so that lines of several processes do not mix.
    pub(super) fn append(&self, rank: Option<u32>, pass: Pass) {
        let (pid, at_ns) = (std::process::id(), monotonic_ns());
        let line = LogLine { pid, rank, at_ns, kind: pass.kind, hit: pass.hit, point: pass.point.to_owned() };
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&self.path);
        // The reader reports a missing line; a process under test cannot.
        let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    }
}

/// `CLOCK_MONOTONIC`; a clock that cannot be read is taken for 0.
fn monotonic_ns() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// One pass of a point, or one fault just before it happened: `pid rank ns kind hit point`, with `-` for
/// an unknown rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The process.
    pub pid: u32,
    /// Its rank or its number as a Worker's child.
    pub rank: Option<u32>,
    /// When, on the monotonic clock.
    pub at_ns: u64,
    /// What follows the point.
    pub kind: Kind,
    /// Which pass in this process, from 1.
    pub hit: u64,
    /// The point.
    pub point: String,
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, rank, at_ns, kind, hit, point } = self;
        let rank = rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
        let kind = if *kind == Kind::Call { "call" } else { "step" };
        write!(f, "{pid} {rank} {at_ns} {kind} {hit} {point}")
    }
}

impl FromStr for LogLine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let mut words = text.split(' ');
            let mut next = || words.next();
            let line = Self {
                pid: next()?.parse().ok()?,
                rank: next()
                    .map(|rank| if rank == "-" { Some(None) } else { rank.parse().ok().map(Some) })??,
                at_ns: next()?.parse().ok()?,
                kind: match next()? {
                    "call" => Kind::Call,
                    "step" => Kind::Step,
                    _ => return None,
                },
                hit: next()?.parse().ok()?,
                point: next()?.to_owned(),
            };
            words.next().is_none().then_some(line)
        };
        parse().ok_or_else(|| format!("{text:?} is not a line of a fault log, such as `1234 0 5678 step 1 rendezvous.accepted`; give a file that a recording wrote"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FP-3
    #[test]
    fn a_line_survives_its_text_and_malformed_lines_are_refused() {
        "1234 0 5678 step 1 rendezvous.accepted".parse::<LogLine>().unwrap();
        for rank in [None, Some(3)] {
            let line = LogLine { pid: 7, rank, at_ns: 12, kind: Kind::Call, hit: 2, point: "a.b".into() };
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        for text in ["", "7", "7 - 12 call 2", "7 x 12 call 2 a", "7 - 12 jump 2 a", "7 - 12 call 2 a b"] {
            let error = text.parse::<LogLine>().unwrap_err();
            assert!(error.contains("is not a line of a fault log, such as `1234 0 5678 step 1"), "{error}");
        }
    }
}
