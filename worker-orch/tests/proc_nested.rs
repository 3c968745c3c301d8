//! A Worker of Workers: what is registered below it, what an orchestration there sees, and groups that it cannot form.
#![allow(missing_docs)]

mod support;

use comm_context::abi::DType;
use serial_test::serial;
use support::{form_group, plain, text};
use worker_orch::{
    Access, Args, ChipConfig, CollectivesOptions, ErrorCode, Failure, Membership, Orchestrator, Program,
    Task, Worker,
};

/// Adds the chip's rank and 1 to `data` of its window, given as tensor 0, and gives it back in tensor 1.
fn add_rank(task: &mut Task<'_>) -> Result<(), Failure> {
    let rank = task.scalar(0)? as f32;
    let data: Vec<f32> = task.read::<f32>(0)?.iter().map(|x| x + rank + 1.0).collect();
    task.write(0, &data)?;
    task.write(1, &data[..1])
}

/// Has each chip run program number `scalar(0)` on its own window, with the tensor of that number.
fn on_windows(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    let program = Program::from_number(task.scalar(0)? as u32);
    for (number, chip) in orch.chip_contexts().iter().enumerate() {
        assert_eq!((chip.rank as usize, chip.nranks as usize), (number, orch.chips()));
        let data = chip.buffer("data")?.tensor()?;
        let args = Args::new().tensor(&data, Access::InOut).tensor(&task.tensors()[number], Access::Output);
        orch.submit_next_level(program, &args.scalar(chip.rank.into()), number)?;
    }
    Ok(())
}

#[test]
#[serial]
fn programs_are_registered_with_a_nested_worker_after_it_was_added_and_its_orchestration_sees_its_chips() {
    let mut top = Worker::builder().level(5).build().unwrap();
    top.add_worker(Worker::builder().level(4).build().unwrap()).unwrap();
    // Two levels down, and buffers of the top are seen there.
    let middle = top.nested(0).unwrap();
    middle.add_worker(plain(2)).unwrap();
    let down = middle.register_orchestration("on_windows", on_windows);
    let bottom = middle.nested(0).unwrap();
    form_group(bottom, 2, 16);
    let add = bottom.register_function("add_rank", add_rank);
    let pass = top.register_orchestration("pass", pass);
    assert!(text(&top.nested(1).unwrap_err()).contains("there is no Worker 1 under this one; it has 1"));
    let out = [top.host_buffer::<f32>(1).unwrap(), top.host_buffer::<f32>(1).unwrap()];
    top.init().unwrap();
    assert_eq!(top.nested(0).unwrap_err().code, ErrorCode::Invalid);
    let args = out.iter().fold(Args::new(), |args, out| args.tensor(&out.tensor(), Access::Output));
    let args = args.scalar(down.number().into()).scalar(add.number().into());
    for round in 1..4 {
        top.run(|orch| {
            assert!(orch.chip_contexts().is_empty(), "its children are Workers");
            orch.submit_next_level(pass, &args, 0)
        })
        .unwrap();
        assert_eq!(out.each_ref().map(|out| out.to_vec()[0]), [round as f32, 2.0 * round as f32]);
    }
    top.close().unwrap();
}

/// Submits orchestration number `scalar(0)` below, with scalar 1.
fn pass(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    let tensors = task.tensors().iter();
    let args = tensors.fold(Args::new(), |args, tensor| args.tensor(tensor, Access::Output));
    let program = Program::from_number(task.scalar(0)? as u32);
    orch.submit_next_level(program, &args.scalar(task.scalar(1)?), 0).map(drop)
}

#[test]
#[serial]
fn a_nested_worker_that_is_up_itself_is_refused() {
    let mut top = Worker::builder().level(4).build().unwrap();
    top.add_worker(plain(1)).unwrap();
    top.nested(0).unwrap().init().unwrap();
    assert!(text(&top.init().unwrap_err()).contains("close it first"));
    top.nested(0).unwrap().close().unwrap();
    top.init().unwrap();
    top.close().unwrap();
}

#[test]
#[serial]
fn a_group_over_chips_of_several_workers_is_refused_with_the_reason() {
    let mut top = Worker::builder().level(4).build().unwrap();
    top.add_worker(plain(1)).unwrap();
    top.add_worker(plain(1)).unwrap();
    // Rank 0 of 2 in one Worker, and rank 1 in the other.
    for number in 0..2 {
        let member = Membership::new(number, 2).unwrap();
        let config = ChipConfig::new(0).communicator(member).window(4096);
        let refused = top.nested(number as usize).unwrap().configure_chips(vec![config]).unwrap_err();
        assert!(text(&refused).contains("a group is of the chips of one Worker"), "{refused}");
    }
    top.init().unwrap();
    top.run(|orch| {
        let x = [("x", DType::Float32, 4)];
        for refused in [
            orch.allocate_domain("both", &[0, 1], 4096, &x).map(drop).unwrap_err(),
            orch.collectives(&[0, 1], CollectivesOptions::new()).unwrap_err(),
        ] {
            let told = text(&refused);
            assert!(told.contains("only chips of one Worker can form a group"), "{told}");
            assert!(told.contains("give all devices of this host to one Worker"), "{told}");
        }
        Ok(())
    })
    .unwrap();
    top.close().unwrap();
}
