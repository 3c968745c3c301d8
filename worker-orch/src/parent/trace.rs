//! When every task ran, as a file for Perfetto and Chrome's tracing page: one track for each child.

use crate::log;
use crate::shared::{ControlBlock, Frame, Kind};
use child_process::is_forked_child;
use std::collections::VecDeque;
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
    what: What,
    start_ns: u64,
    end_ns: u64,
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
    waiting: Vec<VecDeque<(u64, What)>>,
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
        self.waiting[child].push_back((seq, what));
    }

    /// Takes the times of all frames up to `done`, before their slots are written again.
    pub(super) fn collect(&mut self, block: &ControlBlock, child: usize, done: u64) {
        while let Some((seq, what)) = self.waiting[child].pop_front_if(|(seq, _)| *seq <= done) {
            let (start_ns, end_ns) = block.times(child, seq);
            let ns = end_ns.saturating_sub(start_ns);
            log::event!(trace, target: TASKS, child, seq, what = ?what, start_ns, ns, "done");
            if self.path.is_none() {
                continue;
            }
            if self.spans.len() >= MOST_SPANS {
                self.left_out += 1;
                continue;
            }
            self.spans.push(Span { child, what, start_ns, end_ns });
        }
    }

    /// Writes the file. `names` are the children's, `program` names a program by its number.
    pub(super) fn write(&self, names: &[&str], program: impl Fn(u32) -> String) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        let origin = self.spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
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
            let micros = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
            let (start, length) =
                (micros(span.start_ns - origin), micros(span.end_ns.saturating_sub(span.start_ns)));
            let child = span.child;
            write!(
                file,
                ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{child},\"ts\":{start},\"dur\":{length},\"name\":{name}}}"
            )?;
        }
        writeln!(file, "\n]}}")?;
        file.flush()
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
