//! Engines A and B agree to the picosecond, timing never decides about a deadlock, and no run beats the
//! bound.

use ccl_schedule::algo::{self, Shape};
use ccl_schedule::{CreditPoint, Dir, Goal, Land, ListedProgram, Op, Program, Tile, completes};
use ipcq_sim::bound::bounds;
use ipcq_sim::config::{
    Backpressure, BufferKind, CreditAt, CreditLatency, CreditWait, DType, Fabric, Grid, Settings, SipLinks,
    Skew, Topology,
};
use ipcq_sim::engine::{Engine, SimError, run};
use ipcq_sim::net::Exclusive;
use ipcq_sim::plan::Plan;
use ipcq_sim::probe::NoProbe;
use ipcq_sim::stats::Stats;
use ipcq_sim::units::{Decimal, Rate};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn rate() -> impl Strategy<Value = Rate> {
    (1u64..400_000).prop_map(|n| {
        Rate::gbps(Decimal::parse(&format!("{}.{:03}", n / 1000 + 1, n % 1000)).unwrap()).unwrap()
    })
}

prop_compose! {
    fn topologies()(
        direct in any::<bool>(),
        grid in (1u32..4, 1u32..4, any::<bool>()),
        sips in (1u32..4, 1u32..3, prop_oneof![Just(SipLinks::Switch), Just(SipLinks::Mesh), Just(SipLinks::Torus)]),
        pes in 1u32..5,
        rates in prop::array::uniform6(rate()),
        times in prop::array::uniform8(0u64..20_000),
    ) -> Topology {
        let mut t = Topology {
            fabric: if direct { Fabric::Direct } else { Fabric::Cubes },
            cubes: Grid { w: grid.0, h: grid.1, wraps: grid.2 },
            sips: Grid { w: sips.0, h: sips.1, wraps: sips.2 == SipLinks::Torus },
            sip_links: sips.2,
            pes,
            ..Topology::default()
        };
        (t.pe.rate, t.ucie.rate, t.sip.rate, t.direct.rate) = (rates[0], rates[1], rates[2], rates[3]);
        (t.math.rate, t.hbm.rate) = (rates[4], rates[5]);
        (t.pe.propagation, t.ucie.propagation, t.sip.propagation) = (times[0], times[1], times[2]);
        (t.direct.propagation, t.overheads.pe_cpu, t.overheads.crossbar) = (times[3], times[4], times[5]);
        (t.math.setup, t.overheads.ucie_port) = (times[6], times[7]);
        t
    }
}

prop_compose! {
    fn settings()(
        slots in 2u32..6,
        elems in 1u64..300,
        kind in prop_oneof![Just(BufferKind::Tcm), Just(BufferKind::Hbm), Just(BufferKind::Sram)],
        poll in prop_oneof![Just(Backpressure::Sleep), (1u64..9_000).prop_map(Backpressure::Poll)],
        at in prop_oneof![Just(CreditAt::Recv), Just(CreditAt::Copy), Just(CreditAt::LastUse)],
        latency in prop_oneof![Just(CreditLatency::Drain), Just(CreditLatency::Path)],
        wait in prop_oneof![Just(CreditWait::Fork), Just(CreditWait::Blocking)],
        skew in prop_oneof![
            Just(Skew::None),
            (0u32..2, 0u64..2_000_000).prop_map(|(r, t)| Skew::One(r, t)),
            (0u64..9, 1u64..200_000).prop_map(|(s, t)| Skew::Random(s, t)),
        ],
        dtype in prop_oneof![Just(DType::F16), Just(DType::F32)],
        split in 1u32..4,
    ) -> Settings {
        Settings {
            n_slots: slots, n_elem: elems, buffer_kind: kind, backpressure: poll, credit_at: at,
            credit_latency: latency, credit_wait: wait, skew, dtype, split, ..Settings::default()
        }
    }
}

fn program(which: usize, ranks: u32, settings: &Settings) -> Option<Box<dyn Program>> {
    let shape = Shape { split: settings.split, window: settings.n_slots, ..Shape::default() };
    algo::build(algo::NAMES[which % algo::NAMES.len()][0], ranks, &shape).ok()
}

/// IQ-1: where both engines apply, every rank's times are equal. IQ-5: nothing beats the lower bound. Returns
/// whether both ran.
fn engines_agree(
    topology: &Topology,
    settings: &Settings,
    which: usize,
    ranks: u32,
) -> Result<bool, TestCaseError> {
    let ranks = if topology.fabric == Fabric::Direct { ranks } else { ranks.min(topology.pe_count()) };
    let Some(program) = program(which, ranks, settings) else { return Ok(false) };
    let Ok(plan) = Plan::new(&*program, topology, settings, u64::MAX) else { return Ok(false) };
    let mut stats_b = Stats::new(&plan);
    let b = run(&plan, Engine::B, &mut stats_b).unwrap();
    prop_assert!(b.time() >= bounds(&plan).most(), "{} < {:?}", b.time(), bounds(&plan));
    prop_assert_eq!(b.messages, program.messages());
    match plan.net.exclusive() {
        Exclusive::Yes => {
            let mut stats_a = Stats::new(&plan);
            let a = run(&plan, Engine::A, &mut stats_a).unwrap();
            prop_assert_eq!(&a.finish, &b.finish);
            prop_assert_eq!(&a.blocked, &b.blocked);
            prop_assert_eq!(a.hash(), b.hash());
            prop_assert_eq!(stats_a.most_slots(), stats_b.most_slots());
            prop_assert_eq!(&stats_a.busy, &stats_b.busy);
            prop_assert!(stats_a.most_slots() <= settings.n_slots);
            Ok(true)
        }
        Exclusive::No(_) => {
            let refused = run(&plan, Engine::A, &mut NoProbe);
            let shared = matches!(refused, Err(SimError::Shared { .. }));
            prop_assert!(shared);
            Ok(false)
        }
    }
}

/// The same for a hundred thousand cases in which both engines apply.
#[test]
#[ignore = "takes minutes; run it after a change of an engine"]
fn iq_1_engines_agree_in_a_hundred_thousand_cases() {
    let mut runner = TestRunner::new(ProptestConfig { cases: u32::MAX, ..ProptestConfig::default() });
    let case = (topologies(), settings(), 0usize..9, 2u32..20);
    let (mut both, mut all) = (0, 0);
    while both < 100_000 {
        let (topology, settings, which, ranks) = case.new_tree(&mut runner).unwrap().current();
        let applied = engines_agree(&topology, &settings, which, ranks);
        let applied = applied.unwrap_or_else(|error| {
            panic!("{error}\n{which} with {ranks} ranks\n{topology:?}\n{settings:?}")
        });
        both += u32::from(applied);
        all += 1;
    }
    println!("both engines agree in {both} cases; {all} were tried, none beat its bound");
}

/// One of four sends and receives on a ring.
fn ring_op(which: usize) -> Op {
    match which {
        0 => Op::Send { dir: Dir::E, chunk: 0, from: Tile::Mem(0) },
        1 => Op::Send { dir: Dir::W, chunk: 0, from: Tile::Mem(0) },
        2 => Op::Recv { dir: Dir::E, tile: 0, land: Land::Reduce },
        _ => Op::Recv { dir: Dir::W, tile: 0, land: Land::Copy },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn iq_1_engines_agree_on_every_algorithm_and_topology(
        topology in topologies(), settings in settings(), which in 0usize..9, ranks in 2u32..20,
    ) {
        engines_agree(&topology, &settings, which, ranks)?;
    }

    /// SC-3 with time: whether a schedule completes is the same for every timing, slow links and stragglers
    /// included.
    #[test]
    fn sc_3_random_timings_do_not_decide_about_a_deadlock(
        lists in prop::collection::vec(prop::collection::vec(0usize..4, 0..7), 2..6),
        topology in topologies(), settings in settings(), slots in 1u32..4,
    ) {
        let lists = lists.into_iter().map(|list| list.into_iter().map(ring_op).collect()).collect();
        let program = ListedProgram::new("listed", Goal::AllReduce, 1, lists).on_two_way_ring();
        let settings = Settings { n_slots: slots, n_elem: 3, ..settings };
        let Ok(plan) = Plan::new(&program, &topology, &settings, u64::MAX) else { return Ok(()) };
        let completes = completes(&program, slots, CreditPoint::Recv).unwrap();
        for engine in [Engine::Auto, Engine::B] {
            match run(&plan, engine, &mut NoProbe) {
                Ok(_) => prop_assert!(completes),
                Err(SimError::Deadlock { .. }) => prop_assert!(!completes),
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}

#[test]
fn iq_3_the_hash_is_the_same_on_ten_runs_and_differs_when_a_time_differs() {
    let settings = Settings { skew: Skew::Random(7, 50_000), n_elem: 64, ..Settings::default() };
    for (name, ranks) in [("ring_accumulate", 64), ("tree_allreduce", 100), ("mesh_allreduce", 64)] {
        let program = algo::build(name, ranks, &Shape { window: 4, ..Shape::default() }).unwrap();
        let hash = |settings: &Settings| {
            let plan = Plan::new(&*program, &Topology::default(), settings, u64::MAX).unwrap();
            run(&plan, Engine::Auto, &mut NoProbe).unwrap().hash()
        };
        let first = hash(&settings);
        assert!((0..10).all(|_| hash(&settings) == first));
        assert_ne!(hash(&Settings { skew: Skew::Random(8, 50_000), ..settings.clone() }), first);
    }
}
