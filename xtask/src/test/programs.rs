//! Test programs, two at a time: they mostly wait for processes of their own, and `cargo test` would run one after the other.
//!
//! A program whose file says `//! Runs alone: …` runs when no other does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::cargo::without_identity;
use crate::console::{Console, Log, Started};
use crate::workspace::relative;

/// How many run at the same time.
const AT_ONCE: usize = 2;
/// How often a look says whether one has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How the line of a file begins that has its program run alone.
const ALONE: &str = "//! Runs alone: ";

/// A test program that cargo has built.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Program {
    executable: PathBuf,
    /// The file that it was made of.
    source: PathBuf,
    /// The folder of its crate, in which it runs.
    folder: PathBuf,
}

/// What cargo says of something that it has built.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: BuiltTarget,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct BuiltTarget {
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The programs that a `cargo test` with these arguments runs; they have been built.
pub(super) fn built(mut cargo_test: Command) -> Result<Vec<Program>> {
    let said = cargo_test.args(["--no-run", "--message-format", "json"]).output();
    let said = said.context("cannot ask cargo for the test programs")?.stdout;
    parse(&String::from_utf8_lossy(&said))
}

fn parse(said: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in said.lines().filter(|line| line.starts_with(r#"{"reason":"compiler-artifact""#)) {
        let artifact: Artifact =
            serde_json::from_str(line).context("cargo says something unexpected of a program")?;
        let (Some(executable), true) = (artifact.executable, artifact.profile.test) else { continue };
        let folder = artifact.manifest_path.parent().context("a manifest without a folder")?.to_owned();
        programs.push(Program { executable, source: artifact.target.src_path, folder });
    }
    Ok(programs)
}

impl Program {
    fn command(&self, passed_on: &[String]) -> Command {
        let mut command = without_identity(Command::new(&self.executable));
        command.current_dir(&self.folder).args(passed_on);
        command
    }

    fn runs_alone(&self) -> Result<bool> {
        let text = std::fs::read_to_string(&self.source)
            .with_context(|| format!("cannot read {}", self.source.display()))?;
        Ok(text.lines().take_while(|line| line.starts_with("//!")).any(|line| line.starts_with(ALONE)))
    }
}

/// Runs all of them to their ends and returns what each printed; `environment` is set for each.
pub(super) fn run(
    console: &Console,
    root: &Path,
    programs: &[Program],
    passed_on: &[String],
    environment: &[(&str, &str)],
) -> Result<Vec<Log>> {
    let start = |program: &Program| {
        let mut command = program.command(passed_on);
        console.start(command.envs(environment.iter().copied()))
    };
    let finish = |(program, started): (&Program, Started)| {
        console.note(&format!("     Running {}", relative(root, &program.source)));
        console.finish(started)
    };
    let (mut alone, mut running, mut logs) = (Vec::new(), Vec::new(), Vec::new());
    for program in programs {
        if program.runs_alone()? {
            alone.push(program);
            continue;
        }
        if running.len() == AT_ONCE {
            let ended = first_ended(console, &mut running)?;
            logs.push(finish(running.swap_remove(ended))?);
        }
        running.push((program, start(program)?));
    }
    for one in running {
        logs.push(finish(one)?);
    }
    for program in alone {
        logs.push(finish((program, start(program)?))?);
    }
    Ok(logs)
}

/// Waits until one of them has ended; there is one at least.
fn first_ended(console: &Console, running: &mut [(&Program, Started)]) -> Result<usize> {
    loop {
        for (at, (_, started)) in running.iter_mut().enumerate() {
            if console.has_ended(started)? {
                return Ok(at);
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::Show;

    fn program(folder: &Path, name: &str, first_line: &str, script: &str) -> Program {
        use std::os::unix::fs::PermissionsExt;
        let (source, executable) = (folder.join(format!("{name}.rs")), folder.join(name));
        std::fs::write(&source, format!("{first_line}\n")).unwrap();
        std::fs::write(&executable, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&executable, PermissionsExt::from_mode(0o755)).unwrap();
        Program { executable, source, folder: folder.to_owned() }
    }

    #[test]
    fn programs_are_what_cargo_calls_a_test() {
        let said = r#"{"reason":"compiler-artifact","manifest_path":"/ws/a/Cargo.toml","target":{"src_path":"/ws/a/src/lib.rs"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/ws/a/Cargo.toml","target":{"src_path":"/ws/a/tests/b.rs"},"profile":{"test":true},"executable":"/ws/target/b"}
{"reason":"compiler-artifact","manifest_path":"/ws/a/Cargo.toml","target":{"src_path":"/ws/a/src/main.rs"},"profile":{"test":false},"executable":"/ws/target/a"}
{"reason":"build-finished","success":true}"#;
        let [executable, source, folder] = ["/ws/target/b", "/ws/a/tests/b.rs", "/ws/a"].map(PathBuf::from);
        assert_eq!(parse(said).unwrap(), [Program { executable, source, folder }]);
        assert!(parse(r#"{"reason":"compiler-artifact"}"#).is_err());
    }

    #[test]
    fn two_run_at_once_and_one_that_says_so_alone() {
        let folder = tempfile::tempdir().unwrap();
        // The first two wait for each other; the third says whether another runs.
        let meet = |mine: &str, other: &str| {
            format!("touch {mine}; until [ -e {other} ]; do sleep 0.01; done; sleep 0.1; rm {mine}")
        };
        let programs = [
            program(folder.path(), "sole", "//! Runs alone: it looks.", "ls; ls one two 2>/dev/null; true"),
            program(folder.path(), "first", "//! A test.", &meet("one", "two")),
            program(folder.path(), "second", "//! A test.", &meet("two", "one")),
        ];
        let console = Console::new(Show::Progress);
        let logs = run(&console, folder.path(), &programs, &[], &[]).unwrap();
        assert!(logs.iter().all(|log| log.failure.is_none()), "{logs:?}");
        let lines = &logs[2].lines;
        assert!(lines.iter().any(|line| line == "sole"), "{lines:?}");
        assert!(!lines.iter().any(|line| line == "one" || line == "two"), "{lines:?}");
    }

    #[test]
    fn one_that_fails_does_not_keep_the_others_from_running() {
        let folder = tempfile::tempdir().unwrap();
        let programs = ["exit 3", "echo $SAID $1", "echo done"].iter().enumerate();
        let programs: Vec<Program> =
            programs.map(|(at, script)| program(folder.path(), &format!("p{at}"), "", script)).collect();
        let console = Console::new(Show::Progress);
        let logs =
            run(&console, folder.path(), &programs, &["filter".to_owned()], &[("SAID", "yes")]).unwrap();
        let mut failures = logs.iter().filter_map(|log| log.failure.as_deref());
        assert!(failures.next().unwrap().ends_with("failed with exit code 3") && failures.next().is_none());
        assert!(logs.iter().any(|log| log.lines == ["yes filter"]) && logs.len() == 3);
    }
}
