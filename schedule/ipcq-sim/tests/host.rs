//! The memory of one machine as a fabric: what a schedule takes follows from a few rates and the signal.
#![allow(missing_docs)]

use ipcq_sim::config::{Settings, Topology, TopologyFile};
use ipcq_sim::engine::Engine;
use ipcq_sim::probe::NoProbe;
use ipcq_sim::sim::{Outcome, Simulation, build};
use std::path::Path;

/// 1 ns signal; 10 GB/s staging, 5 taking, 4 folding: 100, 200 and 250 ps per byte.
fn host(more: &str) -> Topology {
    let text = format!(
        "fabric: memory\nhost:\n  signal_ns: 1\n  levels: [{{ bytes: 4096, stage_gbps: 10, take_gbps: 5, fold_gbps: 4 }}]\n{more}"
    );
    TopologyFile::parse(&text, Path::new("host.yaml")).unwrap().topology().unwrap()
}

fn run(topology: &Topology, algorithm: &str, ranks: u32, n_elem: u64, engine: Engine) -> Outcome {
    let settings =
        Settings { algorithm: algorithm.into(), world_size: Some(ranks), n_elem, ..Settings::default() };
    let program = build(&settings, topology).unwrap();
    let simulation = Simulation::new(&*program, topology, &settings).unwrap();
    simulation.prove().unwrap();
    simulation.time(engine, &mut NoProbe).unwrap()
}

fn time(topology: &Topology, algorithm: &str, ranks: u32, n_elem: u64) -> u64 {
    let [a, b] = [Engine::A, Engine::B].map(|engine| run(topology, algorithm, ranks, n_elem, engine));
    // IQ-1, IQ-5
    assert_eq!(a.timing.finish, b.timing.finish, "{algorithm}, {ranks} ranks");
    let report = a.report;
    assert!(report.time_ps >= report.lower_bound_ps, "{algorithm}, {ranks} ranks: {}", report.bound_by);
    report.time_ps
}

#[test]
fn the_times_of_two_ranks_are_those_of_their_parts() {
    // 2000 bytes: tiles are larger than the queues' slots, which a memory has not.
    let (staged, window) = (host(""), host("  passing: window\n"));
    assert_eq!(time(&staged, "direct_one_shot", 2, 1000), 200_000 + 1_000 + 500_000);
    assert_eq!(time(&window, "direct_one_shot", 2, 1000), 1_000 + 500_000);
    // Each half: staged, folded, its sum staged, the other sum taken.
    let half = 100_000 + 1_000 + 250_000 + 100_000 + 1_000 + 200_000;
    assert_eq!(time(&staged, "direct_two_shot", 2, 1000), half);
    assert_eq!(time(&window, "direct_two_shot", 2, 1000), half - 200_000);
}

#[test]
fn every_schedule_of_the_library_is_timed_the_same_by_both_engines_and_not_below_its_bound() {
    for (cores, passing) in [(2, "staged"), (16, "window")] {
        let topology = host(&format!("  cores: {cores}\n  passing: {passing}\n"));
        for names in ccl_schedule::algo::NAMES {
            for ranks in [2, 4, 8, 16] {
                let least = time(&topology, names[0], ranks, 64);
                assert!(time(&topology, names[0], ranks, 1 << 20) > least, "{}", names[0]);
            }
        }
    }
}

#[test]
fn more_data_than_a_slot_holds_is_no_reason_to_refuse() {
    assert!(time(&host(""), "ring_allreduce_tcm", 4, 1 << 24) > 0);
}

#[test]
fn ranks_without_a_core_share_the_time() {
    let [two, four] =
        [2, 4].map(|cores| time(&host(&format!("  cores: {cores}\n")), "direct_one_shot", 4, 1 << 20));
    assert!(two > 19 * four / 10 && two <= 2 * four, "{two} {four}");
}

#[test]
fn bad_levels_are_refused_with_their_line() {
    for (levels, said) in [
        ("[]", "give 1 to 12 levels, each with more bytes than the one before"),
        ("[{ bytes: 4, stage_gbps: 0, take_gbps: 1, fold_gbps: 1 }]", "a bandwidth must be above 0"),
        ("[{ bytes: 4, stage_gbps: 1, take_gbps: 1 }]", "fold_gbps"),
    ] {
        let text = format!("fabric: memory\nhost:\n  levels: {levels}\n");
        let file = TopologyFile::parse(&text, Path::new("host.yaml")).and_then(|file| file.topology());
        let error = file.unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("host.yaml:3"), "{error}");
    }
}
