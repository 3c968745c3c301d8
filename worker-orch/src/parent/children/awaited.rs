//! What a chip's kernel waits for, in words.

use super::Children;
use crate::chip_context::ChipContext;
use chip_bootstrap::KernelWait;
use comm_context::abi::DeviceAddr;
use std::ops::Range;

/// Bytes of a signal.
const SIGNAL: u64 = 4;

/// Memory of a chip with the name that the user gave it.
#[derive(Debug)]
pub(in crate::parent) struct NamedMemory {
    name: String,
    bytes: Range<u64>,
    of_domain: bool,
}

impl NamedMemory {
    fn new(name: String, at: DeviceAddr, len: usize, of_domain: bool) -> Self {
        Self { name, bytes: at.0..at.0.saturating_add(len as u64), of_domain }
    }

    /// A buffer of a domain.
    pub(in crate::parent) fn of_domain(domain: &str, buffer: &str, at: DeviceAddr, len: usize) -> Self {
        Self::new(format!("{domain}.{buffer}"), at, len, true)
    }

    /// The buffers and regions of a chip's own window.
    pub(in crate::parent) fn of_chip(chip: &ChipContext) -> impl Iterator<Item = Self> {
        chip.buffers.iter().map(|part| {
            let len = part.kind.bytes().unwrap_or(0);
            Self::new(part.name.clone(), part.addr, len, false)
        })
    }
}

impl Children {
    /// From here on waits in this memory are reported by its name.
    pub(in crate::parent) fn name_memory(&mut self, named: impl IntoIterator<Item = NamedMemory>) {
        self.named.extend(named);
    }

    /// The domains of the run are released.
    pub(in crate::parent) fn forget_domains(&mut self) {
        self.named.retain(|named| !named.of_domain);
    }

    /// What the kernel of `child` waits for: `signals[2] of rank 1: has 3, wants 4`.
    pub(super) fn awaited(&self, child: usize) -> Option<String> {
        let wait = self.group.as_ref()?.kernel_wait(*self.ranks.get(child)?)?;
        Some(format!("{}: has {}, wants {}", self.word(&wait), wait.seen, wait.wanted))
    }

    fn word(&self, wait: &KernelWait) -> String {
        let named = self.named.iter().find(|named| named.bytes.contains(&wait.word));
        let owner = wait.owner.map_or_else(String::new, |rank| format!(" of rank {rank}"));
        match (wait.writer, named) {
            (Some(writer), Some(named)) => format!("rank {writer} at `{}`", named.name),
            (Some(writer), None) => format!("rank {writer} at {:#x}", wait.word),
            (None, Some(named)) => {
                format!("{}[{}]{owner}", named.name, (wait.word - named.bytes.start) / SIGNAL)
            }
            (None, None) => format!("the signal at {:#x}{owner}", wait.word),
        }
    }
}
