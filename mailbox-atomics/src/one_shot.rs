//! One-shot publish: a payload, then a state, once.

use crate::wait::{Wait, WaitError};
use crate::word::WordI32;
use core::num::NonZeroI32;

/// The one-shot was published already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("already published (state {state}); a one-shot is published once")]
pub struct AlreadyPublished {
    /// What was published.
    pub state: i32,
}

/// A state word that goes from 0 to something once, after the payload that it announces.
///
/// The writer fills the payload inside [`publish`](Self::publish). A reader may read the payload only
/// after [`wait`](Self::wait) or [`peek`](Self::peek) has returned a state, which then orders it after
/// the writer's stores. The caller chooses where the payload lives.
#[derive(Clone, Copy, Debug)]
pub struct OneShot<'a> {
    state: &'a WordI32,
}

impl<'a> OneShot<'a> {
    /// The one-shot whose state is `word`; 0 means not yet.
    pub fn new(word: &'a WordI32) -> Self {
        Self { state: word }
    }

    /// Runs `write_payload`, then announces `state` and wakes the reader. Only the one writer may call it.
    pub fn publish(&self, state: NonZeroI32, write_payload: impl FnOnce()) -> Result<(), AlreadyPublished> {
        match self.state.load() {
            0 => {
                write_payload();
                // It happens once, so that a flag to save the system call would not pay.
                self.state.store_and_wake(state.get());
                Ok(())
            }
            state => Err(AlreadyPublished { state }),
        }
    }

    /// The state, if it is there.
    pub fn peek(&self) -> Option<NonZeroI32> {
        NonZeroI32::new(self.state.load())
    }

    /// Waits for the state.
    pub fn wait(&self, how: &Wait<'_>) -> Result<NonZeroI32, WaitError> {
        how.on(self.state, None, NonZeroI32::new)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_second_publish_is_refused_and_writes_nothing() {
        let word = WordI32::new(0);
        let shot = OneShot::new(&word);
        assert_eq!(shot.peek(), None);
        shot.publish(NonZeroI32::new(2).unwrap(), || ()).unwrap();
        let mut touched = false;
        let again = shot.publish(NonZeroI32::MIN, || touched = true);
        assert_eq!(again, Err(AlreadyPublished { state: 2 }));
        let said = again.unwrap_err().to_string();
        assert_eq!(said, "already published (state 2); a one-shot is published once");
        assert!(!touched);
        assert_eq!(shot.peek(), NonZeroI32::new(2));
    }
}
