//! A kernel as C++ has it.
//!
//! # Safety
//! Reads the argument list that the engine makes, at the places that the ABI gives.
#![allow(unsafe_code)]

use super::soon;
use chip_runtime::signals::{Domain, Signal, SignalOp, Signals};
use chip_runtime::{Buffer, FrontEnd, KernelId, Kernels, Limits, Runtime, TaskArgs};
use comm_context::abi::{CompletionEntry, KERNEL_LOCAL_CONTEXT_ARG, LocalContext, TensorDesc};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A kernel that asks for more completions than there is room for fails so.
pub(crate) fn too_many_completions() -> String {
    let mut runtime = Runtime::new(Limits { clusters: 1, ..Limits::default() }).unwrap();
    // SAFETY: accesses its context.
    unsafe {
        runtime.set_raw_kernel(KernelId(10), "asks", |args| {
            let local = &*(*args.add(KERNEL_LOCAL_CONTEXT_ARG) as *const LocalContext);
            (local.completion_count as *mut u32).write(1000);
            Ok(())
        });
    }
    let run = runtime.run(FrontEnd::Inferred, soon(), |graph| {
        graph.submit(Kernels::aiv(KernelId(10)), &TaskArgs::new()).map(drop)
    });
    run.unwrap_err().kind.to_string()
}

/// The first task ends when a word is there that its kernel named; the second, which depends on it, sees that.
pub(crate) fn completion_waits() {
    let chips = Signals::in_process(1, 4096).unwrap();
    let word = Arc::new(AtomicU32::new(0));
    let mut runtime = Runtime::new(Limits { clusters: 1, ..Limits::default() }).unwrap();
    runtime.connect(chips[0].clone());
    let (asks, looks) = (KernelId(10), KernelId(11));
    let named = word.clone();
    // SAFETY: accesses its context, and a word that outlives the run.
    unsafe {
        runtime.set_raw_kernel(asks, "asks", move |args| {
            let local = &*(*args.add(KERNEL_LOCAL_CONTEXT_ARG) as *const LocalContext);
            assert_eq!((local.block_idx, local.block_num), (0, 1));
            let address = Arc::as_ptr(&named) as u64;
            let entry = CompletionEntry { address, cookie: 0, expected: 3, engine: 0, kind: 0, reserved: 0 };
            (local.completion_entries as *mut CompletionEntry).write(entry);
            (local.completion_count as *mut u32).write(1);
            Ok(())
        });
    }
    let seen = word.clone();
    // SAFETY: accesses its tensor, as the task names it.
    unsafe {
        runtime.set_raw_kernel(looks, "looks", move |args| {
            let tensor = &*(*args as *const TensorDesc);
            (tensor.addr as *mut u32).write(seen.load(Ordering::Acquire));
            Ok(())
        });
    }
    let mut data = Buffer::of(&[0u32]);
    runtime
        .run(FrontEnd::Inferred, soon(), |graph| {
            let data = graph.import(&mut data)?;
            graph.submit(Kernels::aiv(asks), &TaskArgs::new().inout(&data))?;
            graph.submit(Kernels::aiv(looks), &TaskArgs::new().inout(&data))?;
            assert_eq!(word.load(Ordering::Acquire), 0);
            word.store(3, Ordering::Release);
            // A signal to itself, too.
            let signal = Signal { domain: Domain::BASE, rank: 0, offset: 8, op: SignalOp::Set(5) };
            graph.submit_dummy(&TaskArgs::new().signal(signal)).map(drop)
        })
        .unwrap();
    assert_eq!(data.to_vec().unwrap(), [3]);
    assert_eq!(chips[0].value(Domain::BASE, 8).unwrap(), 5);
}
