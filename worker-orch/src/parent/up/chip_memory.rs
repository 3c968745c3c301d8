//! Memory of chips, as the parent uses it.
//!
//! Where chips use host memory the parent maps it too, and copies are plain copies. Memory on a device is
//! managed by commands to the chip, and its bytes go through a piece of the Worker's heap.

use super::Up;
use super::allocations::{Allocation, Allocations};
use crate::chip_context::ChipContext;
use crate::heap::{Heap, Piece};
use crate::parent::address_spaces::AddressSpaces;
use crate::parent::children::Children;
use crate::parent::chips::window_fits;
use crate::shared::{Frame, Kind};
use chip_bootstrap::{ChipGroup, ChipMemoryKind, region_failure};
use comm_context::abi::DeviceAddr;
use deadline::Deadline;
use fault_points::fault_point;
use shared_memory::Region;
use std::ops::Range;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// The most that is copied at once; a larger copy is several commands.
const PIECE_BYTES: usize = 64 << 20;

/// Memory of one chip, made by [`Worker::chip_alloc`](crate::Worker::chip_alloc). It is freed after this is
/// dropped: at once in host memory, with the next call of the Worker on a device. After
/// [`close`](crate::Worker::close) it is nobody's.
#[derive(Debug)]
pub struct ChipMemory {
    addr: u64,
    len: usize,
    chip: usize,
    /// Dropped first: an address is given out again only when it is not in the table any more.
    _entry: Allocation,
    /// Where chips use host memory.
    _piece: Option<Piece>,
}

impl ChipMemory {
    /// Its address, as the chip sees it.
    pub fn addr(&self) -> DeviceAddr {
        DeviceAddr(self.addr)
    }

    /// How many bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory of no bytes is never made")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Which chip.
    pub fn chip(&self) -> usize {
        self.chip
    }
}

/// What a command to a chip needs besides.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) deadline: Deadline,
    /// The public call, for errors.
    pub(crate) name: &'static str,
}

/// What the parent knows of the memory of its chips.
#[derive(Clone, Copy, Debug)]
pub(in crate::parent) struct Memories<'a> {
    pub(super) contexts: &'a [ChipContext],
    pub(super) allocations: &'a Allocations,
    pub(super) heap: &'a Arc<Heap>,
    pub(super) kind: ChipMemoryKind,
    pub(super) spaces: &'a AddressSpaces,
}

/// A command to a chip as part of a run, with its deadline.
#[derive(Clone, Copy)]
pub(in crate::parent) struct CommandOf {
    pub(in crate::parent) run: u64,
    pub(in crate::parent) deadline: Deadline,
    /// The public call, for errors.
    pub(in crate::parent) name: &'static str,
}

impl<'a> Memories<'a> {
    pub(in crate::parent) fn spaces(self) -> &'a AddressSpaces {
        self.spaces
    }

    pub(in crate::parent) fn contexts(self) -> &'a [ChipContext] {
        self.contexts
    }

    pub(in crate::parent) fn heap(self) -> &'a Arc<Heap> {
        self.heap
    }

    /// Frees memory on devices that users have dropped. Nothing may be under way that uses it.
    pub(in crate::parent) fn free_dropped(
        self,
        children: &mut Children,
        call: CommandOf,
    ) -> Result<(), Failure> {
        self.allocations
            .take_dropped()
            .into_iter()
            .try_for_each(|(chip, addr)| self.command(children, chip, Kind::Free, &[addr], call).map(drop))
    }

    pub(in crate::parent) fn chip_alloc(
        self,
        children: &mut Children,
        chip: usize,
        bytes: usize,
        call: CommandOf,
    ) -> Result<ChipMemory, Failure> {
        let chips = self.contexts.len();
        if chip >= chips || bytes == 0 {
            let text = format!(
                "{bytes} bytes on chip {chip} cannot be allocated; ask for 1 or more on one of the {chips} chips, counted from 0"
            );
            return Err(invalid(text, call.name));
        }
        let (addr, entry, piece) = match self.kind {
            ChipMemoryKind::Host => {
                let piece = Heap::take(self.heap, bytes)?;
                (piece.addr(), self.allocations.enter(chip, piece.addr(), bytes), Some(piece))
            }
            ChipMemoryKind::Device => {
                let answer = self.command(children, chip, Kind::Malloc, &[bytes as u64], call)?;
                let addr = answer.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                let addr = addr.filter(|addr| window_fits(*addr, bytes as u64, bytes, None));
                let addr = addr.ok_or_else(|| {
                    let text = format!(
                        "chip {chip} reported an impossible address; it runs another build, or something overwrote its \
                         memory"
                    );
                    Failure::new(ErrorCode::Protocol, text).in_phase(call.name)
                })?;
                (addr, self.allocations.enter_on_device(chip, addr, bytes), None)
            }
        };
        Ok(ChipMemory { addr, len: bytes, chip, _entry: entry, _piece: piece })
    }

    /// Into memory that [`check`](Self::check) has found to be the chip's.
    pub(in crate::parent) fn copy_to(
        self,
        children: &mut Children,
        chip: usize,
        to: DeviceAddr,
        bytes: &[u8],
        call: CommandOf,
    ) -> Result<(), Failure> {
        children.count_bytes(chip, bytes.len(), 0);
        if self.kind == ChipMemoryKind::Host {
            let (region, at) = self.region_of(children, to);
            fault_point!("worker.copy-to");
            return region.write(at, bytes).map_err(|error| region_failure(&error));
        }
        for (number, part) in bytes.chunks(PIECE_BYTES).enumerate() {
            let piece = Heap::take(self.heap, part.len())?;
            piece.write(0, part)?;
            let scalars = [to.0 + (number * PIECE_BYTES) as u64, piece.addr(), part.len() as u64];
            self.command(children, chip, Kind::CopyIn, &scalars, call)?;
        }
        Ok(())
    }

    /// From memory that [`check`](Self::check) has found to be the chip's.
    pub(in crate::parent) fn copy_from(
        self,
        children: &mut Children,
        chip: usize,
        from: DeviceAddr,
        into: &mut [u8],
        call: CommandOf,
    ) -> Result<(), Failure> {
        children.count_bytes(chip, 0, into.len());
        if self.kind == ChipMemoryKind::Host {
            let (region, at) = self.region_of(children, from);
            fault_point!("worker.copy-from");
            return region.read(at, into).map_err(|error| region_failure(&error));
        }
        for (number, part) in into.chunks_mut(PIECE_BYTES).enumerate() {
            let piece = Heap::take(self.heap, part.len())?;
            let scalars = [from.0 + (number * PIECE_BYTES) as u64, piece.addr(), part.len() as u64];
            self.command(children, chip, Kind::CopyOut, &scalars, call)?;
            piece.read(0, part)?;
        }
        Ok(())
    }

    /// Refuses bytes that are not in memory of `chip` that is allocated now, and not in its window (WO-11). `more` says whether bytes
    /// are in other memory of a chip.
    pub(in crate::parent) fn check(
        self,
        chip: usize,
        addr: DeviceAddr,
        len: usize,
        name: &'static str,
        more: impl Fn(usize, &Range<u64>) -> bool,
    ) -> Result<(), Failure> {
        let chips = self.contexts.len();
        if chip >= chips {
            return Err(invalid(
                format!("there is no chip {chip}; this Worker has {chips}, counted from 0"),
                name,
            ));
        }
        let range = addr.checked_add(len as u64).map(|end| addr.0..end.0);
        let is_of = |chip: usize| {
            range.as_ref().is_some_and(|range| self.is_memory_of(chip, range) || more(chip, range))
        };
        if is_of(chip) {
            return Ok(());
        }
        let text = match (0..chips).find(|other| is_of(*other)) {
            Some(other) => {
                format!("{len} bytes at {addr} belong to chip {other}, not to chip {chip}; name that chip")
            }
            None => format!(
                "{len} bytes at {addr} are not inside memory or the window of chip {chip}; memory that was freed, or \
                 allocated before the last init, is gone, and host memory is reached through its HostBuffer"
            ),
        };
        Err(invalid(text, name))
    }

    fn is_memory_of(self, chip: usize, range: &Range<u64>) -> bool {
        let context = &self.contexts[chip];
        let (base, size) = (context.window_base.0, context.window_size as u64);
        // A window that a chip reported does not go beyond the last address.
        let in_window = size > 0 && base <= range.start && range.end <= base + size;
        in_window || self.allocations.hold(chip, range)
    }

    /// The shared memory, and the offset in it, of an address in memory of a chip. Where chips use host memory
    /// that is the heap, or for windows the memory of the group.
    fn region_of(self, children: &'a Children, addr: DeviceAddr) -> (&'a Region, usize) {
        let heap = self.heap.region().as_ref();
        let holds = |region: &&Region| {
            addr.0.checked_sub(region.base().as_ptr() as u64).is_some_and(|at| at < region.len() as u64)
        };
        let region = children.group().and_then(ChipGroup::windows).filter(holds).unwrap_or(heap);
        (region, addr.0.saturating_sub(region.base().as_ptr() as u64) as usize)
    }

    /// Sends one command and waits for its answer.
    fn command(
        self,
        children: &mut Children,
        chip: usize,
        kind: Kind,
        scalars: &[u64],
        call: CommandOf,
    ) -> Result<Vec<u8>, Failure> {
        children.check()?;
        fault_point!("worker.command.sending");
        let seq = children.send(chip, &Frame { scalars, ..Frame::new(kind, call.run) }, call.deadline)?;
        fault_point!("worker.command.sent");
        children.await_done(chip, seq, call.deadline)?;
        fault_point!("worker.command.done");
        let problems = children.problems(call.run);
        problems.into_result().map_err(|failure| failure.in_phase(call.name))?;
        Ok(children.block().read_answer(chip))
    }
}

/// Outside a run each command is a run of its own, so that its failure is not taken for another's.
impl Up {
    pub(crate) fn chip_alloc(
        &mut self,
        chip: usize,
        bytes: usize,
        call: Call,
    ) -> Result<ChipMemory, Failure> {
        let (memories, children, command) = self.command(call)?;
        memories.chip_alloc(children, chip, bytes, command)
    }

    pub(crate) fn copy_to(
        &mut self,
        chip: usize,
        to: DeviceAddr,
        bytes: &[u8],
        call: Call,
    ) -> Result<(), Failure> {
        let (memories, children, command) = self.command(call)?;
        memories.check(chip, to, bytes.len(), call.name, |_, _| false)?;
        memories.copy_to(children, chip, to, bytes, command)
    }

    pub(crate) fn copy_from(
        &mut self,
        chip: usize,
        from: DeviceAddr,
        into: &mut [u8],
        call: Call,
    ) -> Result<(), Failure> {
        let (memories, children, command) = self.command(call)?;
        memories.check(chip, from, into.len(), call.name, |_, _| false)?;
        memories.copy_from(children, chip, from, into, command)
    }

    /// Frees device memory that was dropped since the last command.
    pub(super) fn free_dropped(&mut self, deadline: Deadline) -> Result<(), Failure> {
        // Host memory needs no command, and an empty run is too short to take a lock.
        if self.chip_memory == ChipMemoryKind::Host {
            return Ok(());
        }
        let (memories, children, command) = self.parts("chip_free", deadline);
        memories.free_dropped(children, command)
    }

    fn command(&mut self, call: Call) -> Result<(Memories<'_>, &mut Children, CommandOf), Failure> {
        self.free_dropped(call.deadline)?;
        Ok(self.parts(call.name, call.deadline))
    }

    fn parts(&mut self, name: &'static str, deadline: Deadline) -> (Memories<'_>, &mut Children, CommandOf) {
        let run = self.next_run();
        let memories = Memories {
            contexts: &self.contexts,
            allocations: &self.allocations,
            heap: &self.heap,
            kind: self.chip_memory,
            spaces: &self.spaces,
        };
        (memories, &mut self.children, CommandOf { run, deadline, name })
    }
}

fn invalid(text: String, phase: &'static str) -> Failure {
    Failure::new(ErrorCode::Invalid, text).in_phase(phase)
}
