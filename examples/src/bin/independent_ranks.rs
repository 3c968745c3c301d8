//! Ranks without a Worker: processes that were started independently find each other by a path and pass
//! numbers around a ring.
//!
//! Only `comm-sim` is used. A rank gets its number from flags or from a launcher such as `mpirun`.

use chipcomm_examples::{
    Arguments, Checked, CommandLine, Devices, Error, Flag, Outcome, Style, at_least_one, counted,
    main as run, print_line, usage,
};
use comm_sim::{
    CommContext, CommError, Communicator, LauncherError, Membership, SimComm, Timeout, from_launcher,
};
use std::fmt::Display;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

const LINE: CommandLine = CommandLine {
    program: "independent_ranks",
    about: "One of several ranks that were started independently, on the simulation: a barrier and a ring, 16 floats",
    flags: &[&[
        Flag::with_value("rank", "RANK", "The number of this rank; the launcher's if left out"),
        Flag::with_value("nranks", "N", "How many ranks there are"),
        Flag::with_value("spawn", "N", "Be rank 0 and start the others"),
        Flag::with_value(
            "path",
            "FILE",
            "Where the ranks find each other; nothing is created there. \
             If left out, one path for the ranks of a launcher, or of a user",
        ),
        Flag::with_value("iters", "N", "How many rounds [default: 1]"),
        Flag::with_value("count", "N", "How many floats to pass on [default: 16]"),
        Flag::with_value("timeout", "SECONDS", "Give up when a step takes longer than this [default: 120]"),
        Flag::switch("json", "Print the result as one JSON object for each rank"),
        Flag::switch("quiet", "Print the last line only").short('q'),
    ]],
    examples: "Examples: four ranks from one shell, from four shells, and from a launcher\n  \
        independent_ranks --spawn 4\n  \
        independent_ranks --rank 0 --nranks 4        (and 1, 2, 3 in other shells)\n  \
        mpirun -n 4 independent_ranks\n  \
        torchrun --no-python --nproc-per-node 4 independent_ranks\n  \
        srun -n 4 independent_ranks",
    notes: &[LAUNCHERS],
};

/// Launchers, and what to do when a rank is missing.
const LAUNCHERS: &str = "\
Launchers are known by the variables that they set: RANK with WORLD_SIZE (torchrun), OMPI_COMM_WORLD_RANK
with OMPI_COMM_WORLD_SIZE (Open MPI), PMI_RANK with PMI_SIZE (MPICH, Intel MPI), SLURM_PROCID with
SLURM_NTASKS (Slurm). All ranks run on one machine.
To see which ranks have come and which are missing, give the path of the first line to comm-inspect:
  cargo run --release -p comm-sim --bin comm-inspect -- PATH";

/// The command line.
struct Options {
    rank: Option<u32>,
    nranks: Option<u32>,
    spawn: Option<u32>,
    path: Option<PathBuf>,
    iters: NonZeroU32,
    count: NonZeroU32,
    timeout: Option<Timeout>,
    style: Style,
}

impl Options {
    fn read(arguments: &Arguments) -> Result<Self, Error> {
        arguments.requires("rank", "nranks")?;
        arguments.requires("nranks", "rank")?;
        arguments.exclusive("spawn", "rank")?;
        Ok(Self {
            rank: arguments.value("rank")?,
            nranks: arguments.value("nranks")?,
            spawn: arguments.value("spawn")?,
            path: arguments.path("path"),
            iters: arguments.value_with("iters", at_least_one)?.unwrap_or(NonZeroU32::MIN),
            count: arguments
                .value_with("count", at_least_one)?
                .unwrap_or(const { NonZeroU32::new(16).unwrap() }),
            timeout: arguments.value("timeout")?,
            style: Style::read(arguments)?,
        })
    }
}

/// Which rank this process is, how it knows, and where it finds the others.
struct Identity {
    me: Membership,
    source: String,
    path: PathBuf,
}

fn main() -> ExitCode {
    run(&LINE, |arguments| {
        let options = Options::read(arguments)?;
        let within = match options.timeout {
            Some(limit) => limit,
            None => Timeout::from_env(Timeout::ENV).map_err(usage)?,
        };
        let identity = identify(&options)?;
        if options.style == Style::Text {
            let Identity { me, source, path } = &identity;
            let path = path.display();
            say(format_args!("rank {} of {} ({source}), rendezvous at {path}", me.rank(), me.nranks()))?;
        }
        let others = match options.spawn {
            Some(n) => start_others(&options, n, &identity.path)?,
            None => Vec::new(),
        };
        // A rank that fails exits, and its death fails the others, so that none waits for ever.
        let mine = around_the_ring(&options, &identity, within);
        // All are waited for, also after one that failed, so that none outlives this one.
        let ended: Vec<_> = others.into_iter().map(|(rank, child)| wait_for(rank, child)).collect();
        let theirs = ended.into_iter().collect::<Result<(), Error>>();
        let checked = mine?;
        theirs?;
        report(&options, identity.me, &checked)?;
        Ok(checked.outcome())
    })
}

fn identify(options: &Options) -> Result<Identity, Error> {
    let process = std::process::id();
    let parent = std::os::unix::process::parent_id();
    let at = |suffix: String| options.path.clone().unwrap_or_else(|| default_path(&suffix));
    if let Some(n) = options.spawn {
        Devices::first(n as usize).map_err(Error::Usage)?;
        let me = Membership::new(0, n).map_err(usage)?;
        return Ok(Identity { me, source: "--spawn".to_owned(), path: at(format!("-{process}")) });
    }
    if let (Some(rank), Some(nranks)) = (options.rank, options.nranks) {
        let me = Membership::new(rank, nranks).map_err(usage)?;
        return Ok(Identity { me, source: "--rank and --nranks".to_owned(), path: at(String::new()) });
    }
    match from_launcher() {
        // The launcher is the parent of its ranks: its process id keeps two jobs apart.
        Ok(launched) => {
            Ok(Identity { me: launched.membership, source: launched.by, path: at(format!("-{parent}")) })
        }
        Err(LauncherError::NotLaunched) => Err(Error::Usage(
            "this is one rank of several: start them all with --spawn 4, each with --rank R --nranks 4, or under mpirun -n 4"
                .to_owned(),
        )),
        Err(error) => Err(usage(error)),
    }
}

/// A path for each user; `suffix` keeps two jobs apart.
fn default_path(suffix: &str) -> PathBuf {
    let user = std::fs::metadata("/proc/self").map_or(0, |process| process.uid());
    std::env::temp_dir().join(format!("chipcomm-independent-ranks-{user}{suffix}"))
}

fn start_others(options: &Options, n: u32, path: &Path) -> Result<Vec<(u32, Child)>, Error> {
    let own = std::env::current_exe()
        .map_err(|error| Error::Failed(format!("the path of this program is unknown: {error}")))?;
    let start = |rank: u32| {
        let mut command = Command::new(&own);
        command.args(["--rank", &rank.to_string(), "--nranks", &n.to_string(), "--path"]).arg(path);
        command.args(["--iters", &options.iters.to_string(), "--count", &options.count.to_string()]);
        if let Some(limit) = options.timeout {
            command.args(["--timeout", &limit.get().as_secs_f64().to_string()]);
        }
        match options.style {
            Style::Json => _ = command.arg("--json"),
            Style::Quiet => _ = command.arg("--quiet"),
            Style::Text => {}
        }
        let child = command.spawn();
        child.map(|child| (rank, child)).map_err(|error| Error::Failed(format!("rank {rank}: {error}")))
    };
    (1..n).map(start).collect()
}

fn wait_for(rank: u32, mut child: Child) -> Result<(), Error> {
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Failed(format!("rank {rank} ended with {status}"))),
        Err(error) => Err(Error::Failed(format!("rank {rank}: {error}"))),
    }
}

/// In every round each rank writes into the window of its right neighbour; no other rank or round has the
/// same values.
fn around_the_ring(options: &Options, identity: &Identity, within: Timeout) -> Result<Checked, Error> {
    let (rank, n) = (identity.me.rank(), identity.me.nranks());
    let count = options.count.get() as usize;
    let (left, right) = ((rank + n - 1) % n, (rank + 1) % n);
    let value = |from: u32, round: u32, i: usize| f64::from(100 * from + round % 100) + i as f64;

    let comm = SimComm::rendezvous(&identity.path, identity.me, within)?;
    let window = comm.alloc_windows(count * size_of::<f32>(), within)?;
    let mut context = vec![0; size_of::<CommContext>()];
    comm.read(window.context, &mut context)?;
    let context = CommContext::decode(&context).map_err(|error| Error::Failed(error.to_string()))?;
    let neighbour = context.remote(window.base, right).map_err(|error| Error::Failed(error.to_string()))?;

    let mut checked = Checked::default();
    let mut rounds = || -> Result<(), CommError> {
        for round in 0..options.iters.get() {
            let sent = (0..count).flat_map(|i| (value(rank, round, i) as f32).to_le_bytes());
            comm.write(neighbour, &sent.collect::<Vec<u8>>())?;
            comm.barrier(within)?;
            let mut bytes = vec![0; count * size_of::<f32>()];
            comm.read(window.base, &mut bytes)?;
            // No rank writes in the next round before all have read in this one.
            comm.barrier(within)?;
            let got = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            checked.check(round, &got.collect::<Vec<f32>>(), |i| Some(value(left, round, i)), 0.0);
        }
        Ok(())
    };
    rounds()?;
    Box::new(comm).destroy(within)?;
    Ok(checked)
}

/// Prints a line. A rank goes on when nobody reads, because its peers wait for it.
fn say(line: impl Display) -> Result<(), Error> {
    match print_line(line) {
        Err(Error::ClosedPipe) => Ok(()),
        result => result,
    }
}

fn report(options: &Options, me: Membership, checked: &Checked) -> Result<(), Error> {
    let (rank, n, program) = (me.rank(), me.nranks(), LINE.program);
    if options.style == Style::Json {
        let json = serde_json::json!({
            "program": program, "rank": rank, "nranks": n, "iters": options.iters, "count": options.count,
            "max_error": checked.max_error, "first_wrong": checked.first_wrong, "outcome": checked.outcome().word(),
        });
        return say(json);
    }
    let word = if checked.outcome() == Outcome::Right { "right" } else { "WRONG" };
    let rounds = counted(options.iters.get() as usize, "round");
    say(format_args!("{program}: rank {rank} of {n} is {word} after {rounds}; {checked}"))
}
