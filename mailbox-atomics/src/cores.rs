//! Which cores a process may use, how much of them, and on which one a thread runs.

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The cores that a process may run on, which `taskset`, launchers and cgroup cpusets reduce: one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllowedCores(pub [u64; Self::WORDS]);

impl AllowedCores {
    /// Words of the set: 1024 cores.
    pub const WORDS: usize = 16;

    /// Those of the calling thread, which are its process's unless somebody set others; none if the system call
    /// fails.
    pub fn of_this_process() -> Self {
        let mut cores = Self::default();
        if let Ok(set) = sched_getaffinity(Pid::from_raw(0)) {
            let last = CpuSet::count().min(64 * Self::WORDS);
            for core in (0..last).filter(|core| set.is_set(*core).unwrap_or(false)) {
                cores.0[core / 64] |= 1 << (core % 64);
            }
        }
        cores
    }

    /// The cores in either set.
    pub fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// How many cores.
    pub fn count(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The numbers of the cores, from the lowest.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64 * Self::WORDS).filter(move |core| self.0[core / 64] & 1 << (core % 64) != 0)
    }
}

/// The core that the calling thread runs on; it may be another one by the time that this returns.
pub fn current_core() -> Option<usize> {
    sched_getcpu().ok()
}

/// Moves the calling thread to `core`. It is not bound there: it may run where it could run before, and the
/// scheduler may move it again.
pub fn move_this_thread_to(core: usize) -> std::io::Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let mut only = CpuSet::new();
    only.set(core)?;
    sched_setaffinity(this, &only)?;
    Ok(sched_setaffinity(this, &allowed)?)
}

/// Has the calling thread run as soon as it is woken, also on the processor of the thread that woke it: for threads that mostly
/// wait. False where the system refuses, or the thread has a policy other than the usual one.
///
/// A thread that used its processor since it last slept has no claim to it when it is woken there: it would come after the
/// one that woke it, whenever that one sleeps or has used up its slice. So it asks for shorter slices than others have, as
/// Linux offers since 6.12, and is to come first.
#[cfg(not(loom))]
pub fn wake_promptly() -> bool {
    crate::sys::slice::shorten()
}

/// The part of the machine's processor time that a cgroup may use (`cpu.max`, or `cpu.cfs_quota_us` in version 1).
///
/// A process that spins uses its quota up, and is then stopped for the rest of the period: so a quota of
/// one core is one core, however many the process may run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Identifies the cgroup: processes with the same number share the quota.
    pub group: u64,
    /// Thousandths of a core.
    pub millicores: u64,
}

impl CpuQuota {
    /// The tightest quota among those of this process's cgroups; `None` where there is none, or none is to be
    /// seen.
    pub fn of_this_process() -> Option<Self> {
        // The interpreter has no such files.
        if cfg!(miri) {
            return None;
        }
        Self::read(&fs::read_to_string("/proc/self/cgroup").ok()?, Path::new("/sys/fs/cgroup"))
    }

    /// That of a process whose `/proc/self/cgroup` is `membership`, with the cgroup file systems in `mounts`.
    fn read(membership: &str, mounts: &Path) -> Option<Self> {
        let mut found: Vec<Self> = Vec::new();
        for line in membership.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let roots: &[&str] = match controllers {
                "" => &["", "unified"],
                list if list.split(',').any(|name| name == "cpu") => &["cpu,cpuacct", "cpu"],
                _ => continue,
            };
            for root in roots.iter().map(|root| mounts.join(root)).filter(|root| root.is_dir()) {
                // In a container the path may be one that only the host can see; what the container sees is the root.
                let below = root.join(path.trim_start_matches('/'));
                let start = if below.is_dir() { below } else { root.clone() };
                let folders = start.ancestors().take_while(|folder| folder.starts_with(&root));
                found.extend(folders.filter_map(|folder| Self::of_folder(folder.to_path_buf())));
            }
        }
        found.into_iter().min_by_key(|quota| quota.millicores)
    }

    fn of_folder(folder: PathBuf) -> Option<Self> {
        let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        let (quota, period) = match fs::read_to_string(folder.join("cpu.max")) {
            Ok(text) => {
                let mut words = text.split_whitespace().map(str::parse::<u64>);
                (words.next()?.ok()?, words.next()?.ok()?)
            }
            // -1 stands for unlimited; it does not parse here.
            Err(_) => (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?),
        };
        let millicores = quota.checked_mul(1000)?.checked_div(period)?;
        Some(Self { group: folder.metadata().ok()?.ino(), millicores })
    }

    /// How many cores may be used all the time: at least one.
    pub fn whole_cores(self) -> usize {
        usize::try_from(self.millicores / 1000).unwrap_or(usize::MAX).max(1)
    }
}

/// How many cores this process may use all the time. It reads some files of the system.
pub fn usable_cores() -> usize {
    let allowed = AllowedCores::of_this_process().count();
    CpuQuota::of_this_process().map_or(allowed, |quota| allowed.min(quota.whole_cores()))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn f71_a_thread_that_was_moved_may_run_where_it_could_before() {
        let allowed = AllowedCores::of_this_process();
        for core in allowed.iter() {
            move_this_thread_to(core).unwrap();
            assert_eq!(AllowedCores::of_this_process(), allowed);
        }
        assert_eq!(allowed.iter().count(), allowed.count());
        // A core that it may not use, or that there is not.
        assert!(move_this_thread_to(64 * AllowedCores::WORDS - 1).is_err());
        assert_eq!(AllowedCores::of_this_process(), allowed);
    }

    #[test]
    fn f71_a_quota_counts_as_cores() {
        let mounts = std::env::temp_dir().join(format!("cgroups-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let file = mounts.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("job/rank/cpu.max", "max 100000\n");
        write("job/cpu.max", "150000 100000\n");
        write("cpu,cpuacct/old/cpu.cfs_quota_us", "50000\n");
        write("cpu,cpuacct/old/cpu.cfs_period_us", "100000\n");
        write("cpu,cpuacct/free/cpu.cfs_quota_us", "-1\n");
        let read = |membership: &str| CpuQuota::read(membership, &mounts);
        let millicores = |membership| read(membership).map(|quota| quota.millicores);
        // The quota of a cgroup is that of the cgroups inside it.
        assert_eq!(millicores("0::/job/rank\n"), Some(1500));
        assert_eq!(read("0::/job/rank\n"), read("0::/job\n"));
        assert_eq!(read("0::/job\n").map(CpuQuota::whole_cores), Some(1));
        assert_eq!(millicores("4:memory:/old\n3:cpu,cpuacct:/old\n0::/\n"), Some(500));
        assert_eq!(millicores("3:cpu,cpuacct:/free\n"), None);
        assert_eq!(millicores("0::/job/rank\n3:cpu,cpuacct:/old\n"), Some(500));
        // A path that only the host sees.
        assert_eq!(millicores("0::/../elsewhere\n"), None);
        write("cpu.max", "200000 100000\n");
        assert_eq!(millicores("0::/kubepods/pod1\n"), Some(2000));
        assert_eq!(millicores("malformed"), None);
        fs::remove_dir_all(&mounts).unwrap();
    }
}
