//! Memory of chips, as the parent copies to it and from it.
#![allow(missing_docs)]

mod support;

use serial_test::serial;
use support::{grouped, text};
use worker_orch::{DeviceAddr, ErrorCode, Worker};

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
