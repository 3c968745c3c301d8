//! Movements applied to memory, in the order of their start.

use super::{Computed, Move, ReplayError, Target};
use crate::memory::Memory;
use crate::plan::Plan;
use crate::probe::Source;
use crate::units::Ps;
use ccl_schedule::{Channel, NONE};

/// The memories of all ranks, and the data of tokens from their issue until their slot is written again.
///
/// A channel has room for twice as many tokens as slots (rounded up to a power of two): token q + 2 n is not
/// issued before token q + n has taken the slot of token q, and from then on reading q is an error.
pub(super) struct Replay {
    pub(super) memory: Memory,
    /// Bytes of the size classes.
    sizes: Vec<usize>,
    /// Bytes of the largest token.
    cell: usize,
    /// Slots of a channel.
    slots: u32,
    /// Tokens of a channel.
    room: u32,
    tokens: Vec<u8>,
    /// The token that was written here last, and until when it is read.
    holds: Vec<(u32, Ps)>,
    landings: Vec<u8>,
}

impl Replay {
    pub(super) fn new(plan: &Plan<'_>, memory: Memory) -> Replay {
        let slots = u64::from(plan.slots).min(plan.program.messages().max(1)) as u32;
        let room = (2 * slots).next_power_of_two();
        let channels = plan.wiring.channels().len();
        let cell = memory.largest();
        Replay {
            memory,
            sizes: plan.costs.iter().map(|costs| costs.bytes as usize).collect(),
            cell,
            slots,
            room,
            tokens: vec![0; channels * room as usize * cell],
            holds: vec![(NONE, 0); channels * room as usize],
            landings: vec![0; channels * cell],
        }
    }

    /// The bytes that are moved.
    #[inline]
    pub(super) fn bytes(&self, to: Target, computed: &[Computed]) -> usize {
        match to {
            Target::Wire(_, _, class) | Target::Slot(_, _, class) | Target::Landing(_, class) => {
                self.sizes[usize::from(class)]
            }
            Target::Tile(rank, tile, _) => self.memory.len(rank, tile),
            Target::Math(number) => {
                let Computed { rank, to, .. } = computed[number as usize];
                self.memory.len(rank, to)
            }
        }
    }

    #[inline]
    fn place(&self, channel: u32, seq: u32) -> usize {
        channel as usize * self.room as usize + (seq & (self.room - 1)) as usize
    }

    /// Where the bytes of a token are.
    #[inline]
    fn token(&self, channel: u32, seq: u32) -> usize {
        self.place(channel, seq) * self.cell
    }

    fn landing(&self, channel: u32) -> usize {
        channel as usize * self.cell
    }

    /// Moves data. A slot is the token that it holds: a read of any other is a use after credit.
    #[inline]
    pub(super) fn apply(
        &mut self,
        channels: &[Channel],
        start: Ps,
        Move { end, from, to }: Move,
        computed: &[Computed],
    ) -> Result<(), ReplayError> {
        let (span, bytes) = ((start, end), self.bytes(to, computed));
        match (from, to) {
            (Some(Source::Tile(rank, tile)), Target::Wire(channel, seq, _)) => {
                let at = self.token(channel, seq);
                let data = self.memory.tile(rank, tile);
                let len = bytes.min(data.len());
                self.tokens[at..at + len].copy_from_slice(&data[..len]);
            }
            (Some(Source::Slot(channel, seq)), Target::Wire(onto, number, _)) => {
                self.read(channels, channel, seq, span)?;
                let (from, at) = (self.token(channel, seq), self.token(onto, number));
                self.tokens.copy_within(from..from + bytes, at);
            }
            (Some(Source::Landing(channel)), Target::Wire(onto, number, _)) => {
                let (from, at) = (self.landing(channel), self.token(onto, number));
                self.tokens[at..at + bytes].copy_from_slice(&self.landings[from..from + bytes]);
            }
            (_, Target::Slot(channel, seq, _)) => self.write(channels, channel, seq, start)?,
            (Some(Source::Slot(channel, seq)), Target::Landing(onto, _)) => {
                self.read(channels, channel, seq, span)?;
                let (from, at) = (self.token(channel, seq), self.landing(onto));
                self.landings[at..at + bytes].copy_from_slice(&self.tokens[from..from + bytes]);
            }
            (Some(Source::Slot(channel, seq)), Target::Tile(rank, tile, land)) => {
                self.read(channels, channel, seq, span)?;
                let from = self.token(channel, seq);
                self.memory.write(rank, tile, land, &self.tokens[from..from + bytes]);
            }
            (Some(Source::Landing(channel)), Target::Tile(rank, tile, land)) => {
                let from = self.landing(channel);
                self.memory.write(rank, tile, land, &self.landings[from..from + bytes]);
            }
            (Some(Source::Tile(from, source)), Target::Tile(rank, tile, land)) => {
                let data = self.memory.tile(from, source).to_vec();
                self.memory.write(rank, tile, land, &data[..bytes.min(data.len())]);
            }
            (_, Target::Math(number)) => self.compute(channels, computed[number as usize], span, bytes)?,
            // Only slots are filled from the wire, and landings from slots.
            (None, _) | (_, Target::Landing(..)) => {}
        }
        Ok(())
    }

    fn compute(
        &mut self,
        channels: &[Channel],
        Computed { rank, math, to, from }: Computed,
        span: (Ps, Ps),
        bytes: usize,
    ) -> Result<(), ReplayError> {
        let mut args = [const { Vec::new() }; 3];
        for (arg, source) in args.iter_mut().zip(from) {
            *arg = match source {
                None => continue,
                Some(Source::Tile(rank, tile)) => self.memory.tile(rank, tile).to_vec(),
                Some(Source::Slot(channel, seq)) => {
                    self.read(channels, channel, seq, span)?;
                    let at = self.token(channel, seq);
                    self.tokens[at..at + bytes].to_vec()
                }
                Some(Source::Landing(channel)) => {
                    let at = self.landing(channel);
                    self.landings[at..at + bytes].to_vec()
                }
            };
        }
        self.memory.compute(rank, &math, to, [&args[0], &args[1], &args[2]]);
        Ok(())
    }

    #[inline]
    fn read(
        &mut self,
        channels: &[Channel],
        channel: u32,
        seq: u32,
        span: (Ps, Ps),
    ) -> Result<(), ReplayError> {
        let (after, own) = (self.place(channel, seq + self.slots), self.place(channel, seq));
        if self.holds[after].0 == seq + self.slots {
            return Err(self.used_after(channels, channel, seq, span));
        }
        let (holds, until) = &mut self.holds[own];
        debug_assert_eq!(*holds, seq, "a token is read after it was written");
        *until = span.1.max(*until);
        Ok(())
    }

    #[inline]
    fn write(&mut self, channels: &[Channel], channel: u32, seq: u32, start: Ps) -> Result<(), ReplayError> {
        if let Some(before) = seq.checked_sub(self.slots) {
            let until = self.holds[self.place(channel, before)].1;
            if start < until {
                return Err(self.used_after(channels, channel, before, (start, until)));
            }
        }
        let place = self.place(channel, seq);
        self.holds[place] = (seq, 0);
        Ok(())
    }

    #[cold]
    fn used_after(&self, channels: &[Channel], channel: u32, seq: u32, (at, until): (Ps, Ps)) -> ReplayError {
        let ends = channels[channel as usize];
        ReplayError::UseAfterCredit {
            channel,
            src: ends.src,
            dir: ends.src_dir.to_string(),
            dst: ends.dst,
            slot: seq % self.slots,
            seq,
            by: seq + self.slots,
            at,
            until,
        }
    }
}
