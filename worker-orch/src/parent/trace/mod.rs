//! When every task ran, for a file that Perfetto and Chrome's tracing page show.

mod file;

pub(crate) use file::TraceFile;

use crate::log;
use crate::shared::{ControlBlock, Frame, Kind, Outcome, Prerequisite, Times};
use child_process::is_forked_child;
use deadline::monotonic_ns;
use std::collections::VecDeque;

/// Spans kept; more tasks than this are counted and left out, so that a long run does not eat the memory.
const MOST_SPANS: usize = 1_000_000;

/// The target of the `tracing` events that say when a task ran.
const TASKS: &str = "worker_orch::tasks";

/// One thing that a child did.
#[derive(Debug)]
struct Span {
    child: usize,
    seq: u64,
    what: What,
    times: Times,
    /// The tasks of other children that it waited for, or would have if they had not been done before.
    needs: Vec<Prerequisite>,
}

/// A frame that was sent and is not known to be over.
#[derive(Debug)]
struct Sent {
    seq: u64,
    what: What,
    needs: Vec<Prerequisite>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Program(u32),
    Command(&'static str),
}

/// The spans of a Worker's life, written when it is closed.
#[derive(Debug)]
pub(super) struct Trace {
    /// The file; without one the spans only go to `tracing`.
    file: Option<TraceFile>,
    waiting: Vec<VecDeque<Sent>>,
    /// For each child what its next task needs.
    next_needs: Vec<Vec<Prerequisite>>,
    spans: Vec<Span>,
    left_out: u64,
}

impl Trace {
    /// `None` when neither a file nor a subscriber asks for the times of tasks.
    pub(super) fn wanted(file: Option<&TraceFile>, children: usize) -> Option<Self> {
        let listening = !is_forked_child() && tracing::enabled!(target: TASKS, tracing::Level::TRACE);
        (file.is_some() || listening).then(|| Self {
            file: file.map(TraceFile::begun),
            waiting: (0..children).map(|_| VecDeque::new()).collect(),
            next_needs: vec![Vec::new(); children],
            spans: Vec::new(),
            left_out: 0,
        })
    }

    /// The file that this is for.
    pub(super) fn file(&self) -> Option<&TraceFile> {
        self.file.as_ref()
    }

    /// What the next task of `child` needs, done or not.
    pub(super) fn set_needs(&mut self, child: usize, needs: Vec<Prerequisite>) {
        self.next_needs[child] = needs;
    }

    /// A frame is sent.
    pub(super) fn expect(&mut self, child: usize, seq: u64, frame: &Frame<'_>) {
        let (what, needs) = match frame.kind {
            Kind::Task => (What::Program(frame.program), std::mem::take(&mut self.next_needs[child])),
            Kind::Shutdown => return,
            command => (What::Command(command.words()), Vec::new()),
        };
        self.waiting[child].push_back(Sent { seq, what, needs });
    }

    /// Takes the times of all frames up to `done`, before their slots are written again.
    pub(super) fn collect(&mut self, block: &ControlBlock, programs: &[String], child: usize, done: u64) {
        while let Some(Sent { seq, what, needs }) = self.waiting[child].pop_front_if(|sent| sent.seq <= done)
        {
            let now = monotonic_ns();
            let skipped = Times { start_ns: now, end_ns: now, outcome: Outcome::Skipped };
            let mut times = block.times(child, seq).unwrap_or(skipped);
            if times.outcome == Outcome::Unfinished {
                times.end_ns = now;
            }
            let Times { start_ns, end_ns, outcome } = times;
            let ns = end_ns.saturating_sub(start_ns);
            let program = match what {
                What::Program(number) => programs.get(number as usize).map_or("?", String::as_str),
                What::Command(words) => words,
            };
            match outcome {
                Outcome::Done => {
                    log::event!(trace, target: TASKS, child, seq, program, start_ns, ns, "done");
                }
                _ => {
                    log::event!(warn, target: TASKS, child, seq, program, ?outcome, start_ns, ns, "not done")
                }
            }
            if self.file.is_none() {
                continue;
            }
            if self.spans.len() >= MOST_SPANS {
                self.left_out += 1;
                continue;
            }
            self.spans.push(Span { child, seq, what, times, needs });
        }
    }
}
