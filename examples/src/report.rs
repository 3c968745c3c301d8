//! The result of a program, and how it is printed.

use crate::counted;
use crate::exit::{Error, Outcome, print_line};
use crate::golden::Checked;
use crate::options::Style;
use serde_json::{Value, json};
use std::time::Duration;
use worker_orch::{ChipBuffer, ChipContext, PartKind};

/// The result of a program.
pub(crate) struct Report {
    pub(crate) program: &'static str,
    pub(crate) platform: String,
    pub(crate) count: usize,
    pub(crate) iters: u32,
    pub(crate) chips: Vec<Chip>,
    pub(crate) init: Duration,
    pub(crate) run: Duration,
    pub(crate) style: Style,
}

/// One chip in the report.
pub(crate) struct Chip {
    pub(crate) context: ChipContext,
    pub(crate) checked: Checked,
}

/// One line about a chip that has come up.
fn chip_line(chip: usize, context: &ChipContext) -> String {
    let mut line = format!("  chip {chip}: device {}", context.device);
    if context.nranks > 0 {
        line += &format!(", rank {} of {}", context.rank, context.nranks);
    }
    if context.window_size > 0 {
        let (bytes, base) = (context.window_size, context.window_base.0);
        let buffers: Vec<String> = context.buffers.iter().map(buffer_text).collect();
        line += &format!(", window of {bytes} bytes at {base:#x}: {}", buffers.join(", "));
    }
    line
}

fn buffer_text(buffer: &ChipBuffer) -> String {
    match buffer.kind {
        PartKind::Buffer { dtype, count } => format!("{} ({count} x {dtype:?})", buffer.name),
        PartKind::Region { bytes } => format!("{} ({bytes} bytes)", buffer.name),
    }
}

impl Report {
    /// Right when every chip was checked and none was wrong.
    pub(crate) fn outcome(&self) -> Outcome {
        let right = |chip: &Chip| chip.checked.outcome() == Outcome::Right;
        if !self.chips.is_empty() && self.chips.iter().all(right) { Outcome::Right } else { Outcome::Wrong }
    }

    /// Prints what has come up.
    pub(crate) fn print_chips(&self) -> Result<(), Error> {
        if self.style != Style::Text {
            return Ok(());
        }
        let (chips, floats) = (counted(self.chips.len(), "chip"), counted(self.count, "float"));
        print_line(format_args!("{} on {}: {chips}, {floats} each", self.program, self.platform))?;
        let mut chips = self.chips.iter().enumerate();
        chips.try_for_each(|(index, chip)| print_line(chip_line(index, &chip.context)))
    }

    /// Prints the result.
    pub(crate) fn print(&self) -> Result<(), Error> {
        match self.style {
            Style::Json => print_line(self.json()),
            Style::Quiet => print_line(self.last_line()),
            Style::Text => {
                for (index, chip) in self.chips.iter().enumerate() {
                    print_line(format_args!("  chip {index}: {}", chip.checked))?;
                }
                print_line(self.last_line())
            }
        }
    }

    fn us_per_iteration(&self) -> f64 {
        self.run.as_secs_f64() * 1e6 / f64::from(self.iters)
    }

    fn last_line(&self) -> String {
        let (program, chips) = (self.program, counted(self.chips.len(), "chip"));
        let iterations = counted(self.iters as usize, "iteration");
        let wrong =
            self.chips.iter().enumerate().filter(|(_, chip)| chip.checked.outcome() == Outcome::Wrong);
        let wrong: Vec<String> = wrong.map(|(index, _)| index.to_string()).collect();
        if wrong.is_empty() {
            let (up, ran, each) = (self.init, self.run, self.us_per_iteration());
            return format!(
                "{program}: right on {chips}, {iterations}; up in {up:.1?}, ran {ran:.1?}, {each:.1} µs an iteration"
            );
        }
        format!("{program}: WRONG on chip {} of {chips}, {iterations}", wrong.join(", "))
    }

    fn json(&self) -> Value {
        let buffer = |buffer: &ChipBuffer| {
            json!({
                "name": buffer.name,
                "addr": format!("{:#x}", buffer.addr.0),
                "bytes": buffer.kind.bytes().unwrap_or(0),
            })
        };
        let chip = |(index, Chip { context, checked }): (usize, &Chip)| {
            json!({
                "chip": index,
                "device": context.device,
                "rank": context.rank,
                "nranks": context.nranks,
                "window_base": format!("{:#x}", context.window_base.0),
                "window_size": context.window_size,
                "buffers": context.buffers.iter().map(buffer).collect::<Vec<_>>(),
                "max_error": checked.max_error,
                "first_wrong": checked.first_wrong,
                "elements": checked.elements,
            })
        };
        json!({
            "program": self.program,
            "platform": self.platform,
            "count": self.count,
            "iters": self.iters,
            "chips": self.chips.iter().enumerate().map(chip).collect::<Vec<_>>(),
            "init_ms": self.init.as_secs_f64() * 1e3,
            "run_ms": self.run.as_secs_f64() * 1e3,
            "us_per_iteration": self.us_per_iteration(),
            "outcome": self.outcome().word(),
        })
    }
}
