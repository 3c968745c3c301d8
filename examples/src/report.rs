//! What a program found out, and how it is printed.

use crate::golden::Checked;
use crate::stop::Verdict;
use serde::Serialize;
use std::time::Duration;
use worker_orch::{ChipContext, PartKind};

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Lines for people.
    Text,
    /// The verdict only.
    Quiet,
    /// One JSON object.
    Json,
}

/// The outcome of a program.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) program: &'static str,
    pub(crate) platform: String,
    pub(crate) count: usize,
    pub(crate) iters: u32,
    pub(crate) chips: Vec<Chip>,
    #[serde(serialize_with = "millis")]
    pub(crate) init_ms: Duration,
    #[serde(serialize_with = "millis")]
    pub(crate) run_ms: Duration,
    pub(crate) us_per_iteration: f64,
    pub(crate) verdict: &'static str,
    #[serde(skip)]
    pub(crate) style: Style,
}

/// One chip in the report.
#[derive(Debug, Serialize)]
pub(crate) struct Chip {
    pub(crate) chip: usize,
    pub(crate) device: i32,
    pub(crate) rank: u32,
    pub(crate) nranks: u32,
    pub(crate) window_base: String,
    pub(crate) window_size: usize,
    pub(crate) buffers: Vec<Buffer>,
    #[serde(flatten)]
    pub(crate) checked: Checked,
}

#[derive(Debug, Serialize)]
pub(crate) struct Buffer {
    pub(crate) name: String,
    pub(crate) addr: String,
    pub(crate) bytes: usize,
}

fn millis<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64() * 1e3)
}

impl Chip {
    pub(crate) fn new(chip: usize, context: &ChipContext) -> Self {
        let buffers = context.buffers.iter().map(|buffer| Buffer {
            name: buffer.name.clone(),
            addr: format!("{:#x}", buffer.addr.0),
            bytes: buffer.kind.bytes().unwrap_or(0),
        });
        Self {
            chip,
            device: context.device,
            rank: context.rank,
            nranks: context.nranks,
            window_base: format!("{:#x}", context.window_base.0),
            window_size: context.window_size,
            buffers: buffers.collect(),
            checked: Checked::default(),
        }
    }
}

/// One line about a chip that has come up.
pub(crate) fn introduce(chip: usize, context: &ChipContext) -> String {
    let mut line = format!("  chip {chip}: device {}", context.device);
    if context.nranks > 0 {
        line += &format!(", rank {} of {}", context.rank, context.nranks);
    }
    if context.window_size > 0 {
        let parts: Vec<String> =
            context.buffers.iter().map(|part| part_in_words(&part.name, part.kind)).collect();
        line += &format!(
            ", window of {} bytes at {:#x}: {}",
            context.window_size,
            context.window_base.0,
            parts.join(", ")
        );
    }
    line
}

fn part_in_words(name: &str, kind: PartKind) -> String {
    match kind {
        PartKind::Buffer { dtype, count } => format!("{name} ({count} x {dtype:?})"),
        PartKind::Region { bytes } => format!("{name} ({bytes} bytes)"),
    }
}

impl Report {
    /// Right when every chip was checked and none was off.
    pub(crate) fn verdict(&self) -> Verdict {
        let right = !self.chips.is_empty() && self.chips.iter().all(|chip| chip.checked.is_right());
        if right { Verdict::Right } else { Verdict::Wrong }
    }

    /// Prints the outcome.
    pub(crate) fn print(&self) {
        match self.style {
            Style::Json => match serde_json::to_string(self) {
                Ok(text) => println!("{text}"),
                Err(error) => eprintln!("error: the report could not be written: {error}"),
            },
            Style::Quiet => println!("{}", self.last_line()),
            Style::Text => {
                self.chips.iter().for_each(|chip| println!("  chip {}: {}", chip.chip, chip.checked));
                println!("{}", self.last_line());
            }
        }
    }

    fn last_line(&self) -> String {
        let chips = crate::counted(self.chips.len(), "chip");
        let iterations = crate::counted(self.iters as usize, "iteration");
        let wrong: Vec<String> = self
            .chips
            .iter()
            .filter(|chip| !chip.checked.is_right())
            .map(|chip| chip.chip.to_string())
            .collect();
        if wrong.is_empty() {
            let (up, ran, each) = (self.init_ms, self.run_ms, self.us_per_iteration);
            return format!(
                "{}: right on {chips}, {iterations}; up in {up:.1?}, ran {ran:.1?}, {each:.1} µs an iteration",
                self.program
            );
        }
        format!("{}: WRONG on chip {} of {chips}, {iterations}", self.program, wrong.join(", "))
    }
}
