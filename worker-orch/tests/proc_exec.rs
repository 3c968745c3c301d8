//! Children that are started by exec. A program of its own, since its `main` has to serve them: it runs its
//! cases one after the other and counts them as cargo's harness does. Some cases start it once more in
//! another role, to see a whole program fail or die.
//!
//! # Safety
//! Maps addresses before a child can have them, and ignores SIGCHLD for a while.
#![allow(unsafe_code, missing_docs)]

mod support;

use child_process::ProcessWatch;
use comm_context::abi::DType;
use comm_context::comm::{Membership, Timeout};
use deadline::Deadline;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use support::{children_of, form_group, is_text, is_the_doubles, kernel, says, text, traces};
use worker_orch::{
    Access, Args, ChipConfig, ErrorCode, Failure, HostBuffer, Orchestrator, Program, Start, Task, TaskFn,
    Worker, serve_if_child,
};

/// Which program this is to be; not set for the one with the cases.
const ROLE: &str = "PROC_EXEC_ROLE";
/// The variable that is set in children; read here only to act as programs that do not serve them.
const CHILD_VARIABLE: &str = "CHIPCOMM_CHILD";

const FUNCTIONS: &[(&str, TaskFn)] = &[
    ("nothing", nothing),
    ("add", add),
    ("copy", copy),
    ("slow_double", slow_double),
    ("refuse", refuse),
    ("panics", panics),
    ("die", die),
    ("spin", spin),
    ("check_surroundings", check_surroundings),
    ("where_is", where_is),
];

/// A table with a mistake.
const TWICE: &[(&str, TaskFn)] = &[("nothing", nothing), ("nothing", add)];

const CASES: &[(&str, fn())] = &[
    ("chips_form_a_group_and_kernels_reach_each_others_windows", group_and_kernels),
    ("wo3_functions_run_in_the_order_of_what_they_touch", dependencies),
    ("wo7_host_buffers_have_one_address_whenever_they_were_made", one_address),
    ("f31_inputs_are_staged_and_outputs_are_on_the_host", staging),
    ("wo8_domains_come_and_go", domains),
    ("wo2_failures_and_panics_reach_run_and_the_next_run_is_clean", failures),
    ("f02_a_killed_child_is_reported_and_the_worker_starts_again", killed),
    ("f01_a_chip_that_cannot_come_up_is_reported_with_its_phase", cannot_come_up),
    ("a_function_that_is_not_in_the_table_is_named", missing_name),
    ("a_function_that_is_twice_in_the_table_is_named", twice_the_name),
    ("a_system_that_is_out_of_processes_is_reported_as_such", out_of_processes),
    ("f04_a_child_has_only_what_it_needs", descriptors),
    ("f08_a_parent_full_of_busy_threads_brings_its_chips_up", busy_threads),
    ("a_worker_of_workers_is_forked_and_its_chips_are_not", levels),
    ("f21_nothing_is_left", nothing_left),
    ("f58_a_program_that_ignores_sigchld_closes_cleanly", ignores_sigchld),
    ("a_program_that_never_serves_is_refused_before_it_starts_anything", never_serves),
    ("a_child_that_does_not_serve_is_refused_and_starts_nothing", forgets),
    ("a_child_that_does_something_else_ends_at_the_deadline", idles),
    ("addresses_that_are_taken_in_a_child_are_reported", taken),
    ("a_stray_variable_is_refused", stray_variable),
    ("the_old_variable_is_refused_with_the_new_name", old_variable),
    ("f03_children_end_with_their_parent_at_any_point_of_its_life", doomed),
];

fn main() -> ExitCode {
    let role = std::env::var(ROLE).unwrap_or_default();
    let is_child = std::env::var_os(CHILD_VARIABLE).is_some();
    match role.as_str() {
        "never serves" => return start_and_print(),
        "forgets" if is_child => return start_and_print(),
        "idles" if is_child => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        "taken" if is_child => take_all_room(),
        _ => {}
    }
    serve_if_child(if role == "twice" { TWICE } else { FUNCTIONS });
    match role.as_str() {
        "" => run_cases(),
        "doomed" => be_doomed(),
        "twice" => run_and_print(),
        _ => start_and_print(),
    }
}

/// What cargo's harness does, as far as it is used here.
fn run_cases() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has_value =
        |at: usize| ["--test-threads", "--skip", "--format", "--color"].contains(&args[at].as_str());
    let filters: Vec<&String> = (0..args.len())
        .filter(|at| !args[*at].starts_with('-') && (*at == 0 || !has_value(at - 1)))
        .map(|at| &args[at])
        .collect();
    let asked =
        |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    // Nothing here waits for a device.
    let cases: Vec<_> = CASES.iter().filter(|(name, _)| asked(name)).collect();
    let cases = if args.iter().any(|arg| arg == "--ignored") { Vec::new() } else { cases };
    println!("\nrunning {} tests", cases.len());
    let mut failed = 0;
    for (name, case) in &cases {
        let passed = std::panic::catch_unwind(case).is_ok();
        failed += usize::from(!passed);
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    let (passed, left_out) = (cases.len() - failed, CASES.len() - cases.len());
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {left_out} filtered out\n"
    );
    ExitCode::from(u8::from(failed > 0))
}

// What children run.

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

/// Adds the scalar to every element.
fn add(task: &mut Task<'_>) -> Result<(), Failure> {
    let amount = task.scalar(0)? as f32;
    let sum: Vec<f32> = task.read::<f32>(0)?.iter().map(|x| x + amount).collect();
    task.write(0, &sum)
}

fn copy(task: &mut Task<'_>) -> Result<(), Failure> {
    task.write(1, &task.read::<f32>(0)?)
}

fn slow_double(task: &mut Task<'_>) -> Result<(), Failure> {
    std::thread::sleep(Duration::from_millis(20));
    let double: Vec<f32> = task.read::<f32>(0)?.iter().map(|x| x * 2.0).collect();
    task.write(0, &double)
}

fn refuse(_: &mut Task<'_>) -> Result<(), Failure> {
    Err(Failure::new(ErrorCode::Task, "it does not want to"))
}

fn panics(_: &mut Task<'_>) -> Result<(), Failure> {
    panic!("a bug in the task")
}

fn die(_: &mut Task<'_>) -> Result<(), Failure> {
    nix::sys::signal::raise(Signal::SIGSEGV).unwrap();
    Ok(())
}

fn spin(_: &mut Task<'_>) -> Result<(), Failure> {
    loop {
        std::hint::spin_loop();
    }
}

/// Fails unless this process has few descriptors and the variable is unset, so that programs it starts are
/// not children.
fn check_surroundings(task: &mut Task<'_>) -> Result<(), Failure> {
    let open: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .map(|entry| std::fs::read_link(entry.path()).unwrap_or_default().display().to_string())
        .filter(|name| !is_the_doubles(name))
        .collect();
    let strange: Vec<&String> = open
        .iter()
        .skip(3)
        .filter(|link| !["/memfd:chipcomm-", "pipe:", "/proc/"].iter().any(|known| link.starts_with(known)))
        .collect();
    // 0 to 2, parent-death pipe, liveness pipe, channels, control block, group (control part and one for each chip), heap,
    // the folder.
    let most = task.scalar(0)? as usize;
    if open.len() > most || !strange.is_empty() || std::env::var_os(CHILD_VARIABLE).is_some() {
        return Err(Failure::new(ErrorCode::Task, format!("it has {open:?}")));
    }
    Ok(())
}

/// Writes through the bare address that the parent gave.
fn where_is(task: &mut Task<'_>) -> Result<(), Failure> {
    let word = std::ptr::with_exposed_provenance_mut::<u64>(task.scalar(0)? as usize);
    // SAFETY: the parent passes the address of eight bytes of a host buffer, which stand at the same address
    // here.
    unsafe { word.write_volatile(task.scalar(1)?) };
    Ok(())
}

// Workers.

fn builder(chips: usize) -> worker_orch::WorkerBuilder {
    support::builder(chips).start(Start::Exec)
}

fn plain(chips: usize) -> Worker {
    builder(chips).build().unwrap()
}

fn grouped(chips: usize) -> Worker {
    let mut worker = plain(chips);
    form_group(&mut worker, chips, 16);
    worker
}

fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60)).unwrap()
}

// Cases.

/// Writes its rank into the next rank's window, waits for all, and adds what it got.
const RING: &str = r#"
#include "comm_kernel.h"
extern "C" void kernel_entry(int64_t *args) {
    auto *ctx = reinterpret_cast<CommContext *>(args[0]);
    auto *data = reinterpret_cast<float *>(args[1]);
    auto *barrier = reinterpret_cast<CommPhaseBarrier *>(args[2]);
    uint32_t next = (ctx->rankId + 1) % ctx->rankNum;
    *CommRemotePtr(ctx, data, next) = static_cast<float>(ctx->rankId + 100);
    (void)!comm_phase_barrier(ctx, barrier);
    data[1] = data[0] + static_cast<float>(args[3]);
}
"#;

fn group_and_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "ring", RING);
    for chips in [1, 2, 5] {
        let mut worker = grouped(chips);
        let ring = worker.register_kernel(&so).unwrap();
        worker.init().unwrap();
        let contexts = worker.chip_contexts().unwrap().to_vec();
        assert_eq!(contexts.len(), chips);
        for round in 0..3 {
            let member = |chip: usize| {
                let context = &contexts[chip];
                let args =
                    Args::new().scalar(context.device_ctx.0).scalar(context.buffer("data").unwrap().addr.0);
                (chip, args.scalar(context.buffer("barrier").unwrap().addr.0).scalar(round))
            };
            let members: Vec<_> = (0..chips).map(member).collect();
            worker.run(|orch| orch.submit_group(ring, &members)).unwrap();
        }
        for (chip, context) in contexts.iter().enumerate() {
            // Read by the parent at the address that the chip reported.
            let mut bytes = [0; 8];
            worker.copy_from(chip, context.buffer("data").unwrap().addr, &mut bytes).unwrap();
            let got = ((chip + chips - 1) % chips + 100) as f32;
            assert_eq!(bytes, *[got.to_le_bytes(), (got + 2.0).to_le_bytes()].as_flattened());
        }
        worker.close().unwrap();
    }
}

fn dependencies() {
    let mut worker = builder(2).sub_workers(2).build().unwrap();
    let [double, copy] = [("slow_double", slow_double as TaskFn), ("copy", copy)]
        .map(|(name, f)| worker.register_function(name, f));
    let [x, y, z] = [0; 3].map(|_| worker.host_buffer::<f32>(8).unwrap());
    worker.init().unwrap();
    // Registered when the children are up already.
    let add = worker.register_function("add", add);
    x.write(&[1.0; 8]).unwrap();
    for _ in 0..10 {
        worker
            .run(|orch| {
                orch.submit_next_level(double, &Args::new().tensor(&x.tensor(), Access::InOut), 0)?;
                let through = |from: &HostBuffer<f32>, to: &HostBuffer<f32>| {
                    Args::new().tensor(&from.tensor(), Access::Input).tensor(&to.tensor(), Access::Output)
                };
                orch.submit_next_level(copy, &through(&x, &y), 1)?;
                orch.submit_sub(copy, &through(&y, &z))?;
                let one_more = Args::new().tensor(&x.tensor(), Access::InOut).scalar(1);
                orch.submit_next_level(add, &one_more, 1)
            })
            .unwrap();
    }
    // x becomes 2 x + 1 each time: 2^11 - 1 in the end.
    assert_eq!((x.to_vec(), z.to_vec()), (vec![2047.0; 8], vec![2046.0; 8]));
    worker.close().unwrap();
}

fn one_address() {
    let mut worker = plain(2);
    let where_is = worker.register_function("where_is", where_is);
    let before = worker.host_buffer::<u64>(1).unwrap();
    worker.init().unwrap();
    let after = worker.host_buffer::<u64>(1 << 20).unwrap();
    for (chip, buffer) in [&before, &after].into_iter().enumerate() {
        let args = Args::new().scalar(buffer.tensor().addr).scalar(7 + chip as u64);
        worker.run(|orch| orch.submit_next_level(where_is, &args, chip)).unwrap();
        assert_eq!(buffer.to_vec()[0], 7 + chip as u64);
    }
}

fn staging() {
    let mut worker = plain(1);
    let (input, output) = (worker.host_buffer::<f32>(16).unwrap(), worker.host_buffer::<f32>(16).unwrap());
    input.write(&[3.0; 16]).unwrap();
    let config = ChipConfig::new(0)
        .communicator(Membership::new(0, 1).unwrap())
        .window(4096)
        .buffer("x", DType::Float32, 16)
        .load_from(&input.span())
        .store_to(&output.span());
    worker.configure_chips(vec![config]).unwrap();
    let add = worker.register_function("add", add);
    worker.init().unwrap();
    let x = worker.chip_contexts().unwrap()[0].buffer("x").unwrap().tensor().unwrap();
    worker
        .run(|orch| orch.submit_next_level(add, &Args::new().tensor(&x, Access::InOut).scalar(4), 0))
        .unwrap();
    assert_eq!(output.to_vec(), [7.0; 16]);
}

fn domains() {
    // Without a configuration: the group is joined when the first domain needs it.
    let mut worker = plain(3);
    let add = worker.register_function("add", add);
    worker.init().unwrap();
    for _ in 0..3 {
        worker
            .run(|orch| {
                let pairs = [[0, 1], [1, 2]].map(|members| {
                    orch.allocate_domain("pair", &members, 4096, &[("x", DType::Float32, 8)]).unwrap()
                });
                for context in pairs.iter().flat_map(|pair| pair.contexts()) {
                    let x = context.buffer("x")?.tensor()?;
                    let args = Args::new().tensor(&x, Access::InOut).scalar(1);
                    orch.submit_next_level(add, &args, context.chip)?;
                }
                Ok(())
            })
            .unwrap();
    }
}

fn failures() {
    let mut worker = builder(2).sub_workers(1).build().unwrap();
    let [refuse, panics, add] = [("refuse", refuse as TaskFn), ("panics", panics), ("add", add)]
        .map(|(name, f)| worker.register_function(name, f));
    let x = worker.host_buffer::<f32>(1).unwrap();
    worker.init().unwrap();
    for (program, name, word) in
        [(refuse, "refuse", "it does not want to"), (panics, "panics", "a bug in the task")]
    {
        let reported =
            text(&worker.run(|orch| orch.submit_next_level(program, &Args::new(), 1)).unwrap_err());
        assert!(
            reported.contains(name) && reported.contains("chip 1") && reported.contains(word),
            "{reported}"
        );
        let reported = text(&worker.run(|orch| orch.submit_sub(program, &Args::new())).unwrap_err());
        assert!(reported.contains("sub-worker 0") && reported.contains(word), "{reported}");
        let args = Args::new().tensor(&x.tensor(), Access::InOut).scalar(1);
        worker.run(|orch| orch.submit_next_level(add, &args, 1)).unwrap();
    }
    assert_eq!(x.to_vec(), [2.0]);
    worker.close().unwrap();
}

fn killed() {
    let mut worker = grouped(3);
    let (die, nothing) = (worker.register_function("die", die), worker.register_function("nothing", nothing));
    for in_task in [true, false] {
        worker.init().unwrap();
        let (reported, who, how) = if in_task {
            let reported = worker.run(|orch| orch.submit_next_level(die, &Args::new(), 1));
            (reported.map(drop), "chip 1 (pid".to_owned(), "killed by SIGSEGV")
        } else {
            let victim = children_of(std::process::id())[1];
            kill(Pid::from_raw(victim as i32), Signal::SIGKILL).unwrap();
            let reported = worker.run(|orch| {
                (0..3).try_for_each(|chip| orch.submit_next_level(nothing, &Args::new(), chip).map(drop))
            });
            (reported, format!("(pid {victim}) died"), "killed by SIGKILL")
        };
        let reported = text(&reported.unwrap_err());
        assert!(reported.contains(&who) && reported.contains(how), "{reported}");
        let later = text(&worker.run(|_| Ok(())).unwrap_err());
        assert!(later.contains("initialised again"), "{later}");
        worker.close().unwrap();
        assert!(children_of(std::process::id()).is_empty());
    }
    worker.init().unwrap();
    worker.close().unwrap();
}

fn cannot_come_up() {
    let mut worker = plain(2);
    let member = |rank| Membership::new(rank, 2).unwrap();
    let good = |rank: u32| ChipConfig::new(rank as i32).communicator(member(rank)).window(4096);
    worker.configure_chips(vec![good(0), good(1).window(1 << 20)]).unwrap();
    let reported = text(&worker.init().unwrap_err());
    assert!(reported.contains("bootstrap failed") && reported.contains("size of the window"), "{reported}");
    assert!(children_of(std::process::id()).is_empty());
    worker.configure_chips(vec![good(0), good(1)]).unwrap();
    worker.init().unwrap();
}

fn missing_name() {
    let mut worker = plain(1);
    let unknown = worker.register_function("unknown", add);
    worker.init().unwrap();
    for _ in 0..2 {
        says(
            worker.run(|orch| orch.submit_next_level(unknown, &Args::new(), 0)),
            "…invalid argument: `unknown` is not in the table that main passes to serve_if_child; add \
             `(\"unknown\", its function)` to it",
        );
    }
}

/// What a program with such a table does: it runs a task, and prints how that went.
fn run_and_print() -> ExitCode {
    let mut worker = plain(1);
    let program = worker.register_function("nothing", nothing);
    worker.init().unwrap();
    match worker.run(|orch| orch.submit_next_level(program, &Args::new(), 0)) {
        Ok(_) => println!("it ran"),
        Err(failure) => println!("{failure}"),
    }
    ExitCode::from(9)
}

fn twice_the_name() {
    let reported = run_as("twice");
    assert!(
        reported.contains(
            "`nothing` is twice in the table that main passes to serve_if_child; name each function once"
        ),
        "{reported}"
    );
}

/// As another user, who may have no more processes than it has: root may have as many as it likes.
fn out_of_processes() {
    if !nix::unistd::geteuid().is_root() {
        return println!("not run: needs root, to be a user without other processes");
    }
    let mut crowded = Command::new("/proc/self/exe");
    let played = crowded.env(ROLE, "crowded").uid(54_322).output().unwrap();
    let reported = String::from_utf8(played.stdout).unwrap();
    assert!(
        reported.contains(
            "in init: system error: chip 0 could not be started: posix_spawn of /proc/self/exe: Resource temporarily \
             unavailable (os error 11); too many processes: raise `ulimit -u`, or pids.max of the container"
        ),
        "{reported}"
    );
}

fn descriptors() {
    // One without close-on-exec.
    let careless = std::fs::File::open("/dev/null").unwrap();
    nix::fcntl::fcntl(&careless, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    let mut worker = builder(1).sub_workers(1).build().unwrap();
    form_group(&mut worker, 1, 16);
    let check = worker.register_function("check_surroundings", check_surroundings);
    worker.init().unwrap();
    worker.run(|orch| orch.submit_next_level(check, &Args::new().scalar(11), 0)).unwrap();
    // A sub-worker has no part in the group.
    worker.run(|orch| orch.submit_sub(check, &Args::new().scalar(9))).unwrap();
    worker.close().unwrap();
}

fn busy_threads() {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Acquire) {
                    let _ = std::hint::black_box(vec![0_u8; 5000]);
                    let _ = std::io::Write::write(&mut std::io::stderr().lock(), &[]);
                }
            });
        }
        for _ in 0..5 {
            let mut worker = grouped(2);
            let add = worker.register_function("add", add);
            let x = worker.host_buffer::<f32>(1).unwrap();
            worker.init().unwrap();
            let args = Args::new().tensor(&x.tensor(), Access::InOut).scalar(1);
            worker.run(|orch| orch.submit_next_level(add, &args, 1)).unwrap();
            assert_eq!(x.to_vec(), [1.0]);
        }
        stop.store(true, std::sync::atomic::Ordering::Release);
    });
}

fn spread(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    let add = Program::from_number(task.scalar(0)? as u32);
    for chip in 0..orch.chips() {
        let args = Args::new().tensor(&task.tensors()[0], Access::InOut).scalar(1);
        orch.submit_next_level(add, &args, chip)?;
    }
    Ok(())
}

fn levels() {
    let refused = text(&Worker::builder().level(4).start(Start::Exec).build().unwrap_err());
    assert!(refused.contains("by fork") && refused.contains("level 3"), "{refused}");
    let mut host = plain(2);
    let add = host.register_function("add", add);
    let mut cluster = Worker::builder().level(4).build().unwrap();
    let spread = cluster.register_orchestration("spread", spread);
    let x = cluster.host_buffer::<f32>(4).unwrap();
    cluster.add_worker(host).unwrap();
    cluster.init().unwrap();
    let args = Args::new().tensor(&x.tensor(), Access::InOut).scalar(add.number().into());
    cluster.run(|orch| orch.submit_next_level(spread, &args, 0)).unwrap();
    // The cluster's own buffer, two levels down, in processes that were started by exec.
    assert_eq!(x.to_vec(), [2.0; 4]);
    cluster.close().unwrap();
}

fn nothing_left() {
    let before = traces();
    let mut worker = grouped(2);
    worker.init().unwrap();
    worker.close().unwrap();
    worker.init().unwrap();
    children_of(std::process::id()).iter().for_each(|pid| {
        kill(Pid::from_raw(*pid as i32), Signal::SIGKILL).unwrap();
    });
    drop(worker);
    assert_eq!(traces(), before);
}

fn ignores_sigchld() {
    let [ignored, default] = [SigHandler::SigIgn, SigHandler::SigDfl]
        .map(|handler| SigAction::new(handler, SaFlags::empty(), SigSet::empty()));
    // SAFETY: installs no handler.
    unsafe { sigaction(Signal::SIGCHLD, &ignored) }.unwrap();
    let mut worker = grouped(2);
    worker.init().unwrap();
    let closed = worker.close();
    // SAFETY: as above.
    unsafe { sigaction(Signal::SIGCHLD, &default) }.unwrap();
    closed.unwrap();
}

/// Starts this program in another role and returns everything it prints.
fn run_as(role: &str) -> String {
    let played = Command::new("/proc/self/exe").env(ROLE, role).output().unwrap();
    [played.stdout, played.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat()
}

/// What such a program does: it starts a Worker and prints how that went.
fn start_and_print() -> ExitCode {
    println!("program started");
    let limit = if std::env::var(ROLE).unwrap() == "idles" { 400 } else { 60_000 };
    let limit = Timeout::new(Duration::from_millis(limit)).unwrap();
    let mut worker = builder(2).init_within(limit).build().unwrap();
    if std::env::var(ROLE).unwrap() == "crowded" {
        setrlimit(Resource::RLIMIT_NPROC, 1, 1).unwrap();
    }
    match worker.init() {
        Ok(()) => println!("it came up"),
        Err(failure) => println!("{failure}"),
    }
    ExitCode::from(9)
}

fn never_serves() {
    // WO-24
    let reported = run_as("never serves");
    assert_eq!(reported.matches("program started").count(), 1, "{reported}");
    assert!(
        reported.contains("this program would not serve them") && reported.contains("serve_if_child"),
        "{reported}"
    );
}

fn forgets() {
    let reported = run_as("forgets");
    // The program and, at most, the two children; these refuse to start any of their own.
    assert!((2..=3).contains(&reported.matches("program started").count()), "{reported}");
    assert!(reported.contains("is a child of a Worker and cannot start its own"), "{reported}");
    let refused = reported.lines().find(|line| line.contains("bootstrap failed"));
    is_text(
        refused.unwrap_or_else(|| panic!("{reported}")),
        "in init: …: chip … bootstrap failed: its process … died (exited with code 9) in phase not started; with Start::Exec, call \
         `worker_orch::serve_if_child(&[…])` first thing in main, before anything else",
    );
}

fn idles() {
    let reported = run_as("idles");
    assert!(
        reported.contains("bootstrap timed out after ") && reported.contains("; not ready: "),
        "{reported}"
    );
    assert!(reported.contains("serve_if_child"), "{reported}");
}

fn taken() {
    let reported = run_as("taken");
    assert!(
        reported.contains("chip 0 bootstrap failed") || reported.contains("chip 1 bootstrap failed"),
        "{reported}"
    );
    assert!(reported.contains("are taken in process") && reported.contains("in attach"), "{reported}");
}

/// Maps all addresses where a Worker puts its memory.
fn take_all_room() {
    let (at, len) = (NonZeroUsize::new(0x3000_0000_0000), NonZeroUsize::new(0x2000_0000_0000).unwrap());
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED_NOREPLACE;
    // SAFETY: new addresses without memory or access; nothing is replaced.
    unsafe { mmap_anonymous(at, len, ProtFlags::PROT_NONE, flags) }.unwrap();
}

fn stray_variable() {
    for value in ["", "yes", "3", "99999999"] {
        let played = Command::new("/proc/self/exe").env(CHILD_VARIABLE, value).output().unwrap();
        let reported = String::from_utf8(played.stderr).unwrap();
        assert!(!played.status.success() && reported.contains("unset it"), "{value}: {reported}");
    }
}

fn old_variable() {
    let run = Command::new("/proc/self/exe").env("CHIPCOMM_HAND", "3").output().unwrap();
    let reported = String::from_utf8(run.stderr).unwrap();
    let text =
        "CHIPCOMM_HAND is set; it is called CHIPCOMM_CHILD now, and only this program sets it: unset it";
    assert!(!run.status.success() && reported.contains(text), "{reported}");
}

/// A program that brings chips up and keeps them busy until it is killed.
fn be_doomed() -> ExitCode {
    println!("program started");
    let mut worker = grouped(3);
    let spin = worker.register_function("spin", spin);
    if worker.init().is_ok() {
        println!("it came up");
        let _ = worker.run(|orch| {
            (0..3).try_for_each(|chip| orch.submit_next_level(spin, &Args::new(), chip).map(drop))
        });
    }
    ExitCode::from(9)
}

fn doomed() {
    // WO-6
    let delays = (0..25).map(|step| Some(Duration::from_micros(step * 300))).chain([None]);
    let mut seen = 0;
    // In "idles" the children never serve: only their parent has bound them to its life.
    for (role, delay) in
        delays.map(|delay| ("doomed", delay)).chain([("idles", Some(Duration::from_millis(200)))])
    {
        let mut parent =
            Command::new("/proc/self/exe").env(ROLE, role).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "program started");
        match delay {
            Some(delay) => std::thread::sleep(delay),
            None => assert_eq!(lines.next().unwrap().unwrap(), "it came up"),
        }
        let children: Vec<ProcessWatch> = children_of(parent.id())
            .into_iter()
            .filter_map(|pid| ProcessWatch::of_process(pid as i32).ok())
            .collect();
        seen += children.len();
        parent.kill().unwrap();
        parent.wait().unwrap();
        let died = Instant::now();
        assert!(children.iter().all(|child| child.wait_for_death(far())), "a child outlived its parent");
        assert!(died.elapsed() < Duration::from_secs(10), "after {:?}", died.elapsed());
    }
    assert!(seen > 5, "only {seen} children were seen");
}
