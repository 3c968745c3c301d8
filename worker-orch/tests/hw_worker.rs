//! Workers on devices: `cargo xtask hw-test --layer worker`, with `--double` where there is none.

#[path = "hw_worker/graphs.rs"]
mod graphs;
mod support;

use cann_sim::Kind;
use cann_sim::hw_test::{self, kernel, session as double};
use comm_context::abi::DType;
use comm_context::comm::Membership;
use support::{secs, text};
use worker_orch::*;

const COUNT: usize = 256;

fn devices() -> Vec<i32> {
    hw_test::at_least(2).into_iter().map(|device| device as i32).collect()
}

/// How many processes the double has seen so far.
fn seen() -> usize {
    double().map_or(0, |session| session.report().unwrap().processes.len())
}

/// Every process since then released everything itself; the runtime lasts as long as its process.
fn assert_released_since(before: usize, processes: usize) {
    let Some(session) = double() else { return };
    let report = session.report().unwrap();
    let ours = &report.processes[before..];
    let live = ours.iter().flat_map(|process| &process.live).filter(|(kind, _)| *kind != Kind::Runtime);
    let reclaimed = ours.iter().flat_map(|process| &process.reclaimed);
    assert!(ours.len() == processes && live.chain(reclaimed).count() == 0, "{report}");
}

fn plain() -> Worker {
    let platform = hw_test::platform().parse().unwrap();
    let builder = Worker::builder().platform(platform).devices(&devices());
    builder.init_within(secs(120)).run_within(secs(120)).close_within(secs(20)).build().unwrap()
}

/// A Worker whose chips form a group, each with a buffer `data` of [`COUNT`] floats.
fn grouped() -> Worker {
    let mut worker = plain();
    let chips = devices().len() as u32;
    let configs = devices().into_iter().enumerate().map(|(rank, device)| {
        let me = Membership::new(rank as u32, chips).unwrap();
        ChipConfig::new(device)
            .communicator(me)
            .window(1 << 16)
            .buffer("data", DType::Float32, COUNT)
            .region("signals", 64)
            .buffer("inbox", DType::Float32, COUNT)
    });
    worker.configure_chips(configs.collect()).unwrap();
    worker
}

// WO-1, WO-3
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer worker"]
fn chips_run_kernels_on_host_buffers_windows_and_memory_of_their_own() {
    let before = seen();
    let mut worker = grouped();
    let chips = devices().len();
    let add = worker.register_kernel(&kernel("add")).unwrap();
    let early = worker.host_buffer::<f32>(COUNT).unwrap();
    worker.init().unwrap();
    let pass = worker.register_kernel(&kernel("pass")).unwrap();
    let late = worker.host_buffer::<f32>(COUNT).unwrap();
    early.write(&[1.0; COUNT]).unwrap();
    let contexts = worker.chip_contexts().unwrap().to_vec();
    let memory: Vec<ChipMemory> =
        (0..chips).map(|chip| worker.chip_alloc(chip, COUNT * 4).unwrap()).collect();
    let own = |chip: usize| flat_tensor(memory[chip].addr(), DType::Float32, COUNT).unwrap();
    let last = chips - 1;
    // One chain over host buffer, chip memory, window and a host buffer again; the last two steps on another
    // chip.
    worker
        .run(|orch| {
            let step = |from, to, plus| {
                Args::new().tensor(&from, Access::Input).tensor(&to, Access::Output).scalar(plus)
            };
            orch.submit_next_level(add, &step(early.tensor(), own(0), 1), 0)?;
            orch.submit_next_level(add, &step(own(0), contexts[0].buffer("data")?.tensor()?, 2), 0)?;
            orch.submit_next_level(add, &step(contexts[0].buffer("data")?.tensor()?, late.tensor(), 4), 0)?;
            orch.submit_next_level(add, &step(late.tensor(), own(last), 8), last)?;
            orch.submit_next_level(add, &step(own(last), early.tensor(), 16), last)
        })
        .unwrap();
    assert_eq!(late.to_vec(), vec![8.0; COUNT]);
    assert_eq!(early.to_vec(), vec![32.0; COUNT]);
    let mut bytes = [0; 4];
    worker.copy_from(0, contexts[0].buffer("data").unwrap().addr, &mut bytes).unwrap();
    assert_eq!(f32::from_le_bytes(bytes), 4.0, "the window, read by the parent");
    worker.copy_to(last, memory[last].addr(), &7.5_f32.to_le_bytes()).unwrap();
    worker.copy_from(last, memory[last].addr(), &mut bytes).unwrap();
    assert_eq!(f32::from_le_bytes(bytes), 7.5, "what was copied to the chip");
    drop(memory);

    worker
        .run(|orch| {
            for (chip, context) in contexts.iter().enumerate() {
                let args = Args::new().scalar(context.device_ctx.0).scalar(context.buffer("data")?.addr.0);
                orch.submit_next_level(pass, &args, chip)?;
            }
            Ok(())
        })
        .unwrap();
    for (chip, context) in contexts.iter().enumerate() {
        worker.copy_from(chip, context.buffer("data").unwrap().addr, &mut bytes).unwrap();
        let writer = (chip + chips - 1) % chips;
        assert_eq!(f32::from_le_bytes(bytes), (writer + 1) as f32, "what chip {writer} passed on");
    }
    let outside = worker.copy_from(0, comm_context::abi::DeviceAddr(64), &mut bytes).unwrap_err();
    assert!(text(&outside).contains("4 bytes at 0x40"), "{outside}");
    let beyond = comm_context::abi::DeviceAddr(u64::MAX - 2);
    for reported in [worker.copy_to(0, beyond, &bytes), worker.copy_from(0, beyond, &mut bytes)] {
        assert!(text(&reported.unwrap_err()).contains("are not inside memory"));
    }
    worker.close().unwrap();
    assert_released_since(before, chips);
}

// WO-8, F27
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer worker"]
fn f27_domains_are_made_in_a_run_and_go_with_it() {
    let before = seen();
    let mut worker = plain();
    let pass = worker.register_kernel(&kernel("pass")).unwrap();
    let chips: Vec<usize> = (0..devices().len()).collect();
    worker.init().unwrap();
    for _ in 0..3 {
        let domain = worker
            .run(|orch| {
                let domain = orch.allocate_domain("pair", &chips, 4096, &[("x", DType::Float32, 16)])?;
                for context in domain.contexts() {
                    let args = Args::new().scalar(context.device_ctx.0).scalar(context.buffer("x")?.addr.0);
                    orch.submit_next_level(pass, &args, context.chip)?;
                }
                Ok(domain)
            })
            .unwrap();
        assert_eq!(domain.contexts().len(), chips.len());
    }
    worker.close().unwrap();
    assert_released_since(before, chips.len());
}

// WO-3: windows of several devices stand at the same addresses, and tasks on them need not wait for each
// other.
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer worker"]
fn tasks_on_the_windows_of_several_devices_overlap() {
    let mut worker = grouped();
    let meet = worker.register_kernel(&kernel("meet")).unwrap();
    worker.init().unwrap();
    let contexts = worker.chip_contexts().unwrap().to_vec();
    worker
        .run(|orch| {
            for (chip, context) in contexts.iter().enumerate() {
                let data = context.buffer("data")?.tensor()?;
                let args = Args::new().tensor(&data, Access::InOut).scalar(context.device_ctx.0);
                orch.submit_next_level(meet, &args, chip)?;
            }
            Ok(())
        })
        .unwrap();
    worker.close().unwrap();
}

// WO-13
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer worker"]
fn a_kernel_runs_once_for_each_block_and_knows_which() {
    let before = seen();
    let mut worker = plain();
    let program = worker.register_kernel(&kernel("blocks")).unwrap();
    worker.init().unwrap();
    // Fewer than a chip has cores, and more.
    for blocks in [1, 3, 300] {
        let out = worker.host_buffer::<f32>(blocks as usize * 16).unwrap();
        let args = Args::new().tensor(&out.tensor(), Access::InOut).blocks(blocks);
        worker
            .run(|orch| {
                orch.submit_next_level(program, &args, 0)?;
                orch.submit_next_level(program, &args, 1)
            })
            .unwrap();
        for (block, slot) in out.to_vec().chunks_exact(16).enumerate() {
            assert_eq!(slot[..3], [2.0 * (block + 1) as f32, blocks as f32, 0.0], "block {block}");
        }
    }
    worker.close().unwrap();
    assert_released_since(before, devices().len());
}

fn refuses(_: &mut Task<'_>) -> Result<(), Failure> {
    Err(Failure::new(ErrorCode::Task, "no, thank you"))
}

fn dies(_: &mut Task<'_>) -> Result<(), Failure> {
    std::process::abort()
}

// WO-2, WO-4, F33
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer worker"]
fn f33_a_failure_on_a_device_reaches_run_and_the_next_run_is_clean() {
    let before = seen();
    let mut worker = plain();
    let refuses = worker.register_function("refuses", refuses);
    let add = worker.register_kernel(&kernel("add")).unwrap();
    let path = kernel("add");
    let missing = worker.register_kernel_symbol(&path, "no_such_kernel").unwrap();
    worker.init().unwrap();
    let x = worker.host_buffer::<f32>(COUNT).unwrap();
    let reported = worker.run(|orch| orch.submit_next_level(refuses, &Args::new(), 0)).unwrap_err();
    assert!(text(&reported).contains("no, thank you") && text(&reported).contains("chip 0"), "{reported}");
    let reported = worker.run(|orch| orch.submit_next_level(missing, &Args::new(), 0)).unwrap_err();
    assert!(text(&reported).contains("no_such_kernel"), "{reported}");
    let args = Args::new().tensor(&x.tensor(), Access::Input).tensor(&x.tensor(), Access::InOut).scalar(5);
    worker.run(|orch| orch.submit_next_level(add, &args, 0)).unwrap();
    assert_eq!(x.to_vec(), vec![5.0; COUNT]);
    worker.close().unwrap();
    assert_released_since(before, devices().len());
}

// WO-4, F02
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer worker"]
fn f02_a_chip_that_dies_ends_the_run_and_the_next_init_works() {
    let mut worker = grouped();
    let dies = worker.register_function("dies", dies);
    worker.init().unwrap();
    let reported = worker.run(|orch| orch.submit_next_level(dies, &Args::new(), 1)).unwrap_err();
    assert!(text(&reported).contains("chip 1") && text(&reported).contains("SIGABRT"), "{reported}");
    let again = worker.run(|_| Ok(())).unwrap_err();
    assert!(text(&again).contains("chip 1"), "{again}");
    let _ = worker.close();
    worker.init().unwrap();
    worker.run(|_| Ok(())).unwrap();
    worker.close().unwrap();
}

// WO-1, F01
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer worker"]
fn f01_a_device_that_is_not_there_fails_init_with_its_phase() {
    let mut worker = Worker::builder()
        .platform(hw_test::platform().parse().unwrap())
        .devices(&[devices()[0], 63])
        .init_within(secs(60))
        .build()
        .unwrap();
    let reported = text(&worker.init().unwrap_err());
    assert!(
        reported.contains("chip 1 bootstrap failed")
            && reported.contains("63")
            && reported.contains("device"),
        "{reported}"
    );
}
