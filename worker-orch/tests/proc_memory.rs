//! Memory of chips, as the parent copies to it and from it, and as tasks reach it.
#![allow(missing_docs)]

mod support;

use serial_test::serial;
use support::{grouped, plain, text};
use worker_orch::{Access, Args, DeviceAddr, ErrorCode, Failure, Task, Worker};

/// Both copies of `len` bytes at `addr` of `chip` are refused; the text of the refusal.
fn refused(worker: &mut Worker, chip: usize, addr: DeviceAddr, len: usize) -> String {
    let mut bytes = vec![0; len];
    let to = worker.copy_to(chip, addr, &bytes).expect_err("copy_to accepted it");
    let from = worker.copy_from(chip, addr, &mut bytes).expect_err("copy_from accepted it");
    assert_eq!((to.code, from.code), (ErrorCode::Invalid, ErrorCode::Invalid), "{to}; {from}");
    let without_phase = |text: String| text.replace("copy_from", "copy_to");
    assert_eq!(without_phase(text(&to)), without_phase(text(&from)));
    text(&to)
}

/// WO-11
#[test]
#[serial]
fn f67_copies_take_live_memory_of_that_chip_only() {
    let mut worker = grouped(2, 16);
    let on_host = worker.host_buffer::<u8>(64).unwrap();
    worker.init().unwrap();
    let memory = worker.chip_alloc(1, 64).unwrap();
    let (start, inside) = (memory.addr(), DeviceAddr(memory.addr().0 + 32));
    worker.copy_to(1, inside, &[7; 32]).unwrap();
    worker.copy_to(1, inside, &[]).unwrap();
    // Of another chip.
    let other = refused(&mut worker, 0, inside, 32);
    assert!(other.contains("belong to chip 1"), "{other}");
    // Beyond its end, although the heap goes on there.
    let beyond = refused(&mut worker, 1, inside, 33);
    assert!(beyond.contains("not inside"), "{beyond}");
    // Not a chip's at all.
    let host = refused(&mut worker, 0, DeviceAddr(on_host.tensor().addr), 64);
    assert!(host.contains("HostBuffer"), "{host}");
    // Of another chip's window; on devices it may have the same address as this one's.
    let contexts = worker.chip_contexts().unwrap();
    let windows = [0, 1].map(|chip| contexts[chip].buffer("data").unwrap().addr);
    worker.copy_to(1, windows[1], &[1; 64]).unwrap();
    if windows[0] != windows[1] {
        let other = refused(&mut worker, 0, windows[1], 64);
        assert!(other.contains("belong to chip 1"), "{other}");
    }
    // Freed.
    drop(memory);
    let freed = refused(&mut worker, 1, start, 64);
    assert!(freed.contains("freed"), "{freed}");
    // Of the Worker's last life.
    let old = worker.chip_alloc(0, 64).unwrap();
    worker.close().unwrap();
    worker.init().unwrap();
    assert!(refused(&mut worker, 0, old.addr(), 64).contains("freed"));
}

fn read_it(task: &mut Task<'_>) -> Result<(), Failure> {
    task.read::<f32>(0).map(drop)
}

fn write_it(task: &mut Task<'_>) -> Result<(), Failure> {
    task.write(0, &[1.0_f32])
}

#[test]
#[serial]
fn f75_a_tensor_of_another_worker_is_called_foreign_and_not_a_matter_of_communicators() {
    let other = plain(1);
    let foreign = other.host_buffer::<f32>(16).unwrap().tensor();
    let mut worker = plain(1);
    let programs =
        [("read_it", read_it as fn(&mut Task<'_>) -> _), ("write_it", write_it)].map(|(name, function)| {
            let bytes = if name == "read_it" { 64 } else { 4 };
            (worker.register_function(name, function), bytes)
        });
    worker.init().unwrap();
    for (program, bytes) in programs {
        let args = Args::new().tensor(&foreign, Access::InOut);
        let told = text(&worker.run(|orch| orch.submit_next_level(program, &args, 0)).unwrap_err());
        let what = format!("{bytes} bytes at {:#x} are not memory of device 0", foreign.addr);
        assert!(told.contains(&what) && told.contains("pass a host buffer of the same Worker"), "{told}");
        assert!(!told.contains("communicator"), "{told}");
    }
}
