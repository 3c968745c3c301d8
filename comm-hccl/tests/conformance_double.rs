//! The suite that every backend passes, on the vendor double: a process a rank, in each of the three ways to share
//! windows. What was proved here was proved on a double; nothing has run on hardware.

mod support;

use comm_context::abi::DeviceAddr;
use comm_context::comm::{AllocationId, CommError, Communicator, DomainSpec, SubsetView, Timeout, Window};
use comm_context::conformance::{self, TestRank};
use comm_hccl::{HcclComm, WindowWay};
use std::time::Duration;
use support::*;

const PATH: &str = "CHIPCOMM_TEST_PATH";
const RANKS: &str = "CHIPCOMM_TEST_RANKS";
const WAY: &str = "CHIPCOMM_TEST_WAY";
const FEWER: &str = "CHIPCOMM_TEST_FEWER";
const BARRIERS: &str = "ten_thousand_barriers_back_to_back";

/// A machine on which this way is the best one.
fn machine(way: WindowWay) -> &'static str {
    match way {
        WindowWay::Fabric => "",
        WindowWay::Shareable => "fabric = off",
        WindowWay::IpcKey => "fabric = off\nshareable = off",
    }
}

/// Which cases to run.
#[derive(Clone, Copy, PartialEq)]
enum Which {
    All,
    /// Not the ten thousand barriers, in which the way to share windows plays no part.
    ButBarriers,
}

/// Runs the cases with as many ranks, and checks that the double then holds nothing.
fn suite(nranks: u32, way: WindowWay, which: Which) {
    let double = double(machine(way));
    let path = double.dir.path().join("rootinfo");
    let children: Vec<_> = (0..nranks)
        .rev()
        .map(|rank| {
            let mut command = rank_command(&double, "part_suite", rank);
            command.env(PATH, &path).env(RANKS, nranks.to_string()).env(WAY, way.to_string());
            if which == Which::ButBarriers {
                command.env(FEWER, BARRIERS);
            }
            command.spawn().unwrap()
        })
        .collect();
    for output in children.into_iter().map(finish) {
        assert!(output.status.success(), "{way}, {nranks} ranks: {}", text(&output));
        assert_success(&output);
        let ran = conformance::cases(nranks).count() - usize::from(which == Which::ButBarriers);
        assert!(ran >= 20 && text(&output).contains(&format!("{ran} cases")), "{}", text(&output));
    }
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == nranks as usize && report.is_clean(), "{report}");
}

#[test]
#[ignore = "one rank of a suite"]
fn part_suite() {
    let Some(rank) = my_rank() else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let (path, nranks, way) = (variable(PATH), variable(RANKS).parse().unwrap(), variable(WAY));
    let (runtime, device) = open_device(rank);
    let timeout = Timeout::new(Duration::from_secs(60)).unwrap();
    let mut ran = 0;
    let left_out = std::env::var(FEWER).unwrap_or_default();
    for case in conformance::cases(nranks).filter(|case| case.name != left_out) {
        // A place of its own for each, so that a rank that leaves a broken group early meets no remains of it.
        let place = format!("{path}-{ran}");
        let open = |me| {
            let comm = HcclComm::rendezvous(&device, place.as_ref(), me, timeout)?;
            Ok(Box::new(Watched { comm, way: way.clone() }) as Box<dyn Communicator>)
        };
        let held = (case.run)(&TestRank { rank, nranks, open: &open, timeout });
        held.unwrap_or_else(|why| panic!("{} on rank {rank}: {why}", case.name));
        ran += 1;
    }
    println!("{ran} cases");
    device.close().unwrap();
    runtime.finalise().unwrap();
}

/// Checks that the windows were really made by the way under test.
struct Watched {
    comm: HcclComm,
    way: String,
}

impl Watched {
    fn check<T>(&self, made: Result<T, CommError>) -> Result<T, CommError> {
        if made.is_ok() {
            let way = self.comm.way().map(|way| way.to_string());
            assert_eq!(way.as_ref(), Some(&self.way), "{:?}", self.comm.refusals());
        }
        made
    }
}

impl Communicator for Watched {
    fn rank(&self) -> u32 {
        self.comm.rank()
    }
    fn nranks(&self) -> u32 {
        self.comm.nranks()
    }
    fn alloc_windows(&self, size: usize, within: Timeout) -> Result<Window, CommError> {
        self.check(self.comm.alloc_windows(size, within))
    }
    fn window(&self) -> Result<Window, CommError> {
        self.comm.window()
    }
    fn derive_context(&self, view: &SubsetView<'_>) -> Result<DeviceAddr, CommError> {
        self.comm.derive_context(view)
    }
    fn alloc_domain(&self, spec: &DomainSpec<'_>, within: Timeout) -> Result<Window, CommError> {
        self.check(self.comm.alloc_domain(spec, within))
    }
    fn release_domain(&self, id: AllocationId, within: Timeout) -> Result<(), CommError> {
        self.comm.release_domain(id, within)
    }
    fn barrier(&self, within: Timeout) -> Result<(), CommError> {
        self.comm.barrier(within)
    }
    fn read(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), CommError> {
        self.comm.read(from, into)
    }
    fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), CommError> {
        self.comm.write(to, bytes)
    }
    fn destroy(self: Box<Self>, within: Timeout) -> Result<(), CommError> {
        Box::new(self.comm).destroy(within)
    }
}

// CH-1
#[test]
fn two_ranks_by_fabric() {
    suite(2, WindowWay::Fabric, Which::All);
}

#[test]
fn two_ranks_by_shareable_handle() {
    suite(2, WindowWay::Shareable, Which::ButBarriers);
}

#[test]
fn two_ranks_by_ipc_key() {
    suite(2, WindowWay::IpcKey, Which::ButBarriers);
}

#[test]
fn four_ranks_by_fabric() {
    suite(4, WindowWay::Fabric, Which::ButBarriers);
}

/// The whole matrix: `cargo test -p comm-hccl --test conformance_double -- --ignored all_sizes_and_ways`.
#[test]
#[ignore = "some minutes; `cargo xtask hw-test --layer comm --double` runs it"]
fn all_sizes_and_ways() {
    for way in WindowWay::ALL {
        for nranks in [2, 4, 8] {
            suite(nranks, way, Which::All);
        }
    }
}
