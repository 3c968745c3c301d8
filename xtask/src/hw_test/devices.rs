//! Which devices a run uses: logical ids, whatever the names under /dev are.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// The list of devices that the vendor's runtime reads.
const VISIBLE: &str = "ASCEND_RT_VISIBLE_DEVICES";

/// Logical device ids, each once, in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Devices(Vec<u32>);

impl Devices {
    /// As test programs read them: `0,1`.
    pub(super) fn listed(&self) -> String {
        self.0.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }
}

/// The devices of a double, which has as many as it is asked for.
pub(super) fn of_the_double(wanted: Option<&Devices>) -> Devices {
    wanted.cloned().unwrap_or(Devices(vec![0, 1, 2, 3]))
}

/// The devices of this machine.
pub(super) fn of_this_machine(wanted: Option<&Devices>) -> Result<Devices> {
    let list = std::env::var(VISIBLE).ok();
    choose(wanted, logical(list.as_deref(), present(Path::new("/dev")).len())?)
}

/// Ids of the device files `davinci0`, `davinci1`, … in a folder.
fn present(dev: &Path) -> Vec<u32> {
    let names = std::fs::read_dir(dev).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut ids: Vec<u32> =
        names.filter_map(|name| name.to_str()?.strip_prefix("davinci")?.parse().ok()).collect();
    ids.sort_unstable();
    ids
}

/// How many devices a process of this machine can open. Device files carry physical numbers: a container with davinci4
/// and davinci5 has the logical devices 0 and 1.
fn logical(list: Option<&str>, present: usize) -> Result<u32> {
    let listed = list.map(|list| {
        let entries: Vec<&str> = list.split(',').collect();
        let numbers = entries.iter().all(|entry| entry.parse::<u32>().is_ok());
        ensure!(numbers, "{VISIBLE}={list:?} is not a list of device numbers; write some such as 0,1");
        Ok(entries.len())
    });
    Ok(listed.transpose()?.map_or(present, |listed| listed.min(present)) as u32)
}

fn choose(wanted: Option<&Devices>, present: u32) -> Result<Devices> {
    if present == 0 {
        bail!(
            "no Ascend device: there is no /dev/davinci* on this machine that this process may use.\n\
             Hardware tests need an NPU with its driver, and the CANN libraries on the library search path.\n\
             To run the same tests against the vendor double: cargo xtask hw-test --double"
        );
    }
    let wanted = wanted.cloned().unwrap_or(Devices((0..present).collect()));
    for id in &wanted.0 {
        ensure!(
            *id < present,
            "device {id} was asked for; this process sees {present} devices, which count from 0 (/dev/davinci*, {VISIBLE})"
        );
    }
    Ok(wanted)
}

pub(super) fn parse_devices(text: &str) -> Result<Devices> {
    let mut ids = Vec::new();
    for part in text.split(',') {
        let number = |text: &str| {
            text.trim()
                .parse::<u32>()
                .with_context(|| format!("`{text}` is not a device id; write 0-3 or 0,2,5"))
        };
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        ensure!(first <= last, "`{part}` runs backwards; write {last}-{first}");
        ensure!(
            last < 64,
            "`{part}` goes beyond the 64 devices that a communicator can hold; write 0-63 or fewer"
        );
        ids.extend(first..=last);
    }
    for (at, id) in ids.iter().enumerate() {
        ensure!(!ids[..at].contains(id), "device {id} is named twice; name each once");
    }
    Ok(Devices(ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_lists_are_ranges_and_ids() {
        assert_eq!(parse_devices("0-3").unwrap(), Devices(vec![0, 1, 2, 3]));
        assert_eq!(parse_devices("5,0-1").unwrap(), Devices(vec![5, 0, 1]));
        for (bad, said) in [
            ("", "`` is not a device id; write 0-3 or 0,2,5"),
            ("a", "`a` is not a device id; write 0-3 or 0,2,5"),
            ("1-", "`` is not a device id; write 0-3 or 0,2,5"),
            ("-1", "`` is not a device id; write 0-3 or 0,2,5"),
            ("3-1", "`3-1` runs backwards; write 1-3"),
            ("0,0", "device 0 is named twice; name each once"),
            ("0-64", "`0-64` goes beyond the 64 devices that a communicator can hold; write 0-63 or fewer"),
            (
                "0-4294967295",
                "`0-4294967295` goes beyond the 64 devices that a communicator can hold; write 0-63 or fewer",
            ),
        ] {
            assert_eq!(parse_devices(bad).unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn without_a_device_it_fails_and_names_the_way_out() {
        let error = choose(None, 0).unwrap_err().to_string();
        assert!(
            error.contains("no Ascend device: there is no /dev/davinci* on this machine")
                && error.contains("--double"),
            "{error}"
        );
        assert_eq!(of_the_double(None), Devices(vec![0, 1, 2, 3]));
    }

    #[test]
    fn a_device_that_is_not_there_is_refused() {
        let asked = |text: &str| parse_devices(text).unwrap();
        assert_eq!(
            choose(Some(&asked("0-2")), 2).unwrap_err().to_string(),
            "device 2 was asked for; this process sees 2 devices, which count from 0 (/dev/davinci*, \
             ASCEND_RT_VISIBLE_DEVICES)"
        );
        assert_eq!(choose(Some(&asked("1")), 2).unwrap(), Devices(vec![1]));
        assert_eq!(choose(None, 2).unwrap(), Devices(vec![0, 1]));
    }

    #[test]
    fn device_files_have_physical_numbers_and_processes_use_logical_ones() {
        // davinci4 and davinci5.
        assert_eq!(logical(None, 2).unwrap(), 2);
        assert_eq!(logical(Some("5"), 2).unwrap(), 1);
        assert_eq!(logical(Some("0,1,2,3"), 2).unwrap(), 2);
        let error = logical(Some("0-3"), 4).unwrap_err().to_string();
        let said =
            "ASCEND_RT_VISIBLE_DEVICES=\"0-3\" is not a list of device numbers; write some such as 0,1";
        assert_eq!(error, said);
    }
}
