//! The architecture as a table: one row a crate, in dependency order. This is the one place to edit when a
//! crate is added. `tidy` checks every edge, the list of members, the README's table and the one in
//! docs/ARCHITECTURE.md against it; `ci` takes the miri lane from it.

/// Which workspace crates a crate may use: names with commas between them, in the order of the table.
#[derive(Clone, Copy)]
pub(crate) enum Uses {
    /// These and no others. Its tests may use any crate in an earlier row.
    Only(&'static str),
    /// These and no others, in its tests as well: the crate stands beside the layers.
    Apart(&'static str),
}
use Uses::{Apart, Only};

/// One crate of the workspace. A member inside another member's folder belongs to that one's row.
pub(crate) struct Row {
    /// Name of the crate.
    pub(crate) name: &'static str,
    /// Crates that it may use; `base` stands for all of [`BASE`].
    pub(crate) uses: Uses,
    /// Whether miri runs its unit tests.
    pub(crate) miri: bool,
}

/// What `base` stands for: the crates of the folder `base`.
const BASE: &[&str] = &["fault-points", "deadline", "shared-memory", "child-process"];

/// Crates for benchmarks and tests. They are not part of the stack: any crate may have one as a
/// dev-dependency, none may need one to build, and they use no other member themselves.
pub(crate) const SUPPORT: &[&str] = &["bench-support"];

/// The C libraries stand in the folder of their backend, have its edges, and export the collectives over it too.
pub(crate) const C_LIBRARIES: &[&str] = &["comm-sim-c", "comm-hccl-c"];
/// What they use besides their backend's row.
pub(crate) const ABOVE_BACKENDS: &str = "collectives";

/// The rows that exist or are planned; a row without a member is not an error.
pub(crate) const ROWS: &[Row] = &[
    row("fault-points", Only("")),
    row("deadline", Only("")),
    row("shared-memory", Only("fault-points, deadline")).miri(),
    row("child-process", Only("fault-points, deadline")),
    row("worker-errors", Only("")).miri(),
    row("comm-context", Only("worker-errors")).miri(),
    row("mailbox-atomics", Only("base")).miri(),
    row("ccl-schedule", Apart("")),
    row("ipcq-sim", Apart("ccl-schedule")),
    row("rendezvous", Only("base, worker-errors, comm-context, mailbox-atomics")),
    row("comm-sim", Only("base, worker-errors, comm-context, mailbox-atomics, rendezvous")),
    row("comm-hccl", Only("base, worker-errors, comm-context, mailbox-atomics, rendezvous")),
    row("bootstrap-channel", Only("base, worker-errors, mailbox-atomics")),
    row("collectives", Only("base, worker-errors, comm-context, mailbox-atomics, ccl-schedule")),
    row("chipcomm-mpi", Only("shared-memory, comm-context, comm-sim, collectives")),
    row("chip-runtime", Only("base, worker-errors, comm-context, mailbox-atomics, comm-hccl")),
    row(
        "chip-bootstrap",
        Only("base, worker-errors, comm-context, mailbox-atomics, comm-sim, comm-hccl, bootstrap-channel"),
    ),
    row(
        "worker-orch",
        Only(
            "base, worker-errors, comm-context, mailbox-atomics, bootstrap-channel, collectives, chip-runtime, chip-bootstrap",
        ),
    ),
    row("chipcomm-examples", Only("comm-sim, chip-runtime, worker-orch")),
    row("xtask", Apart("")),
];

const fn row(name: &'static str, uses: Uses) -> Row {
    Row { name, uses, miri: false }
}

impl Row {
    const fn miri(self) -> Self {
        Self { miri: true, ..self }
    }

    /// The crates that it may use, with `base` written out.
    pub(crate) fn named(&self) -> Vec<&'static str> {
        let (Only(names) | Apart(names)) = self.uses;
        let names = names.split(", ").filter(|name| !name.is_empty());
        names.flat_map(|name| if name == "base" { BASE.to_vec() } else { vec![name] }).collect()
    }

    /// The cell of a table that says what the crate may use.
    pub(crate) fn uses_in_words(&self) -> &'static str {
        match self.uses {
            Only("") | Apart("") => "–",
            Only(names) | Apart(names) => names,
        }
    }
}

/// The place of a crate in the table.
pub(crate) fn position(name: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_crates_stand_in_earlier_rows_and_in_their_order() {
        for (at, row) in ROWS.iter().enumerate() {
            let places: Vec<_> = row.named().into_iter().map(position).collect();
            let earlier = places.iter().all(|place| place.is_some_and(|place| place < at));
            assert!(earlier && places.is_sorted(), "{} uses {:?}", row.name, row.named());
        }
    }

    #[test]
    fn support_crates_have_no_row() {
        assert!(SUPPORT.iter().all(|name| position(name).is_none()));
    }
}
