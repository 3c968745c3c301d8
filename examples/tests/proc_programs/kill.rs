//! Programs and chips that are killed, hang or crash: a clean error, and nothing is left behind.

use crate::support::{Ended, children_of, command, compile, ended, eventually, is_alive, kill_9, run};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CHIPS: usize = 4;

/// A program that runs for ever, its chips, and a temporary folder of its own.
struct Running {
    program: Child,
    chips: Vec<u32>,
    temp: tempfile::TempDir,
}

fn start(name: &str) -> Running {
    let temp = tempfile::tempdir().unwrap();
    let mut command = command(name, &["-d", &CHIPS.to_string(), "--iters", "4000000000"]);
    command.env("TMPDIR", temp.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.spawn().unwrap();
    let pid = program.id();
    let expected = CHIPS + usize::from(name == "tp_ffn");
    let chips = eventually("bring-up", || Some(children_of(pid)).filter(|chips| chips.len() == expected));
    // Some iterations.
    std::thread::sleep(Duration::from_millis(200));
    Running { program, chips, temp }
}

/// The result of a program that must end within half a minute.
fn end_of(mut program: Child) -> Ended {
    let code = eventually("the program's end", || program.try_wait().unwrap());
    let output = program.wait_with_output().unwrap();
    assert_eq!(output.status, code);
    ended(output)
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

/// Shared memory of a process that others could open by a name.
fn named_memory(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let shared =
        maps.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|may| may.ends_with('s')));
    let named =
        |line: &&str| line.contains(" /") && !line.contains(" /memfd:") && !line.ends_with("(deleted)");
    shared.filter(named).map(str::to_owned).collect()
}

#[test]
fn f02_a_killed_chip_is_reported_and_nothing_is_left() {
    for (name, victim) in [("allreduce", 0), ("allreduce", 3), ("treduce", 1), ("domains", 2), ("tp_ffn", 1)]
    {
        let running = start(name);
        for chip in &running.chips {
            assert_eq!(named_memory(*chip), [""; 0], "F21: memory of a chip has a name");
        }
        kill_9(running.chips[victim]);
        let killed = Instant::now();
        let end = end_of(running.program);
        assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
        assert_eq!(end.code, Some(3), "{name}\n{}{}", end.out, end.err);
        // The parent reports which chip died; a peer that waited for it in a collective reports which rank.
        let named =
            ["chip", "rank"].map(|who| format!("{who} {victim} (pid {}) died", running.chips[victim]));
        assert!(named.iter().any(|named| end.err.contains(named)), "{named:?}\n{}", end.err);
        assert!(end.err.contains("SIGKILL"), "{}", end.err);
        assert!(running.chips.iter().all(|chip| !is_alive(*chip)), "a chip outlives its program");
        assert!(is_empty(running.temp.path()), "something is left in the temporary folder");
    }
}

#[test]
fn f03_chips_die_with_a_killed_program() {
    for name in ["allreduce", "domains"] {
        let mut running = start(name);
        kill_9(running.program.id());
        running.program.wait().unwrap();
        let killed = Instant::now();
        eventually("the chips' end", || running.chips.iter().all(|chip| !is_alive(*chip)).then_some(()));
        assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
        assert!(is_empty(running.temp.path()));
    }
}

#[test]
fn a_killed_rank_is_reported_by_all_others() {
    let mut command = command("independent_ranks", &["--spawn", "4", "--iters", "4000000000"]);
    let program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = program.id();
    let ranks = eventually("all ranks", || Some(children_of(pid)).filter(|ranks| ranks.len() == 3));
    std::thread::sleep(Duration::from_millis(300));
    kill_9(ranks[1]);
    let end = end_of(program);
    assert_eq!(end.code, Some(3), "{}{}", end.out, end.err);
    assert!(end.err.matches("died").count() >= 3 && end.err.contains("rank 2"), "{}", end.err);
    assert!(ranks.iter().all(|rank| !is_alive(*rank)));
}

#[test]
fn f44_a_kernel_that_waits_for_ever_ends_at_the_deadline_with_a_table() {
    let folder = tempfile::tempdir().unwrap();
    // Rank 1 waits for a signal that never comes; all others wait for rank 1.
    let stuck = compile(
        folder.path(),
        "stuck",
        "#include \"comm_kernel.h\"\nCOMM_KERNEL void kernel_entry(int64_t *args) {\n\
         const auto *ctx = comm_pointer<const CommContext>(args[4]);\n\
         auto *signals = comm_pointer<CommPhaseBarrier>(args[3]);\n\
         if (ctx->rankId == 1 && !comm_wait(ctx, &signals->slot[63].reserved[0], 1u)) return;\n\
         (void)comm_phase_barrier(ctx, signals);\n}\n",
    );
    let end = run("allreduce", &["-d", "3", "--timeout", "1", "--kernel", stuck.to_str().unwrap()]);
    assert_eq!(end.code, Some(3), "{}{}", end.out, end.err);
    assert!(end.err.contains("chip 1") && end.err.contains("in `stuck.so`, its task"), "{}", end.err);
    let waits = |what: &str| end.err.matches(what).count();
    assert_eq!(waits("waits for signals["), 1, "{}", end.err);
    assert_eq!(waits("waits for rank 1 at `signals`: has 0, wants 1"), 2, "{}", end.err);
    assert!(end.err.lines().count() >= 4, "the table has a line for each chip:\n{}", end.err);
}

#[test]
fn f33_a_kernel_that_crashes_fails_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let crash = compile(
        folder.path(),
        "crash",
        "#include \"comm_kernel.h\"\nCOMM_KERNEL void kernel_entry(int64_t *args) {\n\
         const auto *ctx = comm_pointer<const CommContext>(args[4]);\n\
         if (ctx->rankId == 1) __builtin_trap();\n\
         (void)comm_phase_barrier(ctx, comm_pointer<CommPhaseBarrier>(args[3]));\n}\n",
    );
    let end = run("allreduce", &["-d", "3", "--kernel", crash.to_str().unwrap()]);
    assert_eq!(end.code, Some(3), "{}{}", end.out, end.err);
    assert!(end.err.contains("chip 1") && end.err.contains("SIG"), "{}", end.err);
}

/// Ranks that a launcher starts; prints a line where it is not installed.
fn under(launcher: &str, options: &[&str], known_as: &str) {
    if Command::new(launcher).arg("--version").output().is_err() {
        println!("not run: {launcher} is not installed");
        return;
    }
    let mut command = Command::new(launcher);
    command.args(options).args(["-n", "4", crate::support::program("independent_ranks"), "--iters", "50"]);
    for variable in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        command.env(variable, "1");
    }
    let end = ended(command.output().unwrap());
    assert_eq!(end.code, Some(0), "{}{}", end.out, end.err);
    assert_eq!(end.out.matches("is right after 50 rounds").count(), 4, "{}", end.out);
    assert!(end.out.contains(known_as), "{}", end.out);
}

#[test]
fn ranks_find_each_other_under_open_mpi() {
    under("mpirun.openmpi", &["--oversubscribe"], "Open MPI");
}

#[test]
fn ranks_find_each_other_under_mpich() {
    under("mpirun.mpich", &[], "PMI");
}

/// With the variables that torchrun and Slurm set, from one parent, as their ranks have.
#[test]
fn ranks_find_each_other_by_the_variables_of_torchrun_and_slurm() {
    for (launcher, rank, size) in
        [("torchrun", "RANK", "WORLD_SIZE"), ("Slurm", "SLURM_PROCID", "SLURM_NTASKS")]
    {
        let start = |number: u32| {
            let mut ranks = command("independent_ranks", &["--iters", "50"]);
            ranks.env(rank, number.to_string()).env(size, "4");
            ranks.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let ranks: Vec<Child> = (0..4).map(start).collect();
        for program in ranks {
            let end = ended(program.wait_with_output().unwrap());
            assert_eq!(end.code, Some(0), "{}{}", end.out, end.err);
            assert!(
                end.out.contains(launcher) && end.out.contains("is right after 50 rounds"),
                "{}",
                end.out
            );
        }
    }
}
