//! The architecture as a table: one row a crate, in dependency order. This is the one place to edit when a crate
//! is added; `tidy` checks every edge, the README and the list of members against it, `ci` takes the miri lane
//! from it and `hw-test` the crates of a layer.

use crate::hw_test::Layer;

/// Which workspace crates a crate may use.
pub(crate) enum Uses {
    /// These and no others. Its tests may use any crate in an earlier row.
    Only(&'static [&'static str]),
    /// Every crate in an earlier row.
    AllEarlier,
    /// These and no others, in its tests as well: the crate stands beside the layers.
    Apart(&'static [&'static str]),
}

/// One crate of the workspace. A member inside another member's folder belongs to that one's row.
pub(crate) struct Row {
    /// Name of the crate.
    pub(crate) name: &'static str,
    /// Crates that it may use.
    pub(crate) uses: Uses,
    /// The layer whose hardware tests it holds.
    pub(crate) layer: Option<Layer>,
    /// Whether miri runs its unit tests.
    pub(crate) miri: bool,
}

const fn row(name: &'static str, uses: Uses, layer: Option<Layer>) -> Row {
    Row { name, uses, layer, miri: false }
}

/// The rows that exist or are planned; a row without a member is not an error.
pub(crate) const ROWS: &[Row] = &[
    row("fault-points", Uses::Only(&[]), None),
    row("deadline", Uses::Only(&[]), None),
    Row { miri: true, ..row("shared-memory", Uses::Only(&["fault-points", "deadline"]), None) },
    row("child-process", Uses::Only(&["fault-points", "deadline"]), None),
    // Benchmarks of any layer use it, so it stands before all that have some.
    row("bench-support", Uses::Apart(&[]), None),
    Row { miri: true, ..row("comm-context", Uses::Only(&[]), Some(Layer::Context)) },
    Row { miri: true, ..row("mailbox-atomics", Uses::Only(BASE), Some(Layer::Atomics)) },
    Row { miri: true, ..row("worker-errors", Uses::Only(&[]), Some(Layer::Errors)) },
    row("ccl-schedule", Uses::Apart(&[]), None),
    row("rendezvous", Uses::Only(RENDEZVOUS), Some(Layer::Comm)),
    row("comm-sim", Uses::Only(BACKEND), Some(Layer::Comm)),
    row("comm-hccl", Uses::Only(BACKEND), Some(Layer::Comm)),
    row("bootstrap-channel", Uses::Only(CHANNEL), Some(Layer::Bootstrap)),
    row("collectives", Uses::Only(COLLECTIVES), None),
    row("chip-bootstrap", Uses::Only(CHIP), Some(Layer::Chip)),
    row("worker-orch", Uses::Only(WORKER), Some(Layer::Worker)),
    row("ipcq-sim", Uses::Apart(&["ccl-schedule"]), None),
    row("chipcomm-examples", Uses::AllEarlier, Some(Layer::Examples)),
    row("xtask", Uses::Apart(&[]), None),
];

const BASE: &[&str] = &["fault-points", "deadline", "shared-memory", "child-process"];
const CHANNEL: &[&str] =
    &["fault-points", "deadline", "shared-memory", "child-process", "mailbox-atomics", "worker-errors"];
const RENDEZVOUS: &[&str] = &[
    "fault-points",
    "deadline",
    "shared-memory",
    "child-process",
    "comm-context",
    "mailbox-atomics",
    "worker-errors",
];
const BACKEND: &[&str] = &[
    "fault-points",
    "deadline",
    "shared-memory",
    "child-process",
    "comm-context",
    "mailbox-atomics",
    "worker-errors",
    "rendezvous",
];
const COLLECTIVES: &[&str] =
    &["fault-points", "deadline", "shared-memory", "child-process", "comm-context", "mailbox-atomics"];
const CHIP: &[&str] = &[
    "fault-points",
    "deadline",
    "shared-memory",
    "child-process",
    "comm-context",
    "mailbox-atomics",
    "worker-errors",
    "bootstrap-channel",
    "comm-sim",
    "comm-hccl",
];
const WORKER: &[&str] = &[
    "fault-points",
    "deadline",
    "shared-memory",
    "child-process",
    "comm-context",
    "mailbox-atomics",
    "worker-errors",
    "bootstrap-channel",
    "chip-bootstrap",
];

/// The place of a crate in the table.
pub(crate) fn position(name: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_edge_points_to_an_earlier_row() {
        for (at, row) in ROWS.iter().enumerate() {
            let named = match row.uses {
                Uses::Only(names) | Uses::Apart(names) => names,
                Uses::AllEarlier => &[],
            };
            for name in named {
                assert!(position(name).is_some_and(|used| used < at), "{} uses {name}", row.name);
            }
        }
    }
}
