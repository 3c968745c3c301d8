//! The timing rules compared with closed forms.

use ccl_schedule::algo::{self, Shape};
use ccl_schedule::{Dir, Goal, Land, ListedProgram, Op, Program, Tile};
use ipcq_sim::config::{
    Backpressure, BufferKind, CreditAt, CreditLatency, CreditWait, Fabric, Settings, Skew, Topology,
};
use ipcq_sim::engine::{Engine, Timing, run};
use ipcq_sim::plan::Plan;
use ipcq_sim::probe::NoProbe;
use ipcq_sim::sim::Simulation;
use ipcq_sim::stats::Stats;
use ipcq_sim::units::Rate;

fn time(program: &dyn Program, topology: &Topology, settings: &Settings, engine: Engine) -> Timing {
    let plan = Plan::new(program, topology, settings, u64::MAX).unwrap();
    run(&plan, engine, &mut NoProbe).unwrap()
}

fn bytes(bytes: u64) -> Settings {
    Settings { n_elem: bytes / 2, slot_size: 1 << 30, ..Settings::default() }
}

fn build(name: &str, ranks: u32) -> Box<dyn Program> {
    algo::build(name, ranks, &Shape { window: 4, ..Shape::default() }).unwrap()
}

fn direct() -> Topology {
    Topology { fabric: Fabric::Direct, ..Topology::default() }
}

/// IQ-2: an uncontended token takes propagation + overheads + bytes / bottleneck, plus slot write and read.
#[test]
fn iq_2_uncontended_time_is_the_closed_form() {
    let t = Topology::default();
    let hello = build("hello_send", 2);
    for size in [2, 16, 256, 4096, 65_536] {
        // Two PEs of one cube: PE out (2 mm) and PE in (2 mm) at 256 GB/s; PE CPU 2 ns, scheduler 1 ns,
        // crossbar 2 ns.
        let drain = Rate::whole(256).time(size);
        let slot = 2 * Rate::whole(512).time(size);
        let want = 20 + 20 + 5_000 + drain + slot;
        for engine in [Engine::A, Engine::B] {
            assert_eq!(time(&*hello, &t, &bytes(size), engine).time(), want, "{size}");
        }
    }
}

/// The worked example of the crate documentation: a token of 1024 bytes from cube 0 to cube 1.
#[test]
fn the_worked_example_of_the_documentation_holds() {
    let topology = Topology::default();
    // PE 7 is in cube 0, PE 8 in cube 1.
    let mut lists = vec![Vec::new(); 9];
    lists[7].push(Op::Send { dir: Dir::E, chunk: 0, from: Tile::Mem(0) });
    lists[8].push(Op::Recv { dir: Dir::W, tile: 0, land: Land::Reduce });
    let mut program = ListedProgram::new("one_token", Goal::Shift, 1, lists);
    program.connect((7, Dir::E), (8, Dir::W));
    for engine in [Engine::A, Engine::B] {
        let timing = time(&program, &topology, &bytes(1024), engine);
        assert_eq!(timing.finish[7], 0, "send returns at once");
        //           overheads            propagation    drain   write   read   math
        assert_eq!(timing.finish[8], 3_000 + 18_000 + 2_000 + 140 + 8_000 + 2_000 + 2_000 + 2_000);
        assert_eq!(timing.blocked[8], 33_140);
    }
}

/// IQ-6: the difference between slot memories, with 12 slot writes and reads on the critical path.
#[test]
fn iq_6_the_buffer_kinds_differ_as_published() {
    let ring = build("ring_accumulate", 13);
    let published = [
        // bytes, tcm, hbm: the published sweep, in ps
        (256, 1_678_040, 1_858_040),
        (2048, 1_957_040, 2_389_040),
        (16_384, 4_225_040, 6_673_040),
        (65_536, 12_001_040, 21_361_040),
    ];
    for (size, tcm, hbm) in published {
        let kind =
            |buffer_kind| time(&*ring, &direct(), &Settings { buffer_kind, ..bytes(size) }, Engine::A).time();
        assert_eq!(kind(BufferKind::Hbm) - kind(BufferKind::Tcm), hbm - tcm, "{size}");
        let sram = 24 * (2_000 + size * 1000 / 512 + size * 1000 / 128 - size * 1000 / 512);
        assert_eq!(kind(BufferKind::Sram) - kind(BufferKind::Tcm), sram, "{size}");
    }
}

#[test]
fn both_directions_of_a_wire_are_charged() {
    // Two PEs that send to each other at the same time share no link, and both wait for their own drain.
    let pair = build("recursive_doubling", 2);
    let t = Topology::default();
    let plan_settings = bytes(65_536);
    let plan = Plan::new(&*pair, &t, &plan_settings, u64::MAX).unwrap();
    let mut stats = Stats::new(&plan);
    run(&plan, Engine::B, &mut stats).unwrap();
    let drain = Rate::whole(256).time(65_536);
    // PE out and PE in of both ranks: four links, one token each.
    assert_eq!(&stats.busy[..4], [drain; 4]);
    assert_eq!(&stats.tokens[..4], [1; 4]);
}

#[test]
fn channels_that_share_a_link_queue_up() {
    // A tree of 3: both children send into the root's one port; the second waits until the first has drained.
    let tree = build("tree_allreduce", 3);
    let t = Topology::default();
    let (one, drain) = (bytes(65_536), Rate::whole(256).time(65_536));
    let timing = time(&*tree, &t, &one, Engine::Auto);
    assert_eq!(timing.engine, Engine::B);
    let slot = Rate::whole(512).time(65_536);
    let latency = 5_000 + 40;
    // Up: the second child's token drains after the first. Reading and adding the first overlaps with that.
    let up = latency + 2 * drain + slot;
    let ready = (latency + drain + slot + slot + slot).max(up) + slot + slot;
    // Down: both leave by the root's one port, the right child's second.
    assert_eq!(timing.finish[2], ready + latency + 2 * drain + 2 * slot);
    assert_eq!(timing.finish[1], ready + latency + drain + 2 * slot);
}

/// Sends `count` tokens to one rank that does `slow` additions after each.
fn flood(count: usize, slow: usize) -> ListedProgram {
    let sends = vec![Op::Send { dir: Dir::E, chunk: 0, from: Tile::Mem(0) }; count];
    let mut receive = vec![Op::Reduce { from: Tile::Mem(0), to: 0 }; slow + 1];
    receive[0] = Op::Recv { dir: Dir::W, tile: 0, land: Land::Copy };
    let mut program = ListedProgram::new("flood", Goal::Shift, 1, vec![sends, receive.repeat(count)]);
    program.connect((0, Dir::E), (1, Dir::W));
    program
}

#[test]
fn a_full_queue_blocks_the_sender_until_a_credit_returns() {
    let (t, mut settings) = (direct(), bytes(512));
    settings.n_slots = 2;
    // Wire: 3 ns overhead + 0.1 ns propagation + 4 ns drain; slot write 1 ns; read 1 ns; an addition 1 ns.
    let program = flood(3, 0);
    let timing = time(&program, &t, &settings, Engine::A);
    let visible = 3_000 + 4_000 + 100 + 1_000;
    let credit = Rate::whole(128).time(16);
    // The third send waits for the first credit: visible, read, 16 bytes at 128 GB/s.
    assert_eq!(timing.finish[0], visible + 1_000 + credit);
    assert_eq!(timing.blocked[0], timing.finish[0]);
    // Whole path instead of drain: overhead and propagation on top.
    let path = Settings { credit_latency: CreditLatency::Path, ..settings.clone() };
    assert_eq!(time(&program, &t, &path, Engine::A).finish[0], visible + 1_000 + credit + 3_100);
    // A receive that waits for its credit takes that much longer, token by token.
    let blocking = Settings { credit_wait: CreditWait::Blocking, ..settings.clone() };
    let (fork, wait) = (time(&program, &t, &settings, Engine::A), time(&program, &t, &blocking, Engine::A));
    assert_eq!(wait.finish[1], fork.finish[1] + credit);
}

#[test]
fn most_slots_used_counts_tokens_between_issue_and_credit() {
    let settings = Settings { n_slots: 8, ..bytes(512) };
    for (program, want) in [(flood(1, 0), 1), (flood(5, 0), 5), (flood(40, 9), 8)] {
        let plan_topology = direct();
        let plan = Plan::new(&program, &plan_topology, &settings, u64::MAX).unwrap();
        let mut stats = Stats::new(&plan);
        run(&plan, Engine::A, &mut stats).unwrap();
        assert_eq!(stats.most_slots(), want);
    }
}

#[test]
fn a_credit_at_recv_frees_the_slot_before_it_is_read() {
    let t = direct();
    let base = Settings { n_slots: 1, ..bytes(65_536) };
    let program = flood(2, 0);
    let at = |credit_at| time(&program, &t, &Settings { credit_at, ..base.clone() }, Engine::A).finish[0];
    assert_eq!(at(CreditAt::Copy) - at(CreditAt::Recv), Rate::whole(512).time(65_536));
    assert_eq!(at(CreditAt::Copy), at(CreditAt::LastUse));
}

#[test]
fn polling_rounds_every_wait_up_to_the_interval() {
    let hello = build("hello_send", 2);
    let sleep = time(&*hello, &direct(), &bytes(512), Engine::A);
    let visible = 8_100;
    assert_eq!(sleep.time(), visible + 1_000);
    let poll = Settings { backpressure: Backpressure::Poll(10_000), ..bytes(512) };
    assert_eq!(time(&*hello, &direct(), &poll, Engine::A).time(), 10_000 + 1_000);
}

#[test]
fn a_straggler_delays_all_ranks_by_at_most_its_lateness() {
    for name in ["ring_accumulate", "tree_allreduce", "recursive_doubling", "ring_reduce_scatter_allgather"] {
        let program = build(name, 8);
        let on_time = time(&*program, &direct(), &bytes(512), Engine::A);
        let late = Settings { skew: Skew::One(3, 1_000_000_000), ..bytes(512) };
        let late = time(&*program, &direct(), &late, Engine::A);
        assert!(late.finish.iter().all(|&at| at > 1_000_000_000), "{name}");
        assert!(late.time() <= on_time.time() + 1_000_000_000, "{name}");
    }
}

/// The engines time what was not proved, too, and say where it ends.
#[test]
fn a_schedule_that_is_wrong_ends_with_a_sentence() {
    let (topology, settings) = (direct(), bytes(512));
    let error = |lists, engine| {
        let program = ListedProgram::new("wrong", Goal::Any, 1, lists).on_ring();
        let simulation = Simulation::new(&program, &topology, &settings).unwrap();
        simulation.time(engine, &mut NoProbe).map(|_| ()).unwrap_err().to_string()
    };
    let (send, recv) = (
        Op::Send { dir: Dir::E, chunk: 0, from: Tile::Mem(0) },
        Op::Recv { dir: Dir::W, tile: 0, land: Land::Copy },
    );
    for engine in [Engine::A, Engine::B] {
        assert_eq!(
            error(vec![vec![send], vec![recv, Op::Wait { dir: Dir::W }]], engine),
            "rank 1, step 1: wait(W) is invalid at this step; `ipcq verify` reports why"
        );
        assert_eq!(
            error(vec![vec![send], vec![recv, recv], vec![recv]], engine),
            "deadlock: 2 of 3 ranks are blocked, the first is rank 1; `ipcq verify` shows the cycle"
        );
    }
}
