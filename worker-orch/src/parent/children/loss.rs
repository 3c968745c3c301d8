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
        let text = format!(
            "a process of this Worker died or did not answer; the Worker must be closed and initialised again: {cause}"
        );
        Failure::new(cause.root_cause().code, text)
    }
}
