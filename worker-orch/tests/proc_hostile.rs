//! F29: a chip's process that writes random bytes all over the memory that it shares with its parent, at
//! random moments, while the parent works.
//!
//! The parent never crashes, never waits longer than its deadline allows, and reports success only where it
//! could not have known better.
#![allow(missing_docs)]

mod support;

use comm_context::abi::DType;
use comm_context::comm::Timeout;
use serial_test::serial;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{children_of, form_group, says, text, traces};
use worker_orch::{Access, Args, ErrorCode, Failure, HostBuffer, Orchestrator, Program, Task, Worker};

const CHIPS: usize = 2;
/// Chips and one sub-worker.
const CHILDREN: usize = CHIPS + 1;
/// The chip that turns hostile.
const HOSTILE: usize = 1;
const INIT: Duration = Duration::from_secs(2);
const RUN: Duration = Duration::from_millis(120);
const CLOSE: Duration = Duration::from_millis(300);
/// What a call may take beyond its deadline: a second, and another one for a machine that others use too.
const SLACK: Duration = Duration::from_secs(2);
const LONGEST_BURST: usize = 512;

/// A generator of the xorshift family: what a seed did once it does again, as far as time allows.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// What counters, lengths and addresses are likely to choke on.
    fn word(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX - self.next() % 64,
            3 => 1 << self.below(64),
            4 => u64::from(u32::MAX),
            5 | 6 => self.next() % 64,
            _ => self.next(),
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        match self.below(3) {
            0 => vec![0xff; len],
            1 => vec![0; len],
            _ => (0..len).map(|_| self.next() as u8).collect(),
        }
    }
}

/// How much of the shared memory a child overwrites.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Extent {
    /// What it is the writer of: its words, failure, answer and ring in the control block, its mailbox, its
    /// rank block.
    Own,
    /// Also what the parent and the others write.
    Everything,
}

/// The parts of the memory called `name`, `len` bytes long, that the hostile child writes to. The offsets are
/// those of the layouts; where they are off, other bytes are hit.
fn targets_in(name: &str, len: usize, extent: Extent) -> Vec<Range<usize>> {
    const PAGE: usize = 4096;
    let (child, rank_block) = (4 * PAGE, 9 * PAGE);
    let all = match name {
        "chipcomm-worker" => [PAGE + HOSTILE * child..PAGE + (HOSTILE + 1) * child, 0..len],
        "chipcomm-bootstrap" => [HOSTILE * PAGE..(HOSTILE + 1) * PAGE, 0..len],
        // The control part; what has the same name and is larger holds windows.
        "chipcomm-group" if len < 1 << 20 => {
            let at = |rank: usize| 4 * PAGE + rank * rank_block;
            [at(HOSTILE)..at(HOSTILE + 1), 0..at(CHIPS)]
        }
        _ => return Vec::new(),
    };
    let [own, all] = all;
    // The first line of what is its own holds the words that matter most, so it is hit as often as all the
    // rest.
    let mut targets = vec![own.start..own.start + 40, own.start..own.start + 512, own];
    if extent == Extent::Everything {
        targets.push(all);
    }
    targets
}

/// Overwrites some of `targets` through `file`.
fn scribble(file: &File, base: usize, targets: &[Range<usize>], random: &mut Random) {
    let range = &targets[random.below(targets.len())];
    let at = range.start + random.below(range.len());
    let bytes = match random.below(4) {
        0 => {
            let len = 1 + random.below(LONGEST_BURST);
            random.bytes(len)
        }
        _ => random.word().to_le_bytes().to_vec(),
    };
    let at = if bytes.len() == 8 { at & !7 } else { at };
    let len = bytes.len().min(range.end.saturating_sub(at));
    let _ = file.write_at(&bytes[..len], (base + at) as u64);
}

/// Where the Worker's shared memory is in this process: name, addresses.
fn shared_memory() -> Vec<(String, Range<usize>)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let parse = |line: &str| {
        let name = line.split_once("memfd:")?.1.split(' ').next()?.to_owned();
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((name, number(start)?..number(end)?))
    };
    maps.lines().filter_map(parse).collect()
}

/// The task that turns a child hostile: from then on a thread of its process writes, until the process ends.
fn turn_hostile(task: &mut Task<'_>) -> Result<(), Failure> {
    let mut random = Random::new(task.scalar(0)?);
    let extent = if task.scalar(1)? == 0 { Extent::Own } else { Extent::Everything };
    let targets: Vec<_> = shared_memory()
        .into_iter()
        .map(|(name, at)| (at.start, targets_in(&name, at.len(), extent)))
        .filter(|(_, targets)| !targets.is_empty())
        .collect();
    let system = |error: std::io::Error| Failure::new(ErrorCode::System, error.to_string());
    let memory = File::options().write(true).open("/proc/self/mem").map_err(system)?;
    // From a burst now and then, so that later calls may succeed, to all the time.
    let (burst, pause_us) = (1 << random.below(7), 50 << random.below(8));
    std::thread::spawn(move || {
        loop {
            for _ in 0..random.below(burst) {
                let (base, targets) = &targets[random.below(targets.len())];
                scribble(&memory, *base, targets, &mut random);
            }
            std::thread::sleep(Duration::from_micros(random.next() % pause_us));
        }
    });
    Ok(())
}

/// The same from the parent's own process, before there is a task that could do it: through the descriptors
/// that it holds.
fn scribble_from_outside(seed: u64, extent: Extent, stop: &AtomicBool) {
    let mut random = Random::new(seed);
    // Relaxed: nothing else is ordered by it.
    while !stop.load(Ordering::Relaxed) {
        let files: Vec<(File, Vec<Range<usize>>)> = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .flatten()
            .filter_map(|entry| opened(&entry.path(), extent))
            .collect();
        for _ in 0..20 {
            if !files.is_empty() {
                let (file, targets) = &files[random.below(files.len())];
                scribble(file, 0, targets, &mut random);
            }
            std::thread::sleep(Duration::from_micros(random.next() % 300));
        }
    }
}

/// A descriptor of the Worker's memory, opened again.
fn opened(path: &std::path::Path, extent: Extent) -> Option<(File, Vec<Range<usize>>)> {
    let name = |target: std::path::PathBuf| {
        Some(target.to_string_lossy().split_once("memfd:")?.1.split(' ').next()?.to_owned())
    };
    let before =
        name(std::fs::read_link(path).ok()?).filter(|name| !targets_in(name, 1 << 20, extent).is_empty())?;
    let file = File::options().read(true).write(true).open(path).ok()?;
    // The number may have been given to something else meanwhile.
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let len = file.metadata().ok()?.len() as usize;
    if name(std::fs::read_link(own).ok()?)? != before {
        return None;
    }
    // Nor may it be so new that it has no size yet: writing would give it one.
    let mut targets = targets_in(&before, len, extent);
    targets.retain(|range| !range.is_empty() && range.end <= len);
    (!targets.is_empty()).then_some((file, targets))
}

fn double(task: &mut Task<'_>) -> Result<(), Failure> {
    let input = task.read::<f32>(0)?;
    task.write(1, &input.iter().map(|x| 2.0 * x).collect::<Vec<_>>())
}

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

fn within(limit: Duration) -> Timeout {
    Timeout::new(limit).unwrap()
}

/// Runs `call` and holds it to its deadline.
fn timed<T>(what: &str, limit: Duration, call: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let value = call();
    let took = started.elapsed();
    assert!(took <= limit + SLACK, "{what} took {took:?} of {limit:?}");
    value
}

/// A Worker with a hostile chip, and what it works with.
struct Assault {
    extent: Extent,
    random: Random,
    worker: Worker,
    double: Program,
    nothing: Program,
    turn_hostile: Program,
    x: HostBuffer<f32>,
    y: HostBuffer<f32>,
    succeeded: usize,
    failed: usize,
}

impl Assault {
    fn new(seed: u64, extent: Extent) -> Self {
        let mut worker = Worker::builder()
            .devices(&[0, 1])
            .sub_workers(CHILDREN - CHIPS)
            .init_within(within(INIT))
            .run_within(within(RUN))
            .close_within(within(CLOSE))
            .build()
            .unwrap();
        form_group(&mut worker, CHIPS, 64);
        let (double, nothing, turn_hostile) = (
            worker.register_function("double", double),
            worker.register_function("nothing", nothing),
            worker.register_function("turn_hostile", turn_hostile),
        );
        let (x, y) = (worker.host_buffer(4).unwrap(), worker.host_buffer(4).unwrap());
        x.write(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        let random = Random::new(seed);
        Self { extent, random, worker, double, nothing, turn_hostile, x, y, succeeded: 0, failed: 0 }
    }

    /// One cycle of the Worker: up, hostile, some calls, down.
    fn cycle(&mut self) {
        let (seed, extent) = (self.random.next(), self.extent);
        let up = if self.random.below(3) == 0 {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| scribble_from_outside(seed, extent, &stop));
                let up = timed("init", INIT, || self.worker.init());
                // Relaxed: as above.
                stop.store(true, Ordering::Relaxed);
                up
            })
        } else {
            timed("init", INIT, || self.worker.init())
        };
        self.count(&up);
        if up.is_ok() {
            let args = Args::new().scalar(seed).scalar(u64::from(extent == Extent::Everything));
            let program = self.turn_hostile;
            let turned =
                timed("run", RUN, || self.worker.run(|orch| orch.submit_next_level(program, &args, HOSTILE)));
            self.count(&turned);
            for _ in 0..12 {
                if self.call().is_err_and(|reported| text(&reported).contains("initialised again")) {
                    break;
                }
            }
        }
        let closed = timed("close", CLOSE, || self.worker.close());
        self.count(&closed);
        assert!(children_of(std::process::id()).is_empty(), "processes are left");
    }

    fn count<T>(&mut self, outcome: &Result<T, Failure>) {
        match outcome {
            Ok(_) => self.succeeded += 1,
            Err(reported) => {
                assert!(!text(reported).chars().any(|c| c != '\n' && c.is_control()), "{reported:?}");
                self.failed += 1;
            }
        }
    }

    fn call(&mut self) -> Result<(), Failure> {
        let outcome = match self.random.below(5) {
            0 => self.run_tasks(),
            1 => self.run_many_tasks(),
            2 => self.run_domain(),
            3 => self.use_memory(),
            _ => self.register_late(),
        };
        self.count(&outcome);
        outcome
    }

    fn run(
        &mut self,
        body: impl FnOnce(&mut Orchestrator<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        timed("run", RUN, || self.worker.run(body))
    }

    /// What the other chip was asked for has happened when the run says so.
    fn run_tasks(&mut self) -> Result<(), Failure> {
        self.y.write(&[0.0; 4])?;
        let args =
            Args::new().tensor(&self.x.tensor(), Access::Input).tensor(&self.y.tensor(), Access::Output);
        let (double, nothing) = (self.double, self.nothing);
        self.run(|orch| {
            orch.submit_next_level(double, &args, 0)?;
            orch.submit_next_level(nothing, &Args::new(), HOSTILE)?;
            orch.submit_sub(nothing, &Args::new()).map(drop)
        })?;
        if self.extent == Extent::Own {
            assert_eq!(self.y.to_vec(), [2.0, 4.0, 6.0, 8.0]);
        }
        Ok(())
    }

    /// More than the ring holds, with tasks that need each other.
    fn run_many_tasks(&mut self) -> Result<(), Failure> {
        let args = Args::new().tensor(&self.y.tensor(), Access::InOut);
        let nothing = self.nothing;
        self.run(|orch| {
            for task in 0..150 {
                orch.submit_next_level(nothing, &args, task % CHIPS)?;
            }
            Ok(())
        })
    }

    /// A domain that is handed out lies in the group's memory.
    fn run_domain(&mut self) -> Result<(), Failure> {
        let parts =
            shared_memory().into_iter().filter(|(name, _)| name == "chipcomm-group").map(|(_, at)| at);
        let group = parts.reduce(|all, part| all.start.min(part.start)..all.end.max(part.end));
        self.run(|orch| {
            let domain = orch.allocate_domain(
                "pair",
                &[0, HOSTILE],
                4096,
                &[("x", DType::Float32, 8), ("y", DType::Uint8, 64)],
            )?;
            for context in domain.contexts() {
                let (start, size) = (context.window_base.0 as usize, context.window_size);
                let group = group.clone().unwrap();
                assert!(size >= 4096 && group.start <= start && start + size <= group.end, "{context:?}");
            }
            Ok(())
        })
    }

    /// Memory that the parent made holds what the parent wrote, and a window can be read.
    fn use_memory(&mut self) -> Result<(), Failure> {
        let memory = self.worker.chip_alloc(0, 64)?;
        let mut back = [0; 64];
        self.worker.copy_to(0, memory.addr(), &[7; 64])?;
        self.worker.copy_from(0, memory.addr(), &mut back)?;
        assert_eq!(back, [7; 64]);
        let data = self.worker.chip_contexts()?[HOSTILE].buffer("data")?.addr;
        self.worker.copy_to(HOSTILE, data, &[1; 64])?;
        self.worker.copy_from(HOSTILE, data, &mut back)
    }

    /// A program that the children do not have yet.
    fn register_late(&mut self) -> Result<(), Failure> {
        let name = format!("later {}", self.random.next());
        let later = self.worker.register_function(&name, nothing);
        self.run(|orch| {
            (0..CHIPS).try_for_each(|chip| orch.submit_next_level(later, &Args::new(), chip).map(drop))
        })
    }
}

/// Where the hostile child's words are: its own part of the control block begins with how far it is.
fn done_word() -> u64 {
    let (_, at) = shared_memory().into_iter().find(|(name, _)| name == "chipcomm-worker").unwrap();
    (at.start + targets_in("chipcomm-worker", at.len(), Extent::Own)[0].start) as u64
}

/// Claims to have finished what it was never sent, and does nothing more.
fn overclaim(_: &mut Task<'_>) -> Result<(), Failure> {
    let memory = File::options().write(true).open("/proc/self/mem").unwrap();
    memory.write_at(&1000_u64.to_le_bytes(), done_word()).unwrap();
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

#[test]
#[serial]
fn f29_a_chip_that_claims_more_than_it_was_sent_is_not_believed() {
    let before = traces();
    let mut worker = Worker::builder().devices(&[0, 1]).sub_workers(CHILDREN - CHIPS).build().unwrap();
    form_group(&mut worker, CHIPS, 64);
    let overclaim = worker.register_function("overclaim", overclaim);
    worker.init().unwrap();
    says(
        worker.run(|orch| orch.submit_next_level(overclaim, &Args::new(), HOSTILE)),
        "pid …, in run: protocol error: chip 1 (pid …) claims to have finished 1000 of … tasks; it runs another build, or something \
         overwrote its memory",
    );
    says(
        worker.run(|_| Ok(())),
        "…a process of this Worker sent what no process of this build sends; the Worker must be closed and initialised again: \
         …claims to have finished 1000 of …",
    );
    drop(worker);
    assert_eq!(traces(), before);
}

/// So many cycles of a Worker for each of `seeds`.
fn run_cycles(seeds: Range<u64>, cycles: usize) {
    let before = traces();
    for seed in seeds {
        for extent in [Extent::Own, Extent::Everything] {
            println!("seed {seed}, {extent:?}");
            let mut assault = Assault::new(seed, extent);
            (0..cycles).for_each(|_| assault.cycle());
            println!("  {} calls succeeded, {} failed", assault.succeeded, assault.failed);
            assert!(assault.succeeded > 0, "nothing was tried");
        }
    }
    assert_eq!(traces(), before);
}

#[test]
#[serial]
fn f29_a_hostile_child_cannot_crash_or_hang_its_parent() {
    run_cycles(1..4, 6);
}

#[test]
#[serial]
#[ignore = "minutes long; the same with more seeds"]
fn f29_a_hostile_child_cannot_crash_or_hang_its_parent_with_many_seeds() {
    run_cycles(100..200, 10);
}
