//! A thread that makes vendor calls, so that the thread that needs them can stop waiting.
//!
//! Nothing but the end of the process ends a call that hangs inside the vendor's code. So a vendor thread makes the calls:
//! the caller returns at its deadline with the name of the function, and the vendor thread is left behind with everything
//! that it holds. Its state is made, used and released on that thread only, which also suits the vendor: one thread, one
//! context.

use crate::vendor_call::CurrentCall;
use deadline::Deadline;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How often a wait checks whether to go on.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// A thread with a state that no other thread touches.
pub struct VendorThread<S> {
    /// `None` once closed.
    jobs: Option<Sender<Job<S>>>,
    ended: Mutex<Receiver<()>>,
    current: CurrentCall,
}

/// A vendor thread did not return in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{function} has not come back after {waited:.1?} of {limit:?}")]
pub struct Overrun {
    /// The vendor function that it is in.
    pub function: &'static str,
    /// How long the caller waited.
    pub waited: Duration,
    /// How long the call was allowed to take.
    pub limit: Duration,
}

/// Why a wait for a vendor thread ended without an answer.
#[derive(Debug)]
pub(crate) enum Interrupted<E> {
    /// The deadline passed.
    Overrun(Overrun),
    /// The watcher returned an error.
    Watcher(E),
}

impl<S> fmt::Debug for VendorThread<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VendorThread").field("in", &self.current.function()).finish_non_exhaustive()
    }
}

/// Why a vendor thread could not be started.
#[derive(Debug)]
pub enum NotStarted<E> {
    /// The system refused a thread.
    Thread(std::io::Error),
    /// Making the state took too long. The state is released on its thread when it is made after all.
    Overrun(Overrun),
    /// Making the state failed.
    State(E),
}

impl<S: 'static> VendorThread<S> {
    /// Starts the thread and makes its state there.
    pub fn start<E: Send + 'static>(
        until: Deadline,
        make: impl FnOnce() -> Result<S, E> + Send + 'static,
    ) -> Result<Self, NotStarted<E>> {
        let current = CurrentCall::default();
        let followed = current.clone();
        let (jobs, queue) = channel::<Job<S>>();
        let (end, ended) = channel();
        let (report, made) = channel();
        let thread = std::thread::Builder::new().name("chipcomm-vendor".to_owned()).spawn(move || {
            followed.follow_this_thread();
            match make() {
                Ok(mut state) => {
                    // When the caller has given up, the state is released at once.
                    if report.send(Ok(())).is_ok() {
                        queue.into_iter().for_each(|job| job(&mut state));
                    }
                    drop(state);
                }
                Err(error) => drop(report.send(Err(error))),
            }
            let _ = end.send(());
        });
        thread.map_err(NotStarted::Thread)?;
        let this = Self { jobs: Some(jobs), ended: Mutex::new(ended), current };
        match made.recv_timeout(until.left()) {
            Ok(Ok(())) => Ok(this),
            Ok(Err(error)) => Err(NotStarted::State(error)),
            Err(_) => Err(NotStarted::Overrun(this.overrun(until))),
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

    /// The same, and calls `meanwhile` every few milliseconds while it waits.
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

    /// The same, and stops waiting when `watcher`, called every few milliseconds, returns an error. An answer that is
    /// there takes precedence.
    pub(crate) fn run_watching<T: Send + 'static, E>(
        &self,
        until: Deadline,
        watcher: impl Fn() -> Result<(), E>,
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, Interrupted<E>> {
        let answer = self.submit(job);
        let mut stopped = None;
        loop {
            match answer.recv_timeout(until.left().min(POLL_INTERVAL)) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if stopped.is_some() || until.left().is_zero() => break,
                // The answer is checked once more before the watcher's error counts.
                Err(RecvTimeoutError::Timeout) => stopped = watcher().err(),
            }
        }
        match stopped {
            Some(reason) => Err(Interrupted::Watcher(reason)),
            None => Err(Interrupted::Overrun(self.overrun(until))),
        }
    }

    /// Has a job done behind those that were submitted before, and returns where its answer will be. When the thread is closed
    /// or ended by a panic, that channel is disconnected.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (report, answer) = channel();
        let job = Box::new(move |state: &mut S| drop(report.send(job(state))));
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
        answer
    }

    /// The vendor function that the thread is in now.
    pub fn current_call(&self) -> Option<&'static str> {
        self.current.function()
    }

    /// Releases the state on its thread and waits for that until the deadline.
    pub fn close(mut self, until: Deadline) -> Result<(), Overrun> {
        self.jobs = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(until.left());
        ended.map_err(|_| self.overrun(until))
    }

    fn overrun(&self, until: Deadline) -> Overrun {
        let function = self.current.function().unwrap_or("the vendor thread");
        Overrun { function, waited: until.elapsed(), limit: until.limit() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vendor_call::recorded;
    use std::sync::{Arc, Mutex};

    fn far() -> Deadline {
        Deadline::after(Duration::from_secs(60)).unwrap()
    }

    fn soon() -> Deadline {
        Deadline::after(Duration::from_millis(30)).unwrap()
    }

    fn started(state: u32) -> VendorThread<u32> {
        VendorThread::start(far(), move || Ok::<_, ()>(state)).unwrap()
    }

    // CH-2
    #[test]
    fn a_call_that_hangs_is_reported_by_name_and_so_is_the_next_one() {
        let thread = started(1);
        assert_eq!(thread.run(far(), |state| *state + 1), Ok(2));
        let (resume, held) = channel::<()>();
        let hang = move |_: &mut u32| recorded("HcclBarrier", || held.recv().map_or(0, |()| 0));
        let overrun = thread.run(soon(), hang).expect_err("it hangs");
        assert_eq!((overrun.function, overrun.limit), ("HcclBarrier", Duration::from_millis(30)));
        assert!(overrun.waited >= overrun.limit);
        let text = overrun.to_string();
        assert!(
            text.starts_with("HcclBarrier has not come back after ") && text.ends_with(" of 30ms"),
            "{text}"
        );
        let overrun = thread.run(soon(), |_| ()).expect_err("it still hangs");
        assert_eq!(overrun.function, "HcclBarrier");
        // The call returns after all.
        resume.send(()).unwrap();
        assert_eq!(thread.run(far(), |state| *state), Ok(1));
        assert_eq!(thread.close(far()), Ok(()));
    }

    #[test]
    fn the_watcher_ends_a_wait_unless_there_is_an_answer() {
        let thread = started(0);
        let (resume, held) = channel::<()>();
        let ended = thread.run_watching(far(), || Err("a peer died"), move |_| held.recv().map_or(0, |()| 0));
        assert!(matches!(ended, Err(Interrupted::Watcher("a peer died"))));
        drop(resume);
        let ended = thread.run_watching(far(), || Err("a peer died"), |_| 7);
        assert!(matches!(ended, Ok(7)));
    }

    // CH-2
    #[test]
    fn the_state_is_made_and_released_on_the_vendor_thread() {
        struct RecordsDrop(Arc<Mutex<Vec<std::thread::ThreadId>>>);
        impl Drop for RecordsDrop {
            fn drop(&mut self) {
                self.0.lock().unwrap().push(std::thread::current().id());
            }
        }
        let ids = Arc::new(Mutex::new(Vec::new()));
        let state = RecordsDrop(ids.clone());
        let thread = VendorThread::start(far(), move || Ok::<_, ()>(state)).unwrap();
        let there = thread.run(far(), |_| std::thread::current().id()).unwrap();
        thread.close(far()).unwrap();
        assert_eq!(*ids.lock().unwrap(), [there]);
        let failed = VendorThread::<u32>::start(far(), || Err("no device"));
        assert!(matches!(failed, Err(NotStarted::State("no device"))));
    }
}
