//! A thread that makes vendor calls, so that whoever asked for them can stop waiting.
//!
//! Nothing can end a call that hangs inside the vendor's code, short of ending the process. So a lane makes the calls
//! on a thread of its own: the one who waits comes back at its deadline with the name of the function, and the thread
//! is left behind with everything that it holds. What lives on a lane is made, used and released there and nowhere
//! else, which also gives the vendor what it wants: one thread, one context.

use crate::inside::Inside;
use deadline::Deadline;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How often a wait looks up to see whether it is still wanted.
const LOOK: Duration = Duration::from_millis(10);

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// A thread with a state that only it touches.
pub struct Lane<S> {
    /// `None` once closed.
    jobs: Option<Sender<Job<S>>>,
    ended: Mutex<Receiver<()>>,
    inside: Inside,
}

/// A lane did not come back in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{function} has not come back after {waited:.1?} of {limit:?}")]
pub struct Overrun {
    /// The vendor function that it is in.
    pub function: &'static str,
    /// How long it was waited for.
    pub waited: Duration,
    /// How long it was allowed to take.
    pub limit: Duration,
}

/// Why a wait for a lane ended without an answer.
#[derive(Debug)]
pub(crate) enum Interrupted<E> {
    /// The deadline passed.
    Overrun(Overrun),
    /// The watcher had a reason to stop.
    Watcher(E),
}

impl<S> fmt::Debug for Lane<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("inside", &self.inside.function()).finish_non_exhaustive()
    }
}

/// Why a lane could not be started.
#[derive(Debug)]
pub enum NotStarted<E> {
    /// The system gave no thread.
    Thread(std::io::Error),
    /// Making the state took too long; whatever comes of it is released on its thread.
    Overrun(Overrun),
    /// Making the state failed.
    State(E),
}

impl<S: 'static> Lane<S> {
    /// Starts the thread and makes its state there.
    pub fn start<E: Send + 'static>(
        until: Deadline,
        make: impl FnOnce() -> Result<S, E> + Send + 'static,
    ) -> Result<Self, NotStarted<E>> {
        let inside = Inside::default();
        let followed = inside.clone();
        let (jobs, queue) = channel::<Job<S>>();
        let (end, ended) = channel();
        let (tell, made) = channel();
        let thread = std::thread::Builder::new().name("chipcomm-vendor".to_owned()).spawn(move || {
            followed.follow_this_thread();
            match make() {
                Ok(mut state) => {
                    // Nobody listens any more: what was made is released again, here.
                    if tell.send(Ok(())).is_ok() {
                        queue.into_iter().for_each(|job| job(&mut state));
                    }
                    drop(state);
                }
                Err(error) => drop(tell.send(Err(error))),
            }
            let _ = end.send(());
        });
        thread.map_err(NotStarted::Thread)?;
        let lane = Self { jobs: Some(jobs), ended: Mutex::new(ended), inside };
        match made.recv_timeout(until.left()) {
            Ok(Ok(())) => Ok(lane),
            Ok(Err(error)) => Err(NotStarted::State(error)),
            Err(_) => Err(NotStarted::Overrun(lane.overrun(until))),
        }
    }

    /// Runs a job and waits for its answer until the deadline.
    pub fn run<T: Send + 'static>(
        &self,
        until: Deadline,
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, Overrun> {
        self.run_meanwhile(until, || (), job)
    }

    /// The same, and does something else every few milliseconds while it waits.
    pub fn run_meanwhile<T: Send + 'static>(
        &self,
        until: Deadline,
        meanwhile: impl Fn(),
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, Overrun> {
        let watcher = || {
            meanwhile();
            Ok::<(), std::convert::Infallible>(())
        };
        self.run_watching(until, watcher, job).map_err(|interrupted| match interrupted {
            Interrupted::Overrun(overrun) => overrun,
            Interrupted::Watcher(never) => match never {},
        })
    }

    /// The same, and every few milliseconds asks `watcher` whether to go on waiting. An answer that is there counts
    /// before what the watcher says.
    pub(crate) fn run_watching<T: Send + 'static, E>(
        &self,
        until: Deadline,
        watcher: impl Fn() -> Result<(), E>,
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, Interrupted<E>> {
        let (tell, answer) = channel();
        let job = Box::new(move |state: &mut S| drop(tell.send(job(state))));
        // Closed, or its thread ended by a panic: the answer's channel is gone, which the loop finds.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
        let mut stopped = None;
        loop {
            match answer.recv_timeout(until.left().min(LOOK)) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if stopped.is_some() || until.left().is_zero() => break,
                // One more look at the answer before the watcher's word counts.
                Err(RecvTimeoutError::Timeout) => stopped = watcher().err(),
            }
        }
        match stopped {
            Some(reason) => Err(Interrupted::Watcher(reason)),
            None => Err(Interrupted::Overrun(self.overrun(until))),
        }
    }

    /// The vendor function that it is in right now.
    pub fn inside(&self) -> Option<&'static str> {
        self.inside.function()
    }

    /// Releases the state on its thread and waits for that until the deadline.
    pub fn close(mut self, until: Deadline) -> Result<(), Overrun> {
        self.jobs = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(until.left());
        ended.map_err(|_| self.overrun(until))
    }

    fn overrun(&self, until: Deadline) -> Overrun {
        let function = self.inside.function().unwrap_or("the vendor's thread");
        Overrun { function, waited: until.elapsed(), limit: until.limit() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::noting;
    use std::sync::{Arc, Mutex};

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(60)).unwrap()
    }

    fn lane(state: u32) -> Lane<u32> {
        Lane::start(soon(), move || Ok::<_, ()>(state)).unwrap()
    }

    // CH-2
    #[test]
    fn a_call_that_hangs_is_left_with_its_name_and_the_next_one_too() {
        let lane = lane(1);
        assert_eq!(lane.run(soon(), |state| *state + 1), Ok(2));
        let (go_on, held) = channel::<()>();
        let hang = move |_: &mut u32| noting("HcclBarrier", || held.recv().unwrap_or(()));
        let short = Deadline::after(Duration::from_millis(30)).unwrap();
        let overrun = lane.run(short, hang).expect_err("it hangs");
        assert_eq!((overrun.function, overrun.limit), ("HcclBarrier", Duration::from_millis(30)));
        assert!(overrun.waited >= overrun.limit);
        let overrun = lane
            .run(Deadline::after(Duration::from_millis(30)).unwrap(), |_| ())
            .expect_err("it still hangs");
        assert_eq!(overrun.function, "HcclBarrier");
        // It came back after all.
        go_on.send(()).unwrap();
        assert_eq!(lane.run(soon(), |state| *state), Ok(1));
        assert_eq!(lane.close(soon()), Ok(()));
    }

    #[test]
    fn the_watcher_ends_a_wait_and_an_answer_counts_before_it() {
        let lane = lane(0);
        let (go_on, held) = channel::<()>();
        let told = lane.run_watching(soon(), || Err("a peer died"), move |_| held.recv().unwrap_or(()));
        assert!(matches!(told, Err(Interrupted::Watcher("a peer died"))));
        drop(go_on);
        let told = lane.run_watching(soon(), || Err("a peer died"), |_| 7);
        assert!(matches!(told, Ok(7)));
    }

    // CH-2
    #[test]
    fn the_state_is_made_and_released_on_the_lane() {
        struct Noted(Arc<Mutex<Vec<std::thread::ThreadId>>>);
        impl Drop for Noted {
            fn drop(&mut self) {
                self.0.lock().unwrap().push(std::thread::current().id());
            }
        }
        let ids = Arc::new(Mutex::new(Vec::new()));
        let noted = ids.clone();
        let lane = Lane::start(soon(), move || Ok::<_, ()>(Noted(noted))).unwrap();
        let there = lane.run(soon(), |_| std::thread::current().id()).unwrap();
        lane.close(soon()).unwrap();
        assert_eq!(*ids.lock().unwrap(), [there]);
        let failed = Lane::<u32>::start(soon(), || Err("no device"));
        assert!(matches!(failed, Err(NotStarted::State("no device"))));
    }
}
