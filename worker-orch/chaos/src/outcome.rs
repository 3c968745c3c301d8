//! How one case went.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How one case went, as its watcher reports it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The case: `fork:worker.task.before-program@1#2=kill`.
    pub case: String,
    /// Whether the contract held.
    pub outcome: Kind,
    /// Everything that was not as it should be.
    pub why: Vec<String>,
    /// From a death to the return of the call that reported it, or from the call's start when that was later.
    pub reported_ms: Option<f64>,
    /// From the parent's death to that of its last process.
    pub gone_ms: Option<f64>,
    /// How far the slowest call went beyond its deadline.
    pub late_ms: Option<f64>,
    /// How long the case took.
    pub took_ms: f64,
    /// How long the watcher itself was not scheduled.
    pub stalled_ms: f64,
    /// The first line of the first error.
    pub error: Option<String>,
}

/// Whether the contract held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It did.
    Held,
    /// It did not.
    Failed,
    /// The processes took another path this time, and nothing went wrong.
    NotReached,
}

impl Kind {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 3] = [Self::Held, Self::Failed, Self::NotReached];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Held => "held",
            Self::Failed => "failed",
            Self::NotReached => "not reached",
        })
    }
}

impl Outcome {
    /// A case that could not be watched.
    pub fn not_watched(case: &str, why: String) -> Self {
        Self {
            case: case.to_owned(),
            outcome: Kind::Failed,
            why: vec![why],
            reported_ms: None,
            gone_ms: None,
            late_ms: None,
            took_ms: 0.0,
            stalled_ms: 0.0,
            error: None,
        }
    }
}
