//! A child that is gone or does not answer. From then on the Worker cannot be used until it is initialised
//! again.

use crate::parent::first_cause::Event;
use worker_errors::{ErrorCode, Failure};

#[derive(Debug)]
pub(super) struct Loss {
    failure: Failure,
    run: u64,
    noticed_ns: u64,
}

impl Loss {
    /// Noticed in `run`, at this time on the monotonic clock.
    pub(super) fn new(failure: Failure, run: u64, noticed_ns: u64) -> Self {
        Self { failure, run, noticed_ns }
    }

    /// As the call that noticed it reports it.
    pub(super) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// The run in which it was noticed.
    pub(super) fn run(&self) -> u64 {
        self.run
    }

    pub(super) fn event(&self) -> Event {
        let noticed_ns = self.noticed_ns;
        match self.failure.code {
            ErrorCode::TimedOut => Event::TimedOut { noticed_ns },
            _ => Event::Died { noticed_ns, because_of_peer: false },
        }
    }

    /// As every later call reports it.
    pub(super) fn repeated(&self) -> Failure {
        let cause = &self.failure;
        let code = cause.root_cause().code;
        let what = match code {
            ErrorCode::TimedOut => "a call on this Worker took too long and left it in an unknown state",
            ErrorCode::Protocol => "a process of this Worker sent what no process of this build sends",
            _ => "a process of this Worker died",
        };
        Failure::new(code, format!("{what}; the Worker must be closed and initialised again: {cause}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // WO-4
    #[test]
    fn f44_later_calls_repeat_the_cause_and_a_time_out_is_not_called_a_death() {
        let repeated = |code| {
            let failure = Failure::new(code, "the cause").in_phase("run");
            Loss::new(failure, 1, 2).repeated()
        };
        for (code, words) in [
            (ErrorCode::Killed, "a process of this Worker died;"),
            (ErrorCode::Exited, "a process of this Worker died;"),
            (ErrorCode::Protocol, "a process of this Worker sent what no process of this build sends;"),
            (ErrorCode::TimedOut, "a call on this Worker took too long and left it in an unknown state;"),
        ] {
            let failure = repeated(code);
            let text = failure.to_string();
            assert_eq!(failure.code, code);
            assert!(text.contains(words) && text.contains("the cause"), "{text}");
            assert!(text.contains("closed and initialised again"), "{text}");
            assert_eq!(text.contains("died"), words.contains("died"), "{text}");
        }
    }
}
