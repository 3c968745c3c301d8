//! How much memory is available, checked before it is needed.
//!
//! A shared page that the machine cannot supply is a SIGBUS, or the kernel's out-of-memory killer, in the
//! middle of a store. So a reservation first compares its need with what the machine, the control group
//! and the process's limits have.

use crate::region::RegionError;
use deadline::monotonic_ns;
use nix::sys::resource::{Resource, getrlimit};
use std::path::Path;
use std::sync::Mutex;

/// Memory that was available a moment ago: reading the limits costs more than a few pages do.
///
/// It is a small enough part of what was available that all processes of a group can spend theirs at once,
/// and expires soon enough that what others take in the meantime does not matter.
///
/// A fresh process starts with a little that was not checked, so that bring-up does not pay for reading
/// the limits.
static CREDIT: Mutex<Credit> = Mutex::new(Credit { pid: 0, bytes: 0, until_ns: 0 });
const CREDIT_AT_FIRST: u64 = 1 << 20;
const CREDIT_PART: u64 = 256;
const CREDIT_MOST: u64 = 16 << 20;
const CREDIT_NS: u64 = 100_000_000;

struct Credit {
    /// The owner: a forked child starts with a credit of its own.
    pid: u32,
    bytes: u64,
    until_ns: u64,
}

/// Refuses what the machine, the control group or the process's limits do not have. The kernel would answer
/// some of it with the out-of-memory killer.
pub(crate) fn check_available(label: &str, need: usize) -> Result<(), RegionError> {
    let need = need as u64;
    // Without waiting: in a forked child the lock may be held by a thread that does not exist there.
    let mut credit = CREDIT.try_lock().ok();
    let now = monotonic_ns();
    if let Some(credit) = &mut credit {
        let pid = std::process::id();
        if credit.pid != pid {
            **credit = Credit { pid, bytes: CREDIT_AT_FIRST, until_ns: u64::MAX };
        }
        if need <= credit.bytes && now < credit.until_ns {
            credit.bytes -= need;
            return Ok(());
        }
    }
    match tightest() {
        Some((have, limit)) if need > have => {
            Err(RegionError::OutOfMemory { label: label.to_owned(), need, have, limit })
        }
        Some((have, _)) => {
            if let Some(credit) = &mut credit {
                credit.bytes = ((have - need) / CREDIT_PART).min(CREDIT_MOST);
                credit.until_ns = now + CREDIT_NS;
            }
            Ok(())
        }
        None => Ok(()),
    }
}

/// The error for a kernel that has no memory.
pub(crate) fn exhausted(label: &str, need: usize) -> RegionError {
    let (have, limit) = tightest().unwrap_or((0, MACHINE));
    RegionError::OutOfMemory { label: label.to_owned(), need: need as u64, have, limit }
}

/// The error for a kernel that does not map that much.
pub(crate) fn address_space(label: &str, need: usize) -> RegionError {
    let have = getrlimit(Resource::RLIMIT_AS).map_or(0, |(soft, _)| soft).min(1 << 47);
    let limit = "that is the address space this process may use (ulimit -v, or what the processor has)";
    RegionError::OutOfMemory { label: label.to_owned(), need: need as u64, have, limit }
}

/// Growing a file beyond `RLIMIT_FSIZE` raises a fatal signal, so that the limit is checked first.
pub(crate) fn check_file_size_limit(label: &str, need: usize) -> Result<(), RegionError> {
    let have = getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft);
    if need as u64 <= have {
        return Ok(());
    }
    let limit = "that is the file size limit of this process; raise it with `ulimit -f`";
    Err(RegionError::OutOfMemory { label: label.to_owned(), need: need as u64, have, limit })
}

const MACHINE: &str = "that is the memory the machine has available";
const GROUP: &str = "that is what the memory limit of this control group leaves";

/// The smallest of the limits that can be read, and its name.
fn tightest() -> Option<(u64, &'static str)> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_bytes(&text));
    let group = std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| group_bytes(&text));
    [machine.map(|have| (have, MACHINE)), group.map(|have| (have, GROUP))].into_iter().flatten().min()
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the control groups of `/proc/self/cgroup` leave: the least over this group and its ancestors.
fn group_bytes(cgroups: &str) -> Option<u64> {
    let mut least = None;
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, limit, used, cache) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "),
            list if list.split(',').any(|name| name == "memory") => (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file ",
            ),
            _ => continue,
        };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let read = |file: &str| std::fs::read_to_string(Path::new(root).join(group).join(file)).ok();
            let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
            if let (Some(limit), Some(used)) = (number(limit), number(used)) {
                // Cached file pages count as used, and are dropped when memory is needed.
                let spare = read("memory.stat").and_then(|stat| counter(&stat, cache)).unwrap_or(0);
                let left = limit.saturating_sub(used.saturating_sub(spare));
                least = Some(least.map_or(left, |least: u64| least.min(left)));
            }
        }
    }
    least
}

/// The number after `name` in a file of lines of names and numbers.
fn counter(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        assert_eq!(available_bytes("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2048 * 1024));
        assert_eq!(available_bytes("MemTotal: 9 kB\n"), None);
        assert_eq!(available_bytes("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        let stat = "inactive_file 4096\ntotal_inactive_file 8192\n";
        assert_eq!(counter(stat, "inactive_file "), Some(4096));
        assert_eq!(counter(stat, "total_inactive_file "), Some(8192));
        assert_eq!(counter(stat, "active_file "), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn this_machine_reports_what_it_has() {
        assert!(tightest().is_some_and(|(have, _)| have > 0));
    }
}
