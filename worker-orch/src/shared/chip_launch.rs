//! The part of a launch spec that only a chip has: its configuration, without pointers.

use chip_bootstrap::{ChipConfig, GroupSpec, HostSpan, PartKind, Platform};
use comm_context::abi::DType;
use comm_context::comm::{Membership, Timeout};
use shared_memory::Region;
use std::sync::Arc;
use std::time::Duration;
use worker_errors::cursor::{Reader, Writer};

/// What a chip's process gets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChipLaunch {
    pub(crate) platform: Platform,
    pub(crate) within: Timeout,
    /// How many chips the Worker has.
    pub(crate) chips: usize,
    pub(crate) group: Option<GroupSpec>,
    device: i32,
    member: Option<Membership>,
    window: usize,
    guarded: bool,
    parts: Vec<PartSpec>,
}

/// A named part of the chip's window.
#[derive(Clone, Debug, PartialEq)]
struct PartSpec {
    name: String,
    kind: PartKind,
    /// What it is loaded from and stored to.
    hosts: [Option<HostRange>; 2],
}

/// Bytes `start..end` of the shared range with that number.
#[derive(Clone, Debug, PartialEq)]
struct HostRange {
    range: usize,
    start: usize,
    end: usize,
}

impl ChipLaunch {
    /// `regions` are those of the launch spec's ranges; a host buffer's memory that is not among them is
    /// added.
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
            HostRange { range, start, end: start + span.len() }
        };
        let parts = config.parts_by_name().zip(config.hosts()).map(|((name, kind), hosts)| PartSpec {
            name: name.to_owned(),
            kind,
            hosts: hosts.map(|span| span.map(&mut host)),
        });
        let parts = parts.collect();
        let (device, member, window) = (config.device(), config.member(), config.plain_window_size());
        let guarded = config.is_guarded();
        Self { platform, within, chips, group, device, member, window, guarded, parts }
    }

    /// The chip's configuration again, over the memory of the launch spec's ranges in this process.
    pub(crate) fn config(&self, regions: &[Arc<Region>]) -> Option<ChipConfig> {
        let mut config = ChipConfig::new(self.device).window(self.window);
        if let Some(member) = self.member {
            config = config.communicator(member);
        }
        let span =
            |host: &HostRange| HostSpan::new(regions.get(host.range)?.clone(), host.start..host.end).ok();
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
        Some(if self.guarded { config.guarded() } else { config })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.text(&self.platform.to_string())
            .number(self.within.get().as_nanos() as u64)
            .number(self.chips as u64)
            .option(self.group, |to, group| group.encode(to))
            // Devices are not negative; the builder has checked.
            .number(self.device as u64)
            .option(self.member, |to, member| {
                to.number(member.rank().into()).number(member.nranks().into());
            })
            .number(self.window as u64)
            .u8(self.guarded.into())
            .list(&self.parts, |to, part| part.write(to));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            platform: from.text()?.parse().ok()?,
            within: Timeout::new(Duration::from_nanos(from.number()?)).ok()?,
            chips: from.number()?,
            group: from.option(GroupSpec::decode)?,
            device: from.number()?,
            member: from.option(|from| Membership::new(from.number()?, from.number()?).ok())?,
            window: from.number()?,
            guarded: match from.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            },
            parts: from.list(PartSpec::read)?,
        })
    }
}

impl PartSpec {
    fn write(&self, to: &mut Writer) {
        let (dtype, count) = match self.kind {
            PartKind::Buffer { dtype, count } => (Some(dtype), count),
            PartKind::Region { bytes } => (None, bytes),
        };
        to.text(&self.name)
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
                Some(HostRange { range: from.number()?, start: from.number()?, end: from.number()? })
            })
        };
        Some(Self { name, kind, hosts: [host()?, host()?] })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn config(region: &Arc<Region>) -> ChipConfig {
        let span = |range| HostSpan::new(region.clone(), range).unwrap();
        ChipConfig::new(3)
            .communicator(Membership::new(1, 2).unwrap())
            .window(8192)
            .buffer("x", DType::Bfloat16, 32)
            .load_from(&span(0..64))
            .store_to(&span(64..128))
            .region("signals", 128)
    }

    pub(crate) fn launch(regions: &mut Vec<Arc<Region>>, config: &ChipConfig) -> ChipLaunch {
        let group = chip_bootstrap::ChipGroup::prepare(Platform::default(), 2).unwrap().spec();
        ChipLaunch::new(Platform::default(), Timeout::DEFAULT, 2, Some(group), config, regions)
    }
}
