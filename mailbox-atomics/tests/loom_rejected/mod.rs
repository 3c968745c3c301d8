//! Runs a model that must fail and expects that loom rejects it.

use mailbox_atomics::{Site, mutants};
use std::process::Command;

const INSIDE: &str = "CHIPCOMM_LOOM_MUTANT";

/// Runs `scenario` with `site` broken and expects that it fails with `loom_error`.
pub(crate) fn rejected(test: &str, site: Site, check: fn(fn()), scenario: fn(), loom_error: &str) {
    rejected_model(test, || mutants::with(site, || check(scenario)), loom_error);
}

/// Runs `model` in a process of its own (loom aborts when it meets a deadlock while it unwinds) and
/// expects that it fails with `loom_error`.
pub(crate) fn rejected_model(test: &str, model: impl FnOnce(), loom_error: &str) {
    if std::env::var_os(INSIDE).is_some() {
        return model();
    }
    let this = std::env::current_exe().unwrap();
    let run = Command::new(this).args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success(), "loom accepted {test}: the model is too weak");
    assert!(stderr.contains(loom_error), "{test} failed for another reason than \"{loom_error}\":\n{stderr}");
}
