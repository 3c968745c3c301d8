//! What a graph was and what ran when: for a picture of it.

use crate::engine::Core;
use crate::kernel::Lane;
use crate::signals::{Signal, Wait};
use crate::task::{Site, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

/// The most of each that is kept; how many were left out is counted.
const MOST: usize = 1 << 20;

/// What is recorded of a run that was asked for it: [`Runtime::record`](crate::Runtime::record).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    tasks: BTreeMap<TaskId, TaskRecord>,
    edges: BTreeSet<(TaskId, TaskId)>,
    spans: Vec<Span>,
    waits: Vec<WaitRecord>,
    signals: Vec<SignalRecord>,
    left_out: usize,
    has_streams: bool,
}

/// A wait of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitRecord {
    /// The task.
    pub task: TaskId,
    /// What it waits for.
    pub wait: Wait,
    /// The name of the window, which is the same on all chips.
    pub window: Arc<str>,
    /// The rank of this chip in the communicator.
    pub rank: u32,
    /// When it was armed, on the monotonic clock.
    pub armed_ns: u64,
    /// When it was found to be met; `None` if it was not.
    pub met_ns: Option<u64>,
}

/// A signal that a task sent.
#[derive(Clone, Debug, PartialEq)]
pub struct SignalRecord {
    /// The task.
    pub task: TaskId,
    /// What it sent.
    pub signal: Signal,
    /// The name of the window, which is the same on all chips.
    pub window: Arc<str>,
    /// The rank of the receiver in the communicator.
    pub to: u32,
    /// What the word holds since.
    pub value: u32,
}

/// A task as it was submitted.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskRecord {
    /// The names of its kernels; empty for a task that only orders others.
    pub kernels: String,
    /// How many blocks it has.
    pub blocks: u32,
    /// Where it was submitted.
    pub site: Option<Site>,
    /// What it waits for besides other tasks.
    pub waits: Vec<Wait>,
    /// What it tells other chips.
    pub signals: Vec<Signal>,
}

/// A kernel on a core.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The task.
    pub task: TaskId,
    /// The block.
    pub block: u32,
    /// The cluster.
    pub cluster: u32,
    /// The core of the cluster.
    pub lane: Lane,
    /// On the monotonic clock.
    pub start_ns: u64,
    /// On the monotonic clock.
    pub end_ns: u64,
}

impl Span {
    pub(crate) fn new(task: TaskId, block: u32, core: Core, start_ns: u64, end_ns: u64) -> Self {
        Self { task, block, cluster: core.cluster.into(), lane: core.lane, start_ns, end_ns }
    }
}

impl Recording {
    pub(crate) fn task(&mut self, task: TaskId, record: TaskRecord) {
        if self.tasks.len() < MOST {
            self.tasks.insert(task, record);
        } else {
            self.left_out += 1;
        }
    }

    pub(crate) fn edge(&mut self, before: TaskId, after: TaskId) {
        if self.edges.len() < MOST {
            self.edges.insert((before, after));
        }
    }

    pub(crate) fn span(&mut self, span: Span) {
        if self.spans.len() < MOST {
            self.spans.push(span);
        } else {
            self.left_out += 1;
        }
    }

    pub(crate) fn wait(&mut self, wait: WaitRecord) {
        if self.waits.len() < MOST {
            self.waits.push(wait);
        }
    }

    /// One of a device, whose cores stand for the streams of their kind.
    #[cfg(feature = "ascend")]
    pub(crate) fn of_streams() -> Self {
        Self { has_streams: true, ..Self::default() }
    }

    /// The name of the track of a span.
    pub(crate) fn track(&self, span: &Span) -> String {
        match (self.has_streams, span.lane) {
            (false, lane) => format!("cluster {} {}", span.cluster, lane.name()),
            (true, Lane::Aic) => "stream of AIC".to_owned(),
            (true, _) => "stream of AIV".to_owned(),
        }
    }

    /// This wait of a task is met, now.
    #[cfg(feature = "ascend")]
    pub(crate) fn met_wait(&mut self, task: TaskId, wait: &Wait, now_ns: u64) {
        let waits = self.waits.iter_mut().filter(|armed| armed.task == task && armed.wait == *wait);
        waits.for_each(|wait| wait.met_ns = Some(now_ns));
    }

    /// Waits of this task are met, now.
    pub(crate) fn met(&mut self, task: TaskId, now_ns: u64) {
        let waits = self.waits.iter_mut().rev().filter(|wait| wait.task == task && wait.met_ns.is_none());
        waits.for_each(|wait| wait.met_ns = Some(now_ns));
    }

    pub(crate) fn signal(&mut self, signal: SignalRecord) {
        if self.signals.len() < MOST {
            self.signals.push(signal);
        }
    }

    /// The waits, in the order in which they were armed.
    pub fn waits(&self) -> &[WaitRecord] {
        &self.waits
    }

    /// The signals that were sent, in order.
    pub fn signals(&self) -> &[SignalRecord] {
        &self.signals
    }

    /// The tasks, by id.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, &TaskRecord)> {
        self.tasks.iter().map(|(task, record)| (*task, record))
    }

    /// The edges, from a task to one that comes after it.
    pub fn edges(&self) -> impl Iterator<Item = (TaskId, TaskId)> {
        self.edges.iter().copied()
    }

    /// What ran, in the order of the ends.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// How many tasks and spans were left out.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The graph for Graphviz: tasks as boxes, what they wait for and signal as dashed ellipses.
    pub fn dot(&self) -> String {
        let mut text = String::from("digraph tasks {\n  node [shape=box, fontname=\"sans-serif\"];\n");
        for (task, TaskRecord { kernels, blocks, site, waits, signals }) in &self.tasks {
            let kernels = if kernels.is_empty() { "orders only" } else { kernels };
            let times = if *blocks > 1 { format!(" × {blocks}") } else { String::new() };
            let site = site.map(|site| format!("\n{site}")).unwrap_or_default();
            let label = quoted(&format!("{}.{} {kernels}{times}{site}", task.ring(), task.local()));
            let id = task.0;
            let _ = writeln!(text, "  t{id} [label={label}];");
            let ellipse = "shape=ellipse, style=dashed";
            for (number, wait) in waits.iter().enumerate() {
                let label = quoted(&wait.to_string());
                let _ = writeln!(text, "  w{id}_{number} [label={label}, {ellipse}];");
                let _ = writeln!(text, "  w{id}_{number} -> t{id} [style=dashed];");
            }
            for (number, signal) in signals.iter().enumerate() {
                let label = quoted(&signal.to_string());
                let _ = writeln!(text, "  s{id}_{number} [label={label}, {ellipse}];");
                let _ = writeln!(text, "  t{id} -> s{id}_{number} [style=dashed];");
            }
        }
        for (before, after) in &self.edges {
            let _ = writeln!(text, "  t{} -> t{};", before.0, after.0);
        }
        text + "}\n"
    }
}

/// A string of JSON, which is one of Graphviz too.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out += &format!("\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
