//! What the vendor refuses, the double refuses: memory spaces, copies, launches, kernel types, peers, the order of release.
//! Each part makes the mistake on purpose, by vendor calls of its own.
//!
//! # Safety
//! Makes vendor calls directly, with buffers of this test, and one read that faults; each says why it is sound.
#![allow(unsafe_code)]

#[path = "proc_strict/streams.rs"]
mod streams;
mod support;

use comm_context::abi::DeviceAddr;
use comm_hccl::sys::*;
use comm_hccl::*;
use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::scenario::{compile_kernel, try_swap};
use support::*;

const FOLDER: &str = "CHIPCOMM_TEST_FOLDER";
const MODE: &str = "CHIPCOMM_TEST_MODE";

/// Runs a part in one process, with a folder for its kernels, and checks that it left nothing.
fn alone(part: &str) {
    let double = double("");
    let folder = tempfile::tempdir().unwrap();
    assert_success(&run_part(&double, part, &[(FOLDER, folder.path().to_str().unwrap())]));
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == 1 && report.is_clean(), "{report}");
}

fn folder() -> PathBuf {
    std::env::var_os(FOLDER).unwrap().into()
}

/// Compiles a kernel of the double; without a description, so that nothing says for which core it is.
fn compile(name: &str, body: &str) -> PathBuf {
    let (source, object) = (folder().join(format!("{name}.cpp")), folder().join(format!("{name}.so")));
    let text = format!(
        "#include <cstdint>\n#include <sched.h>\nextern \"C\" int64_t get_block_idx();\n\
         extern \"C\" void kernel_entry(int64_t *args) {{ {body} }}\n"
    );
    std::fs::write(&source, text).unwrap();
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-shared", "-fPIC", "-o"]).arg(&object).arg(&source);
    assert!(compiler.status().expect("g++ is needed for this test").success());
    object
}

/// The code of a device error.
fn code(error: &DeviceError) -> i32 {
    match error {
        DeviceError::Vendor(error) => error.code.number(),
        other => panic!("{other}"),
    }
}

/// Runs a kernel whose argument list holds these words.
fn run(
    device: &Device,
    stream: &Stream,
    object: &Path,
    words: &[u64],
    spec: &LaunchSpec,
) -> Result<(), DeviceError> {
    let binary = KernelBinary::load(device, object, "kernel_entry")?;
    let list = DeviceMemory::allocate(device, 4096)?;
    list.write(0, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())?;
    let ran = binary.kernel("kernel_entry")?.run(stream, spec, list.addr());
    ran.and(list.release()).and(binary.release())
}

// CN-6, F68
#[test]
fn f68_a_device_address_faults_on_the_host() {
    let double = double("");
    let output = run_part(&double, "part_reads_device_address", &[]);
    assert_eq!(output.status.signal(), Some(11), "{}", text(&output));
    assert!(text(&output).contains("reading"), "{}", text(&output));
}

#[test]
#[ignore = "a part of f68_a_device_address_faults_on_the_host"]
fn part_reads_device_address() {
    if my_rank().is_none() {
        return;
    }
    let (_runtime, device) = open_device(0);
    let memory = DeviceMemory::allocate(&device, 4096).unwrap();
    memory.fill(1).unwrap();
    println!("\nreading");
    // SAFETY: not sound, and the test is that the process ends here: nothing of the host is at a device address.
    let byte = unsafe { (memory.addr().0 as *const u8).read_volatile() };
    println!("\nread {byte}");
}

// CN-6, F68
#[test]
fn f68_a_kernel_that_is_given_a_host_address_faults_until_the_device_is_reset() {
    alone("part_host_address");
}

#[test]
#[ignore = "a part of f68_a_kernel_that_is_given_a_host_address_faults_until_the_device_is_reset"]
fn part_host_address() {
    if my_rank().is_none() {
        return;
    }
    let object = compile_kernel(&folder());
    let (runtime, device) = open_device(0);
    let stream = Stream::create(&device).unwrap();
    let spec = LaunchSpec::default();
    let memory = DeviceMemory::allocate(&device, 4096).unwrap();
    memory.fill(0).unwrap();
    run(&device, &stream, &object, &[memory.addr().0, 2], &spec).unwrap();
    let mut word = Box::new(40_i64);
    let error =
        run(&device, &stream, &object, &[&raw mut *word as u64, 2], &spec).expect_err("a host address");
    assert!(code(&error) == 507015 && error.to_string().contains("faulted"), "{error}");
    assert_eq!(*word, 40);
    // The device does nothing more, but what is on it can be released.
    let error = stream.synchronize().expect_err("a device that has faulted");
    assert_eq!(code(&error), 507015);
    let error = run(&device, &stream, &object, &[memory.addr().0, 2], &spec).expect_err("the same");
    assert_eq!(code(&error), 507015);
    memory.release().unwrap();
    stream.release().unwrap();
    device.close().unwrap();
    let device = Device::open(runtime, LogicalDevice(0), &VisibleDevices::All).unwrap();
    let stream = Stream::create(&device).unwrap();
    let memory = DeviceMemory::allocate(&device, 4096).unwrap();
    run(&device, &stream, &object, &[memory.addr().0, 2], &spec).unwrap();
    memory.release().unwrap();
    stream.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-7
#[test]
fn a_copy_of_the_wrong_kind_is_refused() {
    alone("part_copies");
}

#[test]
#[ignore = "a part of a_copy_of_the_wrong_kind_is_refused"]
fn part_copies() {
    if my_rank().is_none() {
        return;
    }
    let (runtime, device) = open_device(0);
    let memory = [4096, 4096].map(|size| DeviceMemory::allocate(&device, size).unwrap());
    let [here, there] = [&memory[0], &memory[1]].map(|memory| memory.addr().0 as *mut c_void);
    let mut bytes = [0_u8; 16];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    let copy = |to: *mut c_void, from: *mut c_void, kind| {
        // SAFETY: every pointer is a device address or has 8 bytes of the host; a wrong kind is refused.
        unsafe { (device.vendor().acl().aclrtMemcpy)(to, 8, from, 8, kind) }
    };
    let (h2h, h2d, d2h, d2d) = (
        ACL_MEMCPY_HOST_TO_HOST,
        ACL_MEMCPY_HOST_TO_DEVICE,
        ACL_MEMCPY_DEVICE_TO_HOST,
        ACL_MEMCPY_DEVICE_TO_DEVICE,
    );
    let other = host.wrapping_byte_add(8);
    for (to, from, kind) in [(other, host, h2h), (here, host, h2d), (host, here, d2h), (there, here, d2d)] {
        assert_eq!(copy(to, from, kind), ACL_SUCCESS, "kind {kind}");
        for wrong in [h2h, h2d, d2h, d2d].into_iter().filter(|wrong| *wrong != kind) {
            assert_eq!(copy(to, from, wrong), ACL_ERROR_RT_PARAM_INVALID, "{wrong} instead of {kind}");
        }
    }
    // SAFETY: a host pointer where device memory belongs, which is refused.
    let filled = unsafe { (device.vendor().acl().aclrtMemset)(host, 8, 0, 8) };
    assert_eq!(filled, ACL_ERROR_RT_PARAM_INVALID);
    drop(memory);
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-7
#[test]
fn host_memory_is_neither_shared_nor_reduced() {
    alone("part_host_memory");
}

#[test]
#[ignore = "a part of host_memory_is_neither_shared_nor_reduced"]
fn part_host_memory() {
    if my_rank().is_none() {
        return;
    }
    let (runtime, device) = open_device(0);
    let stream = Stream::create(&device).unwrap();
    let memory = DeviceMemory::allocate(&device, 4096).unwrap();
    let mut bytes = [0_u8; 4096];
    let (host, here) = (bytes.as_mut_ptr().cast::<c_void>(), memory.addr().0 as *mut c_void);
    let (acl, hccl) = (device.vendor().acl(), device.vendor().hccl());
    let mut key = [0; 65];
    // SAFETY: room for a key; memory of the host, which is refused.
    let exported = unsafe { acl.aclrtIpcMemGetExportKey.unwrap()(host, 4096, key.as_mut_ptr(), 65, 0) };
    assert_ne!(exported, ACL_SUCCESS);
    // SAFETY: as above.
    assert_ne!(unsafe { (acl.aclrtFree)(host) }, ACL_SUCCESS);
    let root = RootInfo::open(&device).unwrap();
    let group = Group::join(&device, &root, 1, 0).unwrap();
    let (reduce, kind, sum) = (hccl.HcclAllReduce.unwrap(), HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM);
    let call = |from, to| {
        // SAFETY: every pointer has 64 bytes, on the host or on the device; communicator and stream are alive.
        unsafe { reduce(from, to, 16, kind, sum, group.as_raw(), stream.as_raw()) }
    };
    assert_eq!(call(here, here), HCCL_SUCCESS);
    assert_eq!((call(host, here), call(here, host)), (HCCL_E_PARA, HCCL_E_PARA));
    group.release().unwrap();
    memory.release().unwrap();
    stream.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-8, F68
#[test]
fn f68_a_launch_of_the_wrong_kind_is_refused() {
    alone("part_launches");
}

#[test]
#[ignore = "a part of f68_a_launch_of_the_wrong_kind_is_refused"]
fn part_launches() {
    if my_rank().is_none() {
        return;
    }
    let object = compile_kernel(&folder());
    let (runtime, device) = open_device(0);
    let stream = Stream::create(&device).unwrap();
    let acl = device.vendor().acl();
    let memory = DeviceMemory::allocate(&device, 4096).unwrap();
    memory.fill(0).unwrap();
    // The word to add to at 0, the argument list at 64, a block that points at the list at 128.
    let at = memory.addr().0;
    memory.write(64, &[at, 2].map(u64::to_le_bytes).concat()).unwrap();
    memory.write(128, &(at + 64).to_le_bytes()).unwrap();
    let (binary, function) = load(&device, &object, Some(ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE));
    let (launch, with_host_args) =
        (acl.aclrtLaunchKernel.unwrap(), acl.aclrtLaunchKernelWithHostArgs.unwrap());
    let queue = stream.as_raw();
    let on_device = |offset: u64| (at + offset) as *mut c_void;
    let none = std::ptr::null_mut::<c_void>();
    // The mistake of F68: the argument list itself, in host memory, as the block of a launch from device memory.
    let mut list = [at, 2];
    let in_host = list.as_mut_ptr().cast::<c_void>();
    // SAFETY: function and stream are alive; the block is refused because it is not device memory.
    let refused = unsafe { launch(function, 1, in_host, 16, queue) };
    assert_eq!(refused, ACL_ERROR_RT_PARAM_INVALID);
    // SAFETY: as above; the block is refused because it is device memory.
    let refused =
        unsafe { with_host_args(function, 1, queue, none.cast(), on_device(128), 8, none.cast(), 0) };
    assert_eq!(refused, ACL_ERROR_RT_PARAM_INVALID);
    // The words of the block are the parameters: with the list itself as the block, the kernel takes the address of the
    // word for its list, and finds 0 there, an address at which nothing is. That shows last, since the device faults.
    let mut block = [at + 64];
    let mut both = [ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT, ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT_US]
        .map(|id| aclrtLaunchKernelAttr { id, value: aclrtLaunchKernelAttrValue { rsv: [60, 0, 0, 0] } });
    let mut config = aclrtLaunchKernelCfg { attrs: both.as_mut_ptr(), numAttrs: 2 };
    let pointer = block.as_mut_ptr().cast();
    // SAFETY: as above; two limits are refused.
    let refused = unsafe { with_host_args(function, 1, queue, &mut config, pointer, 8, none.cast(), 0) };
    assert_eq!(refused, ACL_ERROR_RT_PARAM_INVALID);
    config.numAttrs = 1;
    // SAFETY: a block of one word in host memory, which points at the list in device memory.
    let done = unsafe { with_host_args(function, 1, queue, &mut config, pointer, 8, none.cast(), 0) };
    assert_eq!(done, ACL_SUCCESS);
    // SAFETY: the same block in device memory.
    assert_eq!(unsafe { launch(function, 1, on_device(128), 8, queue) }, ACL_SUCCESS);
    stream.synchronize().unwrap();
    let mut word = [0; 8];
    memory.read(0, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 4, "both ran");
    memory.fill(0).unwrap();
    // SAFETY: as above; the kernel faults in the device's process.
    let done = unsafe { with_host_args(function, 1, queue, none.cast(), in_host, 16, none.cast(), 0) };
    assert_eq!(done, ACL_SUCCESS);
    assert_eq!(code(&stream.synchronize().expect_err("a wrong list")), 507015);
    // SAFETY: loaded above, and not used any more.
    assert_eq!(unsafe { (acl.aclrtBinaryUnLoad)(binary) }, ACL_SUCCESS);
    memory.release().unwrap();
    stream.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-8
#[test]
fn every_block_of_a_launch_runs_with_the_same_parameters_and_an_index_of_its_own() {
    alone("part_blocks");
}

#[test]
#[ignore = "a part of every_block_of_a_launch_runs_with_the_same_parameters_and_an_index_of_its_own"]
fn part_blocks() {
    if my_rank().is_none() {
        return;
    }
    // Counts itself, waits until as many blocks as the second argument says run at once, and adds its index and one to the
    // word of its block.
    let object = compile(
        "blocks",
        "auto *words = reinterpret_cast<int64_t *>(args[0]);\n\
         __atomic_fetch_add(words, 1, __ATOMIC_SEQ_CST);\n\
         while (__atomic_load_n(words, __ATOMIC_SEQ_CST) < args[1]) sched_yield();\n\
         words[1 + get_block_idx()] += 1 + get_block_idx();",
    );
    cann_sim::hw_test::describe_kernel(&object);
    let (runtime, device) = open_device(0);
    let stream = Stream::create(&device).unwrap();
    let memory = DeviceMemory::allocate(&device, 4096).unwrap();
    // Some at once; and more than the device has cores, which take turns.
    for (blocks, at_once) in [(1, 1), (8, 8), (200, 1)] {
        memory.fill(0).unwrap();
        let spec = LaunchSpec { blocks, limit: Some(Duration::from_secs(60)) };
        run(&device, &stream, &object, &[memory.addr().0, at_once], &spec).unwrap();
        let mut bytes = vec![0; 4096];
        memory.read(0, &mut bytes).unwrap();
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let wanted = [u64::from(blocks)].into_iter().chain(1..=u64::from(blocks));
        assert!(words.eq(wanted.chain(std::iter::repeat_n(0, 511 - blocks as usize))), "{blocks} blocks");
    }
    for blocks in [0, 65_536] {
        let spec = LaunchSpec { blocks, limit: None };
        let error = run(&device, &stream, &object, &[memory.addr().0, 1], &spec).expect_err("no such number");
        assert!(code(&error) == 107000 && error.to_string().contains("1 to 65535"), "{error}");
    }
    // More that wait for each other than the device has cores wait for ever, and the limit ends them.
    let spec = LaunchSpec { blocks: 41, limit: Some(Duration::from_secs(1)) };
    memory.fill(0).unwrap();
    let late = run(&device, &stream, &object, &[memory.addr().0, 41], &spec).expect_err("not enough cores");
    assert_eq!(code(&late), 507014, "{late}");
    memory.release().unwrap();
    stream.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

/// Loads a kernel by vendor calls, with a magic number or without.
fn load(device: &Device, object: &Path, magic: Option<u32>) -> (aclrtBinHandle, aclrtFuncHandle) {
    let acl = device.vendor().acl();
    let path = CString::new(object.as_os_str().as_bytes()).unwrap();
    let mut option = aclrtBinaryLoadOption {
        r#type: ACL_RT_BINARY_LOAD_OPT_MAGIC,
        value: aclrtBinaryLoadOptionValue { magic: magic.unwrap_or(0) },
    };
    let mut options = aclrtBinaryLoadOptions { options: &raw mut option, numOpt: 1 };
    let options = if magic.is_some() { &raw mut options } else { std::ptr::null_mut() };
    let (mut binary, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: texts that end in NUL, valid options or none, and valid places for two handles.
    let codes = unsafe {
        [
            (acl.aclrtBinaryLoadFromFile)(path.as_ptr(), options, &mut binary),
            (acl.aclrtBinaryGetFunction)(binary, c"kernel_entry".as_ptr(), &mut function),
        ]
    };
    assert_eq!(codes, [ACL_SUCCESS; 2]);
    (binary, function)
}

// CN-9, F68
#[test]
fn f68_a_kernel_of_unknown_type_is_not_launched() {
    alone("part_untyped");
}

#[test]
#[ignore = "a part of f68_a_kernel_of_unknown_type_is_not_launched"]
fn part_untyped() {
    if my_rank().is_none() {
        return;
    }
    let object = compile("untyped", "args[0] = 1;");
    let (runtime, device) = open_device(0);
    let stream = Stream::create(&device).unwrap();
    let memory = DeviceMemory::allocate(&device, 4096).unwrap();
    let acl = device.vendor().acl();
    let (binary, function) = load(&device, &object, None);
    let mut block = [memory.addr().0];
    let none = std::ptr::null_mut::<c_void>();
    let launch = acl.aclrtLaunchKernelWithHostArgs.unwrap();
    let pointer = block.as_mut_ptr().cast();
    // SAFETY: function and stream are alive, and the block has one word.
    let refused = unsafe { launch(function, 1, stream.as_raw(), none.cast(), pointer, 8, none.cast(), 0) };
    assert_eq!(refused, ACL_ERROR_RT_AICORE_EXCEPTION);
    // SAFETY: loaded above, and not used any more.
    assert_eq!(unsafe { (acl.aclrtBinaryUnLoad)(binary) }, ACL_SUCCESS);
    // This crate does not even load it.
    let error = KernelBinary::load(&device, &object, "kernel_entry").expect_err("an object without a type");
    assert!(matches!(error, DeviceError::NoKernelType { .. }), "{error}");
    cann_sim::hw_test::describe_kernel(&object);
    let spec = LaunchSpec::default();
    run(&device, &stream, &object, &[0], &spec).unwrap();
    memory.release().unwrap();
    stream.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

#[test]
fn a_kernel_that_spins_is_ended_by_the_limit_of_its_launch() {
    alone("part_limit");
}

#[test]
#[ignore = "a part of a_kernel_that_spins_is_ended_by_the_limit_of_its_launch"]
fn part_limit() {
    if my_rank().is_none() {
        return;
    }
    let object = compile("spins", "while (*reinterpret_cast<volatile int64_t *>(args) == 0) {}");
    cann_sim::hw_test::describe_kernel(&object);
    let (runtime, device) = open_device(0);
    let stream = Stream::create(&device).unwrap();
    let limited = LaunchSpec { limit: Some(Duration::from_millis(200)), ..LaunchSpec::default() };
    run(&device, &stream, &object, &[1], &limited).unwrap();
    let error = run(&device, &stream, &object, &[0], &limited).expect_err("it spins");
    assert!(code(&error) == 507014 && error.to_string().contains("a wait on a peer"), "{error}");
    stream.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-10
#[test]
fn the_host_does_not_reach_a_peers_window_but_the_device_does() {
    for mode in ["0", "1", "2"] {
        let double = double("");
        assert_both(&run_pair(&double, "part_peer_copies", &[(MODE, mode)]));
        assert!(double.session.report().unwrap().is_clean());
    }
}

/// A window of this rank and the peer's, opened.
fn windows(device: &Device, socket: &mut std::os::unix::net::UnixStream) -> (LocalWindow, PeerWindow) {
    let mode = ShareMode::ALL[std::env::var(MODE).unwrap().parse::<usize>().unwrap()];
    let window = LocalWindow::create(device, mode, 4096).unwrap();
    let pid = device.vendor_pid().unwrap().0.to_le_bytes();
    window.allow(&[VendorPid(i32::from_le_bytes(try_swap(socket, &pid).unwrap()))]).unwrap();
    let ticket = try_swap(socket, &window.ticket().to_bytes()).unwrap();
    let ticket = WindowTicket::from_bytes(&ticket).unwrap();
    let peer = PeerWindow::open(device, &ticket, Instant::now() + Duration::from_secs(60)).unwrap();
    try_swap(socket, &[1]).unwrap();
    (window, peer)
}

#[test]
#[ignore = "a part of the_host_does_not_reach_a_peers_window_but_the_device_does"]
fn part_peer_copies() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let mut socket = other_rank();
    let (window, peer) = windows(&device, &mut socket);
    for error in [device.write(peer.addr(), &[1]), device.read(peer.addr(), &mut [0])] {
        let error = error.expect_err("a peer's window");
        assert!(code(&error) == 107000 && error.to_string().contains("a peer's"), "{error}");
    }
    device.write(DeviceAddr(window.addr().0 + 8), &[7 + rank as u8]).unwrap();
    device.copy(peer.addr(), DeviceAddr(window.addr().0 + 8), 1).unwrap();
    try_swap(&mut socket, &[2]).unwrap();
    let mut byte = [0];
    device.read(window.addr(), &mut byte).unwrap();
    assert_eq!(byte, [8 - rank as u8]);
    peer.release().unwrap();
    try_swap(&mut socket, &[3]).unwrap();
    window.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-11
#[test]
fn a_window_that_is_freed_while_a_peer_has_it_open_is_an_error() {
    for mode in ["0", "1", "2"] {
        let double = double("");
        assert_both(&run_pair(&double, "part_freed_early", &[(MODE, mode)]));
        assert!(double.session.report().unwrap().is_clean());
    }
}

#[test]
#[ignore = "a part of a_window_that_is_freed_while_a_peer_has_it_open_is_an_error"]
fn part_freed_early() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let mut socket = other_rank();
    let (window, peer) = windows(&device, &mut socket);
    if rank == 0 {
        let error = window.release().expect_err("rank 1 has it open");
        assert!(code(&error) == 507899 && error.to_string().contains("importers close first"), "{error}");
        peer.release().unwrap();
        try_swap(&mut socket, &[4]).unwrap();
    } else {
        try_swap(&mut socket, &[4]).unwrap();
        peer.release().unwrap();
        window.release().unwrap();
    }
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-12
#[test]
fn a_second_enable_of_a_peer_is_refused_and_this_crate_does_not_make_it() {
    alone("part_enables_twice");
}

#[test]
#[ignore = "a part of a_second_enable_of_a_peer_is_refused_and_this_crate_does_not_make_it"]
fn part_enables_twice() {
    if my_rank().is_none() {
        return;
    }
    let (runtime, device) = open_device(0);
    let enable = device.vendor().acl().aclrtDeviceEnablePeerAccess.unwrap();
    let soon = || Instant::now() + Duration::from_secs(60);
    let peer = |at| device.enable_peer(VisibleDevice(at), PhysicalDevice(at), soon());
    assert_eq!(peer(1), Ok(None));
    assert_eq!(peer(1), Ok(None));
    // SAFETY: a number, and flags that must be 0.
    assert_eq!(unsafe { enable(1, 0) }, ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    // Enabled by other code before: the refusal is harmless, since the path is up.
    // SAFETY: as above.
    assert_eq!(unsafe { enable(2, 0) }, ACL_SUCCESS);
    assert_eq!(peer(2), Ok(None));
    device.close().unwrap();
    runtime.finalise().unwrap();
}
