//! Recordings as a Chrome trace, which Perfetto shows: a process for each chip, in it a track for each core, or for each
//! stream of a device.

use crate::record::{Recording, SignalRecord, Span, WaitRecord, quoted};
use crate::task::TaskId;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

/// The process that a chip is in a trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceProcess<'a> {
    /// Its number in the file.
    pub pid: u32,
    /// Its name.
    pub name: &'a str,
    /// The name of the group of chips that signal each other, which no other group of the file has.
    pub group: &'a str,
    /// The file's time 0, on the monotonic clock.
    pub origin_ns: u64,
}

/// Writes the recordings of one chip, one after the other, as events of a trace: each is `,`, a line break and an object.
///
/// A core has the number of its cluster times three plus that of its lane. The two ends of a signal's arrow may be in the
/// events of two chips.
#[derive(Debug)]
pub struct TraceWriter<'a, W> {
    out: W,
    process: TraceProcess<'a>,
    named: BTreeSet<u32>,
    arrows: u64,
    waits: u64,
}

fn core(span: &Span) -> u32 {
    3 * span.cluster + span.lane as u32
}

impl<'a, W: Write> TraceWriter<'a, W> {
    /// Begins with the name of the process.
    pub fn new(mut out: W, process: TraceProcess<'a>) -> io::Result<Self> {
        let (pid, name) = (process.pid, quoted(process.name));
        let named = "\"name\":\"process_name\"";
        write!(out, ",\n{{\"ph\":\"M\",\"pid\":{pid},{named},\"args\":{{\"name\":{name}}}}}")?;
        // Numbers that no other process of the file uses, and that a reader can hold as a double.
        Ok(Self { out, process, named: BTreeSet::new(), arrows: u64::from(pid) << 30, waits: 0 })
    }

    /// Adds what was recorded of a run.
    pub fn add(&mut self, recording: &Recording) -> io::Result<()> {
        let mut ends: BTreeMap<TaskId, &Span> = BTreeMap::new();
        let mut starts: BTreeMap<TaskId, &Span> = BTreeMap::new();
        let names: BTreeMap<TaskId, &str> =
            recording.tasks().map(|(task, record)| (task, record.kernels.as_str())).collect();
        for span in recording.spans() {
            ends.insert(span.task, span);
            let first = starts.entry(span.task).or_insert(span);
            if span.start_ns < first.start_ns {
                *first = span;
            }
            let track = recording.track(span);
            self.span(span, names.get(&span.task).copied().unwrap_or("a task"), &track)?;
        }
        recording.waits().iter().try_for_each(|wait| self.wait(wait))?;
        for SignalRecord { task, signal, window, to, value } in recording.signals() {
            let Some(span) = ends.get(task) else { continue };
            let arrow = self.signal_of(window, *to, signal.offset, *value);
            self.arrow_end("\"ph\":\"s\"", &arrow, span, last_of(span))?;
        }
        for WaitRecord { task, wait, window, rank, .. } in recording.waits() {
            let Some(span) = starts.get(task).filter(|_| wait.at_least != 0) else { continue };
            let arrow = self.signal_of(window, *rank, wait.offset, wait.at_least);
            self.arrow_end("\"ph\":\"f\",\"bp\":\"e\"", &arrow, span, span.start_ns)?;
        }
        for (before, after) in recording.edges() {
            let (Some(from), Some(to)) = (ends.get(&before), starts.get(&after)) else { continue };
            self.arrows += 1;
            let arrow = format!("\"id\":{},\"name\":\"needs\",\"cat\":\"dependency\"", self.arrows);
            self.arrow_end("\"ph\":\"s\"", &arrow, from, last_of(from))?;
            self.arrow_end("\"ph\":\"f\",\"bp\":\"e\"", &arrow, to, to.start_ns)?;
        }
        Ok(())
    }

    /// How many were left out.
    pub fn left_out(&mut self, count: usize) -> io::Result<()> {
        let pid = self.process.pid;
        let label = quoted(&format!("{count} tasks left out"));
        let labels = "\"name\":\"process_labels\"";
        write!(self.out, ",\n{{\"ph\":\"M\",\"pid\":{pid},{labels},\"args\":{{\"labels\":{label}}}}}")
    }

    fn span(&mut self, span: &Span, name: &str, track: &str) -> io::Result<()> {
        let (pid, tid) = (self.process.pid, core(span));
        if self.named.insert(tid) {
            let name = quoted(track);
            let event = format!("\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid}");
            write!(self.out, ",\n{{{event},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}}}")?;
            let index = "\"name\":\"thread_sort_index\"";
            write!(self.out, ",\n{{{event},{index},\"args\":{{\"sort_index\":{tid}}}}}")?;
        }
        let (start, name) = (self.micros(span.start_ns), quoted(name));
        let length = micros(span.end_ns.saturating_sub(span.start_ns));
        write!(
            self.out,
            ",\n{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{tid},\"ts\":{start},\"dur\":{length},\"name\":{name},\
             \"args\":{{\"task\":\"{}\",\"block\":{}}}}}",
            span.task, span.block
        )
    }

    /// From when to when a task waited for a signal.
    fn wait(&mut self, WaitRecord { task, wait, armed_ns, met_ns, .. }: &WaitRecord) -> io::Result<()> {
        let pid = self.process.pid;
        let name = quoted(&format!("{task}: {wait}"));
        let id = self.waits;
        self.waits += 1;
        let event = format!("\"cat\":\"wait\",\"id\":\"{pid}.{id}\",\"pid\":{pid},\"tid\":0,\"name\":{name}");
        let armed = self.micros(*armed_ns);
        write!(self.out, ",\n{{\"ph\":\"b\",{event},\"ts\":{armed}}}")?;
        if let Some(met) = met_ns.map(|met_ns| self.micros(met_ns)) {
            write!(self.out, ",\n{{\"ph\":\"e\",{event},\"ts\":{met}}}")?;
        }
        Ok(())
    }

    /// What the two ends of a signal's arrow have in common: the word, and the value that one waits for and the other makes
    /// of it.
    fn signal_of(&self, window: &str, rank: u32, offset: u64, value: u32) -> String {
        let id = quoted(&format!("{}.{window}.{rank}.{offset:x}.{value}", self.process.group));
        format!("\"id\":{id},\"name\":\"signal\",\"cat\":\"signal\"")
    }

    fn arrow_end(&mut self, kind: &str, arrow: &str, span: &Span, at_ns: u64) -> io::Result<()> {
        let (pid, tid, at) = (self.process.pid, core(span), self.micros(at_ns));
        write!(self.out, ",\n{{{kind},{arrow},\"pid\":{pid},\"tid\":{tid},\"ts\":{at}}}")
    }

    /// Microseconds of the file.
    fn micros(&self, at_ns: u64) -> String {
        micros(at_ns.saturating_sub(self.process.origin_ns))
    }
}

/// The last moment inside a span: at its end a reader may find the next one.
fn last_of(span: &Span) -> u64 {
    span.end_ns.saturating_sub(1).max(span.start_ns)
}

/// Nanoseconds as microseconds.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

impl Recording {
    /// A whole trace of this chip alone.
    pub fn write_trace(&self, out: &mut impl Write, name: &str) -> io::Result<()> {
        let origin_ns = self.spans().iter().map(|span| span.start_ns).min().unwrap_or(0);
        let mut events = Vec::new();
        TraceWriter::new(&mut events, TraceProcess { pid: 1, name, group: "", origin_ns })?.add(self)?;
        let left_out = self.left_out();
        let head = "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"left_out\":";
        write!(out, "{head}{left_out}}},\"traceEvents\":[")?;
        // Without the first comma.
        out.write_all(&events[1..])?;
        writeln!(out, "\n]}}")
    }
}
