//! What a graph was and what ran when: for a picture of it.

use crate::engine::Core;
use crate::kernel::Lane;
use crate::signals::{Domain, Signal, Wait};
use crate::task::{Site, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write};

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
}

/// A wait of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitRecord {
    /// The task.
    pub task: TaskId,
    /// What it waits for.
    pub wait: Wait,
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

    /// The graph for Graphviz.
    pub fn dot(&self) -> String {
        let mut text = String::from("digraph tasks {\n  node [shape=box, fontname=\"sans-serif\"];\n");
        for (task, TaskRecord { kernels, blocks, site }) in &self.tasks {
            let kernels = if kernels.is_empty() { "orders only" } else { kernels };
            let times = if *blocks > 1 { format!(" × {blocks}") } else { String::new() };
            let site = site.map(|site| format!("\n{site}")).unwrap_or_default();
            let label = quoted(&format!("{}.{} {kernels}{times}{site}", task.ring(), task.local()));
            let _ = writeln!(text, "  t{} [label={label}];", task.0);
        }
        for (before, after) in &self.edges {
            let _ = writeln!(text, "  t{} -> t{};", before.0, after.0);
        }
        text + "}\n"
    }

    /// The events of a Chrome trace, for Perfetto, each line `,` and an object: `pid` is the number of the chip in the
    /// file and `name` its name; the file's time 0 is `origin_ns` on the monotonic clock. A core has the number of its
    /// cluster times three plus that of its lane.
    pub fn write_events(&self, out: &mut impl Write, pid: u32, name: &str, origin_ns: u64) -> io::Result<()> {
        let process = quoted(name);
        write!(
            out,
            ",\n{{\"ph\":\"M\",\"pid\":{pid},\"name\":\"process_name\",\"args\":{{\"name\":{process}}}}}"
        )?;
        let core = |span: &Span| 3 * span.cluster + span.lane as u32;
        let cores: BTreeMap<u32, &Span> = self.spans.iter().map(|span| (core(span), span)).collect();
        for (tid, span) in cores {
            let name = quoted(&format!("cluster {} {}", span.cluster, span.lane.name()));
            write!(
                out,
                ",\n{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}}}"
            )?;
        }
        let micros = |ns: u64| {
            let ns = ns.saturating_sub(origin_ns);
            format!("{}.{:03}", ns / 1000, ns % 1000)
        };
        let mut ends: BTreeMap<TaskId, &Span> = BTreeMap::new();
        let mut starts: BTreeMap<TaskId, &Span> = BTreeMap::new();
        for span in &self.spans {
            ends.insert(span.task, span);
            let first = starts.entry(span.task).or_insert(span);
            if span.start_ns < first.start_ns {
                *first = span;
            }
            let record = self.tasks.get(&span.task);
            let name = quoted(record.map_or("a task", |record| &record.kernels));
            let (tid, start) = (core(span), micros(span.start_ns));
            let length = span.end_ns.saturating_sub(span.start_ns);
            write!(
                out,
                ",\n{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{tid},\"ts\":{start},\"dur\":{}.{:03},\"name\":{name},\
                 \"args\":{{\"task\":\"{}\",\"block\":{}}}}}",
                length / 1000,
                length % 1000,
                span.task,
                span.block
            )?;
        }
        self.write_waits(out, pid, micros)?;
        for SignalRecord { task, signal, to, value } in &self.signals {
            let Some(span) = ends.get(task) else { continue };
            let arrow = arrow_of(signal.domain, *to, signal.offset, *value);
            let (tid, at) = (core(span), micros(span.end_ns));
            write!(out, ",\n{{\"ph\":\"s\",{arrow},\"pid\":{pid},\"tid\":{tid},\"ts\":{at}}}")?;
        }
        for WaitRecord { task, wait, rank, .. } in &self.waits {
            let Some(span) = starts.get(task) else { continue };
            let arrow = arrow_of(wait.domain, *rank, wait.offset, wait.at_least);
            let (tid, at) = (core(span), micros(span.start_ns));
            write!(out, ",\n{{\"ph\":\"f\",\"bp\":\"e\",{arrow},\"pid\":{pid},\"tid\":{tid},\"ts\":{at}}}")?;
        }
        // Numbers that no other process of the file uses, and that a reader can hold as a double.
        let mut id = u64::from(pid) << 30;
        for (before, after) in &self.edges {
            let (Some(from), Some(to)) = (ends.get(before), starts.get(after)) else { continue };
            id += 1;
            let arrow = format!("\"id\":{id},\"pid\":{pid},\"name\":\"needs\",\"cat\":\"dependency\"");
            write!(
                out,
                ",\n{{\"ph\":\"s\",{arrow},\"tid\":{},\"ts\":{}}},\n{{\"ph\":\"f\",\"bp\":\"e\",{arrow},\"tid\":{},\"ts\":{}}}",
                core(from),
                micros(from.end_ns),
                core(to),
                micros(to.start_ns)
            )?;
        }
        Ok(())
    }

    /// From when to when tasks waited for signals.
    fn write_waits(&self, out: &mut impl Write, pid: u32, micros: impl Fn(u64) -> String) -> io::Result<()> {
        for (number, WaitRecord { task, wait, armed_ns, met_ns, .. }) in self.waits.iter().enumerate() {
            let name = quoted(&format!("{task} waits for word {:#x} ≥ {}", wait.offset, wait.at_least));
            let event =
                format!("\"cat\":\"wait\",\"id\":\"{pid}.{number}\",\"pid\":{pid},\"tid\":0,\"name\":{name}");
            write!(out, ",\n{{\"ph\":\"b\",{event},\"ts\":{}}}", micros(*armed_ns))?;
            if let Some(met_ns) = met_ns {
                write!(out, ",\n{{\"ph\":\"e\",{event},\"ts\":{}}}", micros(*met_ns))?;
            }
        }
        Ok(())
    }

    /// A whole trace of this chip alone.
    pub fn write_trace(&self, out: &mut impl Write, name: &str) -> io::Result<()> {
        let origin = self.spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
        let mut events = Vec::new();
        self.write_events(&mut events, 1, name, origin)?;
        write!(
            out,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"left_out\":{}}},\"traceEvents\":[",
            self.left_out
        )?;
        // Without the first comma.
        out.write_all(&events[1..])?;
        writeln!(out, "\n]}}")
    }
}

/// What the two ends of a signal's arrow have in common, in the events of two chips: the word, and the value that one
/// waits for and the other makes of it.
fn arrow_of(domain: Domain, rank: u32, offset: u64, value: u32) -> String {
    format!("\"id\":\"{}.{rank}.{offset:x}.{value}\",\"name\":\"signal\",\"cat\":\"signal\"", domain.0)
}

/// A string of JSON, which is one of Graphviz too.
fn quoted(text: &str) -> String {
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
