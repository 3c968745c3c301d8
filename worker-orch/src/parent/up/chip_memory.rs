//! Memory of chips, as the parent uses it.
//!
//! Where chips use host memory the parent maps it too, and copies are plain copies. Memory on a device is
//! managed by commands to the chip, and its bytes go through a piece of the Worker's heap.

use super::Up;
use crate::heap::{Heap, Piece};
use crate::parent::chips::window_fits;
use crate::shared::{Frame, Kind, Programs};
use chip_bootstrap::{ChipGroup, ChipMemoryKind, region_failure};
use comm_context::abi::DeviceAddr;
use deadline::Deadline;
use fault_points::fault_point;
use shared_memory::Region;
use std::sync::{Arc, Mutex, PoisonError};
use worker_errors::{ErrorCode, Failure};

/// The most that is copied at once; a larger copy is several commands.
const PIECE_BYTES: usize = 64 << 20;

/// Device memory that users have dropped, by chip. It is freed with the next command, since a `Drop` cannot
/// send one.
pub(super) type Dropped = Arc<Mutex<Vec<(usize, u64)>>>;

/// Memory of one chip, made by [`Worker::chip_alloc`](crate::Worker::chip_alloc). It is freed after this is
/// dropped: at once in host memory, with the next call of the Worker on a device.
#[derive(Debug)]
pub struct ChipMemory {
    backing: Backing,
    chip: usize,
}

#[derive(Debug)]
enum Backing {
    Heap(Piece),
    Device(DeviceMemory),
}

#[derive(Debug)]
struct DeviceMemory {
    addr: u64,
    len: usize,
    chip: usize,
    dropped: Dropped,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push((self.chip, self.addr));
    }
}

impl ChipMemory {
    /// Its address, as the chip sees it.
    pub fn addr(&self) -> DeviceAddr {
        match &self.backing {
            Backing::Heap(piece) => DeviceAddr(piece.addr()),
            Backing::Device(memory) => DeviceAddr(memory.addr),
        }
    }

    /// How many bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory of no bytes is never made")]
    pub fn len(&self) -> usize {
        match &self.backing {
            Backing::Heap(piece) => piece.len(),
            Backing::Device(memory) => memory.len,
        }
    }

    /// Which chip.
    pub fn chip(&self) -> usize {
        self.chip
    }
}

/// What a command to a chip needs besides.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) programs: &'a Programs,
    pub(crate) deadline: Deadline,
    /// The public call, for errors.
    pub(crate) name: &'static str,
}

impl Up {
    pub(crate) fn chip_alloc(
        &mut self,
        chip: usize,
        bytes: usize,
        call: Call<'_>,
    ) -> Result<ChipMemory, Failure> {
        let chips = self.contexts().len();
        if chip >= chips || bytes == 0 {
            let text =
                format!("{bytes} bytes on chip {chip}: there are {chips} chips, and the least is 1 byte");
            return Err(invalid(text, call));
        }
        let backing = match self.chip_memory {
            ChipMemoryKind::Host => Backing::Heap(Heap::take(&self.heap, bytes)?),
            ChipMemoryKind::Device => {
                let answer = self.command(chip, Kind::Malloc, &[bytes as u64], call)?;
                let addr = answer.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                let addr = addr.filter(|addr| window_fits(*addr, bytes as u64, bytes, None));
                let addr = addr.ok_or_else(|| {
                    let text = format!("chip {chip} reported an impossible address");
                    Failure::new(ErrorCode::Protocol, text).in_phase(call.name)
                })?;
                Backing::Device(DeviceMemory { addr, len: bytes, chip, dropped: self.dropped.clone() })
            }
        };
        Ok(ChipMemory { backing, chip })
    }

    pub(crate) fn copy_to(
        &mut self,
        chip: usize,
        to: DeviceAddr,
        bytes: &[u8],
        call: Call<'_>,
    ) -> Result<(), Failure> {
        if self.chip_memory == ChipMemoryKind::Host {
            let (region, at) = self.chip_bytes(chip, to, bytes.len(), call)?;
            fault_point!("worker.copy-to");
            return region.write(at, bytes).map_err(|error| region_failure(&error));
        }
        to.checked_add(bytes.len() as u64).ok_or_else(|| not_of_chip(chip, to, bytes.len(), call))?;
        for (number, part) in bytes.chunks(PIECE_BYTES).enumerate() {
            let piece = Heap::take(&self.heap, part.len())?;
            piece.write(0, part)?;
            let scalars = [to.0 + (number * PIECE_BYTES) as u64, piece.addr(), part.len() as u64];
            self.command(chip, Kind::CopyIn, &scalars, call)?;
        }
        Ok(())
    }

    pub(crate) fn copy_from(
        &mut self,
        chip: usize,
        from: DeviceAddr,
        into: &mut [u8],
        call: Call<'_>,
    ) -> Result<(), Failure> {
        if self.chip_memory == ChipMemoryKind::Host {
            let (region, at) = self.chip_bytes(chip, from, into.len(), call)?;
            fault_point!("worker.copy-from");
            return region.read(at, into).map_err(|error| region_failure(&error));
        }
        from.checked_add(into.len() as u64).ok_or_else(|| not_of_chip(chip, from, into.len(), call))?;
        for (number, part) in into.chunks_mut(PIECE_BYTES).enumerate() {
            let piece = Heap::take(&self.heap, part.len())?;
            let scalars = [from.0 + (number * PIECE_BYTES) as u64, piece.addr(), part.len() as u64];
            self.command(chip, Kind::CopyOut, &scalars, call)?;
            piece.read(0, part)?;
        }
        Ok(())
    }

    /// The shared memory behind an address of a chip, where chips use host memory.
    fn chip_bytes(
        &self,
        chip: usize,
        addr: DeviceAddr,
        len: usize,
        call: Call<'_>,
    ) -> Result<(&Region, usize), Failure> {
        self.check_chip(chip, call)?;
        let inside = |region: &Region, at: usize, end: usize| {
            let start = addr.0.checked_sub(region.base().as_ptr() as u64 + at as u64)? as usize;
            (start.checked_add(len)? <= end - at).then_some(at + start)
        };
        let context = self.contexts.get(chip).filter(|context| context.window_size > 0);
        let window = context.and_then(|context| {
            let group = self.children.group().and_then(ChipGroup::windows)?;
            let at = context.window_base.0.checked_sub(group.base().as_ptr() as u64)? as usize;
            Some((group, inside(group, at, at + context.window_size)?))
        });
        let heap = self.heap.region();
        let found = window.or_else(|| Some((heap.as_ref(), inside(heap, 0, heap.len())?)));
        found.ok_or_else(|| not_of_chip(chip, addr, len, call))
    }

    fn check_chip(&self, chip: usize, call: Call<'_>) -> Result<(), Failure> {
        let chips = self.contexts().len();
        if chip < chips {
            return Ok(());
        }
        Err(invalid(format!("there is no chip {chip}; this Worker has {chips}"), call))
    }

    /// Frees device memory that was dropped since the last command.
    pub(super) fn free_dropped(&mut self, programs: &Programs, deadline: Deadline) -> Result<(), Failure> {
        // Host memory needs no command, and an empty run is too short to take a lock.
        if self.chip_memory == ChipMemoryKind::Host {
            return Ok(());
        }
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        let call = Call { programs, deadline, name: "chip_free" };
        dropped
            .into_iter()
            .try_for_each(|(chip, addr)| self.send_command(chip, Kind::Free, &[addr], call).map(drop))
    }

    fn command(
        &mut self,
        chip: usize,
        kind: Kind,
        scalars: &[u64],
        call: Call<'_>,
    ) -> Result<Vec<u8>, Failure> {
        self.free_dropped(call.programs, call.deadline)?;
        self.send_command(chip, kind, scalars, call)
    }

    /// Sends one command outside any run and waits for its answer.
    fn send_command(
        &mut self,
        chip: usize,
        kind: Kind,
        scalars: &[u64],
        call: Call<'_>,
    ) -> Result<Vec<u8>, Failure> {
        self.check_chip(chip, call)?;
        // A run of its own, so that its failure is not taken for another's.
        let run = self.next_run();
        let children = &mut self.children;
        children.check()?;
        fault_point!("worker.command.sending");
        let seq = children.send(chip, &Frame { scalars, ..Frame::new(kind, run) }, call.deadline)?;
        fault_point!("worker.command.sent");
        children.await_done(chip, seq, call.deadline)?;
        fault_point!("worker.command.done");
        let problems = children.problems(run);
        problems.into_result().map_err(|failure| failure.in_phase(call.name))?;
        Ok(children.block().read_answer(chip))
    }
}

fn not_of_chip(chip: usize, addr: DeviceAddr, len: usize, call: Call<'_>) -> Failure {
    invalid(format!("{len} bytes at {addr} are not inside memory or the window of chip {chip}"), call)
}

fn invalid(text: String, call: Call<'_>) -> Failure {
    Failure::new(ErrorCode::Invalid, text).in_phase(call.name)
}
