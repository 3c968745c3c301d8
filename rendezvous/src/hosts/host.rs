//! Which host this process is on.

use super::wire::{Host, NAME_BYTES, is_name};
use hmac_sha256::Hash;
use std::os::unix::ffi::OsStrExt;

/// The host of this process. Two processes are on one host when they have the same kernel and the same network and
/// pid namespaces: where a rendezvous at a path works, and where a vendor's handles for one machine do.
pub(super) fn this() -> Host {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = nix::unistd::gethostname().unwrap_or_default();
    let name = clean(&String::from_utf8_lossy(name.as_bytes()));
    let mut hash = Hash::new();
    hash.update(&boot);
    for namespace in ["net", "pid"] {
        let inode = nix::sys::stat::stat(format!("/proc/self/ns/{namespace}").as_str());
        hash.update(inode.map_or(0, |found| found.st_ino).to_le_bytes());
    }
    if boot.is_empty() {
        // Without a boot id the name is all there is to tell kernels apart.
        hash.update(&name);
    }
    let hash = hash.finalize();
    Host { id: std::array::from_fn(|at| hash[at]), name }
}

/// A name that [`Host`] accepts.
fn clean(name: &str) -> String {
    let name: String = name
        .chars()
        .map(|c| if c.is_ascii() && is_name(&c.to_string()) { c } else { '-' })
        .take(NAME_BYTES)
        .collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_host_with_a_name_that_can_be_sent() {
        assert_eq!(this(), this());
        assert!(is_name(&this().name));
        for name in ["", "a b", "é\u{1b}", &"x".repeat(100)] {
            assert!(is_name(&clean(name)), "{name:?}");
        }
    }
}
