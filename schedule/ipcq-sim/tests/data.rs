//! Real data: sums, shards, replay, and what replay finds.

use ccl_schedule::algo::{self, Shape};
use ccl_schedule::mutate::{Broken, Fault};
use ccl_schedule::{CreditPoint, prove};
use ipcq_sim::config::{BufferKind, CreditAt, DType, Fabric, Settings, Skew, Topology};
use ipcq_sim::data;
use ipcq_sim::dist::{BACKEND, PAGE, ReduceOp, Tensor, init_process_group};
use ipcq_sim::engine::{Engine, run};
use ipcq_sim::kernbench;
use ipcq_sim::memory::Memory;
use ipcq_sim::oplog::{OpLog, ReplayError};
use ipcq_sim::placement::{Placement, Policy};
use ipcq_sim::plan::Plan;
use proptest::prelude::*;

fn direct() -> Topology {
    Topology { fabric: Fabric::Direct, ..Topology::default() }
}

/// IQ-7: for every algorithm, engine, credit rule and number format, replay and direct execution give the
/// same bytes.
#[test]
fn iq_7_replay_gives_the_bytes_of_direct_execution() {
    for names in algo::NAMES {
        for credit_at in [CreditAt::LastUse, CreditAt::Copy] {
            for (dtype, buffer_kind) in [
                (DType::F16, BufferKind::Tcm),
                (DType::Bf16, BufferKind::Hbm),
                (DType::F32, BufferKind::Sram),
            ] {
                let settings =
                    Settings { n_elem: 37, n_slots: 2, dtype, buffer_kind, credit_at, ..Settings::default() };
                let program = algo::build(names[0], 8, &Shape { window: 2, ..Shape::default() }).unwrap();
                for (topology, engine) in [(direct(), Engine::A), (Topology::default(), Engine::B)] {
                    let plan = Plan::new(&*program, &topology, &settings, u64::MAX).unwrap();
                    let mut executed = Memory::new(&*program, plan.cut, dtype);
                    for rank in 0..8 {
                        let values: Vec<f32> = (0..37).map(|i| (rank * 37 + i) as f32 * 0.37).collect();
                        executed.tensor_mut(rank).copy_from_slice(&data::encode(dtype, &values));
                    }
                    let mut log = OpLog::new(&plan, executed.clone(), None);
                    run(&plan, engine, &mut log).unwrap();
                    assert!(executed.execute(&plan).unwrap());
                    let replayed = log.finish().unwrap().unwrap();
                    assert_eq!(replayed, executed, "{} {dtype:?} {credit_at:?} {engine:?}", names[0]);
                }
            }
        }
    }
}

/// IQ-7: a log that is replayed in parts has each movement once, in time order.
#[test]
fn iq_7_a_log_of_many_parts_is_one_log_in_time_order() {
    // 64 ranks make 12,096 movements and more, and stragglers keep others waiting.
    for (name, topology, engine) in [
        ("ring_accumulate", direct(), Engine::A),
        ("ring_accumulate", Topology::default(), Engine::B),
        ("tree_allreduce", direct(), Engine::A),
        ("recursive_doubling", Topology::default(), Engine::B),
        ("hierarchical", direct(), Engine::A),
    ] {
        let settings = Settings { n_elem: 64, skew: Skew::Random(3, 400_000), ..Settings::default() };
        let shape = Shape { split: 64, window: 4, ..Shape::default() };
        let program = algo::build(name, 64, &shape).unwrap();
        let plan = Plan::new(&*program, &topology, &settings, u64::MAX).unwrap();
        let mut executed = Memory::new(&*program, plan.cut, DType::F16);
        for rank in 0..64 {
            executed.tensor_mut(rank).copy_from_slice(&data::encode(DType::F16, &[(rank + 1) as f32; 64]));
        }
        let mut csv = Vec::new();
        let mut log = OpLog::new(&plan, executed.clone(), Some(Box::new(&mut csv)));
        run(&plan, engine, &mut log).unwrap();
        executed.execute(&plan).unwrap();
        assert_eq!(log.finish().unwrap().unwrap(), executed, "{name}");
        let text = String::from_utf8(csv).unwrap();
        let starts: Vec<u64> =
            text.lines().skip(1).map(|line| line.split(',').next().unwrap().parse().unwrap()).collect();
        assert!(starts.is_sorted(), "{name}");
        let issued = text.lines().filter(|line| line.split(',').nth(3).unwrap() == "dma_read").count();
        assert_eq!(issued as u64, program.messages(), "{name}");
    }
}

/// IQ-7: a forwarded slot that is freed at the recv is overwritten while it is still in use, and replay
/// reports that.
#[test]
fn iq_7_a_slot_used_after_its_credit_is_found() {
    // Two slots, and a slow slot memory: the next token but one arrives while the first is still being read.
    let ring = algo::RingAccumulate::new(8).unwrap();
    let base = Settings { n_elem: 4096, slot_size: 1 << 20, n_slots: 1, ..Settings::default() };
    let found = |credit_at| {
        let mut topology = direct();
        topology.tcm.setup = 100_000;
        let settings =
            Settings { credit_at, n_slots: if credit_at == CreditAt::Recv { 1 } else { 2 }, ..base.clone() };
        let plan = Plan::new(&ring, &topology, &settings, u64::MAX).unwrap();
        let mut log = OpLog::new(&plan, Memory::new(&ring, plan.cut, DType::F16), None);
        run(&plan, Engine::A, &mut log).unwrap();
        log.finish().unwrap().map(|_| ())
    };
    let error = found(CreditAt::Recv).unwrap_err();
    assert!(matches!(error, ReplayError::UseAfterCredit { .. }));
    assert!(error.to_string().contains("set credit_at to last_use or copy"), "{error}");
    assert_eq!(found(CreditAt::LastUse), Ok(()));
    assert_eq!(found(CreditAt::Copy), Ok(()));
}

#[test]
fn the_seven_cases_of_kernbench2_print_ok() {
    let config = ipcq_sim::config::Config::load(None, None).unwrap();
    let topology = config.topology.topology().unwrap();
    for (name, ranks) in [
        ("ring_allreduce_tcm", 256),
        ("ring_allreduce_hbm", 256),
        ("ring_allreduce_sram", 256),
        ("ring_8", 8),
        ("ring_16", 16),
        ("mesh_allreduce_4", 4),
        ("tree_allreduce_7", 7),
    ] {
        let settings = config.ccl.settings(name).unwrap();
        let run = kernbench::run(&topology, &settings, Engine::Auto).unwrap();
        assert_eq!(run.line(), format!(" {name} (ws={ranks}): {ranks} OK"));
    }
}

/// A first rank that is lost, or counted twice: the bench's tolerance passes from four ranks on, the proof
/// never does.
#[test]
fn the_proof_finds_what_the_tolerance_passes() {
    for ranks in 2..=64u32 {
        // On the last rank, the last addition is that of rank 0's contribution.
        let (rank, nth) = (ranks - 1, ranks - 2);
        for fault in [Fault::Drop { rank, nth }, Fault::Duplicate { rank, nth }] {
            let broken = Broken::new(algo::RingAccumulate::new(ranks).unwrap(), fault).unwrap();
            let settings = Settings { n_elem: 8, ..Settings::default() };
            let topology = direct();
            let plan = Plan::new(&broken, &topology, &settings, u64::MAX).unwrap();
            let mut memory = Memory::new(&broken, plan.cut, DType::F16);
            for rank in 0..ranks {
                memory.tensor_mut(rank).copy_from_slice(&data::encode(DType::F16, &[(rank + 1) as f32; 8]));
            }
            assert!(memory.execute(&plan).unwrap());
            let sum = (ranks * (ranks + 1) / 2) as f32;
            let passes = (0..ranks).all(|rank| {
                data::decode(DType::F16, memory.tensor(rank))
                    .iter()
                    .all(|&value| kernbench::close(value, sum))
            });
            assert_eq!(passes, ranks >= 4, "{ranks} ranks, {fault:?}");
            assert!(prove(&broken, 4, CreditPoint::LastUse).is_err(), "{ranks} ranks, {fault:?}");
        }
    }
}

#[test]
fn the_facade_scatters_reduces_and_gathers() {
    let settings = Settings { world_size: Some(16), n_elem: 6, ..Settings::default() };
    let topology = Topology::default();
    let mut group = init_process_group(BACKEND, &topology, &settings, Engine::Auto).unwrap();
    assert_eq!((group.get_world_size(), group.get_rank(), group.get_backend()), (16, 0, "ahbm"));
    let placement = Placement::uniform(Policy::RowWise, &topology, 16);
    let mut tensor = Tensor::zeros(&group, 32, 6, DType::F32, &placement).unwrap();
    let host: Vec<f32> = (0..192).map(|i| i as f32).collect();
    tensor.copy_(&host).unwrap();
    assert_eq!(tensor.gather(), host, "scatter and gather are inverse");
    group.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
    let want: Vec<f32> = (0..12).map(|i| (0..16).map(|rank| (rank * 12 + i) as f32).sum()).collect();
    for rank in 0..16 {
        assert_eq!(tensor.values(rank), want);
    }
    assert!(group.barrier().unwrap() > 0);
    let error = tensor.copy_(&host[1..]).unwrap_err().to_string();
    assert_eq!(error, "copy_ of 191 elements into a tensor of 32 x 6; pass as many as it has");
    let error = Tensor::zeros(&group, 16, 1 << 25, DType::F32, &placement).err().unwrap().to_string();
    assert_eq!(
        error,
        "the data needs 2147483648 bytes of memory, and the limit is 1073741824; use fewer ranks or elements"
    );
}

/// A known bug of kernbench2: shards smaller than a page overlapped.
#[test]
fn small_shards_do_not_overwrite_each_other() {
    let settings = Settings { world_size: Some(8), ..Settings::default() };
    let topology = Topology::default();
    let group = init_process_group(BACKEND, &topology, &settings, Engine::Auto).unwrap();
    let placement = Placement::uniform(Policy::ColumnWise, &topology, 8);
    let mut tensor = Tensor::zeros(&group, 1, 8, DType::F16, &placement).unwrap();
    tensor.copy_(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
    let starts: Vec<usize> = (0..8).map(|rank| tensor.shard(rank).as_ptr() as usize).collect();
    for pair in starts.windows(2) {
        assert!(pair[1] - pair[0] >= PAGE as usize);
    }
    assert_eq!(tensor.values(7), [8.0]);
}

#[test]
fn an_f16_sum_that_overflows_is_refused() {
    let settings = Settings { world_size: Some(8), n_elem: 1, ..Settings::default() };
    let topology = Topology::default();
    let mut group = init_process_group(BACKEND, &topology, &settings, Engine::Auto).unwrap();
    let placement = Placement::uniform(Policy::RowWise, &topology, 8);
    let mut tensor = Tensor::zeros(&group, 8, 1, DType::F16, &placement).unwrap();
    tensor.copy_(&[10_000.0; 8]).unwrap();
    let error = group.all_reduce(&mut tensor, ReduceOp::Sum).err().unwrap();
    assert_eq!(
        error.to_string(),
        "dtype = f16: the sum of rank 0, element 0 exceeds the largest number 65504; use fewer ranks, smaller values, or \
         bf16 or f32"
    );
    assert_eq!(tensor.values(3), [10_000.0], "the tensor is as it was");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Sums are exact for integers that the format holds, for every algorithm.
    #[test]
    fn sums_are_exact(which in 0usize..9, ranks in 1u32..17, elems in 1u64..40, seed in 0u32..1000) {
        let Ok(program) = algo::build(algo::NAMES[which][0], ranks, &Shape { window: 4, ..Shape::default() }) else {
            return Ok(());
        };
        if program.goal() != ccl_schedule::Goal::AllReduce {
            return Ok(());
        }
        let settings = Settings { n_elem: elems, dtype: DType::F32, ..Settings::default() };
        let topology = direct();
        let plan = Plan::new(&*program, &topology, &settings, u64::MAX).unwrap();
        let mut memory = Memory::new(&*program, plan.cut, DType::F32);
        let value = |rank: u32, i: u64| f32::from((seed.wrapping_mul(rank + 7).wrapping_add(i as u32 * 31) % 997) as u16);
        for rank in 0..ranks {
            let values: Vec<f32> = (0..elems).map(|i| value(rank, i)).collect();
            memory.tensor_mut(rank).copy_from_slice(&data::encode(DType::F32, &values));
        }
        prop_assert!(memory.execute(&plan).unwrap());
        let want: Vec<f32> = (0..elems).map(|i| (0..ranks).map(|rank| value(rank, i)).sum()).collect();
        for rank in 0..ranks {
            prop_assert_eq!(&data::decode(DType::F32, memory.tensor(rank)), &want);
        }
    }
}
