//! The contract that every case must keep, and whether it did.

use crate::case::{Case, Scene};
use crate::report::{Call, Report, Told};
use crate::watch::Seen;
use deadline::HowDied;
use fault_points::{Action, LogLine};
use nix::errno::Errno;
use rendezvous::UNANNOUNCED_POINTS;
use serde::Serialize;
use std::time::Duration;

/// What a call may take beyond its deadline: the second of the contract, and two for load.
const BEYOND_DEADLINE: Duration = Duration::from_secs(3);
/// What nobody who is told of a death may have waited, whatever the load; the contract's 200 ms are judged over many cases.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// What came of a case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) case: String,
    pub(crate) verdict: &'static str,
    /// Everything that was not as it should be.
    pub(crate) why: Vec<String>,
    /// From the death to the return of the call that told of it, or from the call's start when that was later.
    pub(crate) told_ms: Option<f64>,
    /// From the parent's death to that of its last process.
    pub(crate) gone_ms: Option<f64>,
    /// How far a call that has a deadline went beyond it, the slowest one.
    pub(crate) late_ms: Option<f64>,
    pub(crate) took_ms: f64,
    /// For how long the watcher itself was not let run.
    pub(crate) stalled_ms: f64,
    /// The first line of the first error.
    pub(crate) told: Option<String>,
}

pub(crate) const HELD: &str = "held";
pub(crate) const FAILED: &str = "failed";
/// The processes came another way this time, and nothing went wrong.
pub(crate) const NOT_REACHED: &str = "not reached";

pub(crate) fn judge(case: &Case, seen: &Seen, took: Duration) -> Verdict {
    let mut judge = Judge { case, seen, why: Vec::new(), told_ms: None, gone_ms: None, late_ms: None };
    match &seen.fault {
        Some(fault) if fault.pid == seen.parent => judge.fault_in_parent(fault),
        Some(fault) => judge.fault_in_child(fault),
        None => judge.no_fault(),
    }
    judge.what_always_holds();
    let Judge { why, told_ms, gone_ms, late_ms, .. } = judge;
    let verdict = match (why.is_empty(), &seen.fault) {
        (false, _) => FAILED,
        (true, Some(_)) => HELD,
        (true, None) => NOT_REACHED,
    };
    let told = seen.report.as_ref().and_then(first_error).map(|(_, told)| first_line(&told.text));
    let (case, took_ms, stalled_ms) = (case.to_string(), millis(took), millis(seen.stalled));
    Verdict { case, verdict, why, told_ms, gone_ms, late_ms, took_ms, stalled_ms, told }
}

struct Judge<'a> {
    case: &'a Case,
    seen: &'a Seen,
    why: Vec<String>,
    told_ms: Option<f64>,
    gone_ms: Option<f64>,
    late_ms: Option<f64>,
}

impl Judge<'_> {
    fn complain(&mut self, text: impl Into<String>) {
        self.why.push(text.into());
    }

    /// Whatever went wrong: nothing hangs, nothing is left, and the next life is as if nothing had been.
    fn what_always_holds(&mut self) {
        let seen = self.seen;
        if seen.ended.is_none() {
            self.complain("the scene hangs");
        }
        for left in seen.left.iter().chain(seen.report.iter().flat_map(|report| &report.left)) {
            self.complain(format!("left behind: {left}"));
        }
        for call in seen.report.iter().flat_map(|report| &report.calls) {
            let took = Duration::from_nanos(call.end_ns.saturating_sub(call.begin_ns));
            let late = call.limit_ms.and_then(|limit| took.checked_sub(Duration::from_millis(limit)));
            self.late_ms = late.map(millis).into_iter().chain(self.late_ms).reduce(f64::max);
            if late.is_some_and(|late| late > BEYOND_DEADLINE + seen.stalled) {
                let stalled = seen.stalled;
                self.complain(format!(
                    "`{}` of life {} took {took:.1?} (of which the machine stalled {stalled:.1?})",
                    call.name, call.life
                ));
            }
            if let (2, Some(told)) = (call.life, &call.error) {
                self.complain(format!("`{}` failed in the life after: {}", call.name, told.text));
            }
        }
        if !self.why.is_empty() && !seen.output.is_empty() {
            self.complain(format!("it printed: {}", seen.output.trim_end()));
        }
    }

    fn no_fault(&mut self) {
        self.must_end(HowDied::Exited(0));
        let errors = self.seen.report.iter().flat_map(|report| &report.calls).filter(|call| call.life == 1);
        let overloaded = errors.filter_map(|call| call.error.as_ref()).all(|told| told.code == "TimedOut");
        // A machine under load may let a short deadline pass before the fault is reached.
        if !(self.case.needs_deadline() && overloaded) {
            self.must_succeed();
        }
    }

    fn fault_in_parent(&mut self, fault: &LogLine) {
        let end = match self.case.fault.action {
            Action::Kill => HowDied::Signalled(9),
            Action::Term => HowDied::Signalled(15),
            Action::Exit(code) => HowDied::Exited(code),
            Action::Stop if !self.case.resumed => HowDied::Signalled(9),
            Action::Stop | Action::Delay(_) => return self.no_fault(),
            Action::Panic => {
                self.must_end(HowDied::Exited(0));
                let panicked = self.seen.report.as_ref().and_then(|report| report.panicked.as_deref());
                if !panicked.is_some_and(|text| text.contains("fault plan")) {
                    self.must_tell(&["panic"]);
                }
                return;
            }
            Action::Error(errno) => return self.failed_call(errno, &[]),
        };
        self.must_end(end);
        let died_ns = self.seen.last_resort_ns.unwrap_or(fault.at_ns);
        self.gone_ms = self.seen.gone_ns.map(|gone| since(died_ns, gone));
    }

    fn fault_in_child(&mut self, fault: &LogLine) {
        self.must_end(HowDied::Exited(0));
        let names = if self.seen.faults > 1 { Vec::new() } else { names(self.case.scene, fault.rank) };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let how: &[&str] = match self.case.fault.action {
            Action::Stop | Action::Delay(_) if !self.case.needs_deadline() => return self.must_succeed(),
            Action::Stop | Action::Delay(_) => &["timed out", "not finished after", "did not go within"],
            Action::Error(errno) if self.case.scene == Scene::Ranks => {
                let itself = names.concat();
                let calls = self.seen.report.iter().flat_map(|report| &report.calls);
                let mut own = calls.filter(|call| call.life == 1 && call.name == itself);
                match own.find_map(|call| call.error.clone()) {
                    Some(told) => self.must_say(errno, &told),
                    None => return self.must_succeed(),
                }
                return self.ranks_must_tell(fault, &["failed", "left", "refused", "exited with status 0"]);
            }
            Action::Error(errno) => return self.failed_call(errno, &names),
            Action::Kill => &["SIGKILL"],
            Action::Term => &["SIGTERM"],
            Action::Exit(_) => &["exited with code 7", "exited with status 7"],
            Action::Panic => &["panic", "exited with code 101", "exited with status 101"],
        };
        if self.case.scene == Scene::Ranks {
            return self.ranks_must_tell(fault, how);
        }
        let Some(told) = self.must_tell(how) else { return };
        self.must_name(&names, &told);
        if !names_phase(&told.text) {
            self.complain(format!("it names no phase: {}", told.text));
        }
        if self.case.ends_process() && fault.rank.is_some_and(|hand| hand < 100) {
            self.must_repeat(how);
        }
        if self.case.ends_process() || self.case.fault.action == Action::Panic {
            let call = self.seen.report.as_ref().and_then(first_error).map(|(call, _)| call.clone());
            if let Some(call) = call {
                self.note_told(since(fault.at_ns.max(call.begin_ns), call.end_ns));
            }
        }
    }

    /// A call that fails must be told, or make no difference.
    fn failed_call(&mut self, errno: i32, names: &[&str]) {
        self.must_end(HowDied::Exited(0));
        match self.seen.report.as_ref().and_then(first_error) {
            Some((_, told)) => {
                let told = told.clone();
                self.must_say(errno, &told);
                self.must_name(names, &told);
                // Nobody is gone, so the Worker goes on.
                let calls = self.seen.report.iter().flat_map(|report| &report.calls);
                let after = calls.filter(|call| call.life == 1 && call.name == "run after it");
                let failed: Vec<String> =
                    after.filter_map(|call| call.error.as_ref()).map(|told| told.text.clone()).collect();
                failed.iter().for_each(|text| self.complain(format!("the next run fails: {text}")));
            }
            None => self.must_succeed(),
        }
    }

    fn must_say(&mut self, errno: i32, told: &Told) {
        let errno = Errno::from_raw(errno);
        let words = [format!("{errno:?}"), errno.desc().to_owned(), format!("os error {}", errno as i32)];
        // Who is short of memory is told how much is needed, instead of a code.
        let memory = matches!(errno, Errno::ENOMEM | Errno::ENOSPC)
            && ["memory", "address"].iter().any(|word| told.text.contains(word));
        if !words.iter().any(|word| told.text.contains(word)) && !memory {
            self.complain(format!("it does not say {errno:?}: {}", told.text));
        }
    }

    /// Chip n is rank n of its group, and is called so by those who wait for it.
    fn must_name(&mut self, names: &[&str], told: &Told) {
        // A table names everybody, and only where nothing but a deadline can tell is that enough.
        let text = if self.case.needs_deadline() { told.text.clone() } else { without_tables(&told.text) };
        let named = |name: &&str| text.contains(*name) || text.contains(&name.replace("chip ", "rank "));
        // A vendor's call that hangs does not say for whom it waits.
        let in_vendor_call = self.case.needs_deadline() && text.contains("has not come back");
        if !names.iter().all(named) && !in_vendor_call {
            self.complain(format!("it does not name {names:?}: {}", told.text));
        }
    }

    /// Every other rank is told who it was and how, unless it needed nothing more of it, or nobody could know of it.
    fn ranks_must_tell(&mut self, fault: &LogLine, how: &[&str]) {
        let Some(report) = &self.seen.report else { return };
        let (victim, point) = (fault.rank.unwrap_or_default(), self.case.fault.point.as_str());
        let itself = [format!("rank {victim}"), format!("rank {victim} itself")];
        let name = format!("rank {victim}");
        let mut longest = None;
        for call in report.calls.iter().filter(|call| call.life == 1 && !itself.contains(&call.name)) {
            let Some(told) = &call.error else {
                if !LAST_STEPS.contains(&point) {
                    self.complain(format!("{} was not told", call.name));
                }
                continue;
            };
            let unknown = UNANNOUNCED_POINTS.contains(&point) || self.case.needs_deadline();
            let missed = unknown
                && ["timed out", "gave up", "call off", "called off"]
                    .iter()
                    .any(|word| told.text.contains(word));
            let named =
                told.text.contains(&name) && how.iter().chain(KNOWN_AS).any(|how| told.text.contains(how));
            if !named && !missed {
                self.complain(format!("{} was told of another cause: {}", call.name, told.text));
            }
            if named && self.case.ends_process() {
                longest = longest.max(Some(call.end_ns.saturating_sub(fault.at_ns.max(call.begin_ns))));
            }
        }
        if let Some(longest) = longest {
            self.note_told(longest as f64 / 1e6);
        }
    }

    fn note_told(&mut self, ms: f64) {
        self.told_ms = Some(ms);
        let stalled = self.seen.stalled;
        if ms > millis(TOLD_WITHIN + stalled) {
            self.complain(format!("told only after {ms:.0} ms (the machine stalled {stalled:.1?})"));
        }
    }

    fn must_end(&mut self, wanted: HowDied) {
        if let Some(ended) = self.seen.ended.filter(|ended| *ended != wanted) {
            self.complain(format!("the scene {ended}; it should have {wanted}"));
        } else if wanted == HowDied::Exited(0) && self.seen.report.is_none() {
            self.complain("the scene left no report");
        }
    }

    fn must_succeed(&mut self) {
        let errors = self.seen.report.iter().flat_map(|report| &report.calls).filter(|call| call.life == 1);
        let errors: Vec<String> = errors
            .filter_map(|call| Some(format!("`{}` failed: {}", call.name, call.error.as_ref()?.text)))
            .collect();
        self.why.extend(errors);
    }

    /// A Worker that lost a hand says so to every later call, with what to do.
    fn must_repeat(&mut self, how: &[&str]) {
        let calls = self.seen.report.iter().flat_map(|report| &report.calls);
        let after: Vec<Option<Told>> = calls
            .filter(|call| call.life == 1 && call.name == "run after it")
            .map(|call| call.error.clone())
            .collect();
        for told in after {
            let text = told.map(|told| told.text).unwrap_or_default();
            if !text.contains("initialised again") || !how.iter().any(|word| text.contains(word)) {
                self.complain(format!("a later call does not repeat it: {text:?}"));
            }
        }
    }

    /// The first error, which must say one of these.
    fn must_tell(&mut self, how: &[&str]) -> Option<Told> {
        let report = self.seen.report.as_ref()?;
        let Some((_, told)) = first_error(report) else {
            self.complain("nobody was told");
            return None;
        };
        let told = told.clone();
        if !how.iter().any(|word| without_tables(&told.text).contains(word)) {
            self.complain(format!("none of {how:?} in: {}", told.text));
        }
        Some(told)
    }
}

/// After the last thing that another rank needs.
const LAST_STEPS: &[&str] =
    &["barrier.arrived", "barrier.passed", "comm-sim.destroy", "rendezvous.leaving", "rendezvous.left"];

/// How a rank's end looks to another that cannot see more: its parent has reaped it already, or it unwound on its way out.
const KNOWN_AS: &[&str] = &["died (cause unknown here)", "without destroying"];

/// What an error must say to name a process of a scene.
fn names(scene: Scene, rank: Option<u32>) -> Vec<String> {
    match (scene, rank) {
        (_, None) => Vec::new(),
        (Scene::Ranks, Some(rank)) => vec![format!("rank {rank}")],
        (Scene::Levels, Some(hand)) if hand >= 100 => {
            vec![format!("worker {}", hand / 100 - 1), format!("chip {}", hand % 100)]
        }
        (Scene::Levels, Some(hand)) => vec![format!("worker {hand}")],
        (Scene::Fork | Scene::Exec, Some(3)) => vec!["sub-worker 0".to_owned()],
        (_, Some(chip)) => vec![format!("chip {chip}")],
    }
}

fn first_error(report: &Report) -> Option<(&Call, &Told)> {
    let mut calls = report.calls.iter().filter(|call| call.life == 1 && !call.name.ends_with("itself"));
    calls.find_map(|call| Some((call, call.error.as_ref()?)))
}

/// Whether an error begins with where it happened, and in which phase: `pid 7, in run: …`.
fn names_phase(text: &str) -> bool {
    let place = text.split(':').next().unwrap_or_default();
    place.starts_with("in ") || place.contains(", in ")
}

/// The sentences of an error: tables are set in further.
fn without_tables(text: &str) -> String {
    let sentences: Vec<&str> = text.lines().filter(|line| !line.starts_with("    ")).collect();
    sentences.join("\n")
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn since(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e6
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
