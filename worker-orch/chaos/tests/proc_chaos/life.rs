//! Two lives of a scene: one with the fault, and one after it that must be as if nothing had been.
//!
//! # Safety
//! Takes the plan out of the environment, in a program of one thread.
#![allow(unsafe_code)]

use crate::report::{Diary, Holdings, Report};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use worker_orch::{Failure, Worker};

/// How long the calls of a scene may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) call: Duration,
    pub(crate) close: Duration,
}

impl Limits {
    /// Longer than any load of the machine: whoever is told is told before.
    pub(crate) const PATIENT: Self = Self { call: Duration::from_secs(20), close: Duration::from_secs(10) };
    /// For faults that nothing but a deadline can tell.
    pub(crate) const SHORT: Self = Self { call: Duration::from_secs(4), close: Duration::from_secs(2) };
}

/// A scene with a Worker.
pub(crate) trait Stage {
    fn worker(&mut self) -> &mut Worker;
    /// Everything between a Worker's making and its close.
    fn play(&mut self, diary: &Diary, limits: Limits) -> Result<(), Failure>;
    /// Something short that needs all chips to work together, after a run that failed.
    fn once_more(&mut self) -> Result<(), Failure> {
        let all: Vec<usize> = (0..self.worker().chip_contexts()?.len()).collect();
        self.worker().run(|orch| orch.allocate_domain("again", &all, 4096, &[]).map(drop))
    }
}

/// Makes a scene's Worker.
type Build<'a> = &'a dyn Fn(&Diary, Limits) -> Result<Box<dyn Stage>, Failure>;

/// Plays both lives. `build` makes the Worker; the second life has the same one unless it went with a panic or is too impatient.
pub(crate) fn two_lives(limits: Limits, build: Build<'_>) -> Report {
    let (diary, before) = (Diary::default(), Holdings::now());
    let mut report = Report::default();
    diary.life.set(1);
    let first = catch_unwind(AssertUnwindSafe(|| {
        let mut stage = build(&diary, limits)?;
        live(stage.as_mut(), &diary, limits);
        Ok::<_, Failure>(stage)
    }));
    forget_plan();
    diary.life.set(2);
    let stage = match first {
        Ok(stage) => stage.ok(),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            report.panicked = Some(text.unwrap_or_else(|| "without a text".to_owned()));
            None
        }
    };
    // Nothing goes wrong any more, so that no load of the machine may look as if it did.
    let again = match stage {
        Some(stage) if limits == Limits::PATIENT => Ok(stage),
        stage => {
            drop(stage);
            build(&diary, Limits::PATIENT)
        }
    };
    if let Ok(mut stage) = again {
        live(stage.as_mut(), &diary, Limits::PATIENT);
    }
    report.left = Holdings::now().beyond(&before);
    report.calls = diary.calls.take();
    report
}

/// One life, as a careful user has it: after an error it is closed all the same.
fn live(stage: &mut dyn Stage, diary: &Diary, limits: Limits) {
    if stage.play(diary, limits).is_err() && stage.worker().chip_contexts().is_ok() {
        let _ = diary.call("run after it", Some(limits.call), || stage.once_more());
    }
    let _ = diary.call("close", Some(limits.close), || stage.worker().close());
}

/// No fault any more, in this process and in those that it starts.
pub(crate) fn forget_plan() {
    fault_points::disarm();
    for variable in [fault_points::PLAN_VARIABLE, fault_points::LOG_VARIABLE] {
        // SAFETY: this program has one thread, so nobody reads the environment meanwhile.
        unsafe { std::env::remove_var(variable) };
    }
}
