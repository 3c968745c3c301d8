//! Which memory an address of a tensor means.

use chip_bootstrap::ChipMemoryKind;
use shared_memory::Region;
use std::ops::Range;
use std::sync::Arc;

/// Addresses have fewer bits than this, on hosts and on devices.
const SPACE_BITS: u32 = 52;

/// The address spaces of a Worker's tensors. Where chips use host memory there is one space; a device has its
/// own, and two devices use the same numbers for different memory.
#[derive(Debug, Default)]
pub(super) struct AddressSpaces {
    /// Host memory, when the chips have spaces of their own.
    host: Option<Vec<Range<u64>>>,
}

impl AddressSpaces {
    /// `heaps` is all host memory that tensors can lie in.
    pub(super) fn new(chip_memory: ChipMemoryKind, heaps: &[Arc<Region>]) -> Self {
        let range = |heap: &Arc<Region>| {
            let start = heap.base().as_ptr() as u64;
            start..start + heap.len() as u64
        };
        match chip_memory {
            ChipMemoryKind::Host => Self::default(),
            ChipMemoryKind::Device => Self { host: Some(heaps.iter().map(range).collect()) },
        }
    }

    /// The range in a space of all memory: no two chips' own memories overlap in it.
    pub(super) fn globally(&self, range: Range<u64>, chip: usize) -> Range<u64> {
        let shared = |host: &[Range<u64>]| host.iter().any(|h| h.start <= range.start && range.end <= h.end);
        match &self.host {
            Some(host) if !shared(host) => {
                let space = (chip as u64 + 1) << SPACE_BITS;
                range.start | space..range.end | space
            }
            _ => range,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_address_on_two_devices_is_not_the_same_memory() {
        let one = AddressSpaces::default();
        assert_eq!(one.globally(64..128, 1), 64..128);
        let many = AddressSpaces { host: Some(vec![0x1000..0x2000, 0x9000..0xa000]) };
        assert_eq!(many.globally(0x1000..0x1100, 1), 0x1000..0x1100, "all chips share host memory");
        let (first, second) = (many.globally(0x5000..0x6000, 0), many.globally(0x5000..0x6000, 1));
        assert!(first.end <= second.start, "{first:?} {second:?}");
        assert_eq!((first.end - first.start, second.end - second.start), (0x1000, 0x1000));
    }
}
