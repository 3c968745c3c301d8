//! What orders streams, and what is done in their order.
//!
//! # Safety
//! As in the file above: vendor calls with handles and buffers of this test.
#![allow(unsafe_code)]

use super::*;

// CN-14
#[test]
fn a_stream_starts_nothing_before_the_event_that_it_waits_for() {
    alone("streams::part_events");
}

#[test]
#[ignore = "a part of a_stream_starts_nothing_before_the_event_that_it_waits_for"]
fn part_events() {
    if my_rank().is_none() {
        return;
    }
    // Waits until its word is set, then copies a word; the second kernel would see what the first has not written yet.
    let slow = compile(
        "slow",
        "auto *words = reinterpret_cast<volatile int64_t *>(args[0]);\n\
         while (words[0] == 0) sched_yield();\n\
         words[1] = 7;",
    );
    let next = compile("next", "auto *words = reinterpret_cast<int64_t *>(args[0]); words[2] = words[1];");
    let (runtime, device) = open_device(0);
    let memory = DeviceMemory::allocate(&device, 4096).unwrap();
    memory.fill(0).unwrap();
    memory.write(64, &memory.addr().0.to_le_bytes()).unwrap();
    let args = DeviceAddr(memory.addr().0 + 64);
    let binaries = [slow, next].map(|object| {
        cann_sim::hw_test::describe_kernel(&object);
        KernelBinary::load(&device, &object, "kernel_entry").unwrap()
    });
    let kernels: Vec<Kernel<'_>> =
        binaries.iter().map(|binary| binary.kernel("kernel_entry").unwrap()).collect();
    let [one, two] = [0, 1].map(|_| Stream::create(&device).unwrap());
    let event = Event::create(&device).unwrap();
    let refused = |result: Result<(), DeviceError>, why: &str| {
        let error = result.expect_err(why);
        assert!(code(&error) == 107000 && error.to_string().contains(why), "{error}");
    };
    refused(event.block(&two), "never recorded");
    assert!(event.is_complete().unwrap(), "nothing is left to do");
    let spec = LaunchSpec { limit: Some(Duration::from_secs(60)), ..LaunchSpec::default() };
    // SAFETY: the kernels use the words of `memory`, which outlives both streams' work.
    unsafe { kernels[0].launch(&one, &spec, args) }.unwrap();
    event.record(&one).unwrap();
    event.block(&two).unwrap();
    // What waits for an event is behind it, also for a third.
    let chained = Event::create(&device).unwrap();
    chained.record(&two).unwrap();
    assert!(!event.is_complete().unwrap() && !chained.is_complete().unwrap());
    let acl = device.vendor().acl();
    let mut own: aclrtEvent = std::ptr::null_mut();
    // SAFETY: a place for one handle; then living handles.
    let codes = unsafe {
        [
            acl.aclrtCreateEvent.unwrap()(&mut own),
            acl.aclrtRecordEvent.unwrap()(own, one.as_raw()),
            acl.aclrtStreamWaitEvent.unwrap()(two.as_raw(), own),
            acl.aclrtDestroyEvent.unwrap()(own),
            acl.aclrtRecordEvent.unwrap()(own, std::ptr::null_mut()),
            acl.aclrtStreamWaitEvent.unwrap()(two.as_raw(), std::ptr::null_mut()),
        ]
    };
    let bad = ACL_ERROR_RT_PARAM_INVALID;
    assert_eq!(codes, [0, 0, 0, bad, bad, bad], "a stream waits for it; no such stream; no such event");
    let queued = std::thread::scope(|scope| {
        let (kernel, device, two) = (&kernels[1], &device, &two);
        let launch = scope.spawn(move || {
            device.bind_thread().unwrap();
            // SAFETY: as above.
            unsafe { kernel.launch(two, &spec, args) }
        });
        // Time in which the second would run, if it did not wait.
        std::thread::sleep(Duration::from_millis(50));
        memory.write(0, &1_u64.to_le_bytes()).unwrap();
        launch.join().unwrap()
    });
    queued.unwrap();
    two.synchronize().unwrap();
    one.synchronize().unwrap();
    let mut word = [0; 8];
    memory.read(16, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 7, "the second ran before the first had ended");
    assert!(event.is_complete().unwrap() && chained.is_complete().unwrap());
    // SAFETY: nothing waits for it any more.
    assert_eq!(unsafe { acl.aclrtDestroyEvent.unwrap()(own) }, ACL_SUCCESS);
    event.release().unwrap();
    chained.release().unwrap();
    drop(kernels);
    binaries.into_iter().for_each(|binary| binary.release().unwrap());
    memory.release().unwrap();
    one.release().unwrap();
    two.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-15
#[test]
fn sums_of_several_devices_are_one_step_each_and_take_device_memory_only() {
    for mode in ["0", "1", "2"] {
        let double = double("");
        assert_both(&run_pair(&double, "streams::part_sums", &[(MODE, mode)]));
        assert!(double.session.report().unwrap().is_clean());
    }
}

#[test]
#[ignore = "a part of sums_of_several_devices_are_one_step_each_and_take_device_memory_only"]
fn part_sums() {
    const ROUNDS: u32 = 500;
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let mut socket = other_rank();
    let (window, peer) = windows(&device, &mut socket);
    let stream = Stream::create(&device).unwrap();
    let one = DeviceMemory::allocate(&device, 4).unwrap();
    one.write(0, &1_u32.to_le_bytes()).unwrap();
    // Both add to both words at the same time.
    for _ in 0..ROUNDS {
        stream.add_word(window.addr(), one.addr()).unwrap();
        stream.add_word(peer.addr(), one.addr()).unwrap();
    }
    stream.synchronize().unwrap();
    try_swap(&mut socket, &[2]).unwrap();
    let mut word = [0; 4];
    device.read(window.addr(), &mut word).unwrap();
    assert_eq!(u32::from_le_bytes(word), 2 * ROUNDS, "none was lost");
    let mut host = [0_u32; 2];
    let host = DeviceAddr(host.as_mut_ptr() as u64);
    let odd = DeviceAddr(window.addr().0 + 2);
    for (to, by) in [(host, one.addr()), (window.addr(), host), (odd, one.addr())] {
        let error = stream.add_word(to, by).expect_err("host memory, or no word");
        assert_eq!(code(&error), 107000, "{error}");
    }
    peer.release().unwrap();
    try_swap(&mut socket, &[3]).unwrap();
    window.release().unwrap();
    one.release().unwrap();
    stream.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-14
#[test]
fn an_event_of_a_kernel_that_failed_is_never_complete() {
    alone("streams::part_failed_event");
}

#[test]
#[ignore = "a part of an_event_of_a_kernel_that_failed_is_never_complete"]
fn part_failed_event() {
    if my_rank().is_none() {
        return;
    }
    let object = compile("spins_on", "while (*reinterpret_cast<volatile int64_t *>(args) == 0) {}");
    cann_sim::hw_test::describe_kernel(&object);
    let (runtime, device) = open_device(0);
    let (stream, event) = (Stream::create(&device).unwrap(), Event::create(&device).unwrap());
    let args = DeviceMemory::allocate(&device, 8).unwrap();
    args.fill(0).unwrap();
    let binary = KernelBinary::load(&device, &object, "kernel_entry").unwrap();
    let limited = LaunchSpec { limit: Some(Duration::from_secs(1)), ..LaunchSpec::default() };
    // SAFETY: the kernel reads a word of `args`, which outlives it.
    unsafe { binary.kernel("kernel_entry").unwrap().launch(&stream, &limited, args.addr()) }.unwrap();
    event.record(&stream).unwrap();
    let error = loop {
        match event.is_complete() {
            Ok(complete) => assert!(!complete, "the kernel never ends by itself"),
            Err(error) => break error,
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(code(&error), 507014, "{error}");
    event.release().unwrap();
    stream.release().unwrap();
    binary.release().unwrap();
    args.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-14
#[test]
fn an_event_and_a_stream_of_two_devices_are_refused() {
    alone("streams::part_two_devices");
}

#[test]
#[ignore = "a part of an_event_and_a_stream_of_two_devices_are_refused"]
fn part_two_devices() {
    if my_rank().is_none() {
        return;
    }
    let (runtime, device) = open_device(0);
    let stream = Stream::create(&device).unwrap();
    let acl = device.vendor().acl();
    let (record, wait) = (acl.aclrtRecordEvent.unwrap(), acl.aclrtStreamWaitEvent.unwrap());
    let (mut event, mut other) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: places for one handle each; a number; then living handles.
    let made = unsafe {
        [
            acl.aclrtCreateEvent.unwrap()(&mut event),
            record(event, stream.as_raw()),
            (acl.aclrtSetDevice)(1),
            (acl.aclrtCreateStream)(&mut other),
        ]
    };
    assert_eq!(made, [ACL_SUCCESS; 4]);
    device.bind_thread().unwrap();
    // SAFETY: living handles, which do not belong together.
    let refused = unsafe { [record(event, other), wait(other, event)] };
    assert_eq!(refused, [ACL_ERROR_RT_STREAM_CONTEXT; 2]);
    // SAFETY: made above, and not used any more.
    let ended = unsafe {
        [(acl.aclrtDestroyStream)(other), acl.aclrtDestroyEvent.unwrap()(event), (acl.aclrtResetDevice)(1)]
    };
    assert_eq!(ended, [ACL_SUCCESS; 3]);
    device.bind_thread().unwrap();
    stream.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-15
#[test]
fn a_sum_comes_after_what_is_before_it_on_its_stream() {
    alone("streams::part_sum_after_a_kernel");
}

#[test]
#[ignore = "a part of a_sum_comes_after_what_is_before_it_on_its_stream"]
fn part_sum_after_a_kernel() {
    if my_rank().is_none() {
        return;
    }
    // Waits until its word is set, then writes what is added.
    let object = compile(
        "addend",
        "auto *words = reinterpret_cast<volatile int64_t *>(args[0]);\n\
         while (words[0] == 0) sched_yield();\n\
         words[1] = 5;",
    );
    cann_sim::hw_test::describe_kernel(&object);
    let (runtime, device) = open_device(0);
    let stream = Stream::create(&device).unwrap();
    let memory = DeviceMemory::allocate(&device, 4096).unwrap();
    memory.fill(0).unwrap();
    let at = |offset: u64| DeviceAddr(memory.addr().0 + offset);
    memory.write(64, &at(0).0.to_le_bytes()).unwrap();
    let binary = KernelBinary::load(&device, &object, "kernel_entry").unwrap();
    let spec = LaunchSpec { limit: Some(Duration::from_secs(60)), ..LaunchSpec::default() };
    // SAFETY: the kernel uses the words of `memory`, which outlives it.
    unsafe { binary.kernel("kernel_entry").unwrap().launch(&stream, &spec, at(64)) }.unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            device.bind_thread().unwrap();
            std::thread::sleep(Duration::from_millis(30));
            memory.write(0, &1_u64.to_le_bytes()).unwrap();
        });
        stream.add_word(at(16), at(8)).unwrap();
    });
    stream.synchronize().unwrap();
    let mut word = [0; 4];
    memory.read(16, &mut word).unwrap();
    assert_eq!(u32::from_le_bytes(word), 5, "it was added before the kernel had written it");
    binary.release().unwrap();
    memory.release().unwrap();
    stream.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}
