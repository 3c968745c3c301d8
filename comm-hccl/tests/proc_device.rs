//! The device layer on the double: windows between processes, contexts, ids, the fatal path.
//!
//! # Safety
//! Makes one vendor call directly and forks once; each says why it is sound.
#![allow(unsafe_code)]

mod support;

use cann_sim::{Kind, SessionReport};
use comm_context::abi::DeviceAddr;
use comm_hccl::*;
use std::time::{Duration, Instant};
use support::scenario::*;
use support::*;

/// Two ranks that use everything succeed and leave nothing, in every numbering of devices.
#[test]
fn two_ranks_that_use_everything_leave_nothing() {
    for (config, visible) in [("", None), ("physical-base = 16", Some("5,2")), ("devices = 2", Some("0,1"))] {
        let double = double(config);
        let kernel = compile_kernel(double.dir.path());
        let mut environment = vec![(KERNEL_VARIABLE, kernel.to_str().unwrap())];
        environment.extend(visible.map(|list| (VisibleDevices::VARIABLE, list)));
        for output in run_pair(&double, "part_everything", &environment) {
            assert_success(&output);
            assert_eq!(outcome(&output).as_deref(), Some("ok"), "{}", text(&output));
        }
        let report = double.session.report().unwrap();
        assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
    }
}

#[test]
#[ignore = "a part of two_ranks_that_use_everything_leave_nothing"]
fn part_everything() {
    if let Some(rank) = my_rank() {
        report(full_cycle(rank));
    }
}

// F11, HC-5
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn f11_a_thousand_windows_of_each_mode_do_not_grow() {
    let double = double("");
    for mode in ["0", "1", "2"] {
        assert_both(&run_pair(&double, "part_cycles", &[("CHIPCOMM_TEST_MODE", mode)]));
    }
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == 6 && report.is_clean(), "{report}");
}

#[test]
#[ignore = "a part of f11_a_thousand_windows_of_each_mode_do_not_grow"]
fn part_cycles() {
    let Some(rank) = my_rank() else { return };
    let mode = ShareMode::ALL[std::env::var("CHIPCOMM_TEST_MODE").unwrap().parse::<usize>().unwrap()];
    let (runtime, device) = open_device(rank);
    let mut socket = other_rank();
    let mut held = || {
        share_window(&device, mode, rank, &mut socket).unwrap();
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mapped = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        (open, mapped)
    };
    let before = held();
    for _ in 1..999 {
        held();
    }
    let after = held();
    assert_eq!(before.0, after.0, "descriptors");
    // The allocator may map more memory now and then; a leak would be a thousand mappings.
    assert!(after.1 < before.1 + 20, "mappings: {} before, {} after", before.1, after.1);
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// F14, HC-6
#[test]
fn f14_the_barrier_restores_the_context() {
    let double = double("");
    assert_both(&run_pair(&double, "part_barrier", &[]));
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
}

#[test]
#[ignore = "a part of f14_the_barrier_restores_the_context"]
fn part_barrier() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let mut socket = other_rank();
    let root = (rank == 0).then(|| RootInfo::open(&device).unwrap());
    let sent = root.map_or([0; RootInfo::LEN], |r| *r.as_bytes());
    let received = swap(&mut socket, &sent);
    let root = RootInfo::from_bytes(if rank == 0 { &sent } else { &received });
    let group = Group::join(&device, &root, 2, rank).unwrap();
    let stream = Stream::create(&device).unwrap();
    for _ in 0..100 {
        group.barrier(&stream).unwrap();
        stream.synchronize().unwrap();
    }
    // The direct vendor call shows that the double really switches the context, so that the loop above proves something.
    // SAFETY: communicator and stream are alive.
    let code = unsafe { (device.vendor().hccl().HcclBarrier)(group.as_raw(), stream.as_raw()) };
    assert_eq!(code, 0);
    let error = stream.synchronize().expect_err("a switched context");
    assert!(matches!(&error, DeviceError::Vendor(e) if e.code == Code::Acl(507018)), "{error}");
    device.bind_thread().unwrap();
    stream.synchronize().unwrap();
    group.release().unwrap();
    stream.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

#[test]
fn each_mode_that_the_machine_lacks_is_refused_as_unsupported() {
    for (config, mode) in [
        ("fabric = off", "0"),
        ("shareable = off", "1"),
        ("ipc = off", "2"),
        ("peer-access = off", "1"),
        ("peer-access = off", "2"),
    ] {
        let double = double(config);
        for output in run_pair(&double, "part_unsupported", &[("CHIPCOMM_TEST_MODE", mode)]) {
            assert_success(&output);
            let outcome = outcome(&output).unwrap();
            assert!(outcome.starts_with("unsupported: "), "{config}: {outcome}");
        }
        let report = double.session.report().unwrap();
        assert!(report.processes.len() == 2 && report.is_clean(), "{config}: {report}");
    }
}

#[test]
#[ignore = "a part of each_mode_that_the_machine_lacks_is_refused_as_unsupported"]
fn part_unsupported() {
    let Some(rank) = my_rank() else { return };
    let mode = ShareMode::ALL[std::env::var("CHIPCOMM_TEST_MODE").unwrap().parse::<usize>().unwrap()];
    let (runtime, device) = open_device(rank);
    let mut socket = other_rank();
    let shared = share_window(&device, mode, rank, &mut socket).expect_err("an unsupported mode");
    let unsupported = shared.downcast_ref::<DeviceError>().is_some_and(DeviceError::is_unsupported);
    println!("\noutcome: {}: {shared}", if unsupported { "unsupported" } else { "other" });
    device.close().unwrap();
    runtime.finalise().unwrap();
}

/// Runs a part in one process, with devices 2 and 3 of four, and returns the double's report.
fn alone(part: &str) -> SessionReport {
    let double = double("devices = 4\nphysical-base = 8");
    assert_success(&run_part(&double, part, &[(VisibleDevices::VARIABLE, "2,3")]));
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == 1 && report.processes[0].live.is_empty(), "{report}");
    report
}

// F12, HC-4
#[test]
fn f12_a_device_id_of_the_wrong_space_is_refused() {
    assert!(alone("part_ids").is_clean());
}

#[test]
fn a_wrong_size_range_or_file_is_refused_with_its_name() {
    assert!(alone("part_errors").is_clean());
}

// F08, HC-3
#[test]
fn f08_a_runtime_in_a_forked_child_is_refused() {
    assert!(alone("part_fork").is_clean());
}

// F25, HC-7
#[test]
fn f25_a_window_is_zero_before_there_is_a_ticket() {
    assert!(alone("part_zeroed").is_clean());
}

// HC-5
#[test]
fn the_first_error_of_what_is_released_is_that_of_close() {
    let double = double("");
    double.session.script("aclrtDestroyStream#1 return 507015\naclrtFree#1 return 507899").unwrap();
    assert_success(&run_part(&double, "part_first_error", &[]));
}

#[test]
#[ignore = "a part of the_first_error_of_what_is_released_is_that_of_close"]
fn part_first_error() {
    if my_rank().is_none() {
        return;
    }
    let (_runtime, device) = open_device(0);
    let (stream, memory) = (Stream::create(&device).unwrap(), DeviceMemory::allocate(&device, 4096).unwrap());
    // Both fail, and there is nobody to return that to.
    drop(stream);
    drop(memory);
    let error = device.close().expect_err("two releases failed");
    assert!(matches!(&error, DeviceError::Vendor(e) if e.code == Code::Acl(507015)), "{error}");
}

// F39, HC-8
#[test]
fn f39_after_a_device_is_abandoned_nothing_is_released() {
    let report = alone("part_abandon");
    let kinds: Vec<_> = report.processes[0].reclaimed.iter().map(|(kind, _)| *kind).collect();
    let held = [Kind::Stream, Kind::Memory, Kind::Physical, Kind::Reservation, Kind::Mapping];
    assert_eq!(kinds, held, "everything was left to the reset");
}

#[test]
fn only_a_process_that_is_allowed_opens_a_window() {
    assert!(alone("part_forbidden_import").is_clean());
}

#[test]
fn devices_without_a_path_between_them_are_named() {
    let double = double("peer-access = off");
    assert_success(&run_part(&double, "part_no_path", &[]));
}

#[test]
#[ignore = "a part of devices_without_a_path_between_them_are_named"]
fn part_no_path() {
    if my_rank().is_none() {
        return;
    }
    let (runtime, device) = open_device(0);
    let soon = Instant::now() + Duration::from_secs(60);
    let error = device.enable_peer(VisibleDevice(1), PhysicalDevice(1), soon).expect_err("no path");
    let text = "visible device 0 cannot reach the peer's visible device 1: there is no peer-to-peer path between them; \
                choose others";
    assert_eq!(error.to_string(), text);
    device.close().unwrap();
    runtime.finalise().unwrap();
}

#[test]
fn an_adopted_device_and_stream_stay_the_callers() {
    assert!(alone("part_adopt").is_clean());
}

#[test]
#[ignore = "a part of f12_a_device_id_of_the_wrong_space_is_refused"]
fn part_ids() {
    if my_rank().is_none() {
        return;
    }
    let runtime = Runtime::start(Vendor::load(None).unwrap()).unwrap();
    let list = VisibleDevices::from_env().unwrap();
    assert_eq!(runtime.device_count().unwrap(), 2);
    assert!(runtime.soc_name().contains("test double"));
    let error = Device::open(runtime, LogicalDevice(2), &list).expect_err("only two are visible");
    let text = "logical device 2 does not exist: this process sees 2 device(s); check `npu-smi info` and ASCEND_RT_VISIBLE_DEVICES";
    assert_eq!(error.to_string(), text);
    let device = Device::open(runtime, LogicalDevice(1), &list).unwrap();
    assert_eq!(device.visible(), VisibleDevice(3));
    assert_eq!(device.physical().unwrap(), PhysicalDevice(11));
    let error = Device::open(runtime, LogicalDevice(0), &list).expect_err("a second device");
    let text = "this process already drives logical device 1, so it cannot open logical device 0; start one process per device";
    assert_eq!(error.to_string(), text);
    let soon = Instant::now() + Duration::from_secs(60);
    let error = device.enable_peer(VisibleDevice(7), PhysicalDevice(15), soon).expect_err("not in the list");
    let text = "the peer's visible device 7 is not visible to this process; name the devices of all ranks in \
                ASCEND_RT_VISIBLE_DEVICES of every rank";
    assert_eq!(error.to_string(), text);
    let text = "logical device 1 cannot be closed: 1 object(s) of it are still alive; drop them first";
    assert_eq!(runtime.finalise().unwrap_err().to_string(), text);
    device.close().unwrap();
    // With a list that differs from the vendor's, the visible id is wrong, and the driver refuses it with 507899.
    let device = Device::open(runtime, LogicalDevice(0), &VisibleDevices::All).unwrap();
    let memory = PhysicalMemory::allocate(&device, 1, Pages::Normal).unwrap();
    let error = Mapping::new(memory).expect_err("a logical id where a visible one belongs");
    assert!(matches!(&error, DeviceError::Vendor(e) if e.code == Code::Acl(507899)), "{error}");
    device.close().unwrap();
    runtime.finalise().unwrap();
    let text =
        "the ACL runtime of this process was finalised and cannot be started again; start a new process";
    assert_eq!(Runtime::start(runtime.vendor()).unwrap_err().to_string(), text);
}

#[test]
#[ignore = "a part of a_wrong_size_range_or_file_is_refused_with_its_name"]
fn part_errors() {
    if my_rank().is_none() {
        return;
    }
    let (runtime, device) = open_device(0);
    let memory = DeviceMemory::allocate(&device, 8192).unwrap();
    let error = memory.write(8190, &[0; 3]).expect_err("beyond the end");
    let text =
        "3 bytes at offset 8190 do not fit into 8192 bytes of device memory; copy fewer, or allocate more";
    assert_eq!(error.to_string(), text);
    assert!(matches!(memory.read(usize::MAX, &mut [0]), Err(DeviceError::OutOfRange { .. })));
    let text = "0 bytes cannot be allocated; ask for at least 1 and less than half the address space";
    assert_eq!(DeviceMemory::allocate(&device, 0).unwrap_err().to_string(), text);
    assert!(matches!(
        PhysicalMemory::allocate(&device, usize::MAX, Pages::Huge),
        Err(DeviceError::BadSize { .. })
    ));
    // Not device memory: the driver refuses it with a text.
    let error = device.write(DeviceAddr(0x1000), &[1]).expect_err("no device memory");
    assert!(error.to_string().contains("aclrtMemcpy") && error.to_string().contains("107000"), "{error}");
    let error =
        KernelBinary::load(&device, "/nonexistent/kernel.so".as_ref(), "k").expect_err("no such file");
    let text =
        "/nonexistent/kernel.so cannot be read: No such file or directory (os error 2); check the path";
    assert_eq!(error.to_string(), text);
    let error = KernelBinary::load(&device, "a\0b".as_ref(), "k").expect_err("no path in C");
    assert_eq!(error.to_string(), "kernel path \"a\\0b\" contains a NUL byte; leave it out");
    let kept = device.clone();
    assert_eq!(device.close(), Err(DeviceError::InUse { device: LogicalDevice(0), holders: 2 }));
    memory.release().unwrap();
    // Sizes are rounded up to the unit, which differs by page kind.
    let huge = PhysicalMemory::allocate(&kept, 1, Pages::Huge).unwrap();
    let normal = PhysicalMemory::allocate(&kept, 1, Pages::Normal).unwrap();
    assert_eq!((huge.size(), normal.size()), (2 << 20, 64 << 10));
    drop((huge, normal));
    kept.close().unwrap();
    runtime.finalise().unwrap();
}

#[test]
#[ignore = "a part of f25_a_window_is_zero_before_there_is_a_ticket"]
fn part_zeroed() {
    if my_rank().is_none() {
        return;
    }
    let (runtime, device) = open_device(0);
    for mode in ShareMode::ALL {
        let window = LocalWindow::create(&device, mode, 100_000).unwrap();
        let mut bytes = vec![1; window.size()];
        device.read(window.addr(), &mut bytes).unwrap();
        assert!(bytes.iter().all(|&b| b == 0), "{mode}");
        window.release().unwrap();
    }
    // The double's memory is not zero at first, so the zeros above were written.
    let memory = DeviceMemory::allocate(&device, 4096).unwrap();
    let mut bytes = [0; 4096];
    memory.read(0, &mut bytes).unwrap();
    assert_ne!(bytes, [0; 4096]);
    memory.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

#[test]
#[ignore = "a part of f39_after_a_device_is_abandoned_nothing_is_released"]
fn part_abandon() {
    if my_rank().is_none() {
        return;
    }
    let (runtime, device) = open_device(0);
    let stream = Stream::create(&device).unwrap();
    let memory = DeviceMemory::allocate(&device, 4096).unwrap();
    let window = LocalWindow::create(&device, ShareMode::Fabric, 4096).unwrap();
    device.abandon().unwrap();
    device.abandon().unwrap();
    // Dropping and releasing does nothing any more; a vendor call on a released object would be an error.
    drop(stream);
    memory.release().unwrap();
    window.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

#[test]
#[ignore = "a part of f08_a_runtime_in_a_forked_child_is_refused"]
fn part_fork() {
    if my_rank().is_none() {
        return;
    }
    let runtime = Runtime::start(Vendor::load(None).unwrap()).unwrap();
    // SAFETY: the child only calls code that takes no lock another thread may hold here (this is the only
    // test of the process) and ends in _exit.
    let status = unsafe {
        match libc::fork() {
            0 => {
                let (first, this) = (std::os::unix::process::parent_id(), std::process::id());
                let text = format!(
                    "aclInit was called in pid {first}, and this is its forked child pid {this}; fork before the first vendor call"
                );
                let refused = Runtime::start(runtime.vendor()).is_err_and(|error| error.to_string() == text);
                libc::_exit(if refused { 0 } else { 1 })
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                status
            }
        }
    };
    assert_eq!(status, 0, "the child was refused");
    runtime.finalise().unwrap();
}

#[test]
#[ignore = "a part of only_a_process_that_is_allowed_opens_a_window"]
fn part_forbidden_import() {
    if my_rank().is_none() {
        return;
    }
    let (runtime, device) = open_device(0);
    let soon = || Instant::now() + Duration::from_secs(60);
    for mode in [ShareMode::Fabric, ShareMode::Shareable] {
        let window = LocalWindow::create(&device, mode, 1).unwrap();
        let error =
            PeerWindow::open(&device, window.ticket(), soon()).expect_err("no process is allowed yet");
        assert!(matches!(&error, DeviceError::Vendor(e) if e.code == Code::Acl(207006)), "{error}");
        window.allow(&[device.vendor_pid().unwrap()]).unwrap();
        PeerWindow::open(&device, window.ticket(), soon()).unwrap().release().unwrap();
        // A ticket outlives its window, but opens nothing.
        let ticket = *window.ticket();
        window.release().unwrap();
        let error = PeerWindow::open(&device, &ticket, soon()).expect_err("the window is gone");
        assert!(matches!(&error, DeviceError::Vendor(e) if e.code == Code::Acl(507899)), "{error}");
    }
    device.close().unwrap();
    runtime.finalise().unwrap();
}

#[test]
#[ignore = "a part of an_adopted_device_and_stream_stay_the_callers"]
fn part_adopt() {
    if my_rank().is_none() {
        return;
    }
    let vendor = Vendor::load(None).unwrap();
    let acl = vendor.acl();
    let list = VisibleDevices::from_env().unwrap();
    let mut stream = std::ptr::null_mut();
    // SAFETY: null means no configuration; a number; a valid place for one handle.
    let codes = unsafe {
        [(acl.aclInit)(std::ptr::null()), (acl.aclrtSetDevice)(1), (acl.aclrtCreateStream)(&mut stream)]
    };
    assert_eq!(codes, [0; 3]);
    // The host program owns all of it: nothing is released here.
    let runtime = Runtime::start(vendor).unwrap();
    for _ in 0..2 {
        let device = Device::adopt(runtime, &list).unwrap();
        assert_eq!((device.logical(), device.visible()), (LogicalDevice(1), VisibleDevice(3)));
        // SAFETY: the stream is alive until the end of this test.
        let adopted = unsafe { Stream::adopt(&device, stream) };
        adopted.synchronize().unwrap();
        adopted.release().unwrap();
        let memory = DeviceMemory::allocate(&device, 1).unwrap();
        memory.release().unwrap();
        device.close().unwrap();
    }
    Device::adopt(runtime, &list).unwrap().abandon().unwrap();
    runtime.finalise().unwrap();
    // SAFETY: the stream is still alive, the device still set, the runtime still up: that is the point.
    let codes = unsafe {
        [
            (acl.aclrtSynchronizeStream)(stream),
            (acl.aclrtDestroyStream)(stream),
            (acl.aclrtResetDevice)(1),
            (acl.aclFinalize)(),
        ]
    };
    assert_eq!(codes, [0; 4]);
}

/// A communicator is used from several threads, each of which binds the device first.
#[test]
fn every_object_of_a_device_can_be_used_from_any_thread() {
    fn assert_shared<T: Send + Sync>() {}
    assert_shared::<Device>();
    assert_shared::<Stream>();
    assert_shared::<DeviceMemory>();
    assert_shared::<KernelBinary>();
    assert_shared::<LocalWindow>();
    assert_shared::<PeerWindow>();
    assert_shared::<Group>();
}
