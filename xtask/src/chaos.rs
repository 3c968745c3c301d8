//! `cargo xtask chaos`: faults at every point. The program `proc_chaos` records which points the processes
//! of its scenes pass, and so knows every case: a point, the process that passes it, the time that it does,
//! and what happens there. Each case runs under a watcher of its own, which judges from outside whether the
//! contract held; this command chooses the cases, runs them side by side and adds up.

mod choice;
mod totals;

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::cargo::cargo;
use crate::console::{self, Console};
use crate::hw_test::build_double;
use crate::lane::{Outcome, Report, Setting};
use crate::status::StatusLine;
use crate::workspace::Workspace;
use totals::Totals;

/// Which cases to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only so many cases, spread over all scenes and areas; otherwise every one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    points: Option<u64>,
    /// Which cases come first, and which are chosen with --points
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Start no case after so many minutes
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: Option<u64>,
    /// Cases at a time; they mostly wait
    #[arg(long, value_name = "J", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Only this case, as a failure prints it
    #[arg(long, value_name = "CASE", value_parser = shape, conflicts_with_all = ["points", "minutes"])]
    case: Option<String>,
    /// One JSON object a case, and one with the totals
    #[arg(long)]
    json: bool,
}

/// What came of a case, as the watcher says it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Verdict {
    case: String,
    verdict: String,
    /// Everything that was not as it should be.
    why: Vec<String>,
    told_ms: Option<f64>,
    gone_ms: Option<f64>,
    /// How far the slowest call went beyond its deadline.
    late_ms: Option<f64>,
    took_ms: f64,
    /// For how long the watcher itself was not let run.
    stalled_ms: f64,
    /// The first line of the first error.
    told: Option<String>,
}

/// Refuses before anything is built what cannot be a case; whether it is one, the scenes know.
fn shape(case: &str) -> Result<String, String> {
    let parts = case.split_once(':').and_then(|(scene, fault)| Some((scene, fault.split_once('=')?)));
    match parts {
        Some((scene, (point, action))) if ![scene, point, action].contains(&"") => Ok(case.to_owned()),
        _ => {
            Err("write it as a failure prints it, such as fork:worker.task.before-program@1#2=kill"
                .to_owned())
        }
    }
}

const FAILED: &str = "failed";
/// Cases of the CI lane: every area of every scene more than once, in about a minute.
const SLICE: u64 = 240;
/// When a watcher itself hangs, which has a limit for everything it watches.
const WATCHER_HANGS: Duration = Duration::from_secs(180);

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let program = Program::build(ws, &Console::new(console::Show::choose(false)))?;
    let (show, begun) = (Show::new(args.json), Instant::now());
    let chosen = match &args.case {
        Some(case) => vec![case.clone()],
        None => program.choose(args.seed, args.points)?,
    };
    if let (Some(case), false) = (&args.case, args.json) {
        println!("{case}");
    }
    let totals = sweep(&program, chosen, args, &show)?;
    show.end();
    if args.json {
        println!("{}", totals.json(args.seed, begun.elapsed()));
    } else {
        println!("{}", totals.text(args.seed, begun.elapsed()));
    }
    let failure = totals.failure();
    if let Some(why) = &failure {
        eprintln!("chaos: {why}");
    }
    Ok(if failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A slice of the sweep as a lane.
pub(crate) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    let program = Program::build(setting.ws, setting.console)?;
    let args = Args { points: Some(SLICE), seed: 1, minutes: None, jobs: 4, case: None, json: false };
    let totals = sweep(&program, program.choose(args.seed, args.points)?, &args, &Show::lines())?;
    Ok(Outcome::Ran(Report {
        counted: totals.brief(),
        ..Report::checks(totals.ran(), "case", totals.failure())
    }))
}

/// The program with the scenes, and the folder that they share.
struct Program {
    path: PathBuf,
    folder: PathBuf,
    /// Where the vendor double's libraries are.
    double: PathBuf,
}

impl Program {
    /// Builds it as the tests of the workspace are built, so that nothing is compiled twice.
    fn build(ws: &Workspace, console: &Console) -> Result<Self> {
        let double = build_double(ws, console)?;
        let select = ["test", "--workspace", "--test", "proc_chaos", "--no-run"];
        if let Some(failure) = console.run(&mut cargo(&ws.root, select))?.failure {
            bail!("the scenes do not build: {failure}");
        }
        let said = cargo(&ws.root, select).args(["--quiet", "--message-format", "json"]).output()?;
        let artifacts = String::from_utf8_lossy(&said.stdout);
        let path = artifacts.lines().filter_map(executable).next_back();
        let folder = ws.target.join("chaos");
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { path: path.context("cargo did not say where proc_chaos is")?, folder, double })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(args).env("CHAOS_FOLDER", &self.folder).stdin(Stdio::null());
        // One of the scenes is played on the vendor double.
        command.env("CHIPCOMM_CANN_LIB_DIR", &self.double);
        command
    }

    /// Every case there is, in the order of the seed, or so many of them.
    fn choose(&self, seed: u64, points: Option<u64>) -> Result<Vec<String>> {
        let said = self.command(&["cases"]).output().context("cannot start the scenes")?;
        ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let cases = String::from_utf8_lossy(&said.stdout).lines().map(str::to_owned).collect();
        let mut chosen = choice::spread(cases, seed);
        chosen.truncate(points.map_or(usize::MAX, |points| points as usize));
        ensure!(!chosen.is_empty(), "the scenes pass no point; were they built with `fault-points`?");
        Ok(chosen)
    }

    /// Runs one case.
    fn watch(&self, case: &str) -> Result<Verdict> {
        let mut command = self.command(&["watch", case]);
        // Ctrl-C ends this program only: a watcher ends its case and takes its files away.
        command.process_group(0);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let begun = Instant::now();
        while child.try_wait()?.is_none() {
            if begun.elapsed() > WATCHER_HANGS {
                child.kill()?;
                bail!("its watcher hangs");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let read = |pipe: Option<&mut dyn Read>| -> Result<String> {
            let mut text = String::new();
            pipe.context("its output is not connected")?.read_to_string(&mut text)?;
            Ok(text)
        };
        let out = read(child.stdout.as_mut().map(|pipe| pipe as &mut dyn Read))?;
        let errors = read(child.stderr.as_mut().map(|pipe| pipe as &mut dyn Read))?;
        ensure!(!out.is_empty() || errors.is_empty(), "{}", errors.trim_end());
        serde_json::from_str(&out).with_context(|| format!("its watcher said {out:?} {errors:?}"))
    }
}

/// The test program that a line of cargo's messages tells of.
fn executable(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let ours = message.get("target")?.get("name")? == "proc_chaos";
    ours.then(|| message.get("executable")?.as_str().map(PathBuf::from))?
}

/// Runs the cases, several at a time, and tells of each.
fn sweep(program: &Program, cases: Vec<String>, args: &Args, show: &Show) -> Result<Totals> {
    let shared_before = names_in(Path::new("/dev/shm"));
    let end = args.minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let mut totals = Totals::new(cases.len());
    show.begin(cases.len());
    let waiting = Mutex::new(VecDeque::from(cases));
    let next = || {
        let in_time = end.is_none_or(|end| Instant::now() < end);
        waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front().filter(|_| in_time)
    };
    std::thread::scope(|scope| {
        let (send, verdicts) = mpsc::channel();
        for _ in 0..args.jobs {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                while let Some(case) = next() {
                    let verdict = program.watch(&case).unwrap_or_else(|error| broken(&case, &error));
                    if send.send(verdict).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for verdict in verdicts {
            show.case(&verdict);
            totals.add(verdict);
        }
    });
    // Watchers take their folders away and nothing else here has a name, so what came up meanwhile and
    // stays is a finding, or another program's.
    totals.shared_left = names_in(Path::new("/dev/shm")).difference(&shared_before).cloned().collect();
    Ok(totals)
}

fn broken(case: &str, error: &anyhow::Error) -> Verdict {
    Verdict {
        case: case.to_owned(),
        verdict: FAILED.to_owned(),
        why: vec![format!("{error:#}")],
        told_ms: None,
        gone_ms: None,
        late_ms: None,
        took_ms: 0.0,
        stalled_ms: 0.0,
        told: None,
    }
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// How a sweep is shown while it runs.
struct Show {
    status: StatusLine,
    json: bool,
    cases: Cell<usize>,
    ended: Cell<usize>,
    /// When a log without a moving line was last informed of how far the sweep is.
    logged: Cell<Instant>,
}

/// How often that is.
const LOG_EVERY: Duration = Duration::from_secs(30);

impl Show {
    fn new(json: bool) -> Self {
        Self::on(StatusLine::new(), json)
    }

    /// Only lines that stay.
    fn lines() -> Self {
        Self::on(StatusLine::hidden(), false)
    }

    fn on(status: StatusLine, json: bool) -> Self {
        Self { status, json, cases: Cell::new(0), ended: Cell::new(0), logged: Cell::new(Instant::now()) }
    }

    fn begin(&self, cases: usize) {
        self.cases.set(cases);
    }

    fn case(&self, verdict: &Verdict) {
        self.ended.set(self.ended.get() + 1);
        let far = format!("{} of {} cases", self.ended.get(), self.cases.get());
        if !self.status.is_shown() && self.logged.get().elapsed() > LOG_EVERY {
            eprintln!("{far}");
            self.logged.set(Instant::now());
        }
        let lines = match (self.json, verdict.verdict == FAILED) {
            (true, _) => serde_json::to_string(verdict).unwrap_or_default(),
            (false, true) => {
                let why = verdict.why.iter().flat_map(|why| why.lines()).map(|line| format!("\n    {line}"));
                format!("FAILED  cargo xtask chaos --case '{}'{}", verdict.case, why.collect::<String>())
            }
            (false, false) => return self.status.set(&format!("{far}  {}", verdict.case)),
        };
        self.status.clear();
        println!("{lines}");
    }

    fn end(&self) {
        self.status.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_cargos_messages() {
        let line =
            r#"{"reason":"compiler-artifact","target":{"name":"proc_chaos"},"executable":"/x/proc_chaos-1"}"#;
        assert_eq!(executable(line), Some(PathBuf::from("/x/proc_chaos-1")));
        assert_eq!(executable(&line.replace("proc_chaos\"}", "proc_run\"}")), None);
        assert_eq!(executable("no JSON"), None);
    }

    #[test]
    fn what_cannot_be_a_case_is_refused_before_a_build() {
        assert!(shape("fork:worker.task.before-program@1#2=kill").is_ok());
        for text in ["", "nonsense", "fork:", "fork:a.b", ":a.b=kill", "fork:=kill", "fork:a.b="] {
            assert!(shape(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_watcher_that_says_nothing_is_a_failed_case() {
        let program = Program { path: "true".into(), folder: ".".into(), double: ".".into() };
        let error = program.watch("fork:a=kill").unwrap_err();
        assert!(broken("fork:a=kill", &error).why[0].contains("its watcher said"), "{error:#}");
    }
}
