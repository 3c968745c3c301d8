//! What a child that is started by exec gets: plain numbers and names, beside the descriptors that come with
//! them.

use super::chip_launch::ChipLaunch;
use super::definition::Definition;
use mailbox_atomics::WordU64;
use shared_memory::{Region, RegionError};
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use worker_errors::cursor::{Reader, Writer};

/// Written first. Both sides are one program, so this only tells a launch spec from other memory.
const MAGIC: u64 = u64::from_le_bytes(*b"chipexec");
/// Addresses for a launch spec; memory is reserved for what it takes.
const MOST: usize = 16 << 20;
/// After the word with its length.
const BODY_AT: usize = 8;
const LABEL: &str = "chipcomm-launch";

/// One child's part in the Worker. The descriptors are, in this order: the memory of this launch spec, the
/// channels, the control block, those of the group's memory when there is one, and `ranges`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LaunchSpec {
    /// Which child, of how many.
    pub(crate) number: usize,
    pub(crate) children: usize,
    /// Which of those that are what it is.
    pub(crate) number_of_kind: usize,
    /// Of the channels.
    pub(crate) nonce: u64,
    /// Memory that has the same addresses in parent and children; the first `heaps` of it are heaps.
    pub(crate) ranges: Vec<SharedRange>,
    pub(crate) heaps: usize,
    pub(crate) programs: Vec<Definition>,
    /// `None` for a sub-worker.
    pub(crate) chip: Option<ChipLaunch>,
}

/// Addresses of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedRange {
    pub(crate) at: NonZeroUsize,
    pub(crate) len: usize,
}

impl SharedRange {
    pub(crate) fn of(region: &Region) -> Self {
        Self { at: region.base().addr(), len: region.len() }
    }
}

impl LaunchSpec {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.number(MAGIC).number(self.number as u64).number(self.children as u64);
        to.number(self.number_of_kind as u64).number(self.nonce);
        to.list(&self.ranges, |to, range| {
            to.number(range.at.get() as u64).number(range.len as u64);
        });
        to.number(self.heaps as u64);
        to.list(&self.programs, |to, program| {
            to.bytes(&program.encode());
        });
        to.option(self.chip.as_ref(), |to, chip| chip.write(to));
        to.into_bytes()
    }

    /// `None` unless the bytes are a launch spec from the first to the last.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        (from.number::<u64>()? == MAGIC).then_some(())?;
        let spec = Self {
            number: from.number()?,
            children: from.number()?,
            number_of_kind: from.number()?,
            nonce: from.number()?,
            ranges: from.list(|from| {
                Some(SharedRange { at: NonZeroUsize::new(from.number()?)?, len: from.number()? })
            })?,
            heaps: from.number()?,
            programs: from.list(|from| Definition::decode(from.bytes()?))?,
            chip: from.option(ChipLaunch::read)?,
        };
        let consistent = spec.number < spec.children && spec.heaps <= spec.ranges.len();
        from.end(spec).filter(|_| consistent)
    }

    /// The parent's side: memory that holds it, to be passed on by its descriptor.
    pub(crate) fn store(&self) -> Result<Region, RegionError> {
        let bytes = self.encode();
        let region = Region::create_sparse(LABEL, MOST)?;
        region.reserve(0..BODY_AT.saturating_add(bytes.len()))?;
        region.write(BODY_AT, &bytes)?;
        region.words::<WordU64>(0)?.store(bytes.len() as u64);
        Ok(region)
    }

    /// The child's side: `Ok(None)` when the memory does not hold a launch spec.
    pub(crate) fn load(fd: OwnedFd) -> Result<Option<Self>, RegionError> {
        let region = Region::attach(fd, LABEL, MOST)?;
        let len = region.words::<WordU64>(0)?.load();
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(MOST).min(MOST - BODY_AT)];
        region.read(BODY_AT, &mut bytes)?;
        Ok(Self::decode(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::chip_launch::tests::{config, launch};
    use super::*;
    use chip_bootstrap::ChipConfig;
    use std::sync::Arc;

    fn spec(regions: &mut Vec<Arc<Region>>, config: &ChipConfig) -> LaunchSpec {
        let chip = launch(regions, config);
        LaunchSpec {
            number: 1,
            children: 3,
            number_of_kind: 1,
            nonce: 77,
            ranges: regions.iter().map(|region| SharedRange::of(region)).collect(),
            heaps: 1,
            programs: vec![
                Definition::Kernel { path: "/k.so".into(), symbol: "kernel_entry".into() },
                Definition::Function { name: "f".into(), index: 3 },
            ],
            chip: Some(chip),
        }
    }

    #[test]
    fn a_launch_spec_survives_its_wire_form_and_the_configuration_with_it() {
        let heap = Arc::new(Region::create("t", 4096).unwrap());
        let user = Arc::new(Region::create("u", 4096).unwrap());
        // The span's memory is not the heap: it is passed on too.
        let mut regions = vec![heap];
        let config = config(&user);
        let whole = spec(&mut regions, &config);
        assert_eq!(whole.ranges.len(), 2);
        assert_eq!(LaunchSpec::decode(&whole.encode()).as_ref(), Some(&whole));
        let memory = whole.store().unwrap();
        let loaded = LaunchSpec::load(memory.fd().try_clone_to_owned().unwrap());
        assert_eq!(loaded, Ok(Some(whole.clone())));
        let sub = LaunchSpec { chip: None, ..whole.clone() };
        assert_eq!(LaunchSpec::decode(&sub.encode()), Some(sub));
        let again = whole.chip.as_ref().unwrap().config(&regions).unwrap();
        assert_eq!(format!("{again:?}"), format!("{config:?}"));
        assert!(whole.chip.unwrap().config(&regions[..1]).is_none());
    }

    #[test]
    fn f29_bytes_that_are_not_a_launch_spec_are_refused() {
        let region = Arc::new(Region::create("t", 4096).unwrap());
        let bytes = spec(&mut vec![region.clone()], &config(&region)).encode();
        for len in 0..bytes.len() {
            assert_eq!(LaunchSpec::decode(&bytes[..len]), None, "{len} bytes");
        }
        let longer: Vec<u8> = bytes.iter().copied().chain([0]).collect();
        assert_eq!(LaunchSpec::decode(&longer), None);
        // Each byte changed: whatever the result, nothing panics, and no count allocates more than the bytes
        // justify.
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                if let Some(decoded) = LaunchSpec::decode(&changed) {
                    let _ = decoded.chip.map(|chip| chip.config(std::slice::from_ref(&region)));
                }
            }
        }
    }
}
