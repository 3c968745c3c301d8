//! The runtime of a chip's process.

use crate::engine::{Engine, Scratch, Session, panic_text};
use crate::error::{ErrorKind, RuntimeError};
use crate::graph::Graph;
use crate::kernel::{Block, Code, KernelResult};
use crate::limits::{FrontEnd, Limits};
use crate::record::Recording;
use crate::signals::Signals;
use crate::task::{KernelId, Site};
use deadline::Deadline;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

/// Runs graphs, one after the other. Its threads are made when they are needed and end with it.
#[derive(Debug)]
pub struct Runtime {
    engine: Arc<Engine>,
    limits: Limits,
    records: bool,
    runs: u64,
    session: Option<Session>,
    /// For kernels on the thread that calls `run`.
    scratch: Option<Scratch>,
}

impl Runtime {
    /// A runtime of this size. It has no threads and no memory yet.
    pub fn new(limits: Limits) -> Result<Self, RuntimeError> {
        limits.check()?;
        let engine = Engine::new(&limits, Signals::alone()?);
        Ok(Self { engine, limits, records: false, runs: 0, session: None, scratch: None })
    }

    /// Takes part in these signals from the next run on. Without it the chip has no window and no peers.
    ///
    /// ```
    /// # use chip_runtime::{Buffer, FrontEnd, Kernels, Limits, Runtime, TaskArgs};
    /// # use deadline::Deadline;
    /// # use std::time::Duration;
    /// use chip_runtime::signals::{Domain, Signal, SignalOp, Signaller, Signals, Wait};
    ///
    /// // Two chips in one process; in a Worker each has its own, and `Task::graphs` connects them.
    /// let chips = Signals::in_process(2, 4096)?;
    /// let chip = |me: u32| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    ///     let mut runtime = Runtime::new(Limits::default())?;
    ///     runtime.connect(chips[me as usize].clone());
    ///     runtime.session(1, &[0, 1]);
    ///     let say = runtime.kernel("say", |_| Ok(()));
    ///     let word = 128 * me; // in the window of the peer, one for each writer
    ///     let told = Signal { domain: Domain::BASE, rank: 1 - me, offset: word.into(), op: SignalOp::Add(1) };
    ///     let there = 128 * (1 - me);
    ///     let wait = Wait { domain: Domain::BASE, offset: there.into(), at_least: 1, from: Signaller::Rank(1 - me) };
    ///     runtime.run(FrontEnd::Inferred, Deadline::after(Duration::from_secs(10))?, |graph| {
    ///         graph.submit(Kernels::aiv(say), &TaskArgs::new().signal(told))?;
    ///         graph.submit(Kernels::aiv(say), &TaskArgs::new().wait(wait)).map(drop) // when the peer has signalled
    ///     })?;
    ///     Ok(())
    /// };
    /// std::thread::scope(|scope| {
    ///     let other = scope.spawn(|| chip(1));
    ///     chip(0).and(other.join().unwrap())
    /// })?;
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn connect(&mut self, signals: Arc<Signals>) {
        self.engine.connect(signals);
    }

    /// The next run is one of several, of these ranks, that begin together: `number` is the same for all of them, and
    /// above that of every earlier one. It is among these ranks that a deadlock can be proved.
    pub fn session(&mut self, number: u64, members: &[u32]) {
        self.session = Some(Session { number, members: members.to_vec() });
    }

    /// Its sizes.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether a kernel of a run that has ended has not returned. Until it has, the next run is refused.
    pub fn is_running(&self) -> bool {
        self.engine.is_running()
    }

    /// Registers a kernel in Rust under a number that no other has or had.
    pub fn kernel(
        &mut self,
        name: &str,
        function: impl Fn(&Block<'_>) -> KernelResult + Send + Sync + 'static,
    ) -> KernelId {
        self.engine.add_kernel(name, Code::Function(Box::new(function)))
    }

    /// Registers a kernel in Rust under this number. One that had the number before is replaced, and dropped as soon as no
    /// core runs it.
    pub fn set_kernel(
        &mut self,
        id: KernelId,
        name: &str,
        function: impl Fn(&Block<'_>) -> KernelResult + Send + Sync + 'static,
    ) {
        self.engine.set_kernel(id, name, Code::Function(Box::new(function)));
    }

    /// Forgets the kernel of this number, which is dropped as soon as no core runs it; false if there is none. The object of
    /// a kernel in C++ stays loaded.
    pub fn forget_kernel(&mut self, id: KernelId) -> bool {
        self.engine.forget_kernel(id)
    }

    /// Forgets all kernels that the runtime numbered itself, those of [`kernel`](Self::kernel).
    pub fn forget_own_kernels(&mut self) {
        self.engine.forget_added_kernels();
    }

    /// Records the graph and what runs when, in the next runs; [`take_recording`](Self::take_recording) has the last.
    ///
    /// ```
    /// # use chip_runtime::{Buffer, FrontEnd, Kernels, Limits, Runtime, TaskArgs};
    /// # use deadline::Deadline;
    /// # use std::time::Duration;
    /// let mut runtime = Runtime::new(Limits::default())?;
    /// let double = runtime.kernel("double", |block| {
    ///     Ok(block.write(0, &block.read::<f32>(0)?.iter().map(|x| 2.0 * x).collect::<Vec<_>>())?)
    /// });
    /// let mut x = Buffer::of(&[1.0f32]);
    /// runtime.record();
    /// runtime.run(FrontEnd::Inferred, Deadline::after(Duration::from_secs(10))?, |graph| {
    ///     let x = graph.import(&mut x)?;
    ///     graph.submit(Kernels::aiv(double), &TaskArgs::new().inout(&x))?;
    ///     graph.submit(Kernels::aiv(double), &TaskArgs::new().inout(&x)).map(drop)
    /// })?;
    /// let recorded = runtime.take_recording().expect("it was recorded");
    /// assert!(recorded.dot().contains("t0 -> t1")); // for Graphviz
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn record(&mut self) {
        self.records = true;
    }

    /// A copy of what was recorded of the last run.
    pub fn recording(&self) -> Option<Recording> {
        self.engine.recording()
    }

    /// What was recorded of the last run.
    pub fn take_recording(&mut self) -> Option<Recording> {
        self.engine.take_recording()
    }

    /// Runs a graph: calls the orchestration, and returns when all its tasks have ended, with the first failure, or when
    /// the deadline has passed.
    ///
    /// A panic of the orchestration is a failure of the graph. After a deadline that passed while a kernel ran, the next
    /// run is refused until that kernel has returned.
    #[track_caller]
    pub fn run<T>(
        &mut self,
        front_end: FrontEnd,
        deadline: Deadline,
        orchestration: impl FnOnce(&mut Graph<'_>) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        let here = Site::of(Location::caller());
        let recording = self.records.then(Recording::default);
        self.runs += 1;
        let alone = || Session::alone(self.runs, self.engine.rank());
        let session = self.session.take().unwrap_or_else(alone);
        self.engine.begin(front_end, recording, &session, here, deadline)?;
        let mut graph = Graph::new(&self.engine, &self.limits, front_end, deadline);
        let built = catch_unwind(AssertUnwindSafe(|| orchestration(&mut graph)));
        let built = built.unwrap_or_else(|panic| {
            Err(RuntimeError::from(ErrorKind::Orchestration(panic_text(&*panic))).at_site(Some(here)))
        });
        let scratch = self.scratch.as_mut();
        let ended = catch_unwind(AssertUnwindSafe(|| self.engine.end(built, deadline, scratch)));
        // What the graph used must be given back all the same.
        ended.unwrap_or_else(|panic| {
            self.engine.end(Err(ErrorKind::Panicked(panic_text(&*panic)).into()), deadline, None)
        })
    }

    /// Waits until the kernels of the last run have returned; false when the deadline has passed before. After a run that
    /// ended in time they have.
    pub fn await_kernels(&mut self, deadline: Deadline) -> bool {
        self.engine.await_kernels(deadline)
    }

    /// From the next run on, the thread that calls [`run`](Self::run) runs kernels too, once the orchestration has returned:
    /// a task need not be handed to another thread, and its end handed back. But then `run` returns no earlier than such a
    /// kernel, also after the deadline. For a process that another one can replace, which learns of that by
    /// [`on_overdue`](Self::on_overdue). Chips whose runs begin together share the processors: while the orchestration
    /// of one runs, its other threads start what waits for the calling thread only after some time.
    pub fn use_calling_thread(&mut self) {
        self.scratch.get_or_insert_with(Scratch::new);
        self.engine.use_calling_thread();
    }

    /// From the next run on, `tell` is called, by a thread of the runtime, when the deadline of a run has passed and its
    /// orchestration neither returned nor called its graph: the error names the task that was submitted last, and its place.
    /// Also when a kernel on [the calling thread](Self::use_calling_thread) has not returned by then: the error is that of
    /// the run. For a process that another one can replace.
    pub fn on_overdue(
        &mut self,
        tell: impl Fn(RuntimeError) + Send + Sync + 'static,
    ) -> Result<(), RuntimeError> {
        self.engine.on_overdue(Arc::new(tell))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.engine.shut_down();
    }
}

mod raw {
    //! # Safety
    //! Code that the caller answers for.
    #![allow(unsafe_code)]

    use super::{Code, KernelId, Runtime};

    impl Runtime {
        /// Registers a kernel that takes the argument list of its block, as the C entry `kernel_entry` does: 50 entries,
        /// addresses of tensor descriptors, then scalars, at 48 and 49 the contexts.
        ///
        /// # Safety
        /// Called with the argument list of a task it accesses nothing but what that list names, as the graphs that use
        /// it declare it.
        pub unsafe fn set_raw_kernel(
            &mut self,
            id: KernelId,
            name: &str,
            entry: impl Fn(*mut i64) -> Result<(), String> + Send + Sync + 'static,
        ) {
            self.engine.set_kernel(id, name, Code::Entry(Box::new(entry)));
        }
    }
}
