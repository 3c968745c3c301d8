//! Runs cases side by side, each under a watcher in a process of its own.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use worker_chaos::Outcome;

/// When a watcher itself is taken for hung; it has a limit for everything that it watches.
const WATCHER_HANGS: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// This program in other roles, and the folder that its scenarios share.
pub(crate) struct Runner {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Runner {
    pub(crate) fn new() -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        Ok(Self { program, folder })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env(crate::FOLDER, self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Every case of the scenario, or of all scenarios.
    pub(crate) fn cases(&self, scenario: Option<&str>) -> Result<Vec<String>, String> {
        let args: Vec<&str> = ["cases"].into_iter().chain(scenario).collect();
        let run = self.command(&args).output().map_err(|error| error.to_string())?;
        if !run.status.success() {
            return Err(String::from_utf8_lossy(&run.stderr).into_owned());
        }
        let cases: Vec<String> = String::from_utf8_lossy(&run.stdout).lines().map(str::to_owned).collect();
        if cases.is_empty() {
            return Err("the scenarios pass no point; was this built with `fault-points/inject`?".to_owned());
        }
        Ok(cases)
    }

    /// Runs `cases`, `jobs` at a time, until `end`, and passes on each outcome as it comes.
    pub(crate) fn run_all(
        &self,
        cases: &[String],
        jobs: usize,
        end: Option<Instant>,
        mut each: impl FnMut(Outcome),
    ) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (send, outcomes) = mpsc::channel();
            for _ in 0..jobs {
                let (send, next) = (send.clone(), &next);
                scope.spawn(move || {
                    while end.is_none_or(|end| Instant::now() < end)
                        && let Some(case) = cases.get(next.fetch_add(1, Ordering::AcqRel))
                    {
                        let outcome =
                            self.watch(case).unwrap_or_else(|problem| Outcome::not_watched(case, problem));
                        if send.send(outcome).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(send);
            outcomes.into_iter().for_each(&mut each);
        });
    }

    fn watch(&self, case: &str) -> Result<Outcome, String> {
        let words = |error: std::io::Error| error.to_string();
        let mut command = self.command(&["watch", case]);
        // Ctrl-C ends this process only: a watcher ends its case and removes its files.
        command.process_group(0);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(words)?;
        let started = Instant::now();
        while child.try_wait().map_err(words)?.is_none() {
            if started.elapsed() > WATCHER_HANGS {
                child.kill().map_err(words)?;
                return Err("its watcher hangs".to_owned());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let (mut out, mut errors) = (String::new(), String::new());
        if let (Some(stdout), Some(stderr)) = (&mut child.stdout, &mut child.stderr) {
            stdout.read_to_string(&mut out).map_err(words)?;
            stderr.read_to_string(&mut errors).map_err(words)?;
        }
        serde_json::from_str(&out).map_err(|_| format!("its watcher printed {out:?} {errors:?}"))
    }
}

/// The names in a folder.
pub(crate) fn names_in(folder: &Path) -> std::collections::BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
