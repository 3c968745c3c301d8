//! A run of a program on a Worker: set up by the command line, in batches of iterations, with a report.

use crate::devices::Devices;
use crate::exit::{Error, Outcome};
use crate::golden::Checked;
use crate::options::{DEFAULT_SYMBOL, Options, Style};
use crate::report::{Chip, Report};
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::time::{Duration, Instant};
use worker_orch::{Failure, Orchestrator, Program, Worker, WorkerBuilder};

/// Iterations of the first batch; each later batch has twice as many as the one before.
const FIRST_BATCH: u32 = 16;
/// A batch that took this long is not doubled, because progress is printed between batches.
const LONG_BATCH: Duration = Duration::from_millis(500);
/// Progress is printed from here on.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// A program's run.
pub struct Job<'a> {
    options: &'a Options,
    devices: Devices,
    report: Report,
}

impl<'a> Job<'a> {
    /// `devices` and `count` come from the command line or from the program's defaults.
    pub fn new(
        program: &'static str,
        options: &'a Options,
        devices: Devices,
        count: usize,
    ) -> Result<Self, Error> {
        if let Some(file) = &options.trace {
            let created = std::fs::File::create(file);
            created.map_err(|error| Error::Usage(format!("--trace {}: {error}", file.display())))?;
        }
        let report = Report {
            program,
            platform: options.platform_name.clone(),
            count,
            iters: options.iters.get(),
            chips: Vec::new(),
            init: Duration::ZERO,
            run: Duration::ZERO,
            style: options.style,
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
        if self.options.check {
            builder = builder.checked();
        }
        match &self.options.trace {
            Some(file) => builder.trace(file),
            None => builder,
        }
    }

    /// Registers the user's kernel if there is one, else our own of this name.
    pub fn kernel(&self, worker: &mut Worker, name: &str) -> Result<Program, Error> {
        match &self.options.kernel {
            Some(kernel) => {
                worker.register_kernel_symbol(&kernel.file, &kernel.symbol).map_err(Error::before_start)
            }
            None => self.own_kernel(worker, name, DEFAULT_SYMBOL),
        }
    }

    /// Registers a function of one of our own kernels.
    pub fn own_kernel(&self, worker: &mut Worker, name: &str, symbol: &str) -> Result<Program, Error> {
        let path = self.options.kernel_path(name);
        worker.register_kernel_symbol(&path, symbol).map_err(Error::before_start)
    }

    /// Brings up the chips and prints them.
    pub fn bring_up(&mut self, worker: &mut Worker) -> Result<(), Error> {
        let started = Instant::now();
        worker.init()?;
        self.report.init = started.elapsed();
        let contexts = worker.chip_contexts()?.iter();
        self.report.chips =
            contexts.map(|context| Chip { context: context.clone(), checked: Checked::default() }).collect();
        self.report.print_chips()
    }

    /// Calls `batch` with ranges of iterations until all are done, at most `most` at a time.
    pub fn batches(
        &mut self,
        most: u32,
        mut batch: impl FnMut(&mut Self, Range<u32>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (iters, begun) = (self.report.iters, Instant::now());
        let show = self.report.style == Style::Text && std::io::stderr().is_terminal();
        let (mut done, mut size, mut shown) = (0, FIRST_BATCH.min(most), false);
        while done < iters {
            let before = Instant::now();
            let end = iters.min(done.saturating_add(size));
            let result = batch(self, done..end);
            if shown {
                let _ = write!(std::io::stderr(), "\r\x1b[K");
            }
            result?;
            done = end;
            if before.elapsed() < LONG_BATCH {
                size = size.saturating_mul(2).min(most);
            }
            if show && done < iters && begun.elapsed() > PROGRESS_AFTER {
                let seconds = begun.elapsed().as_secs();
                let _ = write!(std::io::stderr(), "  {done} of {iters} iterations after {seconds} s");
                shown = true;
            }
        }
        Ok(())
    }

    /// Runs tasks, and adds up the time that they take.
    pub fn run(
        &mut self,
        worker: &mut Worker,
        body: impl FnOnce(&mut Orchestrator<'_>) -> Result<(), Failure>,
    ) -> Result<(), Error> {
        let started = Instant::now();
        worker.run(body)?;
        self.report.run += started.elapsed();
        Ok(())
    }

    /// Where the results of a chip are compared.
    pub fn checked(&mut self, chip: usize) -> &mut Checked {
        &mut self.report.chips[chip].checked
    }

    /// Closes the Worker, which writes the trace, and prints the report.
    pub fn finish(self, mut worker: Worker) -> Result<Outcome, Error> {
        worker.close()?;
        match self.report.print() {
            // The outcome is known, whether somebody reads it or not.
            Ok(()) | Err(Error::ClosedPipe) => Ok(self.report.outcome()),
            Err(error) => Err(error),
        }
    }
}
