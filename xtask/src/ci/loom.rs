//! The loom lane: the models in `tests/loom_*.rs` of every crate that has some. By convention a test whose
//! name starts with `mutant_` weakens a protocol and passes when loom rejects it, so models and mutants are
//! counted apart.

use anyhow::Result;

use crate::cargo::{appended, cargo};
use crate::lane::{Outcome, Report, Setting, counted};
use crate::tally::Tally;
use crate::workspace::Member;

pub(super) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    of(setting, &setting.ws.members.iter().collect::<Vec<_>>())
}

/// Whether a crate has models.
pub(super) fn has_models(member: &Member) -> bool {
    member.targets_named("test", "loom_").next().is_some()
}

/// The models of these crates.
pub(super) fn of(setting: &Setting<'_>, members: &[&Member]) -> Result<Outcome> {
    let (mut lines, mut failures) = (Vec::new(), Vec::new());
    for member in members.iter().filter(|member| has_models(member)) {
        let args = ["test", "--release", "--no-fail-fast", "--package", &member.package, "--test", "loom_*"];
        let mut command = cargo(&setting.ws.root, args);
        // Its own target folder: other flags would make the other lanes build everything again.
        command.env("CARGO_TARGET_DIR", setting.ws.target.join("loom"));
        command.env("RUSTFLAGS", appended("RUSTFLAGS", "--cfg loom"));
        let log = setting.console.run(&mut command)?;
        failures.extend(log.failure);
        if Tally::of(&log.lines).ran() == 0 {
            failures.push(format!("{} has tests/loom_* in which no test ran", member.name));
        }
        lines.extend(log.lines);
    }
    Ok(Outcome::Ran(report(&lines, failures.into_iter().next())))
}

fn report(lines: &[String], failure: Option<String>) -> Report {
    let models = Tally::by_name(lines, |name| !is_mutant(name));
    let mutants = Tally::by_name(lines, is_mutant);
    let missing = || {
        (models.ran() == 0 || mutants.ran() == 0)
            .then(|| "it needs at least one model and one mutant that loom rejects".to_owned())
    };
    Report {
        counted: format!(
            "{} held, {} rejected",
            counted(models.passed, "model"),
            counted(mutants.passed, "mutant")
        ),
        failure: failure.or_else(missing),
        ..Report::tests(Tally::of(lines), None)
    }
}

fn is_mutant(name: &str) -> bool {
    name.rsplit("::").next().is_some_and(|name| name.starts_with("mutant_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_of(tests: &[&str]) -> Report {
        let mut lines: Vec<String> = tests.iter().map(|name| format!("test {name} ... ok")).collect();
        lines.push(format!("test result: ok. {} passed; 0 failed; 0 ignored; 0 measured", tests.len()));
        report(&lines, None)
    }

    #[test]
    fn models_and_mutants_are_counted_apart() {
        let report =
            report_of(&["payload_before_state", "barrier::reentry", "mutant_relaxed - should panic"]);
        assert_eq!(report.counted, "2 models held, 1 mutant rejected");
        assert_eq!((report.tests.passed, report.failure), (3, None));
    }

    #[test]
    fn models_without_a_mutant_prove_nothing() {
        assert!(report_of(&["payload_before_state"]).failure.is_some());
        assert!(report_of(&["mutant_relaxed"]).failure.is_some());
        assert!(report_of(&[]).failure.is_some());
    }
}
