//! The group of a Worker's chips, prepared by the parent before any of them starts.

use crate::error::ChipError;
use crate::platform::{ChipMemoryKind, Platform};
use comm_context::comm::AddressSpace;
use deadline::HowDied;
use shared_memory::Region;
use std::num::{NonZeroU32, NonZeroUsize};
use std::os::fd::{BorrowedFd, OwnedFd};
use worker_errors::cursor::{Reader, Writer};

#[cfg(not(feature = "sim"))]
use comm_hccl::{Prepared, Ticket};
#[cfg(feature = "sim")]
use comm_sim::{Prepared, Ticket};

/// The shared memory of a group of chips: who is in it, who died, whether to stop.
///
/// The parent prepares it, starts the chips' processes, and each chip joins it with
/// [`Entry::Forked`](crate::Entry). A process that was not forked from the parent attaches it with a
/// [`GroupSpec`] first. Clones share one mapping.
#[derive(Clone, Debug)]
pub struct ChipGroup {
    pub(crate) prepared: Prepared,
    windows: ChipMemoryKind,
}

/// What another process needs to [attach](ChipGroup::attach) a group, beside its
/// [descriptors](ChipGroup::fds).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    ticket: Ticket,
    windows: ChipMemoryKind,
}

/// What a kernel waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelWait {
    /// The address of the awaited word.
    pub word: u64,
    /// The rank in whose memory it is.
    pub owner: Option<u32>,
    /// The rank that writes it; `None` when any rank may.
    pub writer: Option<u32>,
    /// The value that was found last.
    pub seen: u64,
    /// The value that ends the wait.
    pub wanted: u64,
}

impl ChipGroup {
    /// Memory for a group of `chips`. Addresses for windows are reserved only where the platform has its
    /// windows in host memory.
    pub fn prepare(platform: Platform, chips: u32) -> Result<Self, ChipError> {
        Self::prepare_with(platform, chips, None)
    }

    /// Like [`prepare`](Self::prepare), with so many addresses for the windows of each chip.
    pub fn prepare_with(
        platform: Platform,
        chips: u32,
        windows: Option<AddressSpace>,
    ) -> Result<Self, ChipError> {
        #[cfg(not(feature = "sim"))]
        let _ = windows;
        let prepared = match platform {
            #[cfg(feature = "sim")]
            Platform::Sim => comm_sim::SimComm::prepare_group_with(chips, windows)?,
            #[cfg(feature = "ascend")]
            Platform::A2a3 | Platform::A5 => comm_hccl::HcclComm::prepare_group(chips)?,
            #[cfg(not(all(feature = "sim", feature = "ascend")))]
            other => return Err(other.not_built().into()),
        };
        Ok(Self { prepared, windows: platform.chip_memory() })
    }

    /// The group that another process prepared, at the address that it has there. `fds` are copies of its
    /// [descriptors](Self::fds), in that order.
    pub fn attach(fds: Vec<OwnedFd>, spec: &GroupSpec) -> Result<Self, ChipError> {
        Ok(Self { prepared: Prepared::attach(fds, &spec.ticket)?, windows: spec.windows })
    }

    /// What another process needs to [attach](Self::attach).
    pub fn spec(&self) -> GroupSpec {
        GroupSpec { ticket: self.prepared.ticket(), windows: self.windows }
    }

    /// The descriptors of the group's memory. They must stay open in the chips' processes.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.prepared.fds()
    }

    /// The group's memory.
    pub fn region(&self) -> &Region {
        self.prepared.region()
    }

    /// The memory that holds the windows of all chips, at one address in every process; `None` where windows
    /// are on the devices.
    pub fn windows(&self) -> Option<&Region> {
        match self.windows {
            ChipMemoryKind::Host => Some(self.region()),
            ChipMemoryKind::Device => None,
        }
    }

    /// Reports to every chip that `rank` died. The first report counts.
    pub fn report_death(&self, rank: u32, how: HowDied) {
        self.prepared.report_death(rank, how);
    }

    /// Stops all ranks for good: waits end, and kernels that poll their abort word return.
    pub fn halt(&self, reason: NonZeroU32) {
        self.prepared.halt(reason);
    }

    /// Has kernels that poll their abort word return, and ranks that wait for each other give up. A rank that
    /// gave up cannot use the group again.
    pub fn cancel_kernels(&self) {
        self.prepared.cancel_kernels();
    }

    /// Lets kernels wait again. Call it when none runs.
    pub fn resume_kernels(&self) {
        self.prepared.resume_kernels();
    }

    /// What the kernel of `rank` waits for, if it waits in our headers and has done so for a while.
    pub fn kernel_wait(&self, rank: u32) -> Option<KernelWait> {
        #[cfg(feature = "sim")]
        let found = self.windows().and_then(|_| comm_sim::kernel_wait(&self.prepared, rank));
        #[cfg(not(feature = "sim"))]
        let found: Option<comm_context::abi::CommWait> = {
            let _ = rank;
            None
        };
        let wait = found?;
        let (word, seen, wanted) = (wait.word, wait.seen, wait.wanted);
        let (owner, writer) = (self.prepared.owner(word), self.prepared.owner(wait.writer));
        Some(KernelWait { word, owner, writer, seen, wanted })
    }

    /// One line for each rank: process, phase, since when.
    pub fn table(&self) -> String {
        self.prepared.table()
    }
}

impl GroupSpec {
    /// How many [descriptors](ChipGroup::fds) the group has; `None` when this is not the spec of a group.
    pub fn descriptors(&self) -> Option<usize> {
        self.ticket.descriptors()
    }

    /// Appends the spec to a message.
    pub fn encode(&self, to: &mut Writer) {
        let Ticket { nranks, extent, nonce, at } = self.ticket;
        to.number(nranks.into()).number(extent as u64).number(nonce).number(at.get() as u64);
        to.number(self.windows as u64);
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` for anything else.
    pub fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let ticket = Ticket {
            nranks: from.number()?,
            extent: from.number()?,
            nonce: from.number()?,
            at: NonZeroUsize::new(from.number()?)?,
        };
        let windows = match from.number::<u64>()? {
            0 => ChipMemoryKind::Host,
            1 => ChipMemoryKind::Device,
            _ => return None,
        };
        Some(Self { ticket, windows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serial_test::serial;

    #[cfg(feature = "sim")]
    fn decoded(bytes: &[u8]) -> Option<GroupSpec> {
        let mut from = Reader::new(bytes);
        let spec = GroupSpec::decode(&mut from)?;
        from.end(spec)
    }

    // CB-6
    #[cfg(feature = "ascend")]
    #[test]
    #[serial]
    fn a_group_of_devices_reserves_no_addresses_for_windows() {
        let devices = ChipGroup::prepare(Platform::A2a3, 4).unwrap();
        assert!(devices.windows().is_none());
        assert!(devices.region().len() < 64 << 20, "{}", devices.region().len());
    }

    // CB-6
    #[cfg(feature = "sim")]
    #[test]
    // The address must still be free when the group is attached again.
    #[serial]
    fn a_group_attaches_by_its_spec_and_a_wrong_spec_is_refused() {
        let group = ChipGroup::prepare(Platform::Sim, 2).unwrap();
        let base = group.region().base();
        assert_eq!(group.windows().map(Region::base), Some(base));
        let mut to = Writer::default();
        group.spec().encode(&mut to);
        let (spec, bytes) = (group.spec(), to.into_bytes());
        assert_eq!(decoded(&bytes), Some(spec));
        for len in 0..bytes.len() {
            assert_eq!(decoded(&bytes[..len]), None, "{len} bytes");
        }
        let fds = || group.fds().map(|fd| fd.try_clone_to_owned().unwrap()).collect::<Vec<_>>();
        let (good, other) = (fds(), fds());
        assert_eq!(spec.descriptors(), Some(good.len()));
        drop(group);
        let mut wrong = spec;
        wrong.ticket.nonce ^= 1;
        assert!(ChipGroup::attach(other, &wrong).is_err());
        let again = ChipGroup::attach(good, &spec).unwrap();
        assert_eq!((again.spec(), again.region().base()), (spec, base));
    }

    #[cfg(not(feature = "ascend"))]
    #[test]
    fn a_platform_that_is_not_compiled_in_is_refused_with_the_feature() {
        let refused = ChipGroup::prepare(Platform::A5, 1).unwrap_err().to_string();
        assert!(refused.contains("a5") && refused.contains("feature `ascend`"), "{refused}");
    }

    #[cfg(not(feature = "sim"))]
    #[test]
    fn a_platform_that_is_not_compiled_in_is_refused_with_the_feature() {
        let refused = ChipGroup::prepare(Platform::Sim, 1).unwrap_err().to_string();
        assert!(refused.contains("sim") && refused.contains("feature `sim`"), "{refused}");
    }
}
