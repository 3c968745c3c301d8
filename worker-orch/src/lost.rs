//! A hand that is gone or does not answer, and what it explains.

use worker_errors::{ErrorCode, Failure};

/// What the parent noticed. From then on the Worker is of no use until it is initialised again.
#[derive(Debug)]
pub(crate) struct Lost {
    /// As it is told to the call that noticed it.
    pub(crate) failure: Failure,
    /// The run that was on.
    pub(crate) run: u64,
    /// A task of that run had failed before.
    pub(crate) failed_before: bool,
}

impl Lost {
    /// As every later call tells it.
    pub(crate) fn with_advice(&self) -> Failure {
        let cause = &self.failure;
        let advice = format!("the Worker lost a hand and must be closed and initialised again: {cause}");
        Failure::new(cause.root_cause().code, advice)
    }

    /// The first cause, when a task had failed before the loss was noticed. One that waited for the hand that died learns of the death sooner than the parent:
    /// then the death comes first. What has nothing to do with it is told together with it.
    pub(crate) fn or(&self, mut failed: Failure) -> Failure {
        let died = self.failure.code != ErrorCode::TimedOut;
        let followed = {
            use ErrorCode::{Exited, Killed, PeerDied, PeerLeft};
            matches!(failed.root_cause().code, PeerDied | Exited | Killed | PeerLeft)
        };
        match (died, followed) {
            (true, true) => self.failure.clone(),
            (true, false) => {
                failed.message = format!("{}, and {}", failed.message, self.failure.message);
                failed
            }
            // The deadline that passed was the end of the wait for what had failed.
            (false, _) => failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(code: ErrorCode, text: &str) -> Lost {
        Lost { failure: Failure::new(code, text), run: 1, failed_before: true }
    }

    fn failed(code: ErrorCode) -> Failure {
        let task = Failure::new(ErrorCode::Task, "`meet` failed on chip 1");
        task.caused_by(Failure::new(code, "no more"))
    }

    #[test]
    fn f20_a_death_comes_before_the_failures_of_those_who_waited_for_it() {
        let death = lost(ErrorCode::Killed, "chip 0 died");
        assert_eq!(death.or(failed(ErrorCode::Killed)), death.failure);
        assert_eq!(death.or(failed(ErrorCode::PeerLeft)), death.failure);
    }

    #[test]
    fn a_failure_of_its_own_is_told_with_the_death() {
        let told = lost(ErrorCode::Killed, "chip 0 died").or(failed(ErrorCode::Panic)).to_string();
        assert!(
            told.contains("`meet` failed on chip 1, and chip 0 died") && told.contains("no more"),
            "{told}"
        );
    }

    #[test]
    fn f07_a_deadline_that_passes_does_not_hide_a_failure() {
        let told = lost(ErrorCode::TimedOut, "not finished").or(failed(ErrorCode::Killed));
        assert_eq!(told, failed(ErrorCode::Killed));
    }
}
