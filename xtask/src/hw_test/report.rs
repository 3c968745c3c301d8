//! The report of a run: a text file that a user can attach to an issue.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::programs::{Target, TestRun};
use crate::cargo::cargo;
use crate::console::Console;

/// Writes the report. What the machine has comes from the doctor.
pub(super) fn write(target: &Target<'_>, console: &Console, results: &[TestRun], file: &Path) -> Result<()> {
    let mut doctor = cargo(&target.ws.root, ["run", "--quiet", "--package", "chipcomm-doctor"]);
    if let Some(libraries) = &target.libraries {
        doctor.env("CHIPCOMM_CANN_LIB_DIR", libraries);
        doctor.env("CANN_SIM_DIR", super::double::fresh_session(target.ws)?);
    }
    let machine = console.run_unseen(&mut doctor)?.lines.join("\n");
    let text = text(&target.in_words(), &source_version(&target.ws.root), &machine, results);
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The commit, where this is a clone.
fn source_version(root: &Path) -> String {
    let mut git = Command::new("git");
    let described = git.current_dir(root).args(["describe", "--always", "--dirty"]).output();
    let described = described.ok().filter(|described| described.status.success());
    let commit =
        described.map_or("unknown".into(), |out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    format!("{} of commit {commit}", env!("CARGO_PKG_VERSION"))
}

fn text(where_it_ran: &str, version: &str, machine: &str, results: &[TestRun]) -> String {
    let failed: Vec<&TestRun> = results.iter().filter(|run| run.failure.is_some()).collect();
    let mut text = format!(
        "cargo xtask hw-test: {} passed, {} failed\n{where_it_ran}\nchipcomm {version}\n\n# Machine\n\n{machine}\n\n# Tests\n",
        results.len() - failed.len(),
        failed.len()
    );
    let mut part = None;
    for run in results {
        if part != Some((run.layer, &run.program)) {
            part = Some((run.layer, &run.program));
            let _ = writeln!(text, "\n{}: {}", run.layer.name(), run.program);
        }
        let _ = writeln!(text, "{}", run.in_words());
    }
    for run in failed {
        let _ = writeln!(text, "\n# {} printed\n", run.test);
        for line in run.failure.iter().flat_map(|(_, lines)| lines) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hw_test::Layer;
    use std::time::Duration;

    #[test]
    fn a_report_has_the_machine_every_test_and_what_a_failed_one_printed() {
        let run = |test: &str, failure: Option<&str>| TestRun {
            layer: Layer::Comm,
            program: "hw_comm".into(),
            test: test.into(),
            took: Duration::from_millis(1250),
            calls: Some(7),
            failure: failure.map(|why| (why.to_owned(), vec!["rank 1: 507899".to_owned()])),
        };
        let text = text(
            "ran on hardware",
            "0.1.0 of commit abc",
            "driver 25.0",
            &[run("one", None), run("two", Some("exit code 101"))],
        );
        for part in [
            "1 passed, 1 failed",
            "ran on hardware",
            "commit abc",
            "driver 25.0",
            "comm: hw_comm",
            "ok        1.25 s  one, 7 vendor calls",
            "FAILED    1.25 s  two, 7 vendor calls; exit code 101",
            "# two printed",
            "rank 1: 507899",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
