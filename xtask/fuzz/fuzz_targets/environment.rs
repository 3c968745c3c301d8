//! Text from users and launchers: lists of devices, platforms, times, sizes, ranks, fault plans, tables of
//! collectives, the double's files.
//! Any text is either refused with a sentence or has exactly one meaning. Also the ticket of a peer's window
//! on a device.
#![no_main]

use cann_sim::Config;
use cann_sim::faults::Script;
use chip_bootstrap::Platform;
use chipcomm_examples::{Devices, KernelFile};
use collectives::Table;
use comm_context::comm::{AddressSpace, Timeout};
use comm_hccl::{LogicalDevice, VisibleDevices, WindowTicket};
use fault_points::Plan;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    match kind % 9 {
        0 => devices(&text),
        1 => visible_devices(&text),
        2 => times(&text),
        3 => launcher(&text),
        4 => fault_plan(&text),
        5 => window_ticket(bytes),
        6 => names_and_files(&text),
        7 => sizes(&text),
        _ => table(&text),
    }
});

/// Errors are shown on terminals.
fn refused(error: &dyn std::fmt::Display) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.chars().any(|c| c != '\n' && c.is_control()), "{text:?}");
}

fn devices(text: &str) {
    let devices = match text.parse::<Devices>() {
        Ok(devices) => devices,
        Err(error) => return refused(&error),
    };
    assert!(text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b',' | b'-')), "{text:?}");
    let ids = devices.ids();
    assert!((1..=64).contains(&ids.len()) && ids.iter().all(|id| (0..64).contains(id)));
    assert!((1..ids.len()).all(|at| !ids[..at].contains(&ids[at])));
    // Written out one by one it means the same. A number alone would be a count, so each is a range.
    let list = ids.iter().map(|id| format!("{id}-{id}")).collect::<Vec<_>>().join(",");
    assert_eq!(list.parse(), Ok(devices));
}

fn visible_devices(text: &str) {
    match VisibleDevices::parse(text) {
        Ok(VisibleDevices::Listed(listed)) => {
            assert_eq!(listed.len(), text.split(',').count());
            let list = VisibleDevices::Listed(listed.clone());
            for (at, device) in listed.iter().enumerate() {
                let logical = LogicalDevice(at as u32);
                assert_eq!(list.visible(logical), Some(*device));
                assert_eq!(list.logical(*device), Some(logical));
            }
        }
        Ok(VisibleDevices::All) => panic!("{text:?} is not a list"),
        Err(error) => refused(&error),
    }
}

fn times(text: &str) {
    match text.parse::<Timeout>() {
        Ok(time) => {
            assert!(!time.get().is_zero() && time <= Timeout::MAX, "{text:?} {time:?}");
            assert!(text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'), "{text:?}");
        }
        Err(error) => refused(&error),
    }
}

fn launcher(text: &str) {
    match rendezvous::fuzzing::launcher(text) {
        Ok(launched) => {
            let (rank, nranks) = (launched.membership.rank(), launched.membership.nranks());
            assert!(rank < nranks && nranks <= 64);
            // It reports the variables that it read, in digits.
            let by = &launched.by;
            assert!(by.contains(&format!("={rank}, ")) && by.ends_with(&format!("={nranks})")), "{by}");
            let plain = |number: u32| {
                let value = |line: &str| line.split_once('=').map(|(_, value)| value.to_owned());
                let same =
                    |value: &str| value.trim_start_matches('0') == number.to_string().trim_start_matches('0');
                text.lines().filter_map(value).any(|value| !value.is_empty() && same(&value))
            };
            assert!(plain(rank) && plain(nranks), "{text:?}");
        }
        Err(error) => refused(&error),
    }
}

fn fault_plan(text: &str) {
    match text.parse::<Plan>() {
        Ok(plan) => {
            assert_eq!(plan.faults.len(), text.split(';').count());
            assert!(plan.faults.iter().all(|fault| fault.hit > 0 && !fault.point.is_empty()));
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
        Err(error) => refused(&error),
    }
}

fn window_ticket(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk() else { return };
    match WindowTicket::from_bytes(bytes) {
        Ok(ticket) => assert_eq!(&ticket.to_bytes(), bytes),
        Err(error) => refused(&error),
    }
}

fn names_and_files(text: &str) {
    match text.parse::<Platform>() {
        Ok(platform) => assert_eq!(platform.to_string().parse(), Ok(platform)),
        Err(error) => refused(&error),
    }
    if let Err(error) = text.parse::<Config>() {
        refused(&error);
    }
    if let Err(error) = text.parse::<Script>() {
        refused(&error);
    }
    // This checks whether files exist, and the system ends a path at a NUL.
    if !text.contains('\0')
        && let Err(error) = text.parse::<KernelFile>()
    {
        refused(&error);
    }
}

fn sizes(text: &str) {
    match text.parse::<AddressSpace>() {
        Ok(size) => {
            assert!(size.get() > 0 && text.bytes().all(|byte| byte.is_ascii_digit() || b"KMGT".contains(&byte)));
            assert_eq!(size.get().to_string().parse(), Ok(size));
        }
        Err(error) => refused(&error),
    }
}

fn table(text: &str) {
    match text.parse::<Table>() {
        Ok(table) => assert_eq!(table.to_string().parse::<Table>().ok(), Some(table), "{text:?}"),
        Err(error) => refused(&error),
    }
}
