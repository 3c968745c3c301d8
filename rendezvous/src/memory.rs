//! The group's shared memory, with types.

use crate::layout::{Header, Layout, NoteWords, REASON_BYTES, RankBlock, layout_hash};
use comm_context::comm::{CommError, Phase};
use deadline::monotonic_ns;
use mailbox_atomics::{AllowedCores, Place};
use shared_memory::{Region, RegionError};
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::time::Duration;
use worker_errors::{clip, escape};

/// How the memory is called in errors and in `/proc/PID/fd`, by which [`crate::inspect`] finds it.
pub(crate) const LABEL: &str = "chipcomm-group";

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) region: Region,
    pub(crate) layout: Layout,
}

impl Memory {
    /// Fresh memory; only the control part is reserved.
    pub(crate) fn create(layout: Layout, nonce: u64) -> Result<Self, CommError> {
        let region = Region::create_sparse(LABEL, layout.total()).map_err(region_error)?;
        region.reserve(layout.reserved()).map_err(region_error)?;
        let memory = Self { region, layout };
        let header = memory.header();
        header.nonce.store(nonce);
        header.nranks.store(layout.nranks.into());
        header.extent.store(layout.extent as u64);
        header.hash.store(layout_hash());
        Ok(memory)
    }

    /// Memory that another rank made for the meeting `nonce`.
    pub(crate) fn attach(fd: OwnedFd, layout: Layout, nonce: u64) -> Result<Self, CommError> {
        Self::of_group(Region::attach(fd, LABEL, layout.total()).map_err(region_error)?, layout, nonce)
    }

    /// A region that is said to be the memory of the meeting `nonce`.
    pub(crate) fn of_group(region: Region, layout: Layout, nonce: u64) -> Result<Self, CommError> {
        let memory = Self { region, layout };
        let header = memory.header();
        let found = (header.hash.load(), header.nonce.load(), header.nranks.load(), header.extent.load());
        let expected = (layout_hash(), nonce, u64::from(layout.nranks), layout.extent as u64);
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

    pub(crate) fn header(&self) -> &Header {
        self.inside(self.region.words(0))
    }

    pub(crate) fn places(&self) -> &[Place] {
        self.inside(self.region.word_slice(Layout::places(), self.layout.nranks as usize))
    }

    pub(crate) fn rank_block(&self, rank: u32) -> &RankBlock {
        self.inside(self.region.words(self.layout.rank_block(rank)))
    }

    pub(crate) fn note(&self, rank: u32, slot: usize) -> &NoteWords {
        self.inside(self.region.words(self.layout.note(rank, slot)))
    }

    /// The layout's own offsets are inside the region that was made with it; anything else is a bug in this crate.
    pub(crate) fn inside<T>(&self, found: Result<T, RegionError>) -> T {
        found.unwrap_or_else(|error| panic!("{:?}: {error}", self.layout))
    }

    /// The process that is `rank`: by its own word, or by the host's who let it in.
    pub(crate) fn pid(&self, rank: u32) -> Option<u32> {
        let told = [self.rank_block(rank).pid.load(), self.header().pids[rank as usize].load()];
        told.into_iter().find(|pid| *pid != 0)
    }

    /// Whether `rank` has entered its own card, and so depends on no host any more.
    pub(crate) fn has_signed_in(&self, rank: u32) -> bool {
        self.rank_block(rank).pid.load() != 0
    }

    /// The rank that held the meeting, if there was one.
    pub(crate) fn host(&self) -> Option<u32> {
        let host = self.header().host.load().checked_sub(1)?;
        u32::try_from(host).ok().filter(|rank| *rank < self.layout.nranks)
    }

    /// How many cores the ranks that have signed in may use between them: a launcher may have bound each to its own.
    pub(crate) fn cores(&self) -> usize {
        let of = |rank| AllowedCores(std::array::from_fn(|word| self.rank_block(rank).cores[word].load()));
        (0..self.layout.nranks).map(of).fold(AllowedCores::default(), AllowedCores::or).count()
    }

    /// Whether `rank` has left in order.
    pub(crate) fn has_left(&self, rank: u32) -> bool {
        self.rank_block(rank).left.raised().is_some()
    }

    pub(crate) fn write_reason(&self, rank: u32, reason: &str) {
        let text = clip(reason, REASON_BYTES);
        self.inside(self.region.write(self.layout.reason(rank), text.as_bytes()));
        self.rank_block(rank).reason_len.store(text.len() as u32);
    }

    /// Why `rank` left, in its words. The bytes are a peer's: copied, bounded, made harmless.
    pub(crate) fn reason(&self, rank: u32) -> String {
        let len = (self.rank_block(rank).reason_len.load() as usize).min(REASON_BYTES);
        let mut bytes = vec![0; len];
        self.inside(self.region.read(self.layout.reason(rank), &mut bytes));
        escape(&String::from_utf8_lossy(&bytes), REASON_BYTES).into_owned()
    }

    /// One line for each rank: process, phase, since when.
    pub(crate) fn table(&self) -> String {
        let now = monotonic_ns();
        let mut table = String::new();
        for rank in 0..self.layout.nranks {
            let card = self.rank_block(rank);
            let phase = Phase::from_code(card.phase.load()).map_or("?", Phase::name);
            let line = match self.pid(rank) {
                None => format!("  rank {rank:>2}  not here yet"),
                Some(pid) => {
                    let since = Duration::from_nanos(now.saturating_sub(card.since_ns.load()));
                    format!("  rank {rank:>2}  pid {pid:<8} {phase:<15} for {since:.1?}")
                }
            };
            let _ = writeln!(table, "{line}");
        }
        table
    }
}

/// A region's error in the words of a communicator.
pub fn region_error(error: RegionError) -> CommError {
    match error {
        RegionError::OutOfMemory { label, need, have, limit } => {
            CommError::OutOfMemory { what: format!("{label} ({limit})"), need, have: Some(have) }
        }
        RegionError::System { call, errno } => {
            CommError::System { call, errno: errno as i32, what: "the group's shared memory".to_owned() }
        }
        other => CommError::Backend {
            what: "shared memory of the group".to_owned(),
            source: std::sync::Arc::new(other),
        },
    }
}
