//! The group's shared memory, with types: who may write what, and what may be believed of it.
//!
//! The header is written by the process that created the memory or by the ranks' parent, each rank block by
//! its rank, the broadcast by the one rank that broadcasts. Everything else reads, and takes nothing on
//! trust: bytes are copied out, bounded and only then used.

pub(crate) mod death_word;
pub(crate) mod layout;
mod table;

use crate::error::region_error;
use comm_context::comm::{CommError, Phase};
use deadline::{Death, HowDied};
use layout::{BROADCAST_BYTES, Header, Layout, MESSAGE_SLOTS, REASON_BYTES, RankBlock, Slot, layout_hash};
use mailbox_atomics::{
    AllowedCores, CpuQuota, Demands, OneShot, Place, StickyWord, WordI32, WordU32, WordU64,
};
use shared_memory::{Region, RegionError, nonce};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use worker_errors::{clip, escape};

/// The name of the memory in errors and in `/proc/PID/fd`, by which [`crate::inspect`] finds it.
pub(crate) const LABEL: &str = "chipcomm-group";

#[derive(Debug)]
pub(crate) struct Memory {
    region: Region,
    layout: Layout,
}

impl Memory {
    /// Fresh memory; only the control part is reserved.
    pub(crate) fn create(layout: Layout) -> Result<Self, CommError> {
        let region = Region::create_sparse_parts(LABEL, layout.parts()).map_err(region_error)?;
        region.reserve(layout.reserved()).map_err(region_error)?;
        let memory = Self { region, layout };
        let header = memory.header();
        header.nonce.store(nonce());
        header.nranks.store(layout.nranks().into());
        header.extent.store(layout.extent_len() as u64);
        header.hash.store(layout_hash());
        Ok(memory)
    }

    /// The memory of the group `nonce`, which another process created.
    /// With `at`, at that address.
    pub(crate) fn attach(
        fds: Vec<OwnedFd>,
        layout: Layout,
        nonce: u64,
        at: Option<NonNull<u8>>,
    ) -> Result<Self, CommError> {
        let region = Region::attach_parts(fds, LABEL, layout.parts(), at).map_err(region_error)?;
        let memory = Self { region, layout };
        let header = memory.header();
        let found = (header.hash.load(), header.nonce.load(), header.nranks.load(), header.extent.load());
        let expected = (layout_hash(), nonce, u64::from(layout.nranks()), layout.extent_len() as u64);
        if found == expected {
            return Ok(memory);
        }
        Err(CommError::Mismatch {
            what: "the layout of the group's memory (all ranks must run the same build)",
            rank: 0,
            mine: format!("{expected:x?}"),
            theirs: format!("{found:x?}"),
        })
    }

    /// A region of unknown origin, as the control part of the memory of the group that its header describes;
    /// `None` when it describes none.
    pub(crate) fn of_any_group(region: Region) -> Option<Self> {
        let header: &Header = region.words(0).ok()?;
        let (hash, nranks, extent) = (header.hash.load(), header.nranks.load(), header.extent.load());
        let nranks = u32::try_from(nranks).ok().filter(|nranks| (1..=64).contains(nranks))?;
        let layout = Layout::new(nranks, extent as usize)?;
        (hash == layout_hash() && layout.reserved().end == region.len()).then_some(Self { region, layout })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn nonce(&self) -> u64 {
        self.header().nonce.load()
    }

    /// The ranks' places at the barrier.
    pub(crate) fn places(&self) -> &[Place] {
        self.inside(self.region.word_slice(Layout::places(), self.layout.nranks() as usize))
    }

    /// What the ranks are about to reserve, as `rank` sees it.
    pub(crate) fn demands(&self, rank: u32) -> Demands<'_> {
        Demands::new(&self.header().demands, rank as usize)
    }

    /// Raised by the parent to stop all ranks for good.
    pub(crate) fn halt_word(&self) -> &StickyWord {
        &self.header().halt
    }

    /// Not zero while kernels shall return and waits end.
    pub(crate) fn abort_word(&self) -> &WordU32 {
        &self.header().abort
    }

    /// Changes when kernels may wait again after they were cancelled.
    pub(crate) fn generation_word(&self) -> &WordU32 {
        &self.header().generation
    }

    /// The parent's report that `rank` died; the first one counts.
    pub(crate) fn report_death(&self, rank: u32, how: HowDied) {
        self.header().death.raise(death_word::encode(rank, how));
    }

    /// The death that the parent reported, if any.
    pub(crate) fn reported_death(&self) -> Option<Death> {
        self.header().death.raised().and_then(|word| death_word::decode(word, self.layout.nranks()))
    }

    /// Enters what the leader of a rendezvous knows from the kernel: the ranks' processes. So a rank's death
    /// is noticed even before that rank has signed in.
    pub(crate) fn set_leader(&self, leader: u32, pids: impl Iterator<Item = u32>) {
        self.header().pids.iter().zip(pids).for_each(|(word, pid)| word.store(pid));
        self.header().leader.store(u64::from(leader) + 1);
    }

    /// The rank that led the rendezvous, if there was one.
    pub(crate) fn leader(&self) -> Option<u32> {
        let leader = self.header().leader.load().checked_sub(1)?;
        u32::try_from(leader).ok().filter(|rank| *rank < self.layout.nranks())
    }

    /// Enters this process as `rank`.
    pub(crate) fn sign_in(&self, rank: u32) {
        let block = self.rank_block(rank);
        block.cores.iter().zip(AllowedCores::of_this_process().0).for_each(|(word, bits)| word.store(bits));
        if let Some(CpuQuota { group, millicores }) = CpuQuota::of_this_process() {
            block.quota.iter().zip([group, millicores.max(1)]).for_each(|(word, value)| word.store(value));
        }
        // The pid last: with it, the phase, the cores and the quota are there.
        block.pid.store(std::process::id());
    }

    /// Enters the process of a rank on another host, which signs in in its own copy of this memory.
    pub(crate) fn enter_elsewhere(&self, rank: u32, pid: u32) {
        self.rank_block(rank).pid.store(pid);
    }

    /// Whether `rank` has signed in, and so does not depend on the leader any more.
    pub(crate) fn has_signed_in(&self, rank: u32) -> bool {
        self.rank_block(rank).pid.load() != 0
    }

    /// The process that is `rank`, as it signed in or as the leader accepted it.
    pub(crate) fn pid(&self, rank: u32) -> Option<u32> {
        let pids = [self.rank_block(rank).pid.load(), self.header().pids[rank as usize].load()];
        pids.into_iter().find(|pid| *pid != 0)
    }

    /// How many cores the ranks that have signed in may use between them all the time: a launcher may have bound
    /// each to its own, and their cgroups may have quotas.
    pub(crate) fn cores(&self) -> usize {
        let of = |rank| AllowedCores(std::array::from_fn(|word| self.rank_block(rank).cores[word].load()));
        let allowed =
            (0..self.layout.nranks()).map(of).fold(AllowedCores::default(), AllowedCores::or).count();
        self.quota().map_or(allowed, |quota| allowed.min(quota.whole_cores()))
    }

    /// The quotas of all ranks together; `None` when one of them has none.
    fn quota(&self) -> Option<CpuQuota> {
        let mut groups: Vec<CpuQuota> = Vec::new();
        for rank in 0..self.layout.nranks() {
            let [group, millicores] = self.rank_block(rank).quota.each_ref().map(WordU64::load);
            if millicores == 0 {
                return None;
            }
            // Ranks in one cgroup share its quota.
            if !groups.iter().any(|other| other.group == group) {
                groups.push(CpuQuota { group, millicores });
            }
        }
        let millicores = groups.iter().fold(0_u64, |sum, quota| sum.saturating_add(quota.millicores));
        groups.first().map(|first| CpuQuota { millicores, ..*first })
    }

    /// The word in which `rank` says where it runs.
    pub(crate) fn seen_on(&self, rank: u32) -> &WordU64 {
        &self.rank_block(rank).seen_on
    }

    pub(crate) fn publish_phase(&self, rank: u32, phase: Phase, since_ns: u64) {
        let block = self.rank_block(rank);
        block.since_ns.store(since_ns);
        block.phase.store(phase.code());
    }

    /// Changes with every message of `rank` and when it leaves.
    pub(crate) fn doorbell(&self, rank: u32) -> &WordU64 {
        &self.rank_block(rank).doorbell
    }

    /// Wakes all ranks that are parked on a word of this memory, so that they check whether their wait is over. One that is about to
    /// park misses it.
    pub(crate) fn wake_ranks(&self) {
        self.places().iter().for_each(Place::wake_all);
        (0..self.layout.nranks()).for_each(|rank| self.doorbell(rank).wake_all());
    }

    /// The message slots of `rank`, which only it writes.
    pub(crate) fn slots(&self, rank: u32) -> &[Slot] {
        self.inside(self.region.word_slice(self.layout.slots(rank), MESSAGE_SLOTS))
    }

    /// Those of `rank`'s slots that may hold a message.
    pub(crate) fn used_slots(&self, rank: u32) -> &[Slot] {
        let used = self.rank_block(rank).used_slots.load() as usize;
        &self.slots(rank)[..used.min(MESSAGE_SLOTS)]
    }

    /// Makes slot number `slot` of `rank`, and all before it, slots that peers read.
    pub(crate) fn use_slot(&self, rank: u32, slot: usize) {
        let used = &self.rank_block(rank).used_slots;
        used.store(used.load().max(slot as u32 + 1));
    }

    /// Whether `rank` has left.
    pub(crate) fn has_left(&self, rank: u32) -> bool {
        self.rank_block(rank).left.raised().is_some()
    }

    /// Publishes that `rank` has left and why: the reason's bytes, then its length, then the word. To be
    /// called once.
    pub(crate) fn publish_departure(&self, rank: u32, reason: &str) {
        let text = clip(reason, REASON_BYTES);
        self.inside(self.region.write(self.layout.reason(rank), text.as_bytes()));
        let block = self.rank_block(rank);
        block.reason_len.store(text.len() as u32);
        block.left.raise(NonZeroU32::MIN);
    }

    /// Why `rank` has left. The bytes are a peer's: copied, bounded and escaped.
    pub(crate) fn reason(&self, rank: u32) -> String {
        let len = (self.rank_block(rank).reason_len.load() as usize).min(REASON_BYTES);
        let mut bytes = vec![0; len];
        self.inside(self.region.read(self.layout.reason(rank), &mut bytes));
        escape(&String::from_utf8_lossy(&bytes), REASON_BYTES).into_owned()
    }

    /// Publishes what a backend says about the windows of others that `rank` has open.
    pub(crate) fn publish_imports(&self, rank: u32, value: u32) {
        self.rank_block(rank).imports.store_and_wake(value);
    }

    /// The word that [`publish_imports`](Self::publish_imports) writes; 0 at first.
    pub(crate) fn imports(&self, rank: u32) -> &WordU32 {
        &self.rank_block(rank).imports
    }

    /// Announces the broadcast, which is written before and read after.
    pub(crate) fn broadcast_state(&self) -> OneShot<'_> {
        OneShot::new(self.inside(self.region.words::<WordI32>(Layout::broadcast().0)))
    }

    pub(crate) fn write_broadcast(&self, bytes: &[u8]) {
        let (_, len_at, bytes_at) = Layout::broadcast();
        self.inside(self.region.write(bytes_at, bytes));
        self.inside(self.region.words::<WordU64>(len_at)).store(bytes.len() as u64);
    }

    /// A copy of the broadcast, bounded; the caller checks what it holds.
    pub(crate) fn read_broadcast(&self) -> Vec<u8> {
        let (_, len_at, bytes_at) = Layout::broadcast();
        let len = self.inside(self.region.words::<WordU64>(len_at)).load();
        let mut bytes = vec![0; (len as usize).min(BROADCAST_BYTES)];
        self.inside(self.region.read(bytes_at, &mut bytes));
        bytes
    }

    fn header(&self) -> &Header {
        self.inside(self.region.words(0))
    }

    fn rank_block(&self, rank: u32) -> &RankBlock {
        self.inside(self.region.words(self.layout.rank_block(rank)))
    }

    /// The layout's own offsets are inside the region that was made with it; anything else is a bug in this
    /// crate.
    fn inside<T>(&self, found: Result<T, RegionError>) -> T {
        found.unwrap_or_else(|error| panic!("{:?}: {error}", self.layout))
    }
}

#[cfg(any(fuzzing, test))]
impl Memory {
    /// Writes `bytes` over all that rank 1 and the rank that broadcasts can write, as far as they go. Returns
    /// the first words of the header in rank 1's first slot.
    pub(crate) fn overwrite(&self, mut bytes: &[u8]) -> [u64; 2] {
        let mut put = |at: usize, len: usize| {
            let part;
            (part, bytes) = bytes.split_at(len.min(bytes.len()));
            let mut whole = vec![0; len];
            whole[..part.len()].copy_from_slice(part);
            self.inside(self.region.write(at, &whole));
        };
        let (state, len_at, bytes_at) = Layout::broadcast();
        let slot_at = |slot: usize| self.layout.slots(1) + slot * size_of::<Slot>();
        put(self.layout.rank_block(1), size_of::<RankBlock>());
        put(len_at, 8);
        for slot in [0, 1, MESSAGE_SLOTS - 1] {
            put(slot_at(slot), 8 * (1 + layout::HEADER_WORDS) + layout::MESSAGE_BYTES);
        }
        put(bytes_at, 64);
        put(self.layout.reason(1), REASON_BYTES);
        self.inside(self.region.words::<WordI32>(state)).store(1);
        [8, 16].map(|at| {
            let mut word = [0; 8];
            self.inside(self.region.read(slot_at(0) + at, &mut word));
            u64::from_le_bytes(word)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rv_9_memory_of_another_build_is_refused() {
        let layout = Layout::new(2, 0).unwrap();
        let memory = Memory::create(layout).unwrap();
        let attach = |nonce| {
            let fds = memory.region.fds().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
            Memory::attach(fds, layout, nonce, None).map(drop)
        };
        let nonce = memory.header().nonce.load();
        attach(nonce).unwrap();
        let refused = attach(nonce ^ 1).unwrap_err().to_string();
        let parts = [
            "ranks disagree on the layout of the group's memory (all ranks must run the same build): this one has (",
            "), rank 0 has (",
            "); pass the same on every rank",
        ];
        let in_order = parts.iter().try_fold(&*refused, |rest, part| Some(rest.split_once(part)?.1));
        assert_eq!(in_order, Some(""), "{refused}");
    }
}
