//! How much memory is available, checked before it is needed.
//!
//! A shared page that the machine cannot supply is a SIGBUS, or the kernel's out-of-memory killer, in the
//! middle of a store. So a reservation first compares its need with what the machine, the control group
//! and the process's limits have.

use crate::error::{Limit, RegionError};
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
/// some of it with the out-of-memory killer. Returns whether the need was announced.
///
/// `announce` tells others of the need before the limits are read, and returns what they are about to take:
/// it counts as gone, although the limits do not show it yet.
pub(crate) fn check_available(
    label: &str,
    need: usize,
    announce: &dyn Fn(u64) -> u64,
) -> Result<bool, RegionError> {
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
            return Ok(false);
        }
    }
    let others = announce(need);
    let spare = spare(label, need, others, tightest()).inspect_err(|_| {
        announce(0);
    })?;
    if let Some(credit) = &mut credit {
        credit.bytes = (spare / CREDIT_PART).min(CREDIT_MOST);
        credit.until_ns = now + CREDIT_NS;
    }
    Ok(true)
}

/// Refuses what the machine or the control group does not have, as a reservation of a region does. For private memory, which has
/// its pages when they are touched: there is no later moment at which it could be refused.
pub fn check_memory(label: &str, need: usize) -> Result<(), RegionError> {
    check_available(label, need, &|_| 0).map(drop)
}

/// Why the kernel has no such memory, with what it has.
pub fn why_refused(label: &str, need: usize) -> RegionError {
    exhausted(label, need)
}

/// What is left of the tightest limit when `need` and what `others` are about to take are gone.
fn spare(label: &str, need: u64, others: u64, tightest: Option<(u64, Limit)>) -> Result<u64, RegionError> {
    let Some((have, limit)) = tightest else { return Ok(0) };
    let refused = |have, limit| RegionError::OutOfMemory { label: label.to_owned(), need, have, limit };
    let left = have.checked_sub(need).ok_or_else(|| refused(have, limit))?;
    left.checked_sub(others).ok_or_else(|| {
        let control_group = limit == Limit::ControlGroup;
        refused(have.saturating_sub(others), Limit::Promised { others, control_group })
    })
}

/// The error for a kernel that has no memory.
pub(crate) fn exhausted(label: &str, need: usize) -> RegionError {
    let need = need as u64;
    let limits = [uncommitted().map(|have| (have, Limit::Overcommit)), tightest()];
    // The kernel may have hit a limit that is none of these.
    let hit = limits.into_iter().flatten().filter(|(have, _)| *have < need).min_by_key(|(have, _)| *have);
    let (have, limit) = hit.unwrap_or_else(|| (tightest().map_or(0, |(have, _)| have), Limit::Kernel));
    RegionError::OutOfMemory { label: label.to_owned(), need, have, limit }
}

/// What the machine may still promise, where it counts its promises.
fn uncommitted() -> Option<u64> {
    let counts =
        std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2");
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok().filter(|_| counts)?;
    let field = |name| kilobytes(&meminfo, name);
    Some(field("CommitLimit:")?.saturating_sub(field("Committed_AS:")?))
}

/// Growing a file beyond `RLIMIT_FSIZE` raises a fatal signal, so that the limit is checked first.
pub(crate) fn check_file_size_limit(label: &str, need: usize) -> Result<(), RegionError> {
    let have = file_size_limit();
    if need as u64 <= have {
        return Ok(());
    }
    Err(RegionError::OutOfMemory { label: label.to_owned(), need: need as u64, have, limit: Limit::FileSize })
}

pub(crate) fn file_size_limit() -> u64 {
    getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft)
}

/// The smallest of the limits that can be read.
fn tightest() -> Option<(u64, Limit)> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = meminfo.and_then(|text| kilobytes(&text, "MemAvailable:"));
    let group = std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| group_bytes(&text));
    let limits = [machine.map(|have| (have, Limit::Machine)), group.map(|have| (have, Limit::ControlGroup))];
    limits.into_iter().flatten().min_by_key(|(have, _)| *have)
}

/// A field of `/proc/meminfo`, in bytes.
pub(crate) fn kilobytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
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
        let available = |text| kilobytes(text, "MemAvailable:");
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2048 * 1024));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        assert_eq!(available("MemAvailable: many kB\n"), None);
    }

    /// SM-7
    #[test]
    fn f51_what_others_are_about_to_take_counts_as_gone() {
        let machine = |others| spare("t", 60, others, Some((100, Limit::Machine)));
        assert_eq!((machine(0), machine(40)), (Ok(40), Ok(0)));
        let RegionError::OutOfMemory { need: 60, have: 59, limit, .. } = machine(41).unwrap_err() else {
            panic!()
        };
        assert_eq!(limit, Limit::Promised { others: 41, control_group: false });
        assert!(limit.to_string().contains("the machine leaves when others have the 41 bytes that they are about to take; start fewer at once"), "{limit}");
        let group = spare("t", 60, u64::MAX, Some((100, Limit::ControlGroup))).unwrap_err();
        assert!(matches!(
            group,
            RegionError::OutOfMemory { have: 0, limit: Limit::Promised { control_group: true, .. }, .. }
        ));
        assert!(group.to_string().contains("that is what this control group's limit leaves when"), "{group}");
        let group = spare("t", 101, 0, Some((100, Limit::ControlGroup))).unwrap_err().to_string();
        assert!(group.ends_with(
            "have 100; that is what the memory limit of this control group leaves; raise it (memory.max)"
        ));
        // Too much whatever others do: that is the limit to name.
        let alone = spare("t", 101, 50, Some((100, Limit::Machine))).unwrap_err();
        assert!(
            matches!(alone, RegionError::OutOfMemory { have: 100, limit: Limit::Machine, .. }),
            "{alone}"
        );
        assert!(
            alone
                .to_string()
                .ends_with("that is the memory the machine has available; end what else uses it")
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn f75_a_kernel_that_refuses_what_is_there_is_not_said_to_have_too_little() {
        let RegionError::OutOfMemory { need: 4096, have, limit, .. } = exhausted("t", 4096) else { panic!() };
        // Unless this machine is all but out of memory.
        assert!(have < 4096 || limit == Limit::Kernel, "{have} {limit}");
        let kernel = "so much is available, and the kernel refused it all the same; see its log (dmesg)";
        assert!(have < 4096 || limit.to_string() == kernel, "{limit}");
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
