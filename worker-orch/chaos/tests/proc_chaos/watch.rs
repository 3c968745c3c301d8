//! The watcher: starts a scenario with a fault, and observes from outside what it does and what it leaves
//! behind.

use crate::case::{self, Case, PAUSE, Scenario};
use crate::log::Report;
use crate::outcome::outcome;
use crate::unannounced_points::UNANNOUNCED_POINTS;
use deadline::{HowDied, monotonic_ns};
use fault_points::{Action, LOG_VARIABLE, LogLine, PLAN_VARIABLE};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use worker_chaos::Outcome;

/// How long a scenario's processes may take to end after it, or after their parent, before they count as left
/// behind: the second of the contract, and two for load.
const GONE_WITHIN: Duration = Duration::from_secs(3);
/// Where scenarios keep their files. The log of faults is written in the middle of what is timed, and a disk
/// can delay a write for seconds while other processes delete.
const IN_MEMORY: &str = "/dev/shm";
/// Between two checks of a scenario.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// When a scenario hangs: far beyond all its deadlines together.
const HANGS_AFTER: Duration = Duration::from_secs(90);
/// When a stopped parent is taken for hung and killed.
const LAST_RESORT: Duration = Duration::from_millis(500);

/// What was observed from outside.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The fault, once it happened.
    pub(crate) fault: Option<LogLine>,
    /// How often it happened.
    pub(crate) faults: usize,
    /// The scenario's first process.
    pub(crate) parent: u32,
    pub(crate) ended: Option<HowDied>,
    /// When the parent was taken for hung and killed, on the monotonic clock.
    pub(crate) last_resort_ns: Option<u64>,
    pub(crate) ended_ns: u64,
    /// When the last process was gone.
    pub(crate) gone_ns: Option<u64>,
    /// How long this process, which mostly sleeps, was not scheduled: delays of the machine are not charged
    /// to a scenario.
    pub(crate) stalled: Duration,
    /// Names of what was still there then.
    pub(crate) left: Vec<String>,
    pub(crate) report: Option<Report>,
    /// What the scenario and its processes printed.
    pub(crate) output: String,
}

/// A scenario that runs, in a folder of its own.
struct Running {
    folder: tempfile::TempDir,
    parent: Pid,
}

impl Running {
    fn start(scenario: Scenario, limits: &str, plan: Option<&str>) -> Result<Self, String> {
        let words = |error: std::io::Error| error.to_string();
        let folder = tempfile::Builder::new().prefix("chaos-").tempdir_in(IN_MEMORY).map_err(words)?;
        let file = |name: &str| folder.path().join(name);
        for name in ["temp", "session"] {
            std::fs::create_dir(file(name)).map_err(words)?;
        }
        let output = File::create(file("output")).map_err(words)?;
        let mut command = Command::new(std::env::current_exe().map_err(words)?);
        command.args(["scenario", scenario.name(), limits]).arg(file("report")).env("TMPDIR", file("temp"));
        command.env(LOG_VARIABLE, file("log")).env_remove(PLAN_VARIABLE);
        // With what ranks that meet at an address prove that they belong together.
        command.env("CHIPCOMM_TOKEN", "a token of these scenarios");
        // Where the vendor double keeps what its processes share.
        command.env("CANN_SIM_DIR", file("session"));
        if let Some(plan) = plan {
            command.env(PLAN_VARIABLE, plan);
        }
        let errors = output.try_clone().map_err(words)?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().map_err(words)?;
        Ok(Self { parent: Pid::from_raw(child.id() as i32), folder })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> Vec<LogLine> {
        let text = std::fs::read_to_string(self.file("log")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

/// Every case of a scenario, from a run in which nothing goes wrong.
pub(crate) fn cases(scenario: Scenario) -> Result<Vec<Case>, String> {
    let folder = shared_folder()?;
    crate::chips::kernel(&folder);
    let running = Running::start(scenario, "patient", None)?;
    let seen = follow(&running, None);
    let failed = seen.report.iter().flat_map(|report| &report.calls).find(|call| call.error.is_some());
    if seen.ended != Some(HowDied::Exited(0)) || failed.is_some() || !seen.left.is_empty() {
        return Err(format!("the scenario fails without a fault: {seen:#?}"));
    }
    Ok(case::cases(scenario, &running.log()))
}

/// Runs one case.
pub(crate) fn watch(case: &Case) -> Result<Outcome, String> {
    shared_folder()?;
    let begun = Instant::now();
    let point = case.fault.point.as_str();
    let by_itself = case.scenario == Scenario::Hosts && point.starts_with("region.");
    let unknown = case.scenario.is_of_ranks() && (by_itself || UNANNOUNCED_POINTS.contains(&point));
    let limits = if case.needs_deadline() || unknown { "short" } else { "patient" };
    let running = Running::start(case.scenario, limits, Some(&case.plan()))?;
    let seen = follow(&running, Some(case));
    Ok(outcome(case, &seen, begun.elapsed()))
}

/// The folder for what scenarios share.
fn shared_folder() -> Result<PathBuf, String> {
    let folder = std::env::var_os(crate::FOLDER).map(PathBuf::from);
    folder.filter(|folder| folder.is_dir()).ok_or(format!("{} must name a folder", crate::FOLDER))
}

/// Observes a scenario to its end and until its last process is gone. Orphans become children of this
/// process, so none is missed.
fn follow(running: &Running, case: Option<&Case>) -> Seen {
    let mut seen = Seen { parent: running.parent.as_raw() as u32, ..Seen::default() };
    if let Err(errno) = nix::sys::prctl::set_child_subreaper(true) {
        seen.left.push(format!("a watcher that cannot see orphans: {errno}"));
    }
    let begun = Instant::now();
    let mut resumed: Vec<u32> = Vec::new();
    loop {
        if let (Some(case), None) = (case, &seen.fault) {
            seen.fault = running.log().into_iter().next();
            debug_assert!(seen.fault.as_ref().is_none_or(|line| line.point == case.fault.point));
        }
        if let (Some(case), Some(fault)) = (case, &seen.fault)
            && case.fault.action == Action::Stop
        {
            let since = |line: &LogLine| Duration::from_nanos(monotonic_ns().saturating_sub(line.at_ns));
            let parent_stopped = fault.pid == seen.parent && seen.last_resort_ns.is_none();
            if case.resumed {
                // All of them, where the fault is for all.
                for line in running.log() {
                    // A process that is stopped cannot have lost its pid.
                    if !resumed.contains(&line.pid) && since(&line) > PAUSE && is_stopped(line.pid) {
                        let _ = kill(Pid::from_raw(line.pid as i32), Signal::SIGCONT);
                        resumed.push(line.pid);
                    }
                }
            } else if parent_stopped && since(fault) > LAST_RESORT {
                seen.last_resort_ns = Some(monotonic_ns());
                let _ = kill(running.parent, Signal::SIGKILL);
            }
        }
        match reap_one(running.parent, &mut seen) {
            Reaped::Nobody if seen.ended.is_some() => break,
            Reaped::Somebody => continue,
            Reaped::Nobody | Reaped::StillRunning => {}
        }
        let overdue = match seen.ended {
            Some(_) => Duration::from_nanos(monotonic_ns() - seen.ended_ns) > GONE_WITHIN,
            None => begun.elapsed() > HANGS_AFTER,
        };
        if overdue {
            seen.left.extend(kill_what_is_left());
            break;
        }
        let slept = Instant::now();
        std::thread::sleep(POLL_INTERVAL);
        seen.stalled += Some(slept.elapsed()).filter(|slept| *slept > 10 * POLL_INTERVAL).unwrap_or_default();
    }
    seen.gone_ns = Some(monotonic_ns()).filter(|_| seen.left.is_empty());
    let log = running.log();
    seen.faults = log.len();
    seen.fault = log.into_iter().next().filter(|_| case.is_some());
    seen.left.extend(names_in(&running.file("temp")));
    seen.output = std::fs::read_to_string(running.file("output")).unwrap_or_default();
    let report = std::fs::read_to_string(running.file("report")).ok();
    seen.report = report.and_then(|text| serde_json::from_str(&text).ok());
    seen
}

enum Reaped {
    Somebody,
    StillRunning,
    Nobody,
}

fn reap_one(parent: Pid, seen: &mut Seen) -> Reaped {
    let (pid, how) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Exited(pid, code)) => (pid, HowDied::Exited(code)),
        Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, HowDied::Signalled(signal as i32)),
        Err(Errno::ECHILD) => return Reaped::Nobody,
        Ok(_) | Err(_) => return Reaped::StillRunning,
    };
    if pid == parent {
        (seen.ended, seen.ended_ns) = (Some(how), monotonic_ns());
    }
    Reaped::Somebody
}

/// Ends this process's children, and theirs when they become ours; returns what they were.
fn kill_what_is_left() -> Vec<String> {
    let mut left = Vec::new();
    while !matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Err(Errno::ECHILD)) {
        for (pid, name) in children() {
            left.push(format!("process {pid} ({name})"));
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
        }
    }
    left
}

/// Name, state and parent of a process.
fn stat(pid: u32) -> Option<(String, String, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let name = name.split_once('(')?.1;
    Some((name.to_owned(), fields.next()?.to_owned(), fields.next()?.to_owned()))
}

fn is_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|(_, state, _)| state == "T")
}

/// This process's children, with their names and states.
fn children() -> Vec<(Pid, String)> {
    let me = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let (name, state, parent) = stat(pid)?;
        (parent == me).then(|| (Pid::from_raw(pid as i32), format!("{name} {state}")))
    })
    .collect()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| format!("{} in the temp folder", entry.file_name().display())).collect()
}
