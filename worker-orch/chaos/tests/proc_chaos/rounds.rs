//! Two rounds of a scenario: one with the fault, and one after it that must succeed.
//!
//! # Safety
//! Takes the plan out of the environment, in a program of one thread.
#![allow(unsafe_code)]

use crate::log::{CallLog, Holdings, Report};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use worker_orch::{Failure, Worker};

/// How long the calls of a scenario may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) call: Duration,
    pub(crate) close: Duration,
}

impl Limits {
    /// Longer than any load of the machine delays a report.
    pub(crate) const PATIENT: Self = Self { call: Duration::from_secs(20), close: Duration::from_secs(10) };
    /// For faults that only a deadline reveals.
    pub(crate) const SHORT: Self = Self { call: Duration::from_secs(4), close: Duration::from_secs(2) };
}

/// A scenario with a Worker.
pub(crate) trait WorkerScenario {
    fn worker(&mut self) -> &mut Worker;
    /// Everything between `build` and `close`.
    fn run_all(&mut self, log: &CallLog, limits: Limits) -> Result<(), Failure>;
    /// Something short that needs all chips to work together, after a run that failed.
    fn once_more(&mut self) -> Result<(), Failure> {
        let all: Vec<usize> = (0..self.worker().chip_contexts()?.len()).collect();
        self.worker().run(|orch| orch.allocate_domain("again", &all, 4096, &[]).map(drop))
    }
}

/// Makes a scenario's Worker.
type Build<'a> = &'a dyn Fn(&CallLog, Limits) -> Result<Box<dyn WorkerScenario>, Failure>;

/// Runs both rounds. `build` makes the Worker; the second round has the same one, unless that was lost with a
/// panic or has short limits.
pub(crate) fn two_rounds(limits: Limits, build: Build<'_>) -> Report {
    let (log, before) = (CallLog::default(), Holdings::now());
    let mut report = Report::default();
    log.round.set(1);
    let first = catch_unwind(AssertUnwindSafe(|| {
        let mut scenario = build(&log, limits)?;
        round(scenario.as_mut(), &log, limits);
        Ok::<_, Failure>(scenario)
    }));
    forget_plan();
    log.round.set(2);
    let scenario = match first {
        Ok(scenario) => scenario.ok(),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            report.panicked = Some(text.unwrap_or_else(|| "without a text".to_owned()));
            None
        }
    };
    // Patient: without a fault no load of the machine may look like one.
    let again = match scenario {
        Some(scenario) if limits == Limits::PATIENT => Ok(scenario),
        scenario => {
            drop(scenario);
            build(&log, Limits::PATIENT)
        }
    };
    if let Ok(mut scenario) = again {
        round(scenario.as_mut(), &log, Limits::PATIENT);
    }
    report.left = Holdings::now().beyond(&before);
    report.calls = log.calls.take();
    report
}

/// One round, as a careful user writes it: after an error the Worker is closed all the same.
fn round(scenario: &mut dyn WorkerScenario, log: &CallLog, limits: Limits) {
    if scenario.run_all(log, limits).is_err() && scenario.worker().chip_contexts().is_ok() {
        let _ = log.call("run after it", Some(limits.call), || scenario.once_more());
    }
    let _ = log.call("close", Some(limits.close), || scenario.worker().close());
}

/// No fault any more, in this process and in those that it starts.
pub(crate) fn forget_plan() {
    fault_points::disarm();
    for variable in [fault_points::PLAN_VARIABLE, fault_points::LOG_VARIABLE] {
        // SAFETY: this program has one thread, so nobody reads the environment meanwhile.
        unsafe { std::env::remove_var(variable) };
    }
}
