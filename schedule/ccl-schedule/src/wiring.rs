//! The channels of a program: every (rank, direction) that is sent in becomes one channel with one id.

use crate::op::Dir;
use crate::program::Program;
use thiserror::Error;

/// Marks "no channel" in the tables.
pub const NONE: u32 = u32::MAX;

/// One channel: a single producer and a single consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The rank that sends.
    pub src: u32,
    /// The direction it sends in.
    pub src_dir: Dir,
    /// The rank that receives.
    pub dst: u32,
    /// The direction it receives from.
    pub dst_dir: Dir,
}

/// Why a program cannot be wired.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WiringError {
    /// The program has no rank.
    #[error("the schedule has no ranks; give it at least one")]
    NoRanks,
    /// A send to a rank that does not exist.
    #[error("rank {rank} sends {dir} to rank {peer}, but there are only {ranks} ranks")]
    NoSuchRank {
        /// Sender.
        rank: u32,
        /// Its direction.
        dir: Dir,
        /// The destination.
        peer: u32,
        /// Ranks in the program.
        ranks: u32,
    },
    /// A direction that the program did not list.
    #[error(
        "rank {rank} is wired to direction {dir} of rank {peer}, which is not in `dirs` of the schedule; add it there"
    )]
    UnlistedDirection {
        /// Sender.
        rank: u32,
        /// The unlisted direction.
        dir: Dir,
        /// Receiver.
        peer: u32,
    },
    /// Two senders share one receive queue.
    #[error(
        "ranks {first} ({first_dir}) and {second} ({second_dir}) both send into direction {dst_dir} of rank {dst}; \
         a queue has exactly one sender"
    )]
    Shared {
        /// First sender.
        first: u32,
        /// Its direction.
        first_dir: Dir,
        /// Second sender.
        second: u32,
        /// Its direction.
        second_dir: Dir,
        /// Receiver.
        dst: u32,
        /// The direction that both send into.
        dst_dir: Dir,
    },
}

/// The channel table of a program. Ids are dense and ordered by (rank, direction).
#[derive(Clone, Debug)]
pub struct Wiring {
    dense: [u8; Dir::COUNT],
    dirs: usize,
    tx: Vec<u32>,
    rx: Vec<u32>,
    channels: Vec<Channel>,
}

impl Wiring {
    /// Resolves every pair; fails unless the pairing is one to one.
    pub fn install<P: Program + ?Sized>(program: &P) -> Result<Wiring, WiringError> {
        let ranks = program.ranks();
        if ranks == 0 {
            return Err(WiringError::NoRanks);
        }
        let mut dense = [u8::MAX; Dir::COUNT];
        for (i, dir) in program.dirs().iter().enumerate() {
            dense[dir.index()] = i as u8;
        }
        let dirs = program.dirs().len();
        let mut wiring = Wiring {
            dense,
            dirs,
            tx: vec![NONE; ranks as usize * dirs],
            rx: vec![NONE; ranks as usize * dirs],
            channels: Vec::new(),
        };
        for rank in 0..ranks {
            for &dir in program.dirs() {
                let Some((peer, peer_dir)) = program.peer(rank, dir) else { continue };
                if peer >= ranks {
                    return Err(WiringError::NoSuchRank { rank, dir, peer, ranks });
                }
                if dense[peer_dir.index()] == u8::MAX {
                    return Err(WiringError::UnlistedDirection { rank, dir: peer_dir, peer });
                }
                let id = wiring.channels.len() as u32;
                let at = wiring.slot(peer, peer_dir);
                if let Some(&Channel { src, src_dir, .. }) = wiring.channels.get(wiring.rx[at] as usize) {
                    return Err(WiringError::Shared {
                        first: src,
                        first_dir: src_dir,
                        second: rank,
                        second_dir: dir,
                        dst: peer,
                        dst_dir: peer_dir,
                    });
                }
                wiring.rx[at] = id;
                let at = wiring.slot(rank, dir);
                wiring.tx[at] = id;
                wiring.channels.push(Channel { src: rank, src_dir: dir, dst: peer, dst_dir: peer_dir });
            }
        }
        Ok(wiring)
    }

    fn slot(&self, rank: u32, dir: Dir) -> usize {
        rank as usize * self.dirs + self.dense[dir.index()] as usize
    }

    /// The channel that `rank` sends on in `dir`, or [`NONE`].
    #[inline]
    pub fn tx(&self, rank: u32, dir: Dir) -> u32 {
        let dense = self.dense[dir.index()] as usize;
        if dense < self.dirs { self.tx[rank as usize * self.dirs + dense] } else { NONE }
    }

    /// The channel that `rank` receives from in `dir`, or [`NONE`].
    #[inline]
    pub fn rx(&self, rank: u32, dir: Dir) -> u32 {
        let dense = self.dense[dir.index()] as usize;
        if dense < self.dirs { self.rx[rank as usize * self.dirs + dense] } else { NONE }
    }

    /// All channels, by id.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }
}
