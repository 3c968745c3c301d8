//! Which ranks are on one host: those that can join at a name and share memory.

use shared_memory::{FNV_OFFSET, fnv1a};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A number that two processes have in common if they run on the same kernel, in the same namespaces of network and processes, as the
/// same user. Ranks in containers that share none of these are on different hosts for us, as they are for the MPI library.
pub(crate) fn identity() -> u64 {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = |name: &str| {
        fs::metadata(format!("/proc/self/ns/{name}")).map_or([0; 2], |data| [data.dev(), data.ino()])
    };
    let user = fs::metadata("/proc/self").map_or(0, |data| u64::from(data.uid()));
    let words = [namespace("net"), namespace("pid"), [user, 0]].concat();
    words.iter().fold(fnv1a(FNV_OFFSET, &boot), |hash, word| fnv1a(hash, &word.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_is_on_its_own_host() {
        assert_eq!(super::identity(), super::identity());
    }
}
