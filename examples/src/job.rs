//! The frame of a program: a Worker as the command line wants it, batches of iterations, and the report.

use crate::cli::{DEFAULT_SYMBOL, Options};
use crate::devices::Devices;
use crate::golden::Checked;
use crate::report::{Chip, Report, Style, introduce};
use crate::stop::{Stop, Verdict};
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::time::{Duration, Instant};
use worker_orch::{Failure, Orchestrator, Program, Worker, WorkerBuilder};

/// The first batch has so many iterations, each later one twice as many as the one before.
const FIRST_BATCH: u32 = 16;
/// A batch that took this long is not doubled: progress is told between batches.
const LONG_BATCH: Duration = Duration::from_millis(500);
/// Nobody needs a line for what is over in a moment.
const PATIENCE: Duration = Duration::from_secs(1);

/// A program at work.
pub struct Job<'a> {
    options: &'a Options,
    devices: Devices,
    report: Report,
}

impl<'a> Job<'a> {
    /// `devices` and `count` are the command line's or the program's own.
    pub fn new(
        program: &'static str,
        options: &'a Options,
        devices: Devices,
        count: usize,
    ) -> Result<Self, Stop> {
        if let Some(file) = &options.trace {
            let made = std::fs::File::create(file);
            made.map_err(|error| Stop::Usage(format!("--trace {}: {error}", file.display())))?;
        }
        let report = Report {
            program,
            platform: options.platform.to_string(),
            count,
            iters: options.iters.get(),
            chips: Vec::new(),
            init_ms: Duration::ZERO,
            run_ms: Duration::ZERO,
            us_per_iteration: 0.0,
            verdict: Verdict::Wrong.word(),
            style: match (options.json, options.quiet) {
                (true, _) => Style::Json,
                (_, true) => Style::Quiet,
                _ => Style::Text,
            },
        };
        Ok(Self { options, devices, report })
    }

    /// The devices, in the order of the chips.
    pub fn devices(&self) -> &[i32] {
        self.devices.ids()
    }

    /// A Worker for these devices, with the deadlines and the trace file of the command line.
    pub fn worker(&self) -> WorkerBuilder {
        let mut builder = Worker::builder().platform(self.options.platform).devices(self.devices.ids());
        if let Some(limit) = self.options.timeout {
            builder = builder.init_within(limit).run_within(limit);
        }
        match &self.options.trace {
            Some(file) => builder.trace(file),
            None => builder,
        }
    }

    /// Registers the user's kernel, or else our own of this name.
    pub fn kernel(&self, worker: &mut Worker, name: &str) -> Result<Program, Stop> {
        match &self.options.kernel {
            Some(theirs) => {
                worker.register_kernel_symbol(&theirs.file, &theirs.symbol).map_err(Stop::before_start)
            }
            None => self.own_kernel(worker, name, DEFAULT_SYMBOL),
        }
    }

    /// Registers a function of one of our own kernels.
    pub fn own_kernel(&self, worker: &mut Worker, name: &str, symbol: &str) -> Result<Program, Stop> {
        let path = self.options.kernel_path(name);
        worker.register_kernel_symbol(&path, symbol).map_err(Stop::before_start)
    }

    /// Brings the chips up and shows them.
    pub fn bring_up(&mut self, worker: &mut Worker) -> Result<(), Stop> {
        let started = Instant::now();
        worker.init()?;
        self.report.init_ms = started.elapsed();
        let contexts = worker.chip_contexts()?;
        self.report.chips =
            contexts.iter().enumerate().map(|(chip, context)| Chip::new(chip, context)).collect();
        if self.report.style == Style::Text {
            let (program, platform) = (self.report.program, &self.report.platform);
            let (chips, floats) =
                (crate::counted(contexts.len(), "chip"), crate::counted(self.report.count, "float"));
            println!("{program} on {platform}: {chips}, {floats} each");
            contexts.iter().enumerate().for_each(|(chip, context)| println!("{}", introduce(chip, context)));
        }
        Ok(())
    }

    /// Calls `batch` with ranges of iterations until all are done, at most `most` at a time.
    pub fn batches(
        &mut self,
        most: u32,
        mut batch: impl FnMut(&mut Self, Range<u32>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let (iters, begun) = (self.report.iters, Instant::now());
        let show = self.report.style == Style::Text && std::io::stderr().is_terminal();
        let (mut done, mut size, mut shown) = (0, FIRST_BATCH.min(most), false);
        while done < iters {
            let before = Instant::now();
            let end = iters.min(done.saturating_add(size));
            let outcome = batch(self, done..end);
            if shown {
                let _ = write!(std::io::stderr(), "\r\x1b[K");
            }
            outcome?;
            done = end;
            if before.elapsed() < LONG_BATCH {
                size = size.saturating_mul(2).min(most);
            }
            if show && done < iters && begun.elapsed() > PATIENCE {
                let seconds = begun.elapsed().as_secs();
                let _ = write!(std::io::stderr(), "  {done} of {iters} iterations after {seconds} s");
                shown = true;
            }
        }
        Ok(())
    }

    /// Runs tasks, and counts the time that they take.
    pub fn run(
        &mut self,
        worker: &mut Worker,
        body: impl FnOnce(&mut Orchestrator<'_>) -> Result<(), Failure>,
    ) -> Result<(), Stop> {
        let started = Instant::now();
        worker.run(body)?;
        self.report.run_ms += started.elapsed();
        Ok(())
    }

    /// Where the results of a chip are compared.
    pub fn checked(&mut self, chip: usize) -> &mut Checked {
        &mut self.report.chips[chip].checked
    }

    /// Takes the chips down, which writes the trace, and prints the report.
    pub fn finish(mut self, mut worker: Worker) -> Result<Verdict, Stop> {
        worker.close()?;
        let report = &mut self.report;
        report.us_per_iteration = report.run_ms.as_secs_f64() * 1e6 / f64::from(report.iters);
        let verdict = report.verdict();
        report.verdict = verdict.word();
        report.print();
        Ok(verdict)
    }
}
