//! Numbers that identify a run or a layout.

use core::num::NonZeroU64;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A random number, never 0: distinguishes this run's memory and messages from those of any other run.
///
/// It is made of the standard library's random keys, the time and the process. The last two are
/// there because forked processes inherit the keys. It is not a secret.
pub fn nonce() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(deadline::monotonic_ns());
    hasher.write_u32(std::process::id());
    NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN).get()
}

/// The hash of no bytes; where [`fnv1a`] starts.
pub const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// 64-bit FNV-1a: goes on from `hash`, the hash of the bytes before, with `bytes`. For layout
/// hashes and names, not against adversaries.
pub const fn fnv1a(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(FNV_PRIME);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_differ_and_are_not_zero() {
        let some: std::collections::HashSet<u64> = (0..100).map(|_| nonce()).collect();
        assert_eq!(some.len(), 100);
        assert!(!some.contains(&0));
    }

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(FNV_OFFSET, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(FNV_OFFSET, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(FNV_OFFSET, b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(fnv1a(fnv1a(FNV_OFFSET, b"foo"), b"bar"), fnv1a(FNV_OFFSET, b"foobar"));
    }
}
