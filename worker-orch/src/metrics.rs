//! What a Worker has done and is doing, in numbers.

use crate::worker::Worker;
use std::fmt;
use std::time::Duration;
use worker_errors::Failure;

/// A Worker at one moment, by [`Worker::metrics`]. Its text has a line for each child.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Runs that were submitted and are not known to be over.
    pub runs_in_flight: usize,
    /// Chips (or Workers), then sub-workers.
    pub children: Vec<ChildMetrics>,
}

/// One child of a Worker. Counts are from [`Worker::init`] on.
#[derive(Clone, Debug)]
pub struct ChildMetrics {
    /// `chip 0`, `worker 1`, `sub-worker 0`.
    pub name: String,
    /// Its process.
    pub pid: i32,
    /// Tasks and commands that it has finished.
    pub finished: u64,
    /// Tasks and commands that it was sent and has not finished; with the one that it is in.
    pub queued: u64,
    /// How long it has been in them, and how long they waited for those of other children before; in a Worker that is
    /// [measured](crate::WorkerBuilder::measured) or traced. The one that it is in does not count yet.
    pub busy: Option<Duration>,
    /// See `busy`.
    pub waiting: Option<Duration>,
    /// Bytes that `copy_to` and `copy_from` have copied.
    pub bytes_to: u64,
    /// See `bytes_to`.
    pub bytes_from: u64,
    /// What it is doing, in words.
    pub activity: String,
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "runs in flight: {}", self.runs_in_flight)?;
        for child in &self.children {
            let ChildMetrics { name, pid, finished, queued, bytes_to, bytes_from, activity, .. } = child;
            write!(f, "{name:<12} pid {pid:<8} finished {finished}, queued {queued}")?;
            if let (Some(busy), Some(waiting)) = (child.busy, child.waiting) {
                write!(f, ", busy {busy:.1?}, waiting {waiting:.1?}")?;
            }
            writeln!(f, ", {bytes_to} bytes to it, {bytes_from} from it; {activity}")?;
        }
        Ok(())
    }
}

impl Worker {
    /// What every child has done and is doing. Reads shared memory and waits for nobody.
    ///
    /// ```
    /// # use worker_orch::{Args, Failure, Worker};
    /// let mut worker = Worker::builder().devices(&[0]).measured().build()?;
    /// let work = worker.register_function("work", |_| Ok(()));
    /// worker.init()?;
    /// worker.run(|orch| orch.submit_next_level(work, &Args::new(), 0))?;
    /// let metrics = worker.metrics()?;
    /// assert_eq!((metrics.runs_in_flight, metrics.children[0].queued), (0, 0));
    /// assert!(metrics.children[0].finished > 0 && metrics.children[0].busy.is_some());
    /// println!("{metrics}"); // a line for each child
    /// # worker.close()?;
    /// # Ok::<_, Failure>(())
    /// ```
    pub fn metrics(&self) -> Result<Metrics, Failure> {
        self.up_now("metrics").map(|up| up.metrics())
    }
}
