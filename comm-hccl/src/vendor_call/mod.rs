//! Every vendor call goes through [`recorded`], which knows in which function a thread is, for other threads that wait for
//! it, and writes the [log](ENV_LOG).

mod log;

pub use log::ENV_LOG;

use log::Answer;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

/// The vendor function that a thread is in, readable by other threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct CurrentCall(Arc<Mutex<Option<&'static str>>>);

std::thread_local!(static OWN: RefCell<Option<CurrentCall>> = const { RefCell::new(None) });

impl CurrentCall {
    /// From now on the calling thread records its vendor calls here.
    pub(crate) fn follow_this_thread(&self) {
        OWN.with(|own| own.replace(Some(self.clone())));
    }

    /// The function, if the thread is in one.
    pub(crate) fn function(&self) -> Option<&'static str> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, function: Option<&'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = function;
    }
}

/// Makes one vendor call, logs it, and records it if the calling thread is followed.
pub(crate) fn recorded<T: Answer>(function: &'static str, call: impl FnOnce() -> T) -> T {
    let record = |what| OWN.with(|own| own.borrow().as_ref().inspect(|current| current.set(what)).is_some());
    let followed = record(Some(function));
    let answer = log::logged(function, call);
    if followed {
        record(None);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_calls_of_a_followed_thread_are_recorded() {
        let current = CurrentCall::default();
        let during = || recorded("aclInit", || current.function().unwrap_or("none").to_owned());
        assert_eq!(during(), "none");
        let seen = std::thread::scope(|scope| {
            let follow = || {
                current.follow_this_thread();
                (during(), current.function())
            };
            scope.spawn(follow).join().unwrap()
        });
        assert_eq!(seen, ("aclInit".to_owned(), None));
    }
}
