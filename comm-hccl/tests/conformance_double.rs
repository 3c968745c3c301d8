//! The suite that every backend passes, on the vendor double: a process a rank, in each of the three ways to share
//! windows. What was proved here was proved on a double; nothing has run on hardware.

mod support;

use comm_context::comm::{Communicator, Timeout};
use comm_context::conformance::{self, Seat};
use comm_hccl::{HcclComm, WindowWay};
use std::time::Duration;
use support::*;

const CASE: &str = "CHIPCOMM_TEST_CASE";
const PATH: &str = "CHIPCOMM_TEST_PATH";
const RANKS: &str = "CHIPCOMM_TEST_RANKS";
const WAY: &str = "CHIPCOMM_TEST_WAY";

/// A machine on which this way is the best one.
fn machine(way: WindowWay) -> &'static str {
    match way {
        WindowWay::Fabric => "",
        WindowWay::Shareable => "fabric = off",
        WindowWay::IpcKey => "fabric = off\nshareable = off",
    }
}

/// Runs every case with as many ranks, and checks that the double then holds nothing.
fn suite(nranks: u32, way: WindowWay) {
    let mut ran = 0;
    for case in conformance::cases(nranks) {
        let double = double(machine(way));
        let path = double.dir.path().join("rootinfo");
        let children: Vec<_> = (0..nranks)
            .rev()
            .map(|rank| {
                let mut command = rank_command(&double, "part_case", rank);
                command.env(CASE, case.name).env(PATH, &path).env(RANKS, nranks.to_string());
                command.env(WAY, way.to_string()).spawn().unwrap()
            })
            .collect();
        for output in children.into_iter().map(finish) {
            assert!(output.status.success(), "{} by {way}, {nranks} ranks\n{}", case.name, text(&output));
            assert_success(&output);
        }
        let report = double.session.report().unwrap();
        assert!(report.processes.len() == nranks as usize && report.is_clean(), "{}: {report}", case.name);
        ran += 1;
    }
    assert!(ran >= 20, "only {ran} cases");
}

#[test]
#[ignore = "one rank of a case"]
fn part_case() {
    let Some(rank) = my_rank() else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let case = conformance::CASES.iter().find(|case| case.name == variable(CASE)).unwrap();
    let (runtime, device) = open_device(rank);
    let timeout = Timeout::new(Duration::from_secs(60)).unwrap();
    let path = variable(PATH);
    let open =
        |me| Ok(Box::new(HcclComm::meet(&device, path.as_ref(), me, timeout)?) as Box<dyn Communicator>);
    let seat = Seat { rank, nranks: variable(RANKS).parse().unwrap(), open: &open, timeout };
    let held = (case.run)(&seat);
    let closed = device.close();
    held.unwrap_or_else(|why| panic!("{why}"));
    closed.unwrap();
    runtime.finalise().unwrap();
}

// CH-1
#[test]
fn two_ranks_by_fabric() {
    suite(2, WindowWay::Fabric);
}

#[test]
fn two_ranks_by_shareable_handle() {
    suite(2, WindowWay::Shareable);
}

#[test]
fn two_ranks_by_ipc_key() {
    suite(2, WindowWay::IpcKey);
}

#[test]
fn four_ranks_by_fabric() {
    suite(4, WindowWay::Fabric);
}

/// The whole matrix: `cargo test -p comm-hccl --test conformance_double -- --ignored all_sizes_and_ways`.
#[test]
#[ignore = "some minutes; `cargo xtask hw-test --layer comm --double` runs it"]
fn all_sizes_and_ways() {
    for way in WindowWay::ALL {
        for nranks in [2, 4, 8] {
            suite(nranks, way);
        }
    }
}
