//! The trace as a file: a process for each Worker, in it a track for each child.
//!
//! A Worker of Workers has one file for all levels. Each Worker below it writes its events to a part beside the file
//! when it ends, and so does each chip that ran graphs, with what its cores did; the one above puts the parts into its own
//! file, or part, and removes them.

use super::{Span, Trace, What};
use crate::shared::{ChipTrace, Outcome, Times};
use deadline::monotonic_ns;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The number of the process in the file whose Worker is not part of another; the others have their own.
const TOP: u32 = 1;

/// Where a trace goes.
#[derive(Clone, Debug)]
pub(crate) struct TraceFile {
    path: PathBuf,
    /// The Worker's name in the file of the one above it; `None` for a whole file.
    part_of: Option<String>,
    /// Time 0 of the file, on the monotonic clock.
    origin_ns: u64,
    /// The parts of the Workers below.
    parts: Vec<PathBuf>,
}

impl TraceFile {
    /// A whole file.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), part_of: None, origin_ns: 0, parts: Vec::new() }
    }

    pub(in crate::parent) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a part of another file.
    pub(crate) fn is_part(&self) -> bool {
        self.part_of.is_some()
    }

    /// The same for a Worker that is brought up now.
    pub(super) fn begun(&self) -> Self {
        let origin_ns = if self.is_part() { self.origin_ns } else { monotonic_ns() };
        Self { origin_ns, parts: Vec::new(), ..self.clone() }
    }

    /// The part for the Worker `name` below. One that a Worker left which was killed is removed.
    pub(in crate::parent) fn part(&self, name: &str) -> Self {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{}", name.replace(' ', "-")));
        let path = PathBuf::from(path);
        let _ = std::fs::remove_file(&path);
        let name = self.part_of.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(", ");
        Self { path, part_of: Some(name), origin_ns: self.origin_ns, parts: Vec::new() }
    }

    /// The part of a chip, for what its cores did.
    pub(in crate::parent) fn chip_part(&self, chip: usize) -> ChipTrace {
        let Self { path, part_of, origin_ns, .. } = self.part(&format!("chip {chip}"));
        let group = self.part_of.clone().unwrap_or_default();
        ChipTrace { path, name: format!("cores of {}", part_of.unwrap_or_default()), group, origin_ns }
    }

    /// Microseconds of the file.
    fn micros(&self, at_ns: u64) -> String {
        micros(at_ns.saturating_sub(self.origin_ns))
    }
}

impl Trace {
    /// The parts of Workers below that belong into this file.
    pub(in crate::parent) fn set_parts(&mut self, parts: Vec<PathBuf>) {
        if let Some(file) = &mut self.file {
            file.parts = parts;
        }
    }

    /// Writes the file. `names` are the children's, `program` names a program by its number.
    pub(in crate::parent) fn write(
        &self,
        names: &[String],
        program: impl Fn(u32) -> String,
    ) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut out = BufWriter::new(File::create(&file.path)?);
        let (pid, first) = match file.part_of {
            Some(_) => (std::process::id(), ","),
            None => (TOP, ""),
        };
        let left_out = self.left_out;
        if !file.is_part() {
            let head = "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"left_out\":";
            write!(out, "{head}{left_out}}},\"traceEvents\":[")?;
        }
        let worker = json(file.part_of.as_deref().unwrap_or("Worker"));
        let metadata = format!("\"ph\":\"M\",\"pid\":{pid}");
        write!(out, "{first}\n{{{metadata},\"name\":\"process_name\",\"args\":{{\"name\":{worker}}}}}")?;
        if left_out > 0 {
            let label = json(&format!("{left_out} tasks left out"));
            write!(out, ",\n{{{metadata},\"name\":\"process_labels\",\"args\":{{\"labels\":{label}}}}}")?;
        }
        for (child, name) in names.iter().enumerate() {
            let name = json(name);
            write!(
                out,
                ",\n{{{metadata},\"tid\":{child},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}}}"
            )?;
        }
        for span in &self.spans {
            let name = match span.what {
                What::Program(number) => json(&program(number)),
                What::Command(text) => json(text),
            };
            let Times { start_ns, end_ns, outcome } = span.times;
            let (start, length) = (file.micros(start_ns), micros(end_ns.saturating_sub(start_ns)));
            let (child, seq) = (span.child, span.seq);
            let (outcome, colour) = match outcome {
                Outcome::Done => ("done", ""),
                Outcome::Failed => ("failed", ",\"cname\":\"terrible\""),
                Outcome::Unfinished => ("unfinished", ",\"cname\":\"terrible\""),
                Outcome::Skipped => ("skipped", ",\"cname\":\"grey\""),
            };
            write!(
                out,
                ",\n{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{child},\"ts\":{start},\"dur\":{length},\"name\":{name}\
                 {colour},\"args\":{{\"task\":{seq},\"outcome\":\"{outcome}\"}}}}"
            )?;
        }
        self.write_arrows(&mut out, file, pid)?;
        for part in &file.parts {
            // A Worker that was killed has none.
            if let Ok(mut events) = File::open(part) {
                io::copy(&mut events, &mut out)?;
                let _ = std::fs::remove_file(part);
            }
        }
        if !file.is_part() {
            writeln!(out, "\n]}}")?;
        }
        out.flush()
    }

    /// An arrow from each task to those that needed it: a pair of flow events.
    fn write_arrows(&self, out: &mut impl Write, file: &TraceFile, pid: u32) -> io::Result<()> {
        let at = |span: &Span| (span.child, span.seq);
        let ends: BTreeMap<(usize, u64), u64> =
            self.spans.iter().map(|span| (at(span), span.times.end_ns)).collect();
        // Numbers that no other process of the file uses, and that a reader can hold as a double.
        let mut id = u64::from(pid) << 30;
        for span in &self.spans {
            for need in &span.needs {
                let producer = usize::from(need.child);
                let Some(end_ns) = ends.get(&(producer, need.seq)) else { continue };
                id += 1;
                let (from, to) = (file.micros(*end_ns), file.micros(span.times.start_ns));
                let child = span.child;
                let arrow = format!("\"id\":{id},\"pid\":{pid},\"name\":\"needs\",\"cat\":\"dependency\"");
                write!(
                    out,
                    ",\n{{\"ph\":\"s\",{arrow},\"tid\":{producer},\"ts\":{from}}},\
                     \n{{\"ph\":\"f\",\"bp\":\"e\",{arrow},\"tid\":{child},\"ts\":{to}}}"
                )?;
            }
        }
        Ok(())
    }
}

/// Nanoseconds as microseconds.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
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
