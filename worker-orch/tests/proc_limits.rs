//! What a Worker costs and holds: time, processors, descriptors, outputs, error texts.
#![allow(missing_docs)]

mod support;

use comm_context::comm::{Membership, Timeout};
use serial_test::serial;
use std::time::{Duration, Instant};
use support::{children_of, grouped, is_the_doubles, plain, secs, text};
use worker_orch::{
    Access, Args, ChipConfig, DType, DeviceAddr, ErrorCode, Failure, Platform, Task, Worker, flat_tensor,
};

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

fn refuse(_: &mut Task<'_>) -> Result<(), Failure> {
    Err(Failure::new(ErrorCode::Task, format!("head of the text {} tail of the text", "x".repeat(100_000))))
}

fn wait_long(_: &mut Task<'_>) -> Result<(), Failure> {
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

fn touch(task: &mut Task<'_>) -> Result<(), Failure> {
    let chip = task.chip().ok_or_else(|| Failure::new(ErrorCode::Invalid, "no chip"))?;
    let at = chip.buffer("out").ok_or_else(|| Failure::new(ErrorCode::Invalid, "no buffer"))?.addr;
    Ok(chip.write(at, &[7; 64])?)
}

#[test]
#[serial]
fn f31_outputs_are_on_the_host_before_a_task_is_reported_done() {
    let mut worker = plain(1);
    let (input, output) = (worker.host_buffer::<u8>(64).unwrap(), worker.host_buffer::<u8>(64).unwrap());
    input.write(&[3; 64]).unwrap();
    let config = ChipConfig::new(0)
        .communicator(Membership::new(0, 1).unwrap())
        .window(4096)
        .region("in", 64)
        .load_from(&input.span())
        .region("out", 64)
        .store_to(&output.span());
    worker.configure_chips(vec![config]).unwrap();
    let touch = worker.register_function("touch", touch);
    worker.init().unwrap();
    let mut staged = [0; 64];
    worker.copy_from(0, worker.chip_contexts().unwrap()[0].buffer("in").unwrap().addr, &mut staged).unwrap();
    assert_eq!(staged, [3; 64]);
    for _ in 0..100 {
        output.write(&[0; 64]).unwrap();
        worker.run(|orch| orch.submit_next_level(touch, &Args::new(), 0)).unwrap();
        assert_eq!(output.to_vec(), [7; 64]);
    }
}

#[test]
#[serial]
fn f43_an_idle_worker_uses_next_to_no_processor_time() {
    let mut worker = plain(16);
    worker.init().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let ticks = || -> u64 {
        let stat = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let times = |stat: String| {
            let fields: Vec<u64> = stat[stat.rfind(')').unwrap_or(0)..]
                .split(' ')
                .filter_map(|field| field.parse().ok())
                .collect();
            fields.get(10).unwrap_or(&0) + fields.get(11).unwrap_or(&0)
        };
        children_of(std::process::id()).into_iter().map(|pid| times(stat(pid))).sum()
    };
    let before = ticks();
    std::thread::sleep(Duration::from_secs(1));
    // A tick is 10 ms: one of them is the 1 % of a second.
    assert!(ticks() - before <= 1, "{} ticks of 10 ms in a second", ticks() - before);
}

#[test]
#[serial]
fn f04_chips_hold_only_the_descriptors_they_need() {
    let secret = std::fs::File::open("/proc/self/status").unwrap();
    let mut worker = grouped(3, 16);
    worker.init().unwrap();
    for chip in children_of(std::process::id()) {
        let held: Vec<String> = std::fs::read_dir(format!("/proc/{chip}/fd"))
            .unwrap()
            .flatten()
            .filter(|entry| !["0", "1", "2"].contains(&entry.file_name().to_string_lossy().as_ref()))
            .map(|entry| std::fs::read_link(entry.path()).unwrap().to_string_lossy().into_owned())
            // It may be reading what it may use of the machine.
            .filter(|name| {
                !is_the_doubles(name) && !name.ends_with("/cgroup") && !name.contains("/sys/fs/cgroup")
            })
            .collect();
        // Its parent-death pipe, its liveness pipe, and the memory of its group: the control part, and one part for each
        // chip that has its windows in host memory.
        let parts = if support::platform() == Platform::Sim { 4 } else { 1 };
        assert_eq!(held.len(), 2 + parts, "{held:?}");
        assert!(
            held.iter().all(|name| name.starts_with("pipe:") || name.contains("chipcomm-group")),
            "{held:?}"
        );
    }
    drop(secret);
}

/// WO-4: a process has the same number in `ps` as in an error.
#[test]
#[serial]
fn f44_ps_names_chips_workers_and_sub_workers() {
    let mut worker = support::builder(2).sub_workers(2).build().unwrap();
    assert_eq!(names_after_init(&mut worker), ["chip0", "chip1", "sub0", "sub1"]);
    drop(worker);
    let mut above = Worker::builder().level(4).sub_workers(1).build().unwrap();
    (0..2).for_each(|_| above.add_worker(plain(1)).unwrap());
    assert_eq!(names_after_init(&mut above), ["sub0", "wkr0", "wkr1"]);
}

/// What `ps -o comm` shows of the children that begins with `chipcomm:`, sorted.
fn names_after_init(worker: &mut Worker) -> Vec<String> {
    worker.init().unwrap();
    let shown = children_of(std::process::id()).into_iter().map(|pid| {
        let out = std::process::Command::new("ps").args(["-o", "comm=", "-p", &pid.to_string()]).output();
        String::from_utf8(out.unwrap().stdout).unwrap()
    });
    let mut names: Vec<String> =
        shown.filter_map(|name| Some(name.trim().strip_prefix("chipcomm:")?.to_owned())).collect();
    names.sort();
    names
}

#[test]
#[serial]
fn f05_time_before_a_run_is_not_charged_to_it() {
    let mut worker = plain(2);
    let nothing = worker.register_function("nothing", nothing);
    worker.set_run_within(Timeout::new(Duration::from_millis(400)).unwrap());
    worker.init().unwrap();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(500));
        worker.run(|orch| orch.submit_next_level(nothing, &Args::new(), 0)).unwrap();
    }
}

/// F06: one deadline for a run, however many waits it has.
#[test]
#[serial]
fn f06_a_run_has_one_deadline() {
    let mut worker = plain(2);
    let wait_long = worker.register_function("wait_long", wait_long);
    let x = worker.host_buffer::<f32>(1).unwrap();
    worker.init().unwrap();
    worker.set_run_within(Timeout::new(Duration::from_millis(200)).unwrap());
    let started = Instant::now();
    let reported = worker.run(|orch| {
        let args = Args::new().tensor(&x.tensor(), Access::InOut);
        // Far more than the ring holds: the submit itself has to give up.
        (0..1000).try_for_each(|step| orch.submit_next_level(wait_long, &args, step % 2).map(drop))
    });
    assert_eq!(reported.unwrap_err().root_cause().code, ErrorCode::TimedOut);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(secs(1).get() > Duration::ZERO);
}

#[test]
#[serial]
fn f34_a_long_error_is_cut_visibly() {
    let mut worker = plain(1);
    let refuse = worker.register_function("refuse", refuse);
    worker.init().unwrap();
    let reported = text(&worker.run(|orch| orch.submit_next_level(refuse, &Args::new(), 0)).unwrap_err());
    for part in ["head of the text", "bytes cut", "tail of the text"] {
        assert!(reported.contains(part), "{part} is missing");
    }
    assert!(reported.len() < 10_000, "{} bytes", reported.len());
}

#[test]
#[serial]
fn f08_a_parent_full_of_busy_threads_brings_its_chips_up() {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // Holds the allocator's and the standard output's locks as often as it can.
                while !stop.load(std::sync::atomic::Ordering::Acquire) {
                    let text = vec![0_u8; 5000];
                    let _ = std::io::Write::write(&mut std::io::stderr().lock(), &text[..0]);
                }
            });
        }
        for _ in 0..20 {
            let mut worker = grouped(2, 16);
            let nothing = worker.register_function("nothing", nothing);
            worker.init().unwrap();
            worker.run(|orch| orch.submit_next_level(nothing, &Args::new(), 1)).unwrap();
            worker.close().unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Release);
    });
}

/// Element `index` of a host buffer of floats.
fn put_one(task: &mut Task<'_>) -> Result<(), Failure> {
    std::thread::sleep(Duration::from_millis(5));
    task.write(0, &[1.0_f32])
}

/// The sum of all tensors but the last goes into the last.
fn sum_up(task: &mut Task<'_>) -> Result<(), Failure> {
    let last = task.tensors().len() - 1;
    let mut sum = 0.0;
    for index in 0..last {
        sum += task.read::<f32>(index)?.iter().sum::<f32>();
    }
    task.write(last, &[sum])
}

/// WO-10: what a task takes does not depend on what else is under way.
#[test]
#[serial]
fn f70_a_task_takes_as_many_arguments_however_many_producers_are_under_way() {
    const PRODUCERS: usize = 48;
    let mut worker = plain(PRODUCERS + 1);
    let (put_one, sum_up, nothing) = (
        worker.register_function("put_one", put_one),
        worker.register_function("sum_up", sum_up),
        worker.register_function("nothing", nothing),
    );
    let (x, sum) = (worker.host_buffer::<f32>(PRODUCERS).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    let full = |tensors: usize, scalars: usize| {
        let args = (1..tensors).fold(Args::new(), |args, _| args.tensor(&x.tensor(), Access::Input));
        let args = args.tensor(&sum.tensor(), Access::Output);
        (0..scalars).fold(args, |args, scalar| args.scalar(scalar as u64))
    };
    for tensors in [13, 32] {
        x.write(&[0.0; PRODUCERS]).unwrap();
        worker
            .run(|orch| {
                for chip in 0..PRODUCERS {
                    let at = DeviceAddr(x.tensor().addr + 4 * chip as u64);
                    let own = flat_tensor(at, DType::Float32, 1)?;
                    orch.submit_next_level(put_one, &Args::new().tensor(&own, Access::Output), chip)?;
                }
                orch.submit_next_level(sum_up, &full(tensors, 16), PRODUCERS)
            })
            .unwrap();
        assert_eq!(sum.to_vec(), [((tensors - 1) * PRODUCERS) as f32]);
    }
    // More is refused before anything is sent, and the run goes on.
    worker
        .run(|orch| {
            for (args, word) in [(full(33, 0), "33 tensors"), (full(1, 17), "17 scalars")] {
                let refused = orch.submit_next_level(sum_up, &args, 0).unwrap_err();
                assert_eq!(refused.code, ErrorCode::Invalid);
                assert!(text(&refused).contains(word) && text(&refused).contains("at most"), "{refused}");
                let group = [(1, Args::new()), (2, args)];
                assert!(text(&orch.submit_group(sum_up, &group).unwrap_err()).contains(word));
            }
            orch.submit_next_level(nothing, &Args::new(), 2)
        })
        .unwrap();
}
