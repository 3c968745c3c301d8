//! Programs: closures, signatures, unregistering, and the types of elements.
#![allow(missing_docs)]

mod support;

use comm_context::abi::DType;
use serial_test::serial;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use support::{builder, kernel, plain, text};
use worker_orch::{Access, Args, ErrorCode, Failure, Signature, Start, Task, bf16, f16};

#[test]
#[serial]
fn a_closure_runs_with_what_it_captured_in_every_process() {
    let mut worker = builder(2).sub_workers(1).build().unwrap();
    let (factors, calls) = (vec![2.0_f32, 3.0, 5.0], Arc::new(AtomicU32::new(0)));
    let counted = calls.clone();
    let scale = worker.register_closure("scale", move |task| {
        let call = counted.fetch_add(1, Ordering::Relaxed);
        let x = task.read::<f32>(0)?;
        task.write(1, &x.iter().zip(&factors).map(|(x, factor)| x * factor).collect::<Vec<_>>())?;
        task.write(2, &[call])
    });
    let scale = scale.unwrap();
    let x = worker.host_buffer::<f32>(3).unwrap();
    x.write(&[1.0, 10.0, 100.0]).unwrap();
    worker.init().unwrap();
    for round in 0..2 {
        let out = [(); 3].map(|()| worker.host_buffer::<f32>(3).unwrap());
        let call = [(); 3].map(|()| worker.host_buffer::<u32>(1).unwrap());
        let args = |to: usize| {
            let read = Args::new().tensor(&x.tensor(), Access::Input);
            read.tensor(&out[to].tensor(), Access::Output).tensor(&call[to].tensor(), Access::Output)
        };
        worker
            .run(|orch| {
                orch.submit_next_level(scale, &args(0), 0)?;
                orch.submit_next_level(scale, &args(1), 1)?;
                orch.submit_sub(scale, &args(2))
            })
            .unwrap();
        for to in 0..3 {
            assert_eq!(out[to].to_vec(), [2.0, 30.0, 500.0]);
            assert_eq!(call[to].to_vec(), [round], "each process has a copy of its own");
        }
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0, "and so has the parent");
    let late = worker.register_closure("late", |_| Ok(())).unwrap();
    let refused = worker.run(|orch| orch.submit_next_level(late, &Args::new(), 0)).unwrap_err();
    assert!(text(&refused).contains("`late` was registered after init"), "{refused}");
    worker.close().unwrap();
    worker.init().unwrap();
    worker.run(|orch| orch.submit_next_level(late, &Args::new(), 0)).unwrap();
    worker.close().unwrap();
}

#[test]
fn a_closure_is_refused_where_children_are_new_processes() {
    let mut worker = builder(1).start(Start::Exec).build().unwrap();
    let refused = worker.register_closure("add", |_| Ok(())).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Invalid);
    assert!(text(&refused).contains("`add` captures state"), "{refused}");
}

/// Reads five scalars, the fifth as an address.
const FIVE: &str = r#"
#include "comm_kernel.h"
extern "C" void kernel_entry(int64_t *args) {
    *comm_pointer<float>(args[4]) = static_cast<float>(args[0] + args[1] + args[2] + args[3]);
}
"#;

// WO-14
#[test]
#[serial]
fn a_task_that_does_not_fit_its_signature_is_refused_and_nothing_runs() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = plain(2);
    let five = worker.register_kernel(&kernel(folder.path(), "five", FIVE)).unwrap();
    worker.set_signature(five, Signature::new().scalars(5)).unwrap();
    worker.init().unwrap();
    let out = worker.host_buffer::<f32>(1).unwrap();
    let addr = out.tensor().addr;
    let refused = worker.run(|orch| orch.submit_next_level(five, &Args::new().scalar(addr), 0)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Invalid);
    let told = text(&refused);
    assert!(told.contains("`five.so` takes 0 tensors and 5 scalars, and the task has 0 and 1"), "{told}");
    let right = (1..5).fold(Args::new(), Args::scalar).scalar(addr);
    let group = [(0, right.clone()), (1, Args::new())];
    assert!(worker.run(|orch| orch.submit_group(five, &group)).is_err());
    assert_eq!(out.to_vec(), [0.0]);
    worker.run(|orch| orch.submit_next_level(five, &right, 1)).unwrap();
    assert_eq!(out.to_vec(), [10.0]);
    worker.set_signature(five, Signature::new().tensor(Access::Input, DType::Float32)).unwrap();
    assert!(worker.run(|orch| orch.submit_next_level(five, &right, 1)).is_err());
    worker.close().unwrap();
}

fn constant(value: u32) -> String {
    format!(
        "#include \"comm_kernel.h\"\nextern \"C\" void kernel_entry(int64_t *args) {{\n\
         comm_tensor<float>(args[0]).data[0] = {value};\n}}\n"
    )
}

// WO-14
#[test]
#[serial]
fn a_kernel_that_is_unregistered_can_be_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = plain(2);
    let path = kernel(folder.path(), "constant", &constant(1));
    let first = worker.register_kernel(&path).unwrap();
    let never_used = worker.register_closure("never", |_| Ok(())).unwrap();
    worker.init().unwrap();
    let out = worker.host_buffer::<f32>(1).unwrap();
    let args = Args::new().tensor(&out.tensor(), Access::Output);
    let mut program = first;
    for value in 1..4 {
        for chip in 0..2 {
            out.write(&[0.0]).unwrap();
            worker.run(|orch| orch.submit_next_level(program, &args, chip)).unwrap();
            assert_eq!(out.to_vec(), [value as f32], "chip {chip}");
        }
        worker.unregister(program).unwrap();
        let refused = worker.run(|orch| orch.submit_next_level(program, &args, 0)).unwrap_err();
        assert!(text(&refused).contains("`constant.so` was unregistered"), "{refused}");
        assert!(worker.unregister(program).is_err());
        std::fs::remove_file(&path).unwrap();
        kernel(folder.path(), "constant", &constant(value + 1));
        program = worker.register_kernel(&path).unwrap();
        assert_ne!(program, first);
    }
    worker.unregister(never_used).unwrap();
    worker.close().unwrap();
    // Another process in its place knows what is registered now.
    worker.init().unwrap();
    worker.run(|orch| orch.submit_next_level(program, &args, 1)).unwrap();
    assert_eq!(out.to_vec(), [4.0]);
    worker.close().unwrap();
}

fn as_other_types(task: &mut Task<'_>) -> Result<(), Failure> {
    for told in [
        task.read::<i32>(0).map(drop).unwrap_err(),
        task.read::<u32>(0).map(drop).unwrap_err(),
        task.write(0, &[1_u32]).unwrap_err(),
        task.read::<u16>(1).map(drop).unwrap_err(),
        task.read::<bf16>(1).map(drop).unwrap_err(),
    ] {
        let told = told.to_string();
        assert!(told.contains("has elements of Float") && told.contains("the call is for"), "{told}");
    }
    let halves = task.read::<f16>(1)?;
    task.write(2, &halves.iter().map(|half| bf16::from_f32(half.to_f32() * 2.0)).collect::<Vec<_>>())
}

#[test]
#[serial]
fn elements_are_read_and_written_as_what_they_are() {
    let mut worker = plain(1);
    let program = worker.register_function("as_other_types", as_other_types);
    worker.init().unwrap();
    let single = worker.host_buffer::<f32>(2).unwrap();
    let (half, brain) = (worker.host_buffer::<f16>(2).unwrap(), worker.host_buffer::<bf16>(2).unwrap());
    half.write(&[1.5, -2.0].map(f16::from_f32)).unwrap();
    assert_eq!((half.tensor().dtype(), brain.tensor().dtype()), (Ok(DType::Float16), Ok(DType::Bfloat16)));
    let args = Args::new()
        .tensor(&single.tensor(), Access::InOut)
        .tensor(&half.tensor(), Access::Input)
        .tensor(&brain.tensor(), Access::Output);
    worker.run(|orch| orch.submit_next_level(program, &args, 0)).unwrap();
    assert_eq!(brain.to_vec(), [3.0, -4.0].map(bf16::from_f32));
    worker.close().unwrap();
}
