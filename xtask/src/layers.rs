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
    Row { miri: true, ..row("comm-context", Uses::Only(&[]), Some(Layer::Context)) },
    // Benchmarks of any layer use it, so it stands before all that have some.
    row("bench-kit", Uses::Apart(&[]), None),
    Row { miri: true, ..row("mailbox-atomics", Uses::Only(&[]), Some(Layer::Atomics)) },
    Row { miri: true, ..row("worker-errors", Uses::Only(&[]), Some(Layer::Errors)) },
    row("rendezvous", Uses::Only(&["comm-context", "mailbox-atomics", "worker-errors"]), Some(Layer::Comm)),
    row("comm-sim", Uses::Only(BACKEND), Some(Layer::Comm)),
    row("comm-hccl", Uses::Only(BACKEND), Some(Layer::Comm)),
    row("bootstrap-channel", Uses::Only(&["mailbox-atomics", "worker-errors"]), Some(Layer::Bootstrap)),
    row("chip-bootstrap", Uses::AllEarlier, Some(Layer::Chip)),
    row("worker-orch", Uses::AllEarlier, Some(Layer::Worker)),
    row("ccl-schedule", Uses::Apart(&[]), None),
    row("ipcq-sim", Uses::Apart(&["ccl-schedule"]), None),
    row("chipcomm-examples", Uses::AllEarlier, Some(Layer::Examples)),
    row("xtask", Uses::Apart(&[]), None),
];

const BACKEND: &[&str] = &["comm-context", "mailbox-atomics", "worker-errors", "rendezvous"];

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
