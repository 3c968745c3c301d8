//! One collective operation on all chips: what allreduce, allgather, reduce_scatter and treduce share.

use crate::cli::{Arguments, CommandLine, usage};
use crate::exit::{Error, Outcome, main};
use crate::golden::{UNTOUCHED, slack_of_sum};
use crate::job::Job;
use crate::kernel_args::{KernelArg, KernelArgs};
use crate::options::Options;
use crate::rows::{Rows, rows_that_fit};
use std::process::ExitCode;
use worker_orch::{
    Access, Args, ChipConfig, ChipContext, DType, DeviceAddr, DomainContext, Failure, Membership,
    Orchestrator, Program, Task, TensorDesc, Worker, flat_tensor, group_bytes,
};

/// The bytes of a `CommPhaseBarrier`.
pub const SIGNAL_BYTES: usize = 4096;
/// Floats of the memory "data" of each of `n` chips: a group for the kernel (`comm_collectives.h`), and room for the input
/// twice, for a kernel that brings its own algorithm.
pub fn data_len(n: usize, input_len: usize) -> usize {
    let group = group_bytes(n, 0).unwrap_or(0) / size_of::<f32>();
    input_len.saturating_mul(2).max(group)
}

/// Bytes of a window with "signals" and "data" of that many floats.
pub fn window_bytes(data: usize) -> usize {
    data.saturating_mul(size_of::<f32>()).saturating_add(SIGNAL_BYTES + 64)
}

/// Inputs differ from iteration to iteration, so that stale output of the last one is not right.
const VARIANTS: u32 = 4;

/// Element `index` of the input of a rank, in the first iteration; in iteration k it is k mod 4 more.
pub fn input(rank: usize, index: usize) -> f64 {
    index as f64 + 100.0 * rank as f64
}

/// The sum over `n` ranks of [`input`].
pub fn sum_of_inputs(n: usize, index: usize) -> f64 {
    let n = n as f64;
    n * index as f64 + 100.0 * n * (n - 1.0) / 2.0
}

/// Where the windows of a collective come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// Each chip's own, made when it is brought up.
    OfChips,
    /// A domain of all chips, allocated in each run.
    OfDomain,
}

/// What a kernel reaches of a chip.
struct Window {
    rank: u64,
    nranks: u64,
    data: DeviceAddr,
    signals: DeviceAddr,
    ctx: DeviceAddr,
    /// Its input and output in the window, where a kernel is given these.
    staged: Option<[DeviceAddr; 2]>,
}

/// Names of what [`Window::staged`] is.
const STAGED: [&str; 2] = ["input", "output"];

/// Copies tensor 0 to tensor 1.
fn copy(task: &mut Task<'_>) -> Result<(), Failure> {
    let values = task.read::<f32>(0)?;
    task.write(1, &values)
}

/// What is special about a collective.
pub struct Collective {
    /// Where the chips' windows come from.
    pub windows: Windows,
    /// Floats of input on each chip; the window has room for two of them.
    pub input_len: usize,
    /// Floats of output on each chip.
    pub output_len: usize,
    /// Further arguments of the kernel.
    pub scalars: Vec<u64>,
    /// Element `index` of the output of a rank, in the first iteration; `None` if it must not be written.
    pub expected: Box<dyn Fn(usize, usize) -> Option<f64>>,
    /// How much the output grows when every input grows by 1.
    pub gain: f64,
    /// A graph that takes the place of the kernel, with its arguments.
    pub graph: Option<GraphOf>,
}

/// Registers a graph with a Worker.
pub type GraphOf = Box<dyn Fn(&mut Worker) -> Result<Program, Failure>>;

impl Collective {
    /// The main function of a program that is a collective on two chips or more. Its kernel has the program's
    /// name in `kernels/` and takes input and output tensor, then the window's data and signals, the context,
    /// and `scalars`. `describe` gets the number of chips and the count of floats, which is `count` unless
    /// the user gives one.
    pub fn main(
        line: &CommandLine,
        count: usize,
        describe: impl FnOnce(&Arguments, usize, usize) -> Result<Self, Error>,
    ) -> ExitCode {
        main(line, |arguments| {
            let options = Options::read(arguments)?;
            let (devices, count) = (options.devices_or(2)?, options.count_or(count));
            let given: Option<KernelArgs> = arguments.value("args")?;
            if given.is_some() && options.kernel.is_none() {
                return Err(usage(
                    "--args: it is for a kernel of your own; name it with --kernel".to_owned(),
                ));
            }
            let collective = describe(arguments, devices.ids().len(), count)?;
            let job = Job::new(line.program, &options, devices, count)?;
            collective.run(&options, line.program, given.as_ref(), job)
        })
    }

    /// Brings up the chips, runs all iterations, and checks every output of each.
    fn run(
        &self,
        options: &Options,
        kernel: &str,
        given: Option<&KernelArgs>,
        mut job: Job<'_>,
    ) -> Result<Outcome, Error> {
        let n = job.devices().len();
        let mut worker = job.worker().build().map_err(Error::before_start)?;
        let kernel = match &self.graph {
            Some(register) => register(&mut worker).map_err(Error::before_start)?,
            None => job.kernel(&mut worker, kernel)?,
        };
        let copy = worker.register_function("copy", copy);
        let chips = job.devices().iter().enumerate().map(|(rank, device)| self.chip(*device, rank, n, given));
        let chips = chips.collect::<Result<Vec<_>, _>>().map_err(Error::Usage)?;
        worker.configure_chips(chips).map_err(Error::before_start)?;

        let variants = VARIANTS.min(options.iters.get());
        let most = rows_that_fit(n * self.output_len * size_of::<f32>()).min(options.iters.get());
        let rows = |rows, len| (0..n).map(|_| Rows::new(&worker, rows, len)).collect::<Result<Vec<_>, _>>();
        let inputs = rows(variants, self.input_len).map_err(Error::before_start)?;
        let outputs = rows(most, self.output_len).map_err(Error::before_start)?;
        for (rank, rows) in inputs.iter().enumerate() {
            rows.fill(|variant, index| input(rank, index) + f64::from(variant))?;
        }

        job.bring_up(&mut worker)?;
        let contexts = worker.chip_contexts()?.to_vec();
        let all: Vec<usize> = (0..n).collect();
        job.batches(most, |job, batch| {
            outputs.iter().try_for_each(|output| output.reset(UNTOUCHED))?;
            let first = batch.start;
            job.run(&mut worker, |orch| {
                let windows = match self.windows {
                    Windows::OfChips => {
                        contexts.iter().map(|chip| of_chip(chip, given)).collect::<Result<Vec<_>, _>>()?
                    }
                    Windows::OfDomain => self.domain(orch, &all, given)?,
                };
                for iteration in batch.clone() {
                    let hosts = |chip: usize| {
                        Ok([
                            inputs[chip].tensor(iteration % VARIANTS)?,
                            outputs[chip].tensor(iteration - first)?,
                        ])
                    };
                    let hosts = (0..n).map(hosts).collect::<Result<Vec<_>, Failure>>()?;
                    match given {
                        None => {
                            let task = |(chip, window)| (chip, self.args(window, &hosts[chip]));
                            // As a group: the chips wait for each other inside the kernel.
                            orch.submit_group(
                                kernel,
                                &windows.iter().enumerate().map(task).collect::<Vec<_>>(),
                            )?;
                        }
                        Some(given) => self.submit_staged(orch, [kernel, copy], given, &windows, &hosts)?,
                    }
                }
                Ok(())
            })?;
            for (rank, output) in outputs.iter().enumerate() {
                let got = output.to_vec();
                for (iteration, got) in batch.clone().zip(got.chunks(self.output_len)) {
                    self.check(job, rank, iteration, got);
                }
            }
            Ok(())
        })?;
        job.finish(worker)
    }

    fn chip(
        &self,
        device: i32,
        rank: usize,
        n: usize,
        given: Option<&KernelArgs>,
    ) -> Result<ChipConfig, String> {
        let member = Membership::new(rank as u32, n as u32).map_err(|error| error.to_string())?;
        let chip = ChipConfig::new(device).communicator(member);
        if self.windows == Windows::OfDomain {
            return Ok(chip.window(SIGNAL_BYTES));
        }
        let data = data_len(n, self.input_len);
        let chip = chip.window(window_bytes(data) + self.staged_bytes(given));
        let chip = chip.region("signals", SIGNAL_BYTES).buffer("data", DType::Float32, data);
        Ok(self.staged(given).fold(chip, |chip, (name, count)| chip.buffer(name, DType::Float32, count)))
    }

    /// What a window has besides for a kernel that is given its input and output there.
    fn staged(&self, given: Option<&KernelArgs>) -> impl Iterator<Item = (&'static str, usize)> {
        let lens = [self.input_len, self.output_len];
        STAGED.into_iter().zip(lens).filter(|_| given.is_some()).collect::<Vec<_>>().into_iter()
    }

    fn staged_bytes(&self, given: Option<&KernelArgs>) -> usize {
        self.staged(given).map(|(_, count)| count.saturating_mul(size_of::<f32>()).saturating_add(64)).sum()
    }

    /// A domain of all chips, with the same buffers. It ends with the run.
    fn domain(
        &self,
        orch: &mut Orchestrator<'_>,
        chips: &[usize],
        given: Option<&KernelArgs>,
    ) -> Result<Vec<Window>, Failure> {
        let data = data_len(chips.len(), self.input_len);
        let words = SIGNAL_BYTES / size_of::<u32>();
        let mut buffers = vec![("signals", DType::Uint32, words), ("data", DType::Float32, data)];
        buffers.extend(self.staged(given).map(|(name, count)| (name, DType::Float32, count)));
        let bytes = window_bytes(data) + self.staged_bytes(given);
        let domain = orch.allocate_domain("ranks", chips, bytes, &buffers)?;
        let window = |member: &DomainContext| Window {
            rank: member.rank.into(),
            nranks: member.nranks.into(),
            data: member.buffers["data"],
            signals: member.buffers["signals"],
            ctx: member.device_ctx,
            staged: given.map(|_| STAGED.map(|name| member.buffers[name])),
        };
        Ok(domain.contexts().iter().map(window).collect())
    }

    fn args(&self, window: &Window, [input, output]: &[TensorDesc; 2]) -> Args {
        let args = Args::new().tensor(input, Access::Input).tensor(output, Access::OutputExisting);
        let args =
            [window.data, window.signals, window.ctx].iter().fold(args, |args, addr| args.scalar(addr.0));
        self.scalars.iter().fold(args, |args, scalar| args.scalar(*scalar))
    }

    /// Input and output go into the windows, the kernel runs on all chips when all are there, and the outputs come back.
    fn submit_staged(
        &self,
        orch: &mut Orchestrator<'_>,
        [kernel, copy]: [Program; 2],
        given: &KernelArgs,
        windows: &[Window],
        hosts: &[[TensorDesc; 2]],
    ) -> Result<(), Failure> {
        let from_to = |from: &TensorDesc, to: &TensorDesc| {
            Args::new().tensor(from, Access::Input).tensor(to, Access::Output)
        };
        let mut staged = Vec::with_capacity(windows.len());
        for window in windows {
            let at = window.staged.unwrap_or_default();
            let lens = [self.input_len, self.output_len];
            let [input, output] = [0, 1].map(|which| flat_tensor(at[which], DType::Float32, lens[which]));
            staged.push([input?, output?]);
        }
        for (chip, (host, staged)) in hosts.iter().zip(&staged).enumerate() {
            for (host, staged) in host.iter().zip(staged) {
                orch.submit_next_level(copy, &from_to(host, staged), chip)?;
            }
        }
        // No tensor says what the kernels reach of each other's windows.
        orch.barrier()?;
        let scalar = |window: &Window, arg: &KernelArg| {
            let [input, output] = window.staged.unwrap_or_default();
            match arg {
                KernelArg::Input => input.0,
                KernelArg::Output => output.0,
                KernelArg::Data => window.data.0,
                KernelArg::Signals => window.signals.0,
                KernelArg::Ctx => window.ctx.0,
                KernelArg::NRanks => window.nranks,
                KernelArg::Rank => window.rank,
                KernelArg::Root => self.scalars.first().copied().unwrap_or(0),
                KernelArg::Count => self.input_len as u64,
            }
        };
        let args = |window| given.0.iter().fold(Args::new(), |args, arg| args.scalar(scalar(window, arg)));
        let group: Vec<_> = windows.iter().map(args).enumerate().collect();
        orch.submit_group(kernel, &group)?;
        orch.barrier()?;
        for (chip, (host, staged)) in hosts.iter().zip(&staged).enumerate() {
            orch.submit_next_level(copy, &from_to(&staged[1], &host[1]), chip)?;
        }
        Ok(())
    }

    fn check(&self, job: &mut Job<'_>, rank: usize, iteration: u32, got: &[f32]) {
        let more = self.gain * f64::from(iteration % VARIANTS);
        let expected = |index| (self.expected)(rank, index).map(|value| value + more);
        let greatest = expected(got.len() - 1).unwrap_or(0.0);
        job.checked(rank).check(iteration, got, expected, slack_of_sum(self.gain as usize, greatest));
    }
}

fn of_chip(context: &ChipContext, given: Option<&KernelArgs>) -> Result<Window, Failure> {
    let addr = |name| context.buffer(name).map(|buffer| buffer.addr);
    let staged = match given {
        Some(_) => Some([addr(STAGED[0])?, addr(STAGED[1])?]),
        None => None,
    };
    Ok(Window {
        rank: context.rank.into(),
        nranks: context.nranks.into(),
        data: addr("data")?,
        signals: addr("signals")?,
        ctx: context.device_ctx,
        staged,
    })
}
