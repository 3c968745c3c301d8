//! IQ-5 for rings: the bound of a one-way ring holds for every schedule that it covers, and the optimal ring
//! comes close.

use ccl_schedule::algo::{self, Shape};
use ccl_schedule::{CreditPoint, Dir, Goal, Land, ListedProgram, Op, Program, Tile, prove};
use ipcq_sim::bound::{Bounds, bounds};
use ipcq_sim::config::{BufferKind, Fabric, Settings, Skew, Topology};
use ipcq_sim::engine::{Engine, run};
use ipcq_sim::plan::Plan;
use ipcq_sim::probe::NoProbe;
use ipcq_sim::units::Rate;
use proptest::prelude::*;

fn direct() -> Topology {
    Topology { fabric: Fabric::Direct, ..Topology::default() }
}

/// All-reduce by chains on a one-way ring: every chunk travels around once from a rank of its own to collect
/// the sum, and once more to distribute it, `late` steps after the others.
fn chains(ranks: u32, chains: &[(u32, u32)]) -> ListedProgram {
    let mut lists = vec![Vec::new(); ranks as usize];
    let hops = 2 * (ranks - 1);
    let last = chains.iter().map(|&(_, late)| late).max().unwrap_or(0) + hops;
    for step in 0..last {
        // All sends of a step, then all receives.
        for receives in [false, true] {
            for (chunk, &(first, late)) in (0..).zip(chains) {
                let Some(hop) = step.checked_sub(late).filter(|&hop| hop < hops) else { continue };
                let src = (first + hop) % ranks;
                let land = if hop < ranks - 1 { Land::Reduce } else { Land::Copy };
                if receives {
                    let dst = (src + 1) % ranks;
                    lists[dst as usize].push(Op::Recv { dir: Dir::W, tile: chunk, land });
                } else {
                    lists[src as usize].push(Op::Send { dir: Dir::E, chunk, from: Tile::Mem(chunk) });
                }
            }
        }
    }
    ListedProgram::new("chains", Goal::AllReduce, chains.len() as u32, lists).on_ring()
}

fn timed(program: &dyn Program, topology: &Topology, settings: &Settings) -> (u64, Bounds) {
    let plan = Plan::new(program, topology, settings, u64::MAX).unwrap();
    (run(&plan, Engine::Auto, &mut NoProbe).unwrap().time(), bounds(&plan))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// IQ-5: for any order of the chunks, sizes, wires, stragglers and slot memory, on wires and on the chip.
    #[test]
    fn iq_5_no_schedule_of_chains_beats_the_bound_of_the_ring(
        ranks in 2u32..14,
        starts in prop::collection::vec((0u32..14, 0u32..12), 1..9),
        elems in 1u64..400,
        on_chip in any::<bool>(),
        rate in 1u64..600,
        over in 0u64..9_000,
        late in 0u64..90_000,
        kind in prop_oneof![Just(BufferKind::Tcm), Just(BufferKind::Hbm), Just(BufferKind::Sram)],
    ) {
        let mut topology = if on_chip { Topology::default() } else { direct() };
        topology.direct.rate = Rate::whole(rate);
        topology.overheads.pe_cpu = over;
        let settings = Settings {
            n_elem: elems, n_slots: 512, skew: Skew::Random(elems, late), buffer_kind: kind, ..Settings::default()
        };
        let starts: Vec<(u32, u32)> = starts.iter().map(|&(first, late)| (first % ranks, late)).collect();
        let program = chains(ranks, &starts);
        prop_assert!(prove(&program, 512, CreditPoint::LastUse).is_ok());
        let (time, bounds) = timed(&program, &topology, &settings);
        prop_assert!(time >= bounds.most(), "{time} < {bounds:?}");
        prop_assert_eq!(bounds.ring > 0, elems >= u64::from(program.chunks()));
    }
}

/// IQ-5, for the goals with a root and for exchanges of all with all.
#[test]
fn iq_5_direct_schedules_do_not_beat_their_bounds() {
    use ccl_schedule::algo::{Shape, build};
    let names =
        ["direct_one_shot", "direct_two_shot", "broadcast", "reduce", "gather", "scatter", "all_to_all"];
    for topology in [direct(), Topology::default()] {
        for ranks in [2, 3, 8, 17, 32] {
            for elems in [1, 7, 64, 1500] {
                for name in names {
                    let program = build(name, ranks, &Shape::default()).unwrap();
                    let settings =
                        Settings { n_elem: elems, skew: Skew::Random(elems, 9_000), ..Settings::default() };
                    let (time, bounds) = timed(&*program, &topology, &settings);
                    assert!(time >= bounds.most(), "{name} of {ranks}, {elems}: {time} < {bounds:?}");
                    // With fewer elements than chunks there may be nothing to send.
                    let some = elems >= u64::from(program.chunks());
                    assert!(bounds.most() > 0 || !some, "{name} of {ranks}, {elems}");
                }
            }
        }
    }
}

/// One chunk that travels around twice except for one channel is as fast as the bound allows, except for its
/// additions.
#[test]
fn iq_5_the_bound_of_the_ring_is_sharp() {
    let settings = Settings { n_elem: 128, ..Settings::default() };
    for ranks in 2..40 {
        let (time, bounds) = timed(&chains(ranks, &[(0, 0)]), &direct(), &settings);
        // A wire: 3 ns overhead, 0.1 ns propagation, 2 ns drain; slot write and read 0.5 ns each; an addition
        // 0.5 ns.
        let hop = 3_000 + 100 + 2_000 + 500 + 500;
        let hops = u64::from(2 * ranks - 3);
        assert_eq!(bounds.ring, hops * hop, "{ranks}");
        assert_eq!(time, (hops + 1) * hop + u64::from(ranks - 1) * 500, "{ranks}");
    }
}

#[test]
fn the_bound_of_the_ring_does_not_cover_more_messages_or_other_channels() {
    let settings = Settings { n_elem: 4096, slot_size: 1 << 20, ..Settings::default() };
    for name in ["ring_accumulate", "tree_allreduce", "mesh_allreduce", "recursive_doubling", "all_gather"] {
        let program = algo::build(name, 16, &Shape { window: 4, ..Shape::default() }).unwrap();
        assert_eq!(timed(&*program, &direct(), &settings).1.ring, 0, "{name}");
    }
    // Fewer elements than chunks: an empty chunk need not be sent.
    let ring = algo::build("ring_reduce_scatter_allgather", 16, &Shape::default()).unwrap();
    assert_eq!(timed(&*ring, &direct(), &Settings { n_elem: 15, ..settings.clone() }).1.ring, 0);
    assert!(timed(&*ring, &direct(), &settings).1.ring > 0);
}

/// The bound of `hierarchical` falls from 8 to 16 ranks in a sweep, because the one ring of a cube is covered
/// by the bound of the ring and joined rings are not. What covers both grows.
#[test]
fn iq_5_the_bound_of_hierarchical_falls_only_where_the_ring_ends() {
    let settings = Settings { n_elem: 1 << 19, slot_size: 1 << 20, ..Settings::default() };
    let of = |cubes: u32| {
        let shape = Shape { levels: Some([8, cubes, 1]), window: 4, ..Shape::default() };
        let program = algo::build("hierarchical", 8 * cubes, &shape).unwrap();
        let (time, bounds) = timed(&*program, &Topology::default(), &settings);
        assert!(time >= bounds.most(), "{cubes}: {time} {bounds:?}");
        bounds
    };
    let (one, two) = (of(1), of(2));
    assert_eq!((one.reason(), two.reason(), two.ring), ("ring", "cut", 0));
    assert!(two.most() < one.most());
    let general = |bounds: Bounds| Bounds { ring: 0, ..bounds }.most();
    assert!(general(one) <= general(two), "{one:?} {two:?}");
}

/// IQ-5: with fewer elements than chunks some ranks own nothing, and need not send or receive. Rank 12
/// starts last by far and owns the last, empty chunks.
#[test]
fn iq_5_ranks_that_own_nothing_do_not_count() {
    let shape = Shape { split: 2, window: 4, ..Shape::default() };
    for (name, late) in [("all_gather", 12), ("reduce_scatter", 0)] {
        let program = algo::build(name, 13, &shape).unwrap();
        let settings = Settings { n_elem: 3, skew: Skew::One(late, 1_000_000), ..Settings::default() };
        for topology in [direct(), Topology::default()] {
            let (time, bounds) = timed(&*program, &topology, &settings);
            assert!(time >= bounds.most(), "{name}: {time} {bounds:?}");
        }
        let late = timed(&*program, &direct(), &settings).1.latency > 1_000_000;
        assert_eq!(late, name == "reduce_scatter", "only the contribution to a sum must be sent");
    }
}

/// As 4096 ranks with 1 MiB per rank, which `bench_ipcq` times: chunks of 256 bytes.
#[test]
fn the_optimal_ring_comes_close_to_the_bound_when_latency_decides() {
    let ring = algo::build("ring_reduce_scatter_allgather", 256, &Shape { window: 4, ..Shape::default() });
    let settings = Settings { n_elem: 256 * 128, ..Settings::default() };
    let (time, bounds) = timed(&*ring.unwrap(), &direct(), &settings);
    assert_eq!(bounds.reason(), "ring");
    assert!(bounds.most() as f64 / time as f64 > 0.95, "{time} {bounds:?}");
}

/// As chunks of 1 MiB in messages of 256 KiB on 4096 ranks: each message takes long enough to hide its
/// latency.
#[test]
fn the_optimal_ring_comes_close_to_the_bound_when_bandwidth_decides() {
    let mut topology = direct();
    topology.direct.rate = Rate::whole(8);
    let shape = Shape { split: 4, window: 4, ..Shape::default() };
    let ring = algo::build("ring_reduce_scatter_allgather", 256, &shape).unwrap();
    let (time, bounds) = timed(&*ring, &topology, &Settings { n_elem: 32_768, ..Settings::default() });
    assert!(bounds.most() as f64 / time as f64 > 0.95, "{time} {bounds:?}");
}
