//! Which of several failures is the first cause, and so the one that is reported.
//!
//! Everything that chooses among failures (a run, a command, bring-up, close) collects them as [`Problems`]
//! and asks [`first_cause`]. The rule is a function of plain data; the table in the tests below is its
//! specification.

use worker_errors::{ErrorCode, Failure};

/// Something that went wrong, reduced to what decides whether it is the first cause. Times are on the
/// monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A child process is gone, or claims what cannot be. `because_of_peer`: it ended because another one
    /// had.
    Died { noticed_ns: u64, because_of_peer: bool },
    /// A task failed. `because_of_peer`: it waited for a process that died or left.
    Task { at_ns: u64, because_of_peer: bool },
    /// A child reported that it could not be brought up, or reported something malformed.
    NotBroughtUp,
    /// A deadline passed.
    TimedOut { noticed_ns: u64 },
    /// The caller's closure returned an error.
    Closure,
    /// Tasks were skipped or cancelled because of something else.
    Followed,
    /// Cleaning up failed: the release of domains, or the trace file.
    CleanUp,
}

/// What is reported: one event, or one together with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstCause {
    pub(super) event: usize,
    pub(super) along_with: Option<usize>,
}

/// The first cause among `events`, by index; `None` when there are none.
///
/// 1. A death explains the failures of tasks that waited for the dead process, and everything that came after
///    it was noticed, since from then on all children stop. A death that is itself due to another one comes
///    after it.
/// 2. A task that failed for a reason of its own before a death was noticed is reported along with that
///    death.
/// 3. Of several tasks the earliest failure counts; where nobody died, one that waited for a peer that left comes after those that
///    failed for a reason of their own, since the peer left for one. A task explains a deadline that passes later.
/// 4. Then come what a child reported at bring-up, a deadline, the closure's own error, and tasks that were
///    only skipped.
/// 5. Clean-up comes last: it fails because of something before it more often than for a reason of its own.
pub(super) fn first_cause(events: &[Event]) -> Option<FirstCause> {
    let alone = |event| FirstCause { event, along_with: None };
    let numbered = || events.iter().copied().enumerate();
    let death = numbered()
        .filter_map(|(at, event)| match event {
            Event::Died { because_of_peer, noticed_ns } => Some((because_of_peer, at, noticed_ns)),
            _ => None,
        })
        .min();
    let timed_out = numbered().find_map(|(_, event)| match event {
        Event::TimedOut { noticed_ns } => Some(noticed_ns),
        _ => None,
    });
    let stopped_ns = death.map(|(_, _, noticed_ns)| noticed_ns).or(timed_out).unwrap_or(u64::MAX);
    let tasks: Vec<(u64, usize, bool)> = numbered()
        .filter_map(|(at, event)| match event {
            Event::Task { at_ns, because_of_peer } => Some((at_ns, at, because_of_peer)),
            _ => None,
        })
        .filter(|(at_ns, ..)| *at_ns <= stopped_ns)
        .collect();
    let task = match death {
        Some(_) => tasks.iter().min(),
        None => tasks.iter().min_by_key(|(at_ns, at, because_of_peer)| (*because_of_peer, *at_ns, *at)),
    };
    match (task.copied(), death) {
        (Some((_, task, false)), Some((_, death, _))) => {
            Some(FirstCause { event: task, along_with: Some(death) })
        }
        (_, Some((_, death, _))) => Some(alone(death)),
        (Some((_, task, _)), None) => Some(alone(task)),
        (None, None) => numbered().min_by_key(|(_, event)| rank(event)).map(|(at, _)| alone(at)),
    }
}

/// The order of what neither tasks nor deaths explain.
fn rank(event: &Event) -> u8 {
    match event {
        Event::Died { .. } => 0,
        Event::NotBroughtUp => 1,
        Event::TimedOut { .. } => 2,
        Event::Closure => 3,
        Event::Followed => 4,
        Event::CleanUp => 5,
        // Only tasks are left that failed because all children had to stop.
        Event::Task { .. } => 6,
    }
}

/// Whether a failure is due to another process that died or left.
pub(super) fn is_because_of_peer(failure: &Failure) -> bool {
    use ErrorCode::{Exited, Killed, PeerDied, PeerLeft};
    matches!(failure.root_cause().code, PeerDied | Exited | Killed | PeerLeft)
}

/// Everything that went wrong in one call.
#[derive(Debug, Default)]
pub(super) struct Problems {
    events: Vec<Event>,
    failures: Vec<Failure>,
}

impl Problems {
    pub(super) fn add(&mut self, event: Event, failure: Failure) {
        self.events.push(event);
        self.failures.push(failure);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The failure to report; nothing when nothing went wrong.
    pub(super) fn into_result(mut self) -> Result<(), Failure> {
        let Some(FirstCause { event, along_with }) = first_cause(&self.events) else { return Ok(()) };
        let other = along_with.map(|other| self.failures[other].message.clone());
        let mut failure = self.failures.swap_remove(event);
        if let Some(other) = other {
            failure.message = format!("{}, and {other}", failure.message);
        }
        Err(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIED: Event = Event::Died { noticed_ns: 100, because_of_peer: false };
    const DIED_WITH_PEER: Event = Event::Died { noticed_ns: 100, because_of_peer: true };
    const TIMED_OUT: Event = Event::TimedOut { noticed_ns: 100 };

    fn task(at_ns: u64) -> Event {
        Event::Task { at_ns, because_of_peer: false }
    }

    fn waiting_task(at_ns: u64) -> Event {
        Event::Task { at_ns, because_of_peer: true }
    }

    #[test]
    fn f07_f20_which_failure_is_reported() {
        use Event::{CleanUp, Closure, Followed, NotBroughtUp};
        let alone = |event| Some(FirstCause { event, along_with: None });
        let both = |event, other| Some(FirstCause { event, along_with: Some(other) });
        let table: &[(&str, &[Event], Option<FirstCause>)] = &[
            ("nothing", &[], None),
            // A run, with one failure.
            ("a task", &[task(10)], alone(0)),
            ("a death", &[DIED], alone(0)),
            ("a deadline", &[TIMED_OUT], alone(0)),
            ("the closure", &[Closure], alone(0)),
            ("a cancelled run", &[Followed, Followed], alone(0)),
            ("clean-up", &[CleanUp], alone(0)),
            // Tasks among themselves.
            ("the earliest of three tasks", &[task(20), task(10), task(30)], alone(1)),
            ("a reason of its own before a peer that left for it", &[waiting_task(10), task(20)], alone(1)),
            ("the earliest of those that waited", &[waiting_task(20), waiting_task(10)], alone(1)),
            ("a task before those skipped because of it", &[Followed, task(10), Followed], alone(1)),
            ("the first of two at one time", &[task(10), task(10)], alone(0)),
            // Tasks and deaths.
            ("a death before a task that waited for the dead", &[waiting_task(10), DIED], alone(1)),
            ("a death before a task stopped because of it", &[task(101), DIED], alone(1)),
            ("a task that failed by itself, along with a later death", &[task(10), DIED], both(0, 1)),
            ("the earliest task decides", &[task(20), waiting_task(10), DIED], alone(2)),
            ("an earlier task of its own decides", &[waiting_task(20), task(10), DIED], both(1, 2)),
            ("a death before skipped tasks", &[Followed, DIED, Followed], alone(1)),
            // Deadlines.
            ("a task before the deadline that it made pass", &[task(10), TIMED_OUT], alone(0)),
            ("a waiting task before that deadline", &[waiting_task(10), TIMED_OUT], alone(0)),
            ("a deadline before a task stopped because of it", &[task(101), TIMED_OUT], alone(1)),
            ("a death before a deadline", &[TIMED_OUT, DIED], alone(1)),
            ("a deadline before skipped tasks", &[Followed, TIMED_OUT], alone(1)),
            // The caller's closure.
            ("a task before the closure that returned it", &[Closure, task(10)], alone(1)),
            ("a death before the closure that met it", &[Closure, DIED], alone(1)),
            ("a deadline before the closure that met it", &[Closure, TIMED_OUT], alone(1)),
            ("the closure before tasks cancelled because of it", &[Followed, Closure], alone(1)),
            ("the closure before clean-up", &[CleanUp, Closure], alone(1)),
            ("skipped tasks before clean-up", &[CleanUp, Followed], alone(1)),
            // Bring-up.
            ("what a child reported", &[NotBroughtUp], alone(0)),
            ("a death before what others then reported", &[NotBroughtUp, DIED], alone(1)),
            ("a report before a deadline", &[TIMED_OUT, NotBroughtUp], alone(1)),
            // Close.
            ("the first of two deaths", &[DIED, DIED], alone(0)),
            ("a death before one because of it", &[DIED_WITH_PEER, DIED], alone(1)),
            ("a death before a child that does not end", &[TIMED_OUT, DIED_WITH_PEER], alone(1)),
            ("a child that does not end before the trace", &[CleanUp, TIMED_OUT], alone(1)),
        ];
        for (what, events, wanted) in table {
            assert_eq!(first_cause(events), *wanted, "{what}: {events:?}");
        }
    }

    #[test]
    fn the_order_of_the_events_matters_only_between_equals() {
        let mut events = [DIED, task(10), Event::Closure, Event::Followed, Event::CleanUp];
        for _ in 0..events.len() {
            events.rotate_left(1);
            let found = first_cause(&events).unwrap();
            assert_eq!((events[found.event], found.along_with.map(|at| events[at])), (task(10), Some(DIED)));
        }
    }

    #[test]
    fn a_failure_reported_along_with_a_death_names_both() {
        let mut problems = Problems::default();
        problems.into_result().unwrap();
        problems = Problems::default();
        let cause = Failure::new(ErrorCode::Panic, "no more");
        problems.add(task(10), Failure::new(ErrorCode::Task, "`f` failed on chip 1").caused_by(cause));
        problems.add(DIED, Failure::new(ErrorCode::Killed, "chip 0 died"));
        let reported = problems.into_result().unwrap_err().to_string();
        assert!(reported.contains("`f` failed on chip 1, and chip 0 died"), "{reported}");
        assert!(reported.contains("no more"), "{reported}");
    }

    #[test]
    fn f20_failures_due_to_a_peer_are_recognised_by_their_root() {
        let failed = |code| Failure::new(ErrorCode::Task, "x").caused_by(Failure::new(code, "y"));
        for code in [ErrorCode::Killed, ErrorCode::Exited, ErrorCode::PeerDied, ErrorCode::PeerLeft] {
            assert!(is_because_of_peer(&failed(code)));
        }
        assert!(!is_because_of_peer(&failed(ErrorCode::Panic)));
    }
}
