//! Running a command while a person or a CI log watches: what it prints is kept, and as much of it is shown
//! as the reader needs. A command that fails always shows why.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, IsTerminal};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::status::StatusLine;
use crate::tally::{not_run, result_line, test_line};

/// How much of a command's output is shown while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    /// Every line.
    Everything,
    /// Which test program runs and its `test result:` line: for logs.
    Results,
    /// One line that moves: for a terminal.
    Progress,
}

impl Show {
    /// Everything where asked for, one moving line on a terminal, results in a log.
    pub(crate) fn choose(verbose: bool) -> Self {
        let in_ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
        match (verbose, in_ci || !std::io::stderr().is_terminal()) {
            (true, _) => Self::Everything,
            (false, true) => Self::Results,
            (false, false) => Self::Progress,
        }
    }

    fn shows(self, line: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Results => {
                let start = line.trim_start();
                result_line(line).is_some()
                    || start.starts_with("Running ")
                    || start.starts_with("Doc-tests ")
            }
            Self::Progress => false,
        }
    }
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) lines: Vec<String>,
    /// Why it did not succeed.
    pub(crate) failure: Option<String>,
}

/// A command that has started and whose end was not waited for yet.
pub(crate) struct Started {
    shown: String,
    child: Child,
    lines: Receiver<String>,
}

/// Where lines go.
pub(crate) struct Console {
    show: Show,
    status: StatusLine,
    /// The lane that is running, and how far it is.
    doing: RefCell<(String, String)>,
    /// Why parts of it did not run, each reason once.
    not_run: RefCell<BTreeSet<String>>,
}

/// How long output may stay open after the command has ended before that is a failure.
const GRACE: Duration = Duration::from_secs(5);

impl Console {
    pub(crate) fn new(show: Show) -> Self {
        let status = match show {
            Show::Progress => StatusLine::new(),
            Show::Everything | Show::Results => StatusLine::hidden(),
        };
        Self { show, status, doing: RefCell::default(), not_run: RefCell::default() }
    }

    /// Says which lane is running.
    pub(crate) fn begin(&self, lane: &str, about: &str) {
        match self.show {
            Show::Progress => {
                *self.doing.borrow_mut() = (lane.to_owned(), about.to_owned());
                self.status.clear();
                self.status.restart();
                self.draw();
            }
            Show::Everything | Show::Results => println!("== {lane}: {about}"),
        }
    }

    /// Remembers that a part of the lane did not run. Tests say so by printing a line `not run: why`.
    pub(crate) fn not_run(&self, why: &str) {
        self.not_run.borrow_mut().insert(why.to_owned());
    }

    /// Why parts of the lane that has ended did not run.
    pub(crate) fn take_not_run(&self) -> Vec<String> {
        self.not_run.take().into_iter().collect()
    }

    /// Shows how far the lane is; only a terminal does.
    fn draw(&self) {
        let (lane, text) = &*self.doing.borrow();
        self.status.set(&format!("{lane}  {text}"));
    }

    /// Prints one line that stays.
    pub(crate) fn line(&self, text: &str) {
        self.status.clear();
        println!("{text}");
    }

    /// Erases the moving line.
    pub(crate) fn end(&self) {
        self.status.clear();
    }

    /// Runs a command to its end. Its two outputs share one pipe, so that their lines keep their order.
    pub(crate) fn run(&self, command: &mut Command) -> Result<Log> {
        self.run_within(command, Patience::default(), self.show)
    }

    /// The same for a command whose results the caller prints in its own words.
    pub(crate) fn run_unseen(&self, command: &mut Command) -> Result<Log> {
        self.run_within(command, Patience::default(), self.unseen())
    }

    /// The same for a command that is killed when it has not ended after `limit`.
    pub(crate) fn run_unseen_at_most(&self, command: &mut Command, limit: Duration) -> Result<Log> {
        let patience = Patience { limit: Some(limit), ..Patience::default() };
        self.run_within(command, patience, self.unseen())
    }

    fn unseen(&self) -> Show {
        if self.show == Show::Everything { Show::Everything } else { Show::Progress }
    }

    /// Starts a command that goes on beside others; what it prints is kept until it is [finished](Self::finish).
    pub(crate) fn start(&self, command: &mut Command) -> Result<Started> {
        let shown = describe(command);
        if self.show == Show::Everything {
            self.line(&format!("$ {shown}"));
        }
        let (child, lines) = spawn(command).with_context(|| format!("cannot start `{shown}`"))?;
        Ok(Started { shown, child, lines })
    }

    /// Whether a started command has ended; its output may still be open.
    pub(crate) fn has_ended(&self, started: &mut Started) -> Result<bool> {
        self.draw();
        Ok(started
            .child
            .try_wait()
            .with_context(|| format!("cannot wait for `{}`", started.shown))?
            .is_some())
    }

    /// Says what comes next: a line in a log, the moving line on a terminal.
    pub(crate) fn note(&self, text: &str) {
        match self.show {
            Show::Progress => text.trim().clone_into(&mut self.doing.borrow_mut().1),
            Show::Everything | Show::Results => self.line(text),
        }
    }

    /// Follows a started command to its end.
    pub(crate) fn finish(&self, started: Started) -> Result<Log> {
        self.finish_within(started, Patience::default(), self.show)
    }

    fn run_within(&self, command: &mut Command, patience: Patience, show: Show) -> Result<Log> {
        self.finish_within(self.start(command)?, patience, show)
    }

    fn finish_within(&self, started: Started, patience: Patience, show: Show) -> Result<Log> {
        let Started { shown, mut child, lines } = started;
        let mut log = Log { lines: Vec::new(), failure: None };
        let ended = self.follow(&mut child, &lines, &mut log, patience, show)?;
        let status = child.wait().with_context(|| format!("cannot wait for `{shown}`"))?;
        log.failure = match ended {
            Ended::Killed(limit) => {
                Some(format!("`{shown}` had not ended after {} s and was killed", limit.as_secs()))
            }
            Ended::Held if status.success() => {
                Some(format!("`{shown}` left a process behind that still holds its output"))
            }
            Ended::Closed if status.success() => None,
            _ => Some(format!("`{shown}` {}", ending(status))),
        };
        if log.failure.is_some() && self.show != Show::Everything {
            let mut worth: Vec<&String> =
                without_successes(&log.lines).filter(|line| !show.shows(line) && tells_why(line)).collect();
            worth.dedup_by(|next, line| next.is_empty() && line.is_empty());
            worth.iter().for_each(|line| self.line(line));
        }
        Ok(log)
    }

    /// Collects lines until the output is closed, or the command ended and someone else keeps it open.
    fn follow(
        &self,
        child: &mut Child,
        lines: &Receiver<String>,
        log: &mut Log,
        patience: Patience,
        show: Show,
    ) -> Result<Ended> {
        let (began, mut ended_at) = (Instant::now(), None);
        loop {
            match lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => {
                    if show.shows(&line) {
                        self.line(&line);
                    }
                    if !line.trim().is_empty() {
                        line.trim().clone_into(&mut self.doing.borrow_mut().1);
                    }
                    if let Some(why) = not_run(&line) {
                        self.not_run(why);
                    }
                    log.lines.push(line);
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(Ended::Closed),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.draw();
            // Also while lines still come: a process that was left behind may be the one that prints them.
            if ended_at.is_none() && child.try_wait()?.is_some() {
                ended_at = Some(Instant::now());
            }
            if ended_at.is_some_and(|at| at.elapsed() > patience.grace) {
                return Ok(Ended::Held);
            }
            if let Some(limit) = patience.limit.filter(|limit| ended_at.is_none() && began.elapsed() > *limit)
            {
                child.kill()?;
                return Ok(Ended::Killed(limit));
            }
        }
    }
}

/// How long a command may take, if there is a limit, and how long its output may stay open after it.
#[derive(Clone, Copy)]
struct Patience {
    grace: Duration,
    limit: Option<Duration>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { grace: GRACE, limit: None }
    }
}

/// How the output of a command ended.
enum Ended {
    Closed,
    /// Somebody else keeps it open.
    Held,
    Killed(Duration),
}

fn spawn(command: &mut Command) -> std::io::Result<(Child, Receiver<String>)> {
    let (reader, writer) = std::io::pipe()?;
    let child =
        command.stdin(std::process::Stdio::null()).stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // The command keeps its copies of the write end until they are replaced; without this the pipe never
    // closes.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut bytes = Vec::new();
        while matches!(reader.read_until(b'\n', &mut bytes), Ok(n) if n > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
            bytes.clear();
            if send.send(line).is_err() {
                break;
            }
        }
    });
    Ok((child, lines))
}

/// The command as one would type it, with the settings it adds to the environment.
fn describe(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(key, value)| Some((key, value?)));
    let set = set.filter(|(key, _)| *key != "CARGO_TERM_COLOR");
    let mut words: Vec<String> =
        set.map(|(key, value)| format!("{}='{}'", key.display(), value.display())).collect();
    let program = std::path::Path::new(command.get_program());
    words.push(program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned());
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}

fn ending(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("failed with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "failed".to_owned(),
    }
}

/// All lines but what the passing tests of a failed program printed.
fn without_successes(lines: &[String]) -> impl Iterator<Item = &String> {
    let mut inside = false;
    lines.iter().filter(move |line| {
        inside = match line.as_str() {
            "successes:" => true,
            "failures:" => false,
            _ => inside && result_line(line).is_none(),
        };
        !inside
    })
}

/// Lines of a failed command that are worth reading: not the tests that ran well and not the crates that
/// compiled.
fn tells_why(line: &str) -> bool {
    const PROGRESS: [&str; 8] = [
        "Compiling",
        "Checking",
        "Documenting",
        "Downloading",
        "Downloaded",
        "Locking",
        "Updating",
        "Adding",
    ];
    let passed = test_line(line).is_some_and(|(_, end)| end != "FAILED");
    let first = line.trim_start().split(' ').next().unwrap_or_default();
    let progress = line.starts_with("  ") && PROGRESS.contains(&first);
    let count = line.starts_with("running ") && line.trim_end_matches('s').ends_with(" test");
    !(passed || progress || count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Log {
        Console::new(Show::Progress).run(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn both_outputs_are_kept_in_order() {
        let log = sh("echo one; echo two >&2; printf 'three'");
        assert_eq!(log.lines, ["one", "two", "three"]);
        assert_eq!(log.failure, None);
    }

    #[test]
    fn a_part_that_did_not_run_is_remembered_until_it_is_asked_for() {
        let console = Console::new(Show::Progress);
        let script = "echo 'not run: no disk'; echo 'test a ... ok'; echo 'not run: no disk'";
        console.run(Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!(console.take_not_run(), ["no disk"]);
        assert!(console.take_not_run().is_empty());
    }

    #[test]
    fn what_passing_tests_print_does_not_hide_why_another_failed() {
        let lines = ["test a ... ok", "successes:", "noise", "failures:", "why"].map(str::to_owned);
        assert_eq!(without_successes(&lines).collect::<Vec<_>>(), ["test a ... ok", "failures:", "why"]);
    }

    #[test]
    fn a_failure_says_how_the_command_ended() {
        assert!(sh("exit 3").failure.unwrap().ends_with("failed with exit code 3"));
        assert!(sh("kill -9 $$").failure.unwrap().ends_with("was killed by signal 9"));
    }

    #[test]
    fn a_process_left_behind_is_a_failure_and_not_a_hang() {
        let console = Console::new(Show::Progress);
        let mut command = Command::new("sh");
        let patience = Patience { grace: Duration::from_secs(1), limit: None };
        let log = console
            .run_within(command.args(["-c", "sleep 9 & echo done"]), patience, Show::Progress)
            .unwrap();
        assert_eq!(log.lines, ["done"]);
        assert!(log.failure.unwrap().contains("left a process behind"));
    }

    #[test]
    fn a_command_that_does_not_end_is_killed_at_its_limit() {
        let console = Console::new(Show::Progress);
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; exec sleep 600"]);
        let log = console.run_unseen_at_most(&mut command, Duration::from_secs(1)).unwrap();
        assert_eq!(log.lines, ["begun"]);
        assert!(log.failure.unwrap().ends_with("had not ended after 1 s and was killed"));
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = Console::new(Show::Progress).run(&mut Command::new("no-such-program")).unwrap_err();
        assert!(error.to_string().contains("no-such-program"), "{error}");
    }

    #[test]
    fn a_log_shows_results_and_a_failure_shows_what_tells_why() {
        let result = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert!(Show::Results.shows(result) && Show::Results.shows("     Running tests/a.rs (target/a)"));
        assert!(!Show::Results.shows("test a ... ok") && !Show::Progress.shows(result));
        assert!(tells_why("test a ... FAILED") && tells_why("error[E0308]: mismatched types"));
        assert!(!tells_why("test a ... ok") && !tells_why("   Compiling a v0.1.0"));
        assert!(!tells_why("running 0 tests") && !tells_why("running 1 test") && tells_why("running late"));
    }
}
