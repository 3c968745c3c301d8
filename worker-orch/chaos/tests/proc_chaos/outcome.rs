//! The contract that every case must keep, and the check of one case against it.

use crate::case::{Case, Scenario};
use crate::log::{Call, ErrorReport, Report};
use crate::unannounced_points::UNANNOUNCED_POINTS;
use crate::watch::Seen;
use deadline::HowDied;
use fault_points::{Action, LogLine};
use nix::errno::Errno;
use std::time::Duration;
use worker_chaos::{Kind, Outcome};

/// What a call may take beyond its deadline: the second of the contract, and two for load.
const BEYOND_DEADLINE: Duration = Duration::from_secs(3);
/// The longest that a call may take to report a death, whatever the load; the contract's 100 or 200 ms
/// are checked over many cases.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);

pub(crate) fn outcome(case: &Case, seen: &Seen, took: Duration) -> Outcome {
    let mut check = Check { case, seen, why: Vec::new(), reported_ms: None, gone_ms: None, late_ms: None };
    match &seen.fault {
        Some(fault) if fault.pid == seen.parent => check.fault_in_parent(fault),
        Some(fault) => check.fault_in_child(fault),
        None => check.no_fault(),
    }
    check.what_always_holds();
    let Check { why, reported_ms, gone_ms, late_ms, .. } = check;
    let outcome = match (why.is_empty(), &seen.fault) {
        (false, _) => Kind::Failed,
        (true, Some(_)) => Kind::Held,
        (true, None) => Kind::NotReached,
    };
    let error = seen.report.as_ref().and_then(first_error).map(|(_, error)| first_line(&error.text));
    let (case, took_ms, stalled_ms) = (case.to_string(), millis(took), millis(seen.stalled));
    Outcome { case, outcome, why, reported_ms, gone_ms, late_ms, took_ms, stalled_ms, error }
}

struct Check<'a> {
    case: &'a Case,
    seen: &'a Seen,
    why: Vec<String>,
    reported_ms: Option<f64>,
    gone_ms: Option<f64>,
    late_ms: Option<f64>,
}

impl Check<'_> {
    fn complain(&mut self, text: impl Into<String>) {
        self.why.push(text.into());
    }

    /// Whatever the fault: nothing hangs, nothing is left behind, and the next round succeeds.
    fn what_always_holds(&mut self) {
        let seen = self.seen;
        if seen.ended.is_none() {
            self.complain("the scenario hangs");
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
                    "`{}` of round {} took {took:.1?} (of which the machine stalled {stalled:.1?})",
                    call.name, call.round
                ));
            }
            if let (2, Some(error)) = (call.round, &call.error) {
                self.complain(format!("`{}` failed in the round after: {}", call.name, error.text));
            }
        }
        if !self.why.is_empty() && !seen.output.is_empty() {
            self.complain(format!("it printed: {}", seen.output.trim_end()));
        }
    }

    fn no_fault(&mut self) {
        self.must_end(HowDied::Exited(0));
        let errors = self.seen.report.iter().flat_map(|report| &report.calls).filter(|call| call.round == 1);
        let overloaded = errors.filter_map(|call| call.error.as_ref()).all(|error| error.code == "TimedOut");
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
                    self.must_report(&["panic"]);
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
        let names = if self.seen.faults > 1 { Vec::new() } else { names(self.case.scenario, fault.rank) };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let how: &[&str] = match self.case.fault.action {
            Action::Stop | Action::Delay(_) if !self.case.needs_deadline() => return self.must_succeed(),
            Action::Stop | Action::Delay(_) => &["timed out", "not finished after", "did not end within"],
            Action::Error(errno) if self.case.scenario.is_of_ranks() => {
                let itself = names.concat();
                let calls = self.seen.report.iter().flat_map(|report| &report.calls);
                let mut own = calls.filter(|call| call.round == 1 && call.name == itself);
                match own.find_map(|call| call.error.clone()) {
                    Some(error) => self.must_say(errno, &error),
                    None => return self.must_succeed(),
                }
                return self.ranks_must_report(fault, &["failed", "left", "refused", "exited with status 0"]);
            }
            Action::Error(errno) => return self.failed_call(errno, &names),
            Action::Kill => &["SIGKILL"],
            Action::Term => &["SIGTERM"],
            Action::Exit(_) => &["exited with code 7", "exited with status 7"],
            Action::Panic if self.has_failed_before(fault) => return self.must_succeed(),
            Action::Panic => &["panic", "exited with code 101", "exited with status 101"],
        };
        if self.case.scenario.is_of_ranks() {
            return self.ranks_must_report(fault, how);
        }
        let Some(error) = self.must_report(how) else { return };
        self.must_name(&names, &error);
        if !names_phase(&error.text) {
            self.complain(format!("it names no phase: {}", error.text));
        }
        if self.case.ends_process() && fault.rank.is_some_and(|child| child < 100) {
            self.must_repeat(how);
        }
        if self.case.ends_process() || self.case.fault.action == Action::Panic {
            let call = self.seen.report.as_ref().and_then(first_error).map(|(call, _)| call.clone());
            if let Some(call) = call {
                self.set_reported(since(fault.at_ns.max(call.begin_ns), call.end_ns));
            }
        }
    }

    /// Whether it came in the run whose deadlock the scenario expects, and which reported that as the first cause.
    fn has_failed_before(&self, fault: &LogLine) -> bool {
        let calls = self.seen.report.iter().flat_map(|report| &report.calls);
        let mut expected =
            calls.filter(|call| call.round == 1 && call.name == "deadlock" && call.error.is_none());
        expected.any(|call| (call.begin_ns..call.end_ns).contains(&fault.at_ns))
    }

    /// A call that fails must be reported, or make no difference.
    fn failed_call(&mut self, errno: i32, names: &[&str]) {
        self.must_end(HowDied::Exited(0));
        match self.seen.report.as_ref().and_then(first_error) {
            Some((_, error)) => {
                let error = error.clone();
                self.must_say(errno, &error);
                self.must_name(names, &error);
                // No process is gone, so the Worker goes on.
                let calls = self.seen.report.iter().flat_map(|report| &report.calls);
                let after = calls.filter(|call| call.round == 1 && call.name == "run after it");
                let failed: Vec<String> =
                    after.filter_map(|call| call.error.as_ref()).map(|error| error.text.clone()).collect();
                failed.iter().for_each(|text| self.complain(format!("the next run fails: {text}")));
            }
            None => self.must_succeed(),
        }
    }

    fn must_say(&mut self, errno: i32, error: &ErrorReport) {
        let errno = Errno::from_raw(errno);
        let words = [format!("{errno:?}"), errno.desc().to_owned(), format!("os error {}", errno as i32)];
        // An error about memory says how much is needed, instead of a code.
        let memory = matches!(errno, Errno::ENOMEM | Errno::ENOSPC)
            && ["memory", "address"].iter().any(|word| error.text.contains(word));
        if !words.iter().any(|word| error.text.contains(word)) && !memory {
            self.complain(format!("it does not say {errno:?}: {}", error.text));
        }
    }

    /// Chip n is rank n of its group, and is called so by chips that wait for it.
    fn must_name(&mut self, names: &[&str], error: &ErrorReport) {
        // A table names every process; that is enough only where nothing but a deadline reveals the fault.
        let text = if self.case.needs_deadline() { error.text.clone() } else { without_tables(&error.text) };
        let named = |name: &&str| text.contains(*name) || text.contains(&name.replace("chip ", "rank "));
        // A vendor call that hangs does not say which peer it waits for.
        let in_vendor_call = self.case.needs_deadline() && text.contains("has not come back");
        if !names.iter().all(named) && !in_vendor_call {
            self.complain(format!("it does not name {names:?}: {}", error.text));
        }
    }

    /// Every other rank reports which rank it was and how it ended, unless it needed nothing more of it, or
    /// could not know.
    fn ranks_must_report(&mut self, fault: &LogLine, how: &[&str]) {
        let Some(report) = &self.seen.report else { return };
        let (victim, point) = (fault.rank.unwrap_or_default(), self.case.fault.point.as_str());
        let itself = [format!("rank {victim}"), format!("rank {victim} itself")];
        let name = format!("rank {victim}");
        let mut longest = None;
        for call in report.calls.iter().filter(|call| call.round == 1 && !itself.contains(&call.name)) {
            let Some(error) = &call.error else {
                // What goes through connections is last when its turn is: a rank that has all it asked for needed nothing more.
                let was_last = LAST_STEPS.contains(&point) || self.case.scenario == Scenario::Hosts;
                if !was_last {
                    self.complain(format!("{} reported nothing", call.name));
                }
                continue;
            };
            // At an address each rank has memory of its own, which it makes before anybody knows of it.
            let by_itself = self.case.scenario == Scenario::Hosts && point.starts_with("region.");
            let unknown = UNANNOUNCED_POINTS.contains(&point) || self.case.needs_deadline() || by_itself;
            let missed = unknown
                && ["timed out", "gave up", "call off", "called off", "abort"]
                    .iter()
                    .any(|word| error.text.contains(word));
            let named =
                error.text.contains(&name) && how.iter().chain(KNOWN_AS).any(|how| error.text.contains(how));
            if !named && !missed {
                self.complain(format!("{} reported another cause: {}", call.name, error.text));
            }
            if named && self.case.ends_process() {
                longest = longest.max(Some(call.end_ns.saturating_sub(fault.at_ns.max(call.begin_ns))));
            }
        }
        if let Some(longest) = longest {
            self.set_reported(longest as f64 / 1e6);
        }
    }

    fn set_reported(&mut self, ms: f64) {
        self.reported_ms = Some(ms);
        let stalled = self.seen.stalled;
        if ms > millis(REPORTED_WITHIN + stalled) {
            self.complain(format!("reported only after {ms:.0} ms (the machine stalled {stalled:.1?})"));
        }
    }

    fn must_end(&mut self, wanted: HowDied) {
        if let Some(ended) = self.seen.ended.filter(|ended| *ended != wanted) {
            self.complain(format!("the scenario {ended}; it should have {wanted}"));
        } else if wanted == HowDied::Exited(0) && self.seen.report.is_none() {
            self.complain("the scenario wrote no report");
        }
    }

    fn must_succeed(&mut self) {
        let errors = self.seen.report.iter().flat_map(|report| &report.calls).filter(|call| call.round == 1);
        let errors: Vec<String> = errors
            .filter_map(|call| Some(format!("`{}` failed: {}", call.name, call.error.as_ref()?.text)))
            .collect();
        self.why.extend(errors);
    }

    /// A Worker that lost a child repeats that in every later call, with what to do.
    fn must_repeat(&mut self, how: &[&str]) {
        let calls = self.seen.report.iter().flat_map(|report| &report.calls);
        let after: Vec<Option<ErrorReport>> = calls
            .filter(|call| call.round == 1 && call.name == "run after it")
            .map(|call| call.error.clone())
            .collect();
        for error in after {
            let text = error.map(|error| error.text).unwrap_or_default();
            if !text.contains("initialised again") || !how.iter().any(|word| text.contains(word)) {
                self.complain(format!("a later call does not repeat it: {text:?}"));
            }
        }
    }

    /// The first error, which must contain one of these.
    fn must_report(&mut self, how: &[&str]) -> Option<ErrorReport> {
        let report = self.seen.report.as_ref()?;
        let Some((_, error)) = first_error(report) else {
            self.complain("nothing was reported");
            return None;
        };
        let error = error.clone();
        if !how.iter().any(|word| without_tables(&error.text).contains(word)) {
            self.complain(format!("none of {how:?} in: {}", error.text));
        }
        Some(error)
    }
}

/// After the last thing that another rank needs.
const LAST_STEPS: &[&str] =
    &["barrier.arrived", "barrier.passed", "comm-sim.destroy", "rendezvous.leaving", "rendezvous.left"];

/// What another rank knows of a rank's end when the parent has reaped it already, when it unwound, or when only a connection tells it.
const KNOWN_AS: &[&str] =
    &["died (cause unknown here)", "without destroying", "its connection from another host was closed"];

/// What an error must say to name a process of a scenario.
fn names(scenario: Scenario, rank: Option<u32>) -> Vec<String> {
    match (scenario, rank) {
        (_, None) => Vec::new(),
        (Scenario::Ranks | Scenario::Hosts, Some(rank)) => vec![format!("rank {rank}")],
        (Scenario::Levels, Some(child)) if child >= 100 => {
            vec![format!("worker {}", child / 100 - 1), format!("chip {}", child % 100)]
        }
        (Scenario::Levels, Some(child)) => vec![format!("worker {child}")],
        (Scenario::Flight, Some(child)) if child >= 2 => vec![format!("sub-worker {}", child - 2)],
        (Scenario::Fork | Scenario::Exec, Some(3)) => vec!["sub-worker 0".to_owned()],
        (_, Some(chip)) => vec![format!("chip {chip}")],
    }
}

fn first_error(report: &Report) -> Option<(&Call, &ErrorReport)> {
    let mut calls = report.calls.iter().filter(|call| call.round == 1 && !call.name.ends_with("itself"));
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
