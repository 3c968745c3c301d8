//! An error of the vendor crosses a process border: `cargo xtask hw-test --layer errors`.
#![cfg(feature = "ascend")]

mod support;

use chip_bootstrap::{ChipConfig, bring_up};
use shared_memory::Region;
use support::{devices, in_processes, patience, platform, text};
use worker_errors::{ErrorCode, Failure};

const WIRE: usize = 2048;

/// More than any device has.
const TOO_MUCH: usize = 1 << 50;

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer errors"]
fn an_error_of_the_vendor_crosses_processes_with_function_code_and_place() {
    let (devices, platform) = (devices(), platform());
    // For each device the failure in its wire form, and its text as the process itself has it.
    let sent = Region::create("sent", devices.len() * 2 * WIRE).unwrap();
    in_processes(&devices, &[&sent], &|rank, device| {
        let mut chip =
            bring_up(platform, &ChipConfig::new(device), None, patience(), &mut |_| {}).map_err(text)?;
        let refused = chip.memory().ok_or("no device memory")?.allocate(TOO_MUCH);
        let failure = match refused {
            Err(error) => Failure::from(error).in_phase("task").on_device(device),
            Ok(addr) => return Err(format!("{TOO_MUCH} bytes were allocated at {addr}")),
        };
        let mut wire = [0; WIRE];
        failure.encode(&mut wire).map_err(|error| error.to_string())?;
        sent.write(rank * 2 * WIRE, &wire).map_err(|error| error.to_string())?;
        sent.write(rank * 2 * WIRE + WIRE, failure.to_string().as_bytes())
            .map_err(|error| error.to_string())?;
        chip.tear_down().map_err(text)
    });
    for (rank, device) in devices.iter().enumerate() {
        let (mut wire, mut own) = ([0; WIRE], [0; WIRE]);
        sent.read(rank * 2 * WIRE, &mut wire).unwrap();
        sent.read(rank * 2 * WIRE + WIRE, &mut own).unwrap();
        let failure = Failure::decode(&wire).unwrap();
        let shown = failure.to_string();
        assert_eq!(shown, String::from_utf8_lossy(&own).trim_end_matches('\0'));
        assert_eq!(failure.root_cause().code, ErrorCode::Vendor, "{shown}");
        for part in ["aclrtMalloc failed with", &format!("device {device}"), "task"] {
            assert!(shown.contains(part), "`{part}` is not in: {shown}");
        }
    }
}
