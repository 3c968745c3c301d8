//! The kernel, and what it separates.

use crate::finding::{Finding, State};
use crate::machine::Machine;
use crate::trials::Trials;

/// From here on a process can be watched and waited for by a descriptor.
const PIDFD: (u32, u32) = (5, 4);

pub(crate) fn examine(machine: &Machine, trials: &Trials) -> Vec<Finding> {
    let release = machine.line("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modern = version(&release).is_some_and(|version| version >= PIDFD);
    let shown = if release.is_empty() { "unknown".to_owned() } else { format!("Linux {release}") };
    let version = Finding::noted(
        "version",
        modern,
        format!("{shown} on {}", std::env::consts::ARCH),
        "Linux 5.4 or newer: older kernels cannot wait for a process by a descriptor, so pipes are used instead",
    );
    let tried = |what, trial: &Result<String, String>, fails, advice: &str| match trial {
        Ok(found) => Finding::new(what, State::Good, found, advice),
        Err(error) => Finding::new(what, fails, error, advice),
    };
    vec![
        version,
        tried(
            "shared memory",
            &(trials.shared_memory)(),
            State::Missing,
            "memfd_create, seals and fallocate must be allowed: check the seccomp profile of the container and its memory",
        ),
        tried(
            "pidfd",
            &(trials.pidfd)(),
            State::Advised,
            "pidfd_open is refused, so pipes are used to notice a death: allow it in the container's seccomp profile",
        ),
        tried(
            "two ranks",
            &(trials.two_ranks)(),
            State::Missing,
            "two processes must be able to share a window and to wait for each other: the error says what failed",
        ),
    ]
}

pub(crate) fn namespaces(machine: &Machine, _: &Trials) -> Vec<Finding> {
    let id = |kind: &str| {
        let link = std::fs::read_link(machine.path(format!("/proc/self/ns/{kind}"))).ok();
        link.map_or("unknown".to_owned(), |link| link.to_string_lossy().into_owned())
    };
    let container = ["/.dockerenv", "/run/.containerenv"].iter().any(|file| machine.path(file).exists());
    let place = if container { "in a container" } else { "no sign of a container" };
    let ids = ["pid", "net", "ipc", "user"].map(id).join(", ");
    // NSpid lists the number of this process in each namespace down from the one that /proc belongs to.
    let numbers = machine.field("/proc/self/status", "NSpid").unwrap_or_default().split_whitespace().count();
    vec![Finding::noted(
        "processes and network",
        numbers <= 1,
        format!("{place}; {ids}"),
        "ranks that join at a path need one pid and one network namespace; this /proc is of another pid namespace",
    )]
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::{Planted, failing, good, state};

    #[test]
    fn an_old_kernel_is_noted() {
        for (release, expected) in [
            ("6.1.0-18-amd64", State::Good),
            ("5.4.0", State::Good),
            ("4.19.90-2211.aarch64", State::Advised),
            ("", State::Advised),
        ] {
            let planted = Planted::new().file("/proc/sys/kernel/osrelease", &format!("{release}\n"));
            assert_eq!(state(&examine(&planted.machine(), &good()), "version"), expected, "{release}");
        }
    }

    #[test]
    fn what_is_tried_and_fails_is_missing_and_a_pidfd_is_not_needed() {
        let machine = Planted::new().machine();
        let findings = examine(&machine, &good());
        assert!(
            ["shared memory", "pidfd", "two ranks"].iter().all(|what| state(&findings, what) == State::Good)
        );
        let findings = examine(&machine, &failing());
        assert_eq!(state(&findings, "shared memory"), State::Missing);
        assert_eq!(state(&findings, "pidfd"), State::Advised);
        assert_eq!(state(&findings, "two ranks"), State::Missing);
    }

    #[test]
    fn a_proc_of_another_pid_namespace_is_noted() {
        let of = |status: &str| {
            let planted = Planted::new().file("/proc/self/status", status).file("/.dockerenv", "");
            namespaces(&planted.machine(), &good()).remove(0)
        };
        let (own, other) = (of("Name:\tx\nNSpid:\t17\n"), of("NSpid:\t4711\t17\n"));
        assert_eq!((own.state, other.state), (State::Good, State::Advised));
        assert!(own.found.contains("in a container"), "{own:?}");
    }
}
