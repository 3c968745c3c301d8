//! Ranks without a Worker: processes that were started independently meet at a path and pass numbers around a ring.
//!
//! Only `comm-sim` is at work. A rank learns which one it is from flags or from a launcher such as `mpirun`.

use chipcomm_examples::{Checked, Devices, Stop, Verdict, counted, main as run};
use clap::Parser;
use comm_context::abi::CommContext;
use comm_context::comm::{CommError, Communicator, Membership, Timeout};
use comm_sim::SimComm;
use rendezvous::{LauncherError, from_launcher};
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

/// One of several ranks that were started independently, on the simulation: a barrier and a ring, 16 floats
#[derive(Parser)]
#[command(after_help = "Examples: four ranks from one shell, from four shells, and from a launcher\n  \
    ranks_by_hand --spawn 4\n  \
    ranks_by_hand --rank 0 --nranks 4        (and 1, 2, 3 in other shells)\n  \
    mpirun -n 4 ranks_by_hand")]
struct Cli {
    /// Which rank this is; without it the launcher says
    #[arg(long, requires = "nranks")]
    rank: Option<u32>,
    /// How many ranks there are
    #[arg(long, requires = "rank")]
    nranks: Option<u32>,
    /// Be rank 0 and start the others
    #[arg(long, value_name = "N", conflicts_with = "rank")]
    spawn: Option<u32>,
    /// Where the ranks meet; nothing is created there. Ranks of one launcher or of one user meet without it
    #[arg(long, value_name = "FILE")]
    path: Option<PathBuf>,
    /// How often to go around
    #[arg(long, value_name = "N", default_value = "1")]
    iters: NonZeroU32,
    /// How many floats to pass on
    #[arg(long, value_name = "N", default_value = "16")]
    count: NonZeroU32,
    /// Give up when a step takes longer than this many seconds [default: 120]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<Timeout>,
    /// Print the result as one JSON object for each rank
    #[arg(long)]
    json: bool,
    /// Print the verdict only
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
}

/// Who this process is, who said so, and where its ranks meet.
struct Identity {
    me: Membership,
    by: String,
    path: PathBuf,
}

fn main() -> ExitCode {
    run(|cli: &Cli| {
        let within = match cli.timeout {
            Some(limit) => limit,
            None => Timeout::from_env(Timeout::ENV).map_err(usage)?,
        };
        let identity = identify(cli)?;
        if !cli.quiet && !cli.json {
            let Identity { me, by, path } = &identity;
            println!("rank {} of {} ({by}), meeting at {}", me.rank(), me.nranks(), path.display());
        }
        let others = match cli.spawn {
            Some(n) => start_others(cli, n, &identity.path)?,
            None => Vec::new(),
        };
        // A rank that fails ends, and its end fails the others: nobody is left waiting.
        let mine = around_the_ring(cli, &identity, within);
        let theirs = others.into_iter().try_for_each(|(rank, child)| wait_for(rank, child));
        let checked = mine?;
        theirs?;
        let verdict = if checked.is_right() { Verdict::Right } else { Verdict::Wrong };
        report(cli, identity.me, &checked, verdict);
        Ok(verdict)
    })
}

fn identify(cli: &Cli) -> Result<Identity, Stop> {
    let process = std::process::id();
    let parent = std::os::unix::process::parent_id();
    let at = |end: String| cli.path.clone().unwrap_or_else(|| default_path(&end));
    if let Some(n) = cli.spawn {
        Devices::first(n as usize).map_err(Stop::Usage)?;
        let me = Membership::new(0, n).map_err(usage)?;
        return Ok(Identity { me, by: "--spawn".to_owned(), path: at(format!("-{process}")) });
    }
    if let (Some(rank), Some(nranks)) = (cli.rank, cli.nranks) {
        let me = Membership::new(rank, nranks).map_err(usage)?;
        return Ok(Identity { me, by: "--rank and --nranks".to_owned(), path: at(String::new()) });
    }
    match from_launcher() {
        // A launcher is the parent of its ranks, which keeps two of its jobs apart.
        Ok(launched) => {
            Ok(Identity { me: launched.membership, by: launched.by, path: at(format!("-{parent}")) })
        }
        Err(LauncherError::NotLaunched) => Err(Stop::Usage(
            "this is one rank of several: start them all with --spawn 4, each with --rank R --nranks 4, or under mpirun -n 4"
                .to_owned(),
        )),
        Err(error) => Err(usage(error)),
    }
}

/// One for each user, and `end` for each job.
fn default_path(end: &str) -> PathBuf {
    let user = std::fs::metadata("/proc/self").map_or(0, |process| process.uid());
    std::env::temp_dir().join(format!("chipcomm-ranks-by-hand-{user}{end}"))
}

fn start_others(cli: &Cli, n: u32, path: &Path) -> Result<Vec<(u32, Child)>, Stop> {
    let own = std::env::current_exe().map_err(|error| Stop::Failed(format!("where am I? {error}")))?;
    let start = |rank: u32| {
        let mut command = Command::new(&own);
        command.args(["--rank", &rank.to_string(), "--nranks", &n.to_string(), "--path"]).arg(path);
        command.args(["--iters", &cli.iters.to_string(), "--count", &cli.count.to_string()]);
        if let Some(limit) = cli.timeout {
            command.args(["--timeout", &limit.get().as_secs_f64().to_string()]);
        }
        command.args(cli.json.then_some("--json")).args(cli.quiet.then_some("--quiet"));
        let child = command.spawn();
        child.map(|child| (rank, child)).map_err(|error| Stop::Failed(format!("rank {rank}: {error}")))
    };
    (1..n).map(start).collect()
}

fn wait_for(rank: u32, mut child: Child) -> Result<(), Stop> {
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Stop::Failed(format!("rank {rank} ended with {status}"))),
        Err(error) => Err(Stop::Failed(format!("rank {rank}: {error}"))),
    }
}

/// In every round each rank writes into the window of its right neighbour what only it would write in that round.
fn around_the_ring(cli: &Cli, identity: &Identity, within: Timeout) -> Result<Checked, Stop> {
    let (rank, n) = (identity.me.rank(), identity.me.nranks());
    let count = cli.count.get() as usize;
    let (left, right) = ((rank + n - 1) % n, (rank + 1) % n);
    let value = |from: u32, round: u32, i: usize| f64::from(100 * from + round % 100) + i as f64;

    let comm = SimComm::rendezvous(&identity.path, identity.me, within)?;
    let window = comm.alloc_windows(count * size_of::<f32>(), within)?;
    let mut context = vec![0; size_of::<CommContext>()];
    comm.read(window.context, &mut context)?;
    let context = CommContext::decode(&context).map_err(|error| Stop::Failed(error.to_string()))?;
    let neighbour = context.remote(window.base, right).map_err(|error| Stop::Failed(error.to_string()))?;

    let mut checked = Checked::default();
    let mut rounds = || -> Result<(), CommError> {
        for round in 0..cli.iters.get() {
            let sent = (0..count).flat_map(|i| (value(rank, round, i) as f32).to_le_bytes());
            comm.write(neighbour, &sent.collect::<Vec<u8>>())?;
            comm.barrier(within)?;
            let mut bytes = vec![0; count * size_of::<f32>()];
            comm.read(window.base, &mut bytes)?;
            // Nobody writes the next round before everybody has read this one.
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

fn report(cli: &Cli, me: Membership, checked: &Checked, verdict: Verdict) {
    let (rank, n) = (me.rank(), me.nranks());
    if cli.json {
        let json = serde_json::json!({
            "program": "ranks_by_hand", "rank": rank, "nranks": n, "iters": cli.iters, "count": cli.count,
            "max_error": checked.max_error, "first_wrong": checked.first_wrong, "verdict": verdict.word(),
        });
        println!("{json}");
        return;
    }
    let word = if verdict == Verdict::Right { "right" } else { "WRONG" };
    let rounds = counted(cli.iters.get() as usize, "round");
    println!("ranks_by_hand: rank {rank} of {n} is {word} after {rounds}; {checked}");
}

fn usage(error: impl std::fmt::Display) -> Stop {
    Stop::Usage(error.to_string())
}
