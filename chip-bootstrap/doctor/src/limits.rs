//! Limits of the process and of its control groups.

use std::path::{Path, PathBuf};

use crate::finding::{Finding, State};
use crate::machine::Machine;
use crate::trials::Trials;

const LIMITS: &str = "/proc/self/limits";

pub(crate) fn examine(machine: &Machine, _: &Trials) -> Vec<Finding> {
    let mut findings = vec![
        limit(
            machine,
            ("open files", "Max open files"),
            (1024, 64),
            "ulimit -n 4096: a Worker holds some descriptors for each chip, the vendor's libraries hold more",
        ),
        limit(
            machine,
            ("processes", "Max processes"),
            (512, 16),
            "ulimit -u: one process for each chip, and threads count too; the vendor's libraries start some dozens",
        ),
        limit(
            machine,
            ("locked memory", "Max locked memory"),
            (64 << 20, 0),
            "ulimit -l unlimited: not needed by the simulation; HCCL locks memory for transfers between machines",
        ),
        limit(
            machine,
            ("address space", "Max address space"),
            (1 << 44, 1 << 27),
            "ulimit -v unlimited: with fewer addresses than 64 GiB for each rank, only smaller windows fit; they cost no memory",
        ),
    ];
    findings.extend(quotas(machine));
    findings
}

/// A limit of the process: good from the first number on, not enough for anything below the second.
fn limit(
    machine: &Machine,
    (what, name): (&'static str, &str),
    (good, least): (u64, u64),
    advice: &str,
) -> Finding {
    let text = machine.read(LIMITS).unwrap_or_default();
    let row = text.lines().find_map(|line| line.strip_prefix(name));
    let Some(soft) = row.and_then(|row| row.split_whitespace().next()) else {
        return Finding::new(what, State::Advised, format!("{LIMITS} does not say"), advice);
    };
    let state = match soft.parse::<u64>() {
        Err(_) => State::Good,
        Ok(number) if number >= good => State::Good,
        Ok(number) if number >= least => State::Advised,
        Ok(_) => State::Missing,
    };
    Finding::new(what, state, soft, advice)
}

/// The quotas of the control groups around this process; the tightest of each kind counts.
fn quotas(machine: &Machine) -> Vec<Finding> {
    let cores = tightest(machine, ("cpu", "cpu.max", "cpu.cfs_quota_us"), |file, text| {
        let mut numbers = text.split_whitespace();
        let quota: f64 = numbers.next()?.parse().ok().filter(|quota| *quota > 0.0)?;
        let period: f64 = match numbers.next() {
            Some(period) => period.parse().ok()?,
            None => machine.line(file.with_file_name("cpu.cfs_period_us"))?.parse().ok()?,
        };
        Some(quota / period)
    });
    let plain = |_: &Path, text: &str| text.trim().parse::<f64>().ok().filter(|bytes| *bytes < 9e18);
    let memory = tightest(machine, ("memory", "memory.max", "memory.limit_in_bytes"), plain);
    let processes = tightest(machine, ("pids", "pids.max", "pids.max"), plain);
    let shown = |value: Option<f64>, unit: f64, name: &str| {
        value.map_or("no quota".to_owned(), |value| format!("{:.1} {name}", value / unit))
    };
    let gib = f64::from(1 << 30);
    vec![
        Finding::noted(
            "quota of cores",
            cores.is_none_or(|cores| cores >= 2.0),
            shown(cores, 1.0, "cores"),
            "give the container at least a core for each chip: ranks that spin under a quota are stopped together",
        ),
        Finding::noted(
            "quota of memory",
            memory.is_none_or(|bytes| bytes >= gib),
            shown(memory, gib, "GiB"),
            "shared memory counts against it: at least the windows of all ranks and 1 GiB",
        ),
        Finding::noted(
            "quota of processes",
            processes.is_none_or(|count| count >= 512.0),
            shown(processes, 1.0, "processes and threads"),
            "raise pids.max of the control group (docker run --pids-limit)",
        ),
    ]
}

/// The least value of a quota over the groups from this process's own to the root, of both versions.
fn tightest(
    machine: &Machine,
    (controller, unified, legacy): (&str, &str, &str),
    value: impl Fn(&Path, &str) -> Option<f64>,
) -> Option<f64> {
    let groups = machine.read("/proc/self/cgroup").unwrap_or_default();
    let files = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        match controllers {
            "" => Some((PathBuf::from("/sys/fs/cgroup"), path, unified)),
            list if list.split(',').any(|one| one == controller) => {
                Some((Path::new("/sys/fs/cgroup").join(controller), path, legacy))
            }
            _ => None,
        }
    });
    let values = files.flat_map(|(mount, path, name)| {
        let own = mount.join(path.trim_start_matches('/'));
        let up: Vec<PathBuf> = own
            .ancestors()
            .take_while(|folder| folder.starts_with(&mount))
            .map(|folder| folder.join(name))
            .collect();
        up.into_iter().filter_map(|file| value(&file, &machine.line(&file)?)).collect::<Vec<f64>>()
    });
    values.min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::{Planted, good, state};

    fn limited(files: &str, space: &str) -> Vec<Finding> {
        let text = format!(
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max processes             96350                96350                processes\n\
             Max open files            {files}              20000                files\n\
             Max locked memory         65536                65536                bytes\n\
             Max address space         {space}              unlimited            bytes\n"
        );
        examine(&Planted::new().file(LIMITS, &text).machine(), &good())
    }

    #[test]
    fn limits_are_good_short_or_too_short() {
        let findings = limited("20000", "unlimited");
        for what in ["open files", "processes", "address space"] {
            assert_eq!(state(&findings, what), State::Good, "{what}");
        }
        assert_eq!(state(&findings, "locked memory"), State::Advised);
        assert_eq!(state(&limited("256", "unlimited"), "open files"), State::Advised);
        assert_eq!(state(&limited("20", "unlimited"), "open files"), State::Missing);
        assert_eq!(state(&limited("1024", "1073741824"), "address space"), State::Advised);
        assert_eq!(state(&limited("1024", "107374182"), "address space"), State::Missing);
        assert_eq!(state(&examine(&Planted::new().machine(), &good()), "open files"), State::Advised);
    }

    #[test]
    fn the_tightest_quota_of_the_groups_around_counts() {
        let planted = Planted::new()
            .file("/proc/self/cgroup", "0::/outer/inner\n")
            .file("/sys/fs/cgroup/outer/cpu.max", "150000 100000\n")
            .file("/sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n")
            .file("/sys/fs/cgroup/outer/inner/memory.max", "536870912\n")
            .file("/sys/fs/cgroup/pids.max", "max\n");
        let findings = examine(&planted.machine(), &good());
        let found = |what: &str| findings.iter().find(|finding| finding.what == what).unwrap().clone();
        assert_eq!(
            (found("quota of cores").state, found("quota of cores").found.as_str()),
            (State::Advised, "1.5 cores")
        );
        assert_eq!(found("quota of memory").found, "0.5 GiB");
        assert_eq!(
            (found("quota of processes").state, found("quota of processes").found.as_str()),
            (State::Good, "no quota")
        );
    }

    #[test]
    fn quotas_of_the_first_version_are_read_too() {
        let planted = Planted::new()
            .file("/proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n")
            .file("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000\n")
            .file("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
            .file("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
        let findings = examine(&planted.machine(), &good());
        let found = |what: &str| findings.iter().find(|finding| finding.what == what).unwrap().found.clone();
        assert_eq!(
            (found("quota of cores").as_str(), found("quota of memory").as_str()),
            ("4.0 cores", "no quota")
        );
    }
}
