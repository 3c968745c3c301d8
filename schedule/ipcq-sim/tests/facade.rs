//! Host code as kernbench2's users write it: its configuration keys, the process group and its clock, traffic beside it.

use ccl_schedule::algo::RingAccumulate;
use ccl_schedule::mutate::{Broken, Fault};
use ccl_schedule::{CreditPoint, dump, prove};
use ipcq_sim::config::{CclFile, Config, DType, Fabric, Flow, Settings, Topology, TopologyFile};
use ipcq_sim::dist::{BACKEND, ProcessGroup, ReduceOp, Tensor, init_process_group};
use ipcq_sim::engine::{Engine, run};
use ipcq_sim::kernbench;
use ipcq_sim::placement::{Placement, Policy};
use ipcq_sim::plan::Plan;
use ipcq_sim::probe::NoProbe;
use std::path::Path;
use std::process::Command;

const THEIR_TOPOLOGY: &str = "
system: { sips: { count: 2 } }
sip: { cube_mesh: { w: 4, h: 4 } }
cube: { pe_layout: { pe_per_corner: 2, corners: [NW, NE, SW, SE] } }
";

const THEIR_CCL: &str = "
defaults: { algorithm: ring_allreduce_tcm, buffer_kind: tcm, backpressure: sleep, n_slots: 4, slot_size: 4096 }
algorithms:
  ring_allreduce_tcm: { module: kernbench.ccl.algorithms.ring_allreduce_tcm, topology: ring_1d, n_elem: 8 }
  ring_allreduce_hbm: { module: ccl.ring_allreduce_hbm, topology: ring_1d, buffer_kind: hbm, n_elem: 8 }
  ring_allreduce_sram: { module: ring_allreduce_sram, topology: ring_1d, buffer_kind: sram, n_elem: 8 }
  ring_8: { module: ccl.ring_allreduce_tcm, topology: ring_1d, n_elem: 8, world_size: 8 }
  ring_16: { module: ccl.ring_allreduce_tcm, topology: ring_1d, n_elem: 8, world_size: 16 }
  mesh_allreduce: { module: ccl.mesh_allreduce_4, topology: mesh_2d, world_size: 4 }
  tree_allreduce: { module: ccl.tree_allreduce_7, topology: tree, world_size: 7 }
";

fn topology(text: &str) -> Result<Topology, String> {
    let file = TopologyFile::parse(text, Path::new("topology.yaml")).map_err(|error| error.to_string())?;
    file.topology().map_err(|error| error.to_string())
}

#[test]
fn the_seven_cases_run_from_the_keys_of_kernbench2() {
    let topology = topology(THEIR_TOPOLOGY).unwrap();
    assert_eq!(topology, Topology::default());
    let ccl = CclFile::parse(THEIR_CCL, Path::new("ccl.yaml")).unwrap();
    let ours = Config::load(None, None).unwrap();
    for (name, ranks) in [
        ("ring_allreduce_tcm", 256),
        ("ring_allreduce_hbm", 256),
        ("ring_allreduce_sram", 256),
        ("ring_8", 8),
        ("ring_16", 16),
        ("mesh_allreduce", 4),
        ("tree_allreduce", 7),
    ] {
        let settings = ccl.settings(name).unwrap();
        let bench = kernbench::run(&topology, &settings, Engine::Auto).unwrap();
        assert_eq!(bench.line(), format!(" {name} (ws={ranks}): {ranks} OK"));
        let known = ours.ccl.settings(if name.starts_with("ring") { name } else { continue }).unwrap();
        let theirs = kernbench::run(&topology, &known, Engine::Auto).unwrap();
        assert_eq!(bench.outcome.report.hash, theirs.outcome.report.hash, "{name}");
    }
}

#[test]
fn iq_8_mistakes_in_their_keys_name_file_line_and_value() {
    for (text, parts) in [
        ("system: { sips: { cuont: 2 } }", &["topology.yaml:1", "cuont"][..]),
        (
            "cube: { pe_layout: { corners: [NW, NE, NW] } }",
            &["corners", "NW", "this corner is named twice; name each once"],
        ),
        (
            "sips: { count: 2 }\nsystem: { sips: { count: 3 } }",
            &["topology.yaml:2", "system.sips.count = 3", "sips.count is 2; give one of the two"],
        ),
        ("links: { ucie: { load: 1 } }", &["topology.yaml:1", "links.ucie.load = 1", "below 1"]),
    ] {
        let error = topology(text).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    let entry = |keys: &str| {
        let text = format!("algorithms:\n  mine: {{ {keys} }}");
        let file = CclFile::parse(&text, Path::new("ccl.yaml")).map_err(|error| error.to_string());
        file.and_then(|file| file.settings("mine").map(|_| ()).map_err(|error| error.to_string()))
            .unwrap_err()
    };
    for (keys, parts) in [
        ("module: ccl.nothing", &["ccl.yaml:2", "module = ccl.nothing", "no such module"][..]),
        ("module: ccl.hello_send, algorithm: hello_send", &["ccl.yaml:2", "not both"]),
        ("algorithm: hello_send, traffic: [{ from: 0, to: 1, bytes: 0, every_ns: 1 }]", &["bytes: 0"]),
        ("algorithm: hello_send, traffic: [{ from: 0, to: 1, bytes: 1, every_ns: 0 }]", &["every_ns: 0"]),
        ("algorithm: hello_send, traffic: [{ from: 0, two: 1, bytes: 1, every_ns: 1 }]", &["two"]),
    ] {
        let error = entry(keys);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

/// A schedule file that loses an addition is installed, because its queues are right, and the bench reports it.
#[test]
fn a_broken_kernel_prints_the_lines_of_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    let broken = Broken::new(RingAccumulate::new(8).unwrap(), Fault::Drop { rank: 3, nth: 6 }).unwrap();
    assert!(prove(&broken, 4, CreditPoint::LastUse).is_err());
    let mut file = std::fs::File::create(folder.path().join("broken.json")).unwrap();
    dump(&broken, &mut file).unwrap();
    let ccl = folder.path().join("ccl.yaml");
    std::fs::write(&ccl, "algorithms:\n  broken: { module: ./broken.json, n_elem: 8 }\n").unwrap();
    let bench = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ccl_allreduce"));
        let output =
            command.arg("--ccl").arg(&ccl).args(["--algorithm", "broken"]).args(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    // Rank 3 lost what its west neighbour passed on last, the 5 of rank 4: 31 of 36, beyond the bench's tolerance.
    let (code, text, errors) = bench(&[]);
    assert_eq!(code, Some(1), "{text}{errors}");
    let last: Vec<&str> = text.lines().rev().take(2).collect();
    assert_eq!(last, [" broken (ws=8): 1 of 8 FAILED", "[FAIL] rank 3: 31, expected 36"], "{text}");
    let (code, _, errors) = bench(&["--world-size", "9"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("world_size = 9") && errors.contains("has 8 ranks"), "{errors}");
    std::fs::remove_file(folder.path().join("broken.json")).unwrap();
    let (code, _, errors) = bench(&[]);
    assert!(code == Some(2) && errors.contains("broken.json") && errors.contains("ccl.yaml:2"), "{errors}");
}

fn group(settings: &Settings) -> ProcessGroup {
    let topology = Topology { fabric: Fabric::Direct, ..Topology::default() };
    init_process_group(BACKEND, &topology, settings, Engine::Auto).unwrap()
}

fn ones(group: &ProcessGroup, ranks: u32) -> Tensor {
    let placement = Placement::uniform(Policy::RowWise, &group.places(), ranks);
    let host = vec![1.0; ranks as usize * 16];
    Tensor::from_host(group, (u64::from(ranks), 16), DType::F32, &placement, &host).unwrap()
}

#[test]
fn a_group_installs_its_queues_at_once_and_refuses_what_cannot_run() {
    let settings = Settings { world_size: Some(8), n_slots: 1, ..Settings::default() };
    let error = |backend: &str, settings: &Settings| {
        init_process_group(backend, &Topology::default(), settings, Engine::Auto).unwrap_err().to_string()
    };
    assert!(error(BACKEND, &settings).contains("deadlock with n_slots = 1"));
    assert_eq!(error("nccl", &settings), "unknown backend \"nccl\"; use \"ahbm\"");
    let many = Settings { world_size: Some(257), ..Settings::default() };
    assert!(error(BACKEND, &many).contains("PEs (2 SIPs x 16 cubes x 8 PEs); use fewer ranks"));
}

#[test]
fn iq_7_the_host_sees_data_as_of_its_clock_over_several_collectives() {
    let settings = Settings { world_size: Some(4), n_elem: 16, ..Settings::default() };
    let mut group = group(&settings);
    let mut tensor = ones(&group, 4);
    let first = group.all_reduce_async(&mut tensor, ReduceOp::Sum).unwrap();
    let second = group.all_reduce_async(&mut tensor, ReduceOp::Sum).unwrap();
    // Not started yet on the host's clock, half-way through the first, at its end, half-way through the second, at its end.
    group.observe(&mut tensor).unwrap();
    assert!((0..4).all(|rank| tensor.values(rank) == [1.0; 16]));
    assert_eq!(
        tensor.copy_(&[0.0; 64]).unwrap_err().to_string(),
        "the tensor is in use by a collective that was started on it; wait for that one first"
    );
    let (one, two) = (first.finish(), second.finish());
    assert!(0 < one && one < two);
    group.sleep(one / 2);
    group.observe(&mut tensor).unwrap();
    assert!((0..4).all(|rank| tensor.values(rank) == [1.0; 16]), "results are stored at the end");
    let outcome = group.wait(first, &mut tensor).unwrap();
    assert_eq!((group.now(), outcome.timing.time()), (one, one));
    assert!((0..4).all(|rank| tensor.values(rank) == [4.0; 16]));
    group.sleep((two - one) / 2);
    group.observe(&mut tensor).unwrap();
    assert!((0..4).all(|rank| tensor.values(rank) == [4.0; 16]));
    group.wait(second, &mut tensor).unwrap();
    assert!((0..4).all(|rank| tensor.values(rank) == [16.0; 16]));
    assert_eq!(group.now(), two);
    // Called, on the same clock; and a barrier takes time too.
    let outcome = group.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
    assert_eq!(group.now(), two + outcome.report.time_ps);
    assert!((0..4).all(|rank| tensor.values(rank) == [64.0; 16]));
    let before = group.now();
    assert_eq!(group.barrier().unwrap(), group.now() - before);
    tensor.copy_(&[2.0; 64]).unwrap();
}

/// Of two collectives one after the other, the second is as long as it would be alone, and no shorter.
#[test]
fn calls_follow_each_other_on_one_clock() {
    for fabric in [Fabric::Direct, Fabric::Cubes] {
        let settings = Settings { world_size: Some(8), n_elem: 16, ..Settings::default() };
        let topology = Topology { fabric, ..Topology::default() };
        let mut group = init_process_group(BACKEND, &topology, &settings, Engine::Auto).unwrap();
        let mut tensor = ones(&group, 8);
        let first = group.all_reduce(&mut tensor, ReduceOp::Sum).unwrap().report.time_ps;
        let second = group.all_reduce(&mut tensor, ReduceOp::Sum).unwrap().report.time_ps;
        assert_eq!((first, group.now()), (second, first + second));
    }
}

#[test]
fn compute_traffic_on_shared_links_makes_a_collective_slower() {
    let time = |topology: &Topology, traffic: Vec<Flow>| {
        let settings = Settings { n_elem: 256, world_size: Some(16), traffic, ..Settings::default() };
        let ring = RingAccumulate::new(16).unwrap();
        let plan = Plan::new(&ring, topology, &settings, u64::MAX).unwrap();
        run(&plan, Engine::Auto, &mut NoProbe).unwrap().time()
    };
    let quiet = Topology::default();
    let alone = time(&quiet, Vec::new());
    // From cube 0 to cube 1, as the ring goes; in the other direction there is no token of this ring but the last rank's.
    let flow = Flow { from: 0, to: 8, bytes: 4096, every: 32_000, start: 0, count: None };
    let beside = time(&quiet, vec![flow]);
    assert!(beside > alone, "{beside} and {alone}");
    assert_eq!(time(&quiet, vec![Flow { count: Some(0), ..flow }]), alone);
    assert_eq!(time(&quiet, vec![Flow { from: 100, to: 101, ..flow }]), alone);
    assert!(time(&quiet, vec![Flow { count: Some(1), ..flow }]) <= beside);
    // The same as a share of every link.
    let loaded = topology("links: { ucie: { load: 0.5 }, pe: { load: 0.25 } }").unwrap();
    assert!(time(&loaded, Vec::new()) > alone);
    let error = |topology: &Topology, flow: Flow| {
        let settings = Settings { world_size: Some(16), traffic: vec![flow], ..Settings::default() };
        let ring = RingAccumulate::new(16).unwrap();
        Plan::new(&ring, topology, &settings, u64::MAX).map(|_| ()).unwrap_err().to_string()
    };
    assert!(error(&quiet, Flow { to: 256, ..flow }).contains("two of the 256 PEs"));
    let direct = Topology { fabric: Fabric::Direct, ..quiet };
    assert!(error(&direct, flow).contains(
        "needs links that channels share, and here each channel has a wire of its own; use fabric: cubes"
    ));
}
