//! What the cores of a chip did in its graphs, kept until the chip ends and written as its part of the trace.

use crate::shared::ChipTrace;
use chip_runtime::{Recording, TraceProcess, TraceWriter};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use worker_errors::{ErrorCode, Failure};

/// Kernels kept; what more graphs ran is counted and left out.
const MOST_SPANS: usize = 1_000_000;

#[derive(Debug)]
pub(super) struct GraphTrace {
    part: ChipTrace,
    runs: Vec<Recording>,
    spans: usize,
    left_out: usize,
}

impl GraphTrace {
    pub(super) fn new(part: ChipTrace) -> Self {
        Self { part, runs: Vec::new(), spans: 0, left_out: 0 }
    }

    /// What was recorded of a run.
    pub(super) fn add(&mut self, recording: Recording) {
        self.left_out += recording.left_out();
        if self.spans >= MOST_SPANS {
            self.left_out += recording.spans().len();
        } else {
            self.spans += recording.spans().len();
            self.runs.push(recording);
        }
    }

    pub(super) fn write(&self) -> Result<(), Failure> {
        if self.runs.is_empty() {
            return Ok(());
        }
        self.write_file().map_err(|error| {
            let text = format!(
                "the trace could not be written: {}: {error}; see that its folder exists and has room",
                self.part.path.display()
            );
            Failure::new(ErrorCode::System, text).in_phase("close")
        })
    }

    fn write_file(&self) -> io::Result<()> {
        let ChipTrace { path, name, group, origin_ns } = &self.part;
        let process = TraceProcess { pid: std::process::id(), name, group, origin_ns: *origin_ns };
        let mut out = BufWriter::new(File::create(path)?);
        let mut writer = TraceWriter::new(&mut out, process)?;
        self.runs.iter().try_for_each(|run| writer.add(run))?;
        if self.left_out > 0 {
            writer.left_out(self.left_out)?;
        }
        out.flush()
    }
}
