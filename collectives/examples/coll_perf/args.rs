//! The command line.

use clap::{Parser, ValueEnum};
use collectives::{DType, Kind, Op, Passing};
use std::path::PathBuf;

const EXAMPLES: &str = "Examples:
  cargo coll_perf                                    all sizes, beside the MPI libraries that are installed
  cargo coll_perf --alone --runs 1 --factor 8        a first look, in seconds
  cargo coll_perf --kind broadcast --ranks 4 --mode hot --to 1M
  cargo coll_perf --with-peers --svg all_reduce.svg --report all_reduce.json

Figures of a machine that does other work say little: run it alone, and look at the worst runs. Ctrl-C ends
the measuring; the tables, the report and the picture then have what was measured until then.";

/// Times of a collective call, beside what the memory allows and what other libraries take.
///
/// Columns as in nccl-tests: `algbw` is size over time, `busbw` what each rank's memory moves for it. The slowest rank counts.
#[derive(Clone, Debug, Parser)]
#[command(name = "coll_perf", max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Kind of call: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather, scatter, barrier
    #[arg(long, default_value = "all_reduce", value_parser = kind)]
    pub(crate) kind: Kind,
    /// Run this schedule as well, beside the call that does the same: a name of the library such as direct_one_shot or
    /// ring_reduce_scatter_allgather, or a file NAME.json as `ipcq` dumps them. It is proved first, and refused if it is wrong
    #[arg(long)]
    pub(crate) schedule: Option<String>,
    /// How the schedule passes data: reference, value, or value:SLOTS
    #[arg(long, default_value = "reference", value_parser = crate::schedule::passing)]
    pub(crate) passing: Passing,
    /// Type of the elements: f32, f64, f16, bf16, i8 … u64
    #[arg(long = "type", default_value = "f32", value_parser = dtype)]
    pub(crate) dtype: DType,
    /// Operation: sum, prod, max, min, avg
    #[arg(long, default_value = "sum", value_parser = op)]
    pub(crate) op: Op,
    /// Smallest size in bytes, such as 4 or 64K
    #[arg(long, default_value = "4", value_parser = bytes)]
    pub(crate) from: usize,
    /// Largest size
    #[arg(long, default_value = "32M", value_parser = bytes)]
    pub(crate) to: usize,
    /// From one size to the next
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) factor: u64,
    /// Processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
    /// What callers do between calls
    #[arg(long, value_enum, default_value = "dirty")]
    pub(crate) mode: Mode,
    /// Calls before the first that counts
    #[arg(long, default_value_t = 10)]
    pub(crate) warmup: u32,
    /// Calls of a batch; as many as take two milliseconds where it is 0
    #[arg(long, default_value_t = 0)]
    pub(crate) iterations: u32,
    /// How often everything is run, all contestants in turns; the median counts
    #[arg(long, default_value_t = 5)]
    pub(crate) runs: u32,
    /// Compare with Open MPI 5, MPICH 5 and Intel MPI from PyPI as well, and gloo where there is torch; makes
    /// environments for them in the target folder
    #[arg(long)]
    pub(crate) with_peers: bool,
    /// Leave all other libraries out
    #[arg(long, conflicts_with = "with_peers")]
    pub(crate) alone: bool,
    /// Seconds after which a run of another library counts as not finished
    #[arg(long, default_value_t = 60)]
    pub(crate) patience: u64,
    /// Write everything that was measured to this file, as JSON; anew whenever a contestant has ended a run
    #[arg(long)]
    pub(crate) report: Option<PathBuf>,
    /// Draw time and bus bandwidth against size into this file, as SVG
    #[arg(long)]
    pub(crate) svg: Option<PathBuf>,
    /// Figures for `cargo xtask bench`, one JSON object per line, instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// One run: shows that it works, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print what `ipcq-sim` predicts for the memory of this machine beside what is measured
    #[arg(long)]
    pub(crate) predict: bool,
    /// The topology of a prediction, as `ipcq calibrate` writes it; measured first where there is none
    #[arg(long, value_name = "FILE", requires = "predict")]
    pub(crate) topology: Option<PathBuf>,
    /// Find the sizes at which algorithms give way to each other on this machine, and write them as a table for groups
    #[arg(long, value_name = "FILE")]
    pub(crate) tune: Option<PathBuf>,
    /// This process is a rank of the run at `--path`
    #[arg(long, hide = true, requires = "path")]
    pub(crate) rank: Option<u32>,
    #[arg(long, hide = true)]
    pub(crate) path: Option<PathBuf>,
    /// Whether the rank's buffers lie in its window
    #[arg(long, hide = true)]
    pub(crate) window: bool,
    /// Whether the rank runs the schedule, and not the call
    #[arg(long, hide = true)]
    pub(crate) run_schedule: bool,
    /// Whether it also runs the call that does the same, in turns with the schedule
    #[arg(long, hide = true)]
    pub(crate) in_turns: bool,
}

/// What callers do between calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Nothing: the data stays where the last call left it
    Hot,
    /// They write their input and read their output; the time of these loops alone is subtracted
    Dirty,
    /// They go on to other buffers, over four times the last-level cache
    Cold,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Dirty => "dirty",
            Self::Cold => "cold",
        }
    }
}

const KINDS: [Kind; 9] = [
    Kind::AllReduce,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::AllToAll,
    Kind::Gather,
    Kind::Scatter,
    Kind::Barrier,
];

fn kind(text: &str) -> Result<Kind, String> {
    KINDS
        .into_iter()
        .find(|kind| kind.to_string() == text)
        .ok_or_else(|| format!("not one of {}", listed(&KINDS)))
}

fn dtype(text: &str) -> Result<DType, String> {
    let mut known = DType::ALL.iter().copied().filter(|dtype| *dtype != DType::Bool);
    let all: Vec<DType> = known.clone().collect();
    known.find(|dtype| dtype.to_string() == text).ok_or_else(|| format!("not one of {}", listed(&all)))
}

fn op(text: &str) -> Result<Op, String> {
    let known = [Op::Sum, Op::Prod, Op::Max, Op::Min, Op::Avg];
    known
        .into_iter()
        .find(|op| op.to_string() == text)
        .ok_or_else(|| format!("not one of {}", listed(&known)))
}

fn listed(all: &[impl ToString]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn bytes(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G']) {
        Some(digits) if text.ends_with(['k', 'K']) => (digits, 10),
        Some(digits) if text.ends_with(['m', 'M']) => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| "a number of bytes such as 4 or 64K is needed")?;
    number.checked_shl(shift).filter(|bytes| *bytes <= 8 << 30).ok_or_else(|| "too many bytes".to_owned())
}

impl Args {
    /// What the flags together cannot mean.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (from, to, size) = (self.from.max(1), self.to, self.dtype.size());
        if from > to {
            return Err(format!("--from {from} is more than --to {to}: there is no size to measure"));
        }
        if self.kind != Kind::Barrier && self.sizes().iter().all(|bytes| *bytes < size) {
            return Err(format!("no size from --from to --to has room for an element of {}", self.dtype));
        }
        let reduces = matches!(self.kind, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter);
        if reduces && !self.op.applies_to(self.dtype) {
            return Err(format!("--op {}: not of elements of {}", self.op, self.dtype));
        }
        if self.runs == 0 {
            return Err("--runs 0: there is nothing to measure".to_owned());
        }
        Ok(())
    }

    /// All sizes, each a whole number of elements for every rank.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        if self.kind == Kind::Barrier {
            return vec![0];
        }
        let next = |size: &usize| size.checked_mul(self.factor as usize);
        std::iter::successors(Some(self.from.max(1)), next).take_while(|size| *size <= self.to).collect()
    }

    /// Bytes over which `cold` goes: four times the last-level cache, at most a gibibyte.
    pub(crate) fn cold_bytes(&self) -> usize {
        if self.mode != Mode::Cold {
            return 0;
        }
        let text =
            std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").unwrap_or_default();
        let kib: usize = text.trim().trim_end_matches('K').parse().unwrap_or(64 << 10);
        (4 * (kib << 10)).min(1 << 30)
    }

    /// What busbw is of algbw, as nccl-tests has it.
    pub(crate) fn bus_factor(&self) -> f64 {
        let n = f64::from(self.ranks);
        match self.kind {
            Kind::AllReduce => 2.0 * (n - 1.0) / n,
            Kind::Broadcast | Kind::Reduce => 1.0,
            _ => (n - 1.0) / n,
        }
    }
}
