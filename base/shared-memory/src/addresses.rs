//! How many addresses a process may have.

use crate::available::{file_size_limit, kilobytes};
use crate::error::{Limit, RegionError};
use nix::sys::resource::{Resource, getrlimit};

/// Regions take at most such a part of the addresses that are left: the program needs some for itself.
const PART: u64 = 4;
/// Sizes are whole large pages.
const UNIT: usize = 2 << 20;

/// How many bytes of addresses each of `pieces` sparse objects can have, at most `most`, where this process may not
/// have that many (`ulimit -v`, `ulimit -f`, a processor with few bits of address). Together they leave most
/// of the addresses to others. At least 2 MiB.
pub fn fitting_addresses(most: usize, pieces: usize) -> usize {
    let processor = (1 << address_bits()) / PART;
    let limited = address_limit().map_or(u64::MAX, |(limit, used)| limit.saturating_sub(used) / PART);
    let each = (processor.min(limited) / pieces.max(1) as u64).min(file_size_limit());
    let fitting = usize::try_from(each).unwrap_or(usize::MAX).min(most);
    if fitting == most { most } else { (fitting / UNIT * UNIT).max(UNIT) }
}

/// The error for a kernel that does not map `need` bytes.
pub(crate) fn too_few(label: &str, need: usize) -> RegionError {
    let need = need as u64;
    let (have, limit) = match (mappings_left(), address_limit()) {
        (Some((0, most)), _) => (0, Limit::Mappings { most }),
        (_, Some((limit, used))) if limit.saturating_sub(used) < need => {
            (limit.saturating_sub(used), Limit::AddressSpace { limit, used })
        }
        _ => {
            let bits = address_bits();
            ((1 << bits) - mapped_bytes().min(1 << bits), Limit::Processor { bits })
        }
    };
    RegionError::OutOfMemory { label: label.to_owned(), need, have, limit }
}

/// `RLIMIT_AS` and what counts against it; `None` without a limit.
fn address_limit() -> Option<(u64, u64)> {
    let (soft, _) = getrlimit(Resource::RLIMIT_AS).ok()?;
    (soft != nix::sys::resource::RLIM_INFINITY).then(|| (soft, mapped_bytes()))
}

/// What this process has mapped, in bytes.
fn mapped_bytes() -> u64 {
    // In kilobytes, unlike `statm`, which counts pages of whatever size the kernel has.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    kilobytes(&status, "VmSize:").unwrap_or(0)
}

/// How many more mappings this process may have, when that is next to none, and how many it may have at all.
fn mappings_left() -> Option<(u64, u64)> {
    let most: u64 = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    let used = std::fs::read_to_string("/proc/self/maps").ok()?.lines().count() as u64;
    // Reading the list, and changing the access of a page, take some too.
    Some((most.saturating_sub(used + 4), most))
}

/// The bits of a user address. Stacks are at the end of the addresses that a process has.
fn address_bits() -> u32 {
    let here = 0_u8;
    usize::BITS - (&raw const here).addr().leading_zeros()
}

// Miri has addresses of its own.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn without_limits_a_process_gets_what_it_asks_for() {
        assert_eq!(fitting_addresses(64 << 30, 64), 64 << 30);
        assert_eq!(fitting_addresses(12345, 1), 12345);
        assert!((36..=57).contains(&address_bits()), "{}", address_bits());
    }

    #[test]
    fn what_a_process_without_a_limit_is_told() {
        let error = too_few("t", 1 << 62).to_string();
        let bits = address_bits();
        let limit = format!("that is about what {bits} bits of address leave to this process; ask for less");
        // Unless whoever runs the tests has set `ulimit -v`.
        assert!(address_limit().is_some() || error.ends_with(&limit), "{error}");
    }

    #[test]
    fn pieces_share_the_addresses_of_the_processor() {
        let each = fitting_addresses(usize::MAX, 1000);
        assert!(each.is_multiple_of(UNIT) && each as u64 <= (1 << address_bits()) / PART / 1000);
        assert_eq!(fitting_addresses(usize::MAX, usize::MAX), UNIT);
    }
}
