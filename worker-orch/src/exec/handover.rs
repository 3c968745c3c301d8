//! What a hand that is started by exec is told: plain numbers and names, beside the descriptors that come with them.

use crate::program::Definition;
use chip_bootstrap::{ChipConfig, GroupSpec, HostSpan, PartKind, Platform};
use comm_context::abi::DType;
use comm_context::comm::{Membership, Timeout};
use shared_memory::Region;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use worker_errors::cursor::{Reader, Writer};

/// Written first. Both sides are one program, so this only tells a handover from anything else.
const MAGIC: u64 = u64::from_le_bytes(*b"chiphand");

/// A hand's orders. The descriptors are, in this order: the memory of this handover, the channels, the board, the group's memory when there is one, and
/// `ranges`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Handover {
    /// Which hand, of how many.
    pub(crate) number: usize,
    pub(crate) hands: usize,
    /// Of the channels.
    pub(crate) nonce: u64,
    /// Memory that has the same addresses in parent and hands; the first `heaps` of it are heaps.
    pub(crate) ranges: Vec<SharedRange>,
    pub(crate) heaps: usize,
    pub(crate) programs: Vec<Definition>,
    /// `None` for a sub-worker.
    pub(crate) chip: Option<ChipOrders>,
}

/// Where shared memory stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedRange {
    pub(crate) at: NonZeroUsize,
    pub(crate) len: usize,
}

/// What a chip's hand is told besides.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChipOrders {
    pub(crate) platform: Platform,
    pub(crate) within: Timeout,
    /// How many chips the Worker has.
    pub(crate) chips: usize,
    pub(crate) group: Option<GroupSpec>,
    device: i32,
    member: Option<Membership>,
    window: usize,
    parts: Vec<PartOrders>,
}

#[derive(Clone, Debug, PartialEq)]
struct PartOrders {
    name: String,
    kind: PartKind,
    /// What it is loaded from and stored to.
    hosts: [Option<HostOrders>; 2],
}

/// Bytes `start..end` of the range with that number.
#[derive(Clone, Debug, PartialEq)]
struct HostOrders {
    range: usize,
    start: usize,
    end: usize,
}

impl SharedRange {
    pub(crate) fn of(region: &Region) -> Self {
        Self { at: region.base().addr(), len: region.len() }
    }
}

impl ChipOrders {
    /// `regions` are those of the handover's ranges; a host buffer's memory that is not among them yet is added.
    pub(crate) fn new(
        platform: Platform,
        within: Timeout,
        chips: usize,
        group: Option<GroupSpec>,
        config: &ChipConfig,
        regions: &mut Vec<Arc<Region>>,
    ) -> Self {
        let mut host = |span: &HostSpan| {
            let known = regions.iter().position(|region| region.base() == span.region().base());
            let range = known.unwrap_or_else(|| {
                regions.push(span.region().clone());
                regions.len() - 1
            });
            let start = span.addr() as usize - span.region().base().addr().get();
            HostOrders { range, start, end: start + span.len() }
        };
        let parts = config.parts_by_name().zip(config.hosts()).map(|((name, kind), hosts)| PartOrders {
            name: name.to_owned(),
            kind,
            hosts: hosts.map(|span| span.map(&mut host)),
        });
        let parts = parts.collect();
        let (device, member, window) = (config.device(), config.member(), config.window_size());
        Self { platform, within, chips, group, device, member, window, parts }
    }

    /// The chip's configuration again, over the memory of the handover's ranges in this process.
    pub(crate) fn config(&self, regions: &[Arc<Region>]) -> Option<ChipConfig> {
        let mut config = ChipConfig::new(self.device).window(self.window);
        if let Some(member) = self.member {
            config = config.communicator(member);
        }
        let span =
            |host: &HostOrders| HostSpan::new(regions.get(host.range)?.clone(), host.start..host.end).ok();
        for part in &self.parts {
            config = match part.kind {
                PartKind::Buffer { dtype, count } => config.buffer(&part.name, dtype, count),
                PartKind::Region { bytes } => config.region(&part.name, bytes),
            };
            let [load, store] = &part.hosts;
            if let Some(host) = load {
                config = config.load_from(&span(host)?);
            }
            if let Some(host) = store {
                config = config.store_to(&span(host)?);
            }
        }
        Some(config)
    }

    fn write(&self, to: &mut Writer) {
        to.bytes(self.platform.to_string().as_bytes())
            .number(self.within.get().as_nanos() as u64)
            .number(self.chips as u64)
            .option(self.group, |to, group| group.encode(to))
            // Devices are not negative; the builder has checked.
            .number(self.device as u64)
            .option(self.member, |to, member| {
                to.number(member.rank().into()).number(member.nranks().into());
            })
            .number(self.window as u64)
            .list(&self.parts, |to, part| part.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            platform: from.text()?.parse().ok()?,
            within: Timeout::new(Duration::from_nanos(from.number()?)).ok()?,
            chips: from.number()?,
            group: from.option(GroupSpec::decode)?,
            device: from.number()?,
            member: from.option(|from| Membership::new(from.number()?, from.number()?).ok())?,
            window: from.number()?,
            parts: from.list(PartOrders::read)?,
        })
    }
}

impl PartOrders {
    fn write(&self, to: &mut Writer) {
        let (dtype, count) = match self.kind {
            PartKind::Buffer { dtype, count } => (Some(dtype), count),
            PartKind::Region { bytes } => (None, bytes),
        };
        to.bytes(self.name.as_bytes())
            .option(dtype, |to, dtype| {
                to.number(dtype as u64);
            })
            .number(count as u64);
        for host in &self.hosts {
            to.option(host.as_ref(), |to, host| {
                to.number(host.range as u64).number(host.start as u64).number(host.end as u64);
            });
        }
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let name = from.text()?.to_owned();
        let dtype = from.option(|from| DType::from_code(from.number()?).ok())?;
        let count = from.number()?;
        let kind = match dtype {
            Some(dtype) => PartKind::Buffer { dtype, count },
            None => PartKind::Region { bytes: count },
        };
        let mut host = || {
            from.option(|from| {
                Some(HostOrders { range: from.number()?, start: from.number()?, end: from.number()? })
            })
        };
        Some(Self { name, kind, hosts: [host()?, host()?] })
    }
}

impl Handover {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.number(MAGIC).number(self.number as u64).number(self.hands as u64).number(self.nonce);
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

    /// `None` unless the bytes are a handover from the first to the last.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        (from.number::<u64>()? == MAGIC).then_some(())?;
        let handover = Self {
            number: from.number()?,
            hands: from.number()?,
            nonce: from.number()?,
            ranges: from.list(|from| {
                Some(SharedRange { at: NonZeroUsize::new(from.number()?)?, len: from.number()? })
            })?,
            heaps: from.number()?,
            programs: from.list(|from| Definition::decode(from.bytes()?))?,
            chip: from.option(ChipOrders::read)?,
        };
        let makes_sense = handover.number < handover.hands && handover.heaps <= handover.ranges.len();
        from.end(handover).filter(|_| makes_sense)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(region: &Arc<Region>) -> ChipConfig {
        let span = |range| HostSpan::new(region.clone(), range).unwrap();
        ChipConfig::new(3)
            .communicator(Membership::new(1, 2).unwrap())
            .window(8192)
            .buffer("x", DType::Bfloat16, 32)
            .load_from(&span(0..64))
            .store_to(&span(64..128))
            .region("signals", 128)
    }

    fn handover(regions: &mut Vec<Arc<Region>>, config: &ChipConfig) -> Handover {
        let spec = chip_bootstrap::ChipGroup::prepare(Platform::Sim, 2).unwrap().spec();
        let chip = ChipOrders::new(Platform::Sim, Timeout::DEFAULT, 2, Some(spec), config, regions);
        Handover {
            number: 1,
            hands: 3,
            nonce: 77,
            ranges: regions.iter().map(|region| SharedRange::of(region)).collect(),
            heaps: 1,
            programs: vec![Definition::Kernel { path: "/k.so".into(), symbol: "kernel_entry".into() }],
            chip: Some(chip),
        }
    }

    #[test]
    fn a_handover_comes_out_as_it_went_in_and_the_configuration_with_it() {
        let heap = Arc::new(Region::create("t", 4096).unwrap());
        let user = Arc::new(Region::create("u", 4096).unwrap());
        // The span's memory is not the heap: it is handed over too.
        let mut regions = vec![heap];
        let config = config(&user);
        let whole = handover(&mut regions, &config);
        assert_eq!(whole.ranges.len(), 2);
        assert_eq!(Handover::decode(&whole.encode()).as_ref(), Some(&whole));
        let sub = Handover { chip: None, ..whole.clone() };
        assert_eq!(Handover::decode(&sub.encode()), Some(sub));
        let again = whole.chip.as_ref().unwrap().config(&regions).unwrap();
        assert_eq!(format!("{again:?}"), format!("{config:?}"));
        assert!(whole.chip.unwrap().config(&regions[..1]).is_none());
    }

    #[test]
    fn f29_bytes_that_are_no_handover_are_refused_whatever_they_are() {
        let region = Arc::new(Region::create("t", 4096).unwrap());
        let bytes = handover(&mut vec![region.clone()], &config(&region)).encode();
        for len in 0..bytes.len() {
            assert_eq!(Handover::decode(&bytes[..len]), None, "{len} bytes");
        }
        let longer: Vec<u8> = bytes.iter().copied().chain([0]).collect();
        assert_eq!(Handover::decode(&longer), None);
        // Each byte changed: whatever comes out, nothing panics and no count makes it allocate the machine away.
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                if let Some(decoded) = Handover::decode(&changed) {
                    let _ = decoded.chip.map(|chip| chip.config(std::slice::from_ref(&region)));
                }
            }
        }
    }
}
