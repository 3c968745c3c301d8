//! Memory of chips that the parent cannot map: it asks the chip, and bytes go through a piece of the Worker's heap.

use crate::context::window_fits;
use crate::execute::nonsense;
use crate::frame::{Frame, Kind, Received};
use crate::memory::{Heap, Piece, region_failure};
use crate::run::first_failure;
use crate::worker::{Worker, deadline, not_of_chip, not_up};
use chip_bootstrap::{Chip, ChipMemoryKind};
use comm_context::abi::DeviceAddr;
use fault_points::fault_point;
use shared_memory::Region;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use worker_errors::{ErrorCode, Failure};

/// The most that is copied at once; a larger copy is several commands.
const PIECE_BYTES: usize = 64 << 20;

/// What was dropped of chips' memory, by chip: freed with the next command, since a `Drop` cannot ask a chip.
pub(crate) type Dropped = Arc<Mutex<Vec<(usize, u64)>>>;

/// Memory of a chip's own.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) chip: usize,
    pub(crate) dropped: Dropped,
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push((self.chip, self.addr));
    }
}

impl Worker {
    pub(crate) fn remote_alloc(&mut self, chip: usize, len: usize) -> Result<Remote, Failure> {
        let answer = self.command(chip, Kind::Malloc, &[len as u64], "chip_alloc")?;
        let addr = answer.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let addr = addr.filter(|addr| window_fits(*addr, len as u64, len, None)).ok_or_else(|| {
            Failure::new(ErrorCode::Protocol, format!("chip {chip} gave no address")).in_phase("chip_alloc")
        })?;
        Ok(Remote { addr, len, chip, dropped: self.dropped.clone() })
    }

    pub(crate) fn remote_copy_to(
        &mut self,
        chip: usize,
        to: DeviceAddr,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        to.checked_add(bytes.len() as u64).ok_or_else(|| not_of_chip(chip, to, bytes.len(), "copy_to"))?;
        for (at, part) in bytes.chunks(PIECE_BYTES).enumerate() {
            let piece = self.staging(part.len())?;
            let (heap, range) = (self.heap.region(), piece.range.clone());
            heap.write(range.start, part).map_err(|error| region_failure(&error))?;
            let scalars = [to.0 + (at * PIECE_BYTES) as u64, piece.addr(), part.len() as u64];
            self.command(chip, Kind::CopyIn, &scalars, "copy_to")?;
        }
        Ok(())
    }

    pub(crate) fn remote_copy_from(
        &mut self,
        chip: usize,
        from: DeviceAddr,
        into: &mut [u8],
    ) -> Result<(), Failure> {
        from.checked_add(into.len() as u64)
            .ok_or_else(|| not_of_chip(chip, from, into.len(), "copy_from"))?;
        for (at, part) in into.chunks_mut(PIECE_BYTES).enumerate() {
            let piece = self.staging(part.len())?;
            let scalars = [from.0 + (at * PIECE_BYTES) as u64, piece.addr(), part.len() as u64];
            self.command(chip, Kind::CopyOut, &scalars, "copy_from")?;
            let heap = self.heap.region();
            heap.read(piece.range.start, part).map_err(|error| region_failure(&error))?;
        }
        Ok(())
    }

    fn staging(&self, len: usize) -> Result<Piece, Failure> {
        Heap::take(&self.heap, len)
    }

    /// Frees what was dropped since the last command.
    pub(crate) fn free_dropped(&mut self) -> Result<(), Failure> {
        // In the simulation a chip's memory is a piece of the heap, which needs no command; a run is too short to look.
        if self.settings.platform.chip_memory() == ChipMemoryKind::Host {
            return Ok(());
        }
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        dropped
            .into_iter()
            .try_for_each(|(chip, addr)| self.send_command(chip, Kind::Free, &[addr], "chip_free").map(drop))
    }

    fn command(
        &mut self,
        chip: usize,
        kind: Kind,
        scalars: &[u64],
        call: &'static str,
    ) -> Result<Vec<u8>, Failure> {
        self.free_dropped()?;
        self.send_command(chip, kind, scalars, call)
    }

    /// Sends one command outside any run and waits for its answer.
    fn send_command(
        &mut self,
        chip: usize,
        kind: Kind,
        scalars: &[u64],
        call: &'static str,
    ) -> Result<Vec<u8>, Failure> {
        self.must_have_chip(chip, call)?;
        let deadline = deadline(self.run_within)?;
        // A run of its own, so that its failure is told apart.
        let run = self.next_run();
        let hands = self.hands.as_mut().ok_or_else(|| not_up(call))?;
        hands.check()?;
        fault_point!("worker.command.sending");
        let seq = hands.send(chip, &Frame { scalars, ..Frame::new(kind, run) }, deadline)?;
        fault_point!("worker.command.sent");
        hands.await_done(chip, seq, deadline)?;
        fault_point!("worker.command.done");
        if hands.board.hand(chip).progress.failed_run.load() == run {
            return Err(first_failure(hands, &self.programs, run).in_phase(call));
        }
        Ok(hands.board.read_answer(chip))
    }
}

/// Whose addresses the tensors of a task are. Simulated chips, and all hands for host memory, have one address space; a
/// device has its own, and two devices use the same numbers for different memory.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    /// Host memory, when the chips have spaces of their own.
    host: Option<Vec<Range<u64>>>,
}

/// Addresses have fewer bits than this, on hosts and on devices.
const SPACE_BITS: u32 = 52;

impl Spaces {
    pub(crate) fn of(worker: &Worker) -> Self {
        if worker.settings.platform.chip_memory() == ChipMemoryKind::Host {
            return Self::default();
        }
        let heaps = worker.heaps_above.iter().chain([worker.heap.region()]);
        let range = |heap: &Arc<Region>| {
            let start = heap.base().as_ptr() as u64;
            start..start + heap.len() as u64
        };
        Self { host: Some(heaps.map(range).collect()) }
    }

    /// A range that no other chip's memory has.
    pub(crate) fn tell_apart(&self, range: Range<u64>, chip: usize) -> Range<u64> {
        let shared = |host: &[Range<u64>]| host.iter().any(|h| h.start <= range.start && range.end <= h.end);
        match &self.host {
            Some(host) if !shared(host) => {
                let space = (chip as u64 + 1) << SPACE_BITS;
                range.start | space..range.end | space
            }
            _ => range,
        }
    }
}

/// The chip's side of a command on its memory.
pub(crate) fn execute(chip: &Chip, frame: &Received, heaps: &[Arc<Region>]) -> Result<Vec<u8>, Failure> {
    let memory = || chip.memory().ok_or_else(nonsense);
    match (frame.kind, frame.scalars.as_slice()) {
        (Some(Kind::Malloc), &[len]) => {
            fault_point!("worker.malloc");
            Ok(memory()?.allocate(len as usize)?.0.to_le_bytes().to_vec())
        }
        (Some(Kind::Free), &[addr]) => {
            fault_point!("worker.free");
            memory()?.free(DeviceAddr(addr))?;
            Ok(Vec::new())
        }
        (Some(Kind::CopyIn), &[to, from, len]) => {
            let mut bytes = vec![0; len as usize];
            let (heap, at) = in_heap(heaps, from, bytes.len()).ok_or_else(nonsense)?;
            heap.read(at, &mut bytes).map_err(|error| region_failure(&error))?;
            fault_point!("worker.copy-in");
            chip.write(DeviceAddr(to), &bytes)?;
            Ok(Vec::new())
        }
        (Some(Kind::CopyOut), &[from, to, len]) => {
            let mut bytes = vec![0; len as usize];
            let (heap, at) = in_heap(heaps, to, bytes.len()).ok_or_else(nonsense)?;
            chip.read(DeviceAddr(from), &mut bytes)?;
            fault_point!("worker.copy-out");
            heap.write(at, &bytes).map_err(|error| region_failure(&error))?;
            Ok(Vec::new())
        }
        _ => Err(nonsense()),
    }
}

/// The heap that holds these bytes, and where.
pub(crate) fn in_heap(heaps: &[Arc<Region>], addr: u64, len: usize) -> Option<(&Region, usize)> {
    heaps.iter().find_map(|heap| {
        let at = addr.checked_sub(heap.base().as_ptr() as u64)? as usize;
        (at.checked_add(len)? <= heap.len()).then_some((heap.as_ref(), at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_address_on_two_devices_is_not_the_same_memory() {
        let one = Spaces::default();
        assert_eq!(one.tell_apart(64..128, 1), 64..128);
        let many = Spaces { host: Some(vec![0x1000..0x2000, 0x9000..0xa000]) };
        assert_eq!(many.tell_apart(0x1000..0x1100, 1), 0x1000..0x1100, "host memory is everybody's");
        let (first, second) = (many.tell_apart(0x5000..0x6000, 0), many.tell_apart(0x5000..0x6000, 1));
        assert!(first.end <= second.start, "{first:?} {second:?}");
        assert_eq!((first.end - first.start, second.end - second.start), (0x1000, 0x1000));
    }
}
