//! The suite that every backend passes, on the vendor double: one process for each rank, in each of the three share modes.
//! Nothing has run on hardware.

mod support;

use comm_context::abi::DeviceAddr;
use comm_context::comm::{AllocationId, CommError, Communicator, DomainSpec, SubsetView, Timeout, Window};
use comm_context::conformance::{self, TestRank};
use comm_hccl::{HcclComm, ShareMode};
use std::time::Duration;
use support::*;

const PATH: &str = "CHIPCOMM_TEST_PATH";
const RANKS: &str = "CHIPCOMM_TEST_RANKS";
const MODE: &str = "CHIPCOMM_TEST_MODE";
const FEWER: &str = "CHIPCOMM_TEST_FEWER";
const BARRIERS: &str = "ten_thousand_barriers_back_to_back";

/// A machine on which this mode is the best one.
fn machine(mode: ShareMode) -> &'static str {
    match mode {
        ShareMode::Fabric => "",
        ShareMode::Shareable => "fabric = off",
        ShareMode::IpcKey => "fabric = off\nshareable = off",
    }
}

/// Which cases to run.
#[derive(Clone, Copy, PartialEq)]
enum Which {
    All,
    /// Without the ten thousand barriers, which do not depend on the share mode.
    WithoutBarriers,
}

/// Runs the cases with this many ranks, and checks that the double then holds nothing.
fn suite(nranks: u32, mode: ShareMode, which: Which) {
    let double = double(machine(mode));
    let path = double.dir.path().join("rootinfo");
    let children: Vec<_> = (0..nranks)
        .rev()
        .map(|rank| {
            let mut command = rank_command(&double, "part_suite", rank);
            command.env(PATH, &path).env(RANKS, nranks.to_string()).env(MODE, mode.to_string());
            if which == Which::WithoutBarriers {
                command.env(FEWER, BARRIERS);
            }
            command.spawn().unwrap()
        })
        .collect();
    for output in children.into_iter().map(finish) {
        assert!(output.status.success(), "{mode}, {nranks} ranks: {}", text(&output));
        assert_success(&output);
        let ran = conformance::cases(nranks).count() - usize::from(which == Which::WithoutBarriers);
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
    let (path, nranks, mode) = (variable(PATH), variable(RANKS).parse().unwrap(), variable(MODE));
    let (runtime, device) = open_device(rank);
    let timeout = Timeout::new(Duration::from_secs(60)).unwrap();
    let mut ran = 0;
    let left_out = std::env::var(FEWER).unwrap_or_default();
    for case in conformance::cases(nranks).filter(|case| case.name != left_out) {
        // Each case has its own path, so that a rank that leaves a broken group early does not find its remains.
        let place = format!("{path}-{ran}");
        let open = |me| {
            let comm = HcclComm::rendezvous(&device, place.as_ref(), me, timeout)?;
            Ok(Box::new(Checked { comm, mode: mode.clone() }) as Box<dyn Communicator>)
        };
        let result = (case.run)(&TestRank { rank, nranks, open: &open, timeout });
        result.unwrap_or_else(|why| panic!("{} on rank {rank}: {why}", case.name));
        ran += 1;
    }
    println!("{ran} cases");
    device.close().unwrap();
    runtime.finalise().unwrap();
}

/// Checks that windows are really shared in the mode under test.
struct Checked {
    comm: HcclComm,
    mode: String,
}

impl Checked {
    fn check<T>(&self, made: Result<T, CommError>) -> Result<T, CommError> {
        if made.is_ok() {
            let mode = self.comm.share_mode().map(|mode| mode.to_string());
            assert_eq!(mode.as_ref(), Some(&self.mode), "{:?}", self.comm.refusals());
        }
        made
    }
}

impl Communicator for Checked {
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
    suite(2, ShareMode::Fabric, Which::All);
}

#[test]
fn two_ranks_by_shareable_handle() {
    suite(2, ShareMode::Shareable, Which::WithoutBarriers);
}

#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn two_ranks_by_ipc_key() {
    suite(2, ShareMode::IpcKey, Which::WithoutBarriers);
}

#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn four_ranks_by_fabric() {
    suite(4, ShareMode::Fabric, Which::WithoutBarriers);
}

/// The whole matrix: `cargo test -p comm-hccl --test conformance_double -- --ignored all_sizes_and_share_modes`.
#[test]
#[ignore = "some minutes; `cargo xtask hw-test --layer comm --double` runs it"]
fn all_sizes_and_share_modes() {
    for mode in ShareMode::ALL {
        for nranks in [2, 4, 8] {
            suite(nranks, mode, Which::All);
        }
    }
}
