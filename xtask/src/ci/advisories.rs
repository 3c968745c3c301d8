//! The lane `advisories`: no crate that a build links is in RustSec's list of known defects. The list is not part of a registry of
//! crates; cargo-audit fetches it, so that the lane is left out where that cannot be.

use anyhow::Result;

use crate::cargo::{answers, cargo};
use crate::lane::{Outcome, Report, Setting};

pub(super) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    let root = &setting.ws.root;
    if !answers(cargo(root, ["audit", "--version"])) {
        let how = "cargo-audit is not installed; to install: cargo install cargo-audit --locked";
        return Ok(Outcome::LeftOut(how.to_owned()));
    }
    let locks = ["Cargo.lock", "bindings/python/Cargo.lock"];
    let mut failures = Vec::new();
    for lock in locks {
        let log =
            setting.console.run_unseen(&mut cargo(root, ["audit", "--deny", "warnings", "--file", lock]))?;
        if log.lines.iter().any(|line| not_fetched(line)) {
            return Ok(Outcome::LeftOut(
                "the list of advisories cannot be fetched; it comes from github.com".to_owned(),
            ));
        }
        failures.extend(log.failure);
    }
    Ok(Outcome::Ran(Report::checks(locks.len(), "list of crates", failures.into_iter().next())))
}

/// What cargo-audit says when it has no list to compare with.
fn not_fetched(line: &str) -> bool {
    line.starts_with("error: couldn't fetch advisory database")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_fetched_is_told_from_a_finding() {
        assert!(not_fetched(
            "error: couldn't fetch advisory database: git operation failed: failed to clone"
        ));
        assert!(!not_fetched("error: 1 vulnerability found!"));
    }
}
