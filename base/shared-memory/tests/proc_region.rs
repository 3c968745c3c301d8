//! Regions in processes that are killed or have little. This test program starts itself for that.
#![allow(missing_docs)]

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, raise};
use shared_memory::{Limit, Region, RegionError, fitting_addresses};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

/// Set in a process that this program has started.
const INSIDE: &str = "CHIPCOMM_REGION_TEST";

/// Runs `body` in another process, as the test `name`. `None` in that process itself.
fn in_another_process(name: &str, body: fn()) -> Option<ExitStatus> {
    if std::env::var_os(INSIDE).is_some() {
        body();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    // Output to a file would count against the file size limit.
    Some(command.args(["--exact", name]).env(INSIDE, "1").stdout(Stdio::null()).status().unwrap())
}

/// SM-1
#[test]
fn f21_a_killed_owner_leaves_no_shared_memory() {
    let count = || std::fs::read_dir("/dev/shm").unwrap().count();
    let before = count();
    let status = in_another_process("f21_a_killed_owner_leaves_no_shared_memory", || {
        let region = Region::create("t", 1 << 20).unwrap();
        region.write(0, &[1; 4096]).unwrap();
        raise(Signal::SIGKILL).unwrap();
    });
    if let Some(status) = status {
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
        assert_eq!(count(), before);
    }
}

/// SM-2
#[test]
fn f22_a_file_size_limit_is_an_error_and_not_a_signal() {
    let status = in_another_process("f22_a_file_size_limit_is_an_error_and_not_a_signal", || {
        setrlimit(Resource::RLIMIT_FSIZE, 4096, 4096).unwrap();
        let error = Region::create("t", 1 << 20).unwrap_err().to_string();
        assert!(
            [
                "need 1048576",
                "have 4096; that is the file size limit of this process; raise it with `ulimit -f`"
            ]
            .iter()
            .all(|part| error.contains(part)),
            "{error}"
        );
    });
    assert!(status.is_none_or(|status| status.success()));
}

/// SM-9
#[test]
fn f75_an_address_space_limit_is_named_with_what_it_leaves() {
    let status = in_another_process("f75_an_address_space_limit_is_named_with_what_it_leaves", || {
        // Less is left than the limit, as much of it is in use.
        let (limit, need) = (8 << 30, 5 << 30);
        let _used = Region::create_sparse("used", 4 << 30).unwrap();
        setrlimit(Resource::RLIMIT_AS, limit, limit).unwrap();
        let error = Region::create_sparse("t", need as usize).unwrap_err();
        let RegionError::OutOfMemory {
            need: needed,
            have,
            limit: Limit::AddressSpace { limit: named, used },
            ..
        } = error.clone()
        else {
            panic!("{error}")
        };
        assert!(needed == need && have < need && named == limit && used > 4 << 30, "{error}");
        let said = error.to_string();
        assert!(
            said.contains(
                "that is what the address space limit of this process leaves (`ulimit -v`: 8589934592 bytes"
            ),
            "{error}"
        );
        assert!(said.ends_with("in use); raise it, or ask for less"), "{error}");
        // What fits is what is left, not what the limit is.
        assert!(fitting_addresses(64 << 30, 2) <= 512 << 20);
        Region::create_sparse("t", fitting_addresses(64 << 30, 2)).unwrap();
    });
    assert!(status.is_none_or(|status| status.success()));
}

fn most_mappings() -> usize {
    std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap()
}

/// SM-9
#[test]
fn f75_a_process_with_all_its_mappings_is_reported_as_such() {
    if most_mappings() > 200_000 {
        return println!(
            "not run: a process may have so many mappings here that it takes too long to make them"
        );
    }
    let status = in_another_process("f75_a_process_with_all_its_mappings_is_reported_as_such", || {
        // A whole number of pages, whatever size they have.
        const PAGE: usize = 64 << 10;
        let most = most_mappings();
        let pages = Region::create_sparse("pages", 2 * most * PAGE).unwrap();
        // A page without access is a mapping of its own, and what is between two of them another.
        let refused = (1..).step_by(2).find_map(|page| pages.guard(page * PAGE..(page + 1) * PAGE).err());
        assert_eq!(
            refused.unwrap().to_string(),
            format!(
                "shared memory for `pages`: need {PAGE} bytes, have 0; this process has all {most} mappings that it may have; \
                 raise vm.max_map_count"
            )
        );
    });
    assert!(status.is_none_or(|status| status.success()));
}
