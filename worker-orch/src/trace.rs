//! When every task ran, as a file that Perfetto and Chrome's tracing page show: one track for each hand.

use crate::board::Board;
use crate::frame::{Frame, Kind};
use std::collections::VecDeque;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Spans kept; more tasks than this are counted and left out, so that a long run does not eat the memory.
const MOST_SPANS: usize = 1_000_000;

/// The target of the events that say when a task ran.
pub(crate) const TASKS: &str = "worker_orch::tasks";

/// One thing that a hand did.
#[derive(Debug)]
struct Span {
    hand: usize,
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
pub(crate) struct Trace {
    /// Where to; without one the spans are only told to whoever listens to `tracing`.
    path: Option<PathBuf>,
    waiting: Vec<VecDeque<(u64, What)>>,
    spans: Vec<Span>,
    left_out: u64,
}

impl Trace {
    /// `None` when nobody wants to know when tasks ran.
    pub(crate) fn wanted(path: Option<&Path>, hands: usize) -> Option<Self> {
        let listening = tracing::enabled!(target: TASKS, tracing::Level::TRACE);
        (path.is_some() || listening).then(|| Self::new(path, hands))
    }

    fn new(path: Option<&Path>, hands: usize) -> Self {
        let waiting = (0..hands).map(|_| VecDeque::new()).collect();
        Self { path: path.map(Path::to_owned), waiting, spans: Vec::new(), left_out: 0 }
    }

    /// A frame goes out.
    pub(crate) fn expect(&mut self, hand: usize, seq: u64, frame: &Frame<'_>) {
        let what = match frame.kind {
            Kind::Task => What::Program(frame.program),
            Kind::Learn => What::Command("learn a program"),
            Kind::Join => What::Command("join the group"),
            Kind::AllocDomain => What::Command("allocate a domain"),
            Kind::ReleaseDomain => What::Command("release a domain"),
            Kind::Malloc => What::Command("allocate memory"),
            Kind::Free => What::Command("free memory"),
            Kind::CopyIn => What::Command("copy to the chip"),
            Kind::CopyOut => What::Command("copy from the chip"),
            Kind::Shutdown => return,
        };
        self.waiting[hand].push_back((seq, what));
    }

    /// Takes the times of all frames up to `done`, before their slots are written again.
    pub(crate) fn collect(&mut self, board: &Board, hand: usize, done: u64) {
        while let Some((seq, what)) = self.waiting[hand].pop_front_if(|(seq, _)| *seq <= done) {
            let times = board.times(hand, seq);
            let (start_ns, end_ns) = (times.start_ns.load(), times.end_ns.load());
            let ns = end_ns.saturating_sub(start_ns);
            tracing::trace!(target: TASKS, hand, seq, what = ?what, start_ns, ns, "done");
            if self.path.is_none() {
                continue;
            }
            if self.spans.len() >= MOST_SPANS {
                self.left_out += 1;
                continue;
            }
            self.spans.push(Span { hand, what, start_ns, end_ns });
        }
    }

    /// Writes the file. `names` are the hands', `program` names a program by its number.
    pub(crate) fn write(&self, names: &[String], program: impl Fn(u32) -> String) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        let origin = self.spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
        write!(
            file,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"left_out\":{}}},\"traceEvents\":[",
            self.left_out
        )?;
        for (hand, name) in names.iter().enumerate() {
            let comma = if hand == 0 { "" } else { "," };
            let name = json(name);
            write!(
                file,
                "{comma}\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{hand},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}}}"
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
            let hand = span.hand;
            write!(
                file,
                ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{hand},\"ts\":{start},\"dur\":{length},\"name\":{name}}}"
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
