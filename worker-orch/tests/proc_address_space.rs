//! A Worker in a process that may have few addresses. This test program starts itself under a limit.
#![allow(missing_docs)]

mod support;

use serial_test::serial;
use std::process::{Command, Stdio};
use support::{grouped, text};
use worker_orch::{AddressSpace, ErrorCode, WorkerBuilder};

/// Set in a process that this program has started.
const INSIDE: &str = "CHIPCOMM_LIMITED_TEST";

/// Runs `body` as the test `name` in a process with `ulimit -v` of so many KiB.
fn with_limit(name: &str, kib: u64, body: fn()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let script = format!("ulimit -v {kib}; exec \"$0\" --exact {name} --nocapture");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(std::env::current_exe().unwrap()).env(INSIDE, "1");
    let ended = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"));
}

#[test]
#[serial]
fn f75_a_worker_takes_no_more_addresses_than_it_may_have() {
    with_limit("f75_a_worker_takes_no_more_addresses_than_it_may_have", 4 << 20, || {
        let mut worker = grouped(2, 1 << 20);
        let buffer = worker.host_buffer::<u8>(1 << 20).unwrap();
        worker.init().unwrap();
        buffer.write(&[1; 4096]).unwrap();
        worker.close().unwrap();
    });
}

#[test]
#[serial]
fn f75_addresses_that_were_asked_for_name_the_limit_and_who_asked() {
    with_limit("f75_addresses_that_were_asked_for_name_the_limit_and_who_asked", 4 << 20, || {
        let space = |bytes: &str| bytes.parse::<AddressSpace>().unwrap();
        let refused = WorkerBuilder::default().heap_space(space("16G")).build().map(drop).unwrap_err();
        assert_eq!(refused.code, ErrorCode::OutOfMemory);
        let refused = text(&refused);
        for word in [
            "no addresses for host buffers; CHIPCOMM_HEAP_SPACE or heap_space asks for 17179869184 bytes",
            "`ulimit -v`: 4294967296 bytes",
        ] {
            assert!(refused.contains(word), "{refused}");
        }
        WorkerBuilder::default().heap_space(space("64M")).window_space(space("64M")).build().unwrap();
    });
}
