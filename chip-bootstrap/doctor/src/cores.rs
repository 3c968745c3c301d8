//! Cores, where they are, and pages.

use crate::finding::Finding;
use crate::machine::Machine;
use crate::trials::Trials;

pub(crate) fn examine(machine: &Machine, _: &Trials) -> Vec<Finding> {
    vec![cores(machine), placement(machine), huge_pages(machine)]
}

fn cores(machine: &Machine) -> Finding {
    let online = machine.line("/sys/devices/system/cpu/online").unwrap_or_default();
    let allowed = machine.field("/proc/self/status", "Cpus_allowed_list").unwrap_or_default();
    let may_use = count(&allowed).min(count(&online).max(1));
    Finding::noted(
        "cores",
        may_use >= 2,
        format!("{may_use} usable ({allowed} allowed, {online} online)"),
        "with fewer cores than chips everything works, and waits go through the kernel: give it a core for each chip",
    )
}

fn placement(machine: &Machine) -> Finding {
    let nodes = machine.line("/sys/devices/system/node/online").map_or(1, |list| count(&list).max(1));
    let siblings =
        machine.line("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").unwrap_or_default();
    let threads = count(&siblings).max(1);
    let words = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    Finding::noted(
        "placement",
        nodes == 1,
        format!("{}, {} for each core", words(nodes, "memory node"), words(threads, "thread")),
        "keep the chips of a group on one memory node (numactl --cpunodebind): the others reach its memory more slowly",
    )
}

fn huge_pages(machine: &Machine) -> Finding {
    let field = |name: &str| machine.field("/proc/meminfo", name).unwrap_or_default();
    let (total, size) = (field("HugePages_Total"), field("Hugepagesize"));
    let shared = machine.line("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    // The kernel puts the chosen word into brackets.
    let chosen =
        shared.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("unknown").to_owned();
    Finding::noted(
        "huge pages",
        chosen != "never" && chosen != "unknown" && chosen != "deny",
        format!("shared memory: {chosen}; reserved: {total} of {size}"),
        "large windows are faster with them: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    )
}

/// How many numbers a list such as `0-3,8` has.
fn count(list: &str) -> usize {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        Some((last + 1).saturating_sub(first))
    };
    list.split(',').filter_map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::State;
    use crate::planted::{Planted, good, state};

    #[test]
    fn lists_are_counted() {
        assert_eq!(["0-3,8", "0", "", "0-63", "x"].map(count), [5, 1, 0, 64, 0]);
    }

    #[test]
    fn one_core_several_nodes_and_no_huge_pages_are_noted() {
        let planted = Planted::new()
            .file("/sys/devices/system/cpu/online", "0-7\n")
            .file("/proc/self/status", "Cpus_allowed_list:\t3\n")
            .file("/sys/devices/system/node/online", "0-3\n")
            .file(
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size advise [never] deny force\n",
            );
        let findings = examine(&planted.machine(), &good());
        for what in ["cores", "placement", "huge pages"] {
            assert_eq!(state(&findings, what), State::Advised, "{what}: {findings:?}");
        }
        assert!(findings[0].found.starts_with("1 usable"), "{findings:?}");
        let planted = Planted::new()
            .file("/sys/devices/system/cpu/online", "0-7\n")
            .file("/proc/self/status", "Cpus_allowed_list:\t0-7\n")
            .file("/sys/devices/system/node/online", "0\n")
            .file(
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size [advise] never deny force\n",
            );
        assert!(examine(&planted.machine(), &good()).iter().all(|finding| finding.state == State::Good));
    }
}
