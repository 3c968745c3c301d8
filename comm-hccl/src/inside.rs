//! Which vendor function a thread is in, for whoever waits for that thread.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

/// The vendor function that a thread is in, readable by others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inside(Arc<Mutex<Option<&'static str>>>);

std::thread_local!(static OWN: RefCell<Option<Inside>> = const { RefCell::new(None) });

impl Inside {
    /// From now on the calling thread notes its vendor calls here.
    pub(crate) fn follow_this_thread(&self) {
        OWN.with(|own| own.replace(Some(self.clone())));
    }

    /// The function, or none.
    pub(crate) fn function(&self) -> Option<&'static str> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, function: Option<&'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = function;
    }
}

/// Runs one vendor call; a thread that is followed says so while it lasts.
pub(crate) fn noting<T>(function: &'static str, call: impl FnOnce() -> T) -> T {
    let note = |what| OWN.with(|own| own.borrow().as_ref().inspect(|inside| inside.set(what)).is_some());
    let followed = note(Some(function));
    let answer = call();
    if followed {
        note(None);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_followed_thread_tells_which_call_it_is_in_and_others_tell_nothing() {
        let inside = Inside::default();
        assert_eq!(noting("aclInit", || inside.function()), None);
        let seen = std::thread::scope(|scope| {
            let follow = || {
                inside.follow_this_thread();
                (noting("aclInit", || inside.function()), inside.function())
            };
            scope.spawn(follow).join().unwrap()
        });
        assert_eq!(seen, (Some("aclInit"), None));
    }
}
