//! When every task ran, as a file for Perfetto and Chrome's tracing page: one track for each child.

use crate::log;
use crate::shared::{ControlBlock, Frame, Kind, Outcome, Prerequisite, Times};
use child_process::is_forked_child;
use deadline::monotonic_ns;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

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
    /// The tasks of other children that it waited for.
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
    path: Option<PathBuf>,
    waiting: Vec<VecDeque<Sent>>,
    spans: Vec<Span>,
    left_out: u64,
}

impl Trace {
    /// `None` when neither a file nor a subscriber asks for the times of tasks.
    pub(super) fn wanted(path: Option<&Path>, children: usize) -> Option<Self> {
        let listening = !is_forked_child() && tracing::enabled!(target: TASKS, tracing::Level::TRACE);
        (path.is_some() || listening).then(|| Self::new(path, children))
    }

    fn new(path: Option<&Path>, children: usize) -> Self {
        let waiting = (0..children).map(|_| VecDeque::new()).collect();
        Self { path: path.map(Path::to_owned), waiting, spans: Vec::new(), left_out: 0 }
    }

    /// A frame is sent.
    pub(super) fn expect(&mut self, child: usize, seq: u64, frame: &Frame<'_>) {
        let what = match frame.kind {
            Kind::Task => What::Program(frame.program),
            Kind::Shutdown => return,
            command => What::Command(command.words()),
        };
        self.waiting[child].push_back(Sent { seq, what, needs: frame.prerequisites.to_vec() });
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
            if self.path.is_none() {
                continue;
            }
            if self.spans.len() >= MOST_SPANS {
                self.left_out += 1;
                continue;
            }
            self.spans.push(Span { child, seq, what, times, needs });
        }
    }

    /// Writes the file. `names` are the children's, `program` names a program by its number.
    pub(super) fn write(&self, names: &[&str], program: impl Fn(u32) -> String) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        let origin = self.spans.iter().map(|span| span.times.start_ns).min().unwrap_or(0);
        write!(
            file,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"left_out\":{}}},\"traceEvents\":[",
            self.left_out
        )?;
        for (child, name) in names.iter().enumerate() {
            let comma = if child == 0 { "" } else { "," };
            let name = json(name);
            write!(
                file,
                "{comma}\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{child},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}}}"
            )?;
        }
        for span in &self.spans {
            let name = match span.what {
                What::Program(number) => json(&program(number)),
                What::Command(text) => json(text),
            };
            let Times { start_ns, end_ns, outcome } = span.times;
            let (start, length) = (micros(start_ns - origin), micros(end_ns.saturating_sub(start_ns)));
            let child = span.child;
            let (outcome, colour) = match outcome {
                Outcome::Done => ("done", ""),
                Outcome::Failed => ("failed", ",\"cname\":\"terrible\""),
                Outcome::Unfinished => ("unfinished", ",\"cname\":\"terrible\""),
                Outcome::Skipped => ("skipped", ",\"cname\":\"grey\""),
            };
            write!(
                file,
                ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{child},\"ts\":{start},\"dur\":{length},\"name\":{name}{colour},\
                 \"args\":{{\"task\":{},\"outcome\":\"{outcome}\"}}}}",
                span.seq
            )?;
        }
        self.write_arrows(&mut file, origin)?;
        writeln!(file, "\n]}}")?;
        file.flush()
    }
}

/// Nanoseconds as the microseconds of the file.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

impl Trace {
    /// An arrow from each task to those that waited for it: a pair of flow events.
    fn write_arrows(&self, file: &mut impl Write, origin: u64) -> std::io::Result<()> {
        let at = |span: &Span| (span.child, span.seq);
        let ends: BTreeMap<(usize, u64), u64> =
            self.spans.iter().map(|span| (at(span), span.times.end_ns)).collect();
        let mut id = 0;
        for span in &self.spans {
            for need in &span.needs {
                let producer = usize::from(need.child);
                let Some(end_ns) = ends.get(&(producer, need.seq)) else { continue };
                id += 1;
                let (from, to) = (micros(end_ns - origin), micros(span.times.start_ns - origin));
                let child = span.child;
                write!(
                    file,
                    ",\n{{\"ph\":\"s\",\"id\":{id},\"pid\":1,\"tid\":{producer},\"ts\":{from},\
                     \"name\":\"needs\",\"cat\":\"dependency\"}},\n{{\"ph\":\"f\",\"bp\":\"e\",\"id\":{id},\"pid\":1,\
                     \"tid\":{child},\"ts\":{to},\"name\":\"needs\",\"cat\":\"dependency\"}}"
                )?;
            }
        }
        Ok(())
    }
}

/// A JSON string.
fn json(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        assert_eq!(json("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}
