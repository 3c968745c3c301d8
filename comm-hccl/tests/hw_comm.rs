//! The conformance suite with one process for each device: `cargo xtask hw-test --layer comm`.

mod support;

use cann_sim::hw_test::at_least;
use comm_context::comm::Communicator;
use comm_context::conformance::{self, TestRank};
use comm_hccl::HcclComm;
use support::devices::{in_processes, timeout};

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer comm"]
fn forked_ranks_pass_the_suite() {
    let devices = at_least(2);
    let nranks = devices.len() as u32;
    let mut ran = 0;
    for case in conformance::cases(nranks) {
        let prepared = HcclComm::prepare_group(nranks).unwrap();
        in_processes(case.name, &devices, &prepared.fds().collect::<Vec<_>>(), &|rank, device| {
            let open = |_| {
                Ok(Box::new(HcclComm::join(device, &prepared, rank, timeout())?) as Box<dyn Communicator>)
            };
            (case.run)(&TestRank { rank, nranks, open: &open, timeout: timeout() })
        });
        ran += 1;
    }
    assert!(ran >= 14, "only {ran} cases");
}

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer comm"]
fn ranks_that_join_at_a_path_pass_the_suite() {
    let devices = at_least(2);
    let nranks = devices.len() as u32;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rootinfo");
    let mut ran = 0;
    for case in conformance::cases(nranks) {
        in_processes(case.name, &devices, &[], &|rank, device| {
            let open = |me| {
                Ok(Box::new(HcclComm::rendezvous(device, &path, me, timeout())?) as Box<dyn Communicator>)
            };
            (case.run)(&TestRank { rank, nranks, open: &open, timeout: timeout() })
        });
        ran += 1;
    }
    assert!(ran >= 14, "only {ran} cases");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something was left at the path");
}
