//! Calls in raw parts, for the C libraries and bindings: pointers instead of slices, tickets instead of scopes.
//!
//! # Safety
//! Passes the caller's pointers on; what it promises stands at each function.
#![allow(unsafe_code)]

use crate::call::Call;
use crate::device::Origin;
use crate::element::DType;
use crate::error::{BadArgument, CollError};
use crate::group::Collectives;
use crate::pairs::{Direction, Transfer};
use crate::request::{Kind, Request};
use crate::started::Ticket;
use comm_context::abi::DeviceAddr;
use core::ptr::NonNull;

impl Collectives<'_> {
    /// Checks what the typed calls know from their types: null pointers and overlaps.
    ///
    /// # Safety
    /// As [`run_raw`](Self::run_raw).
    #[inline(always)]
    unsafe fn check_raw(&self, request: &Request) -> Result<(), BadArgument> {
        match request.kind {
            Kind::Barrier => Ok(()),
            // What small calls mostly are: the same checks without the other kinds' cases.
            Kind::AllReduce => {
                request.check(self.nranks())?;
                let bytes = request.count * request.dtype.size();
                let (from, to) = (request.input.addr(), request.output.addr());
                match () {
                    () if bytes == 0 => Ok(()),
                    () if from == 0 => Err(BadArgument::Null { what: "input" }),
                    () if to == 0 => Err(BadArgument::Null { what: "output" }),
                    () if from != to && from.abs_diff(to) < bytes => Err(BadArgument::Overlap),
                    () => Ok(()),
                }
            }
            // SAFETY: the caller's promises.
            _ => unsafe { self.check_any(request) },
        }
    }

    /// # Safety
    /// As [`run_raw`](Self::run_raw).
    #[inline(never)]
    unsafe fn check_any(&self, request: &Request) -> Result<(), BadArgument> {
        request.check(self.nranks())?;
        let nranks = self.nranks();
        let listed = matches!(request.kind, Kind::AllGatherV | Kind::ReduceScatterV | Kind::AllToAllV);
        if listed && request.counts.is_null() {
            return Err(BadArgument::Null { what: "counts" });
        }
        if request.kind == Kind::AllToAllV && request.receive_counts.is_null() {
            return Err(BadArgument::Null { what: "receive_counts" });
        }
        let count = request.count;
        let (input, output) = request.extent(self.rank(), nranks);
        let size = request.dtype.size();
        let bytes =
            |elements: usize| elements.checked_mul(size).filter(|bytes| *bytes <= isize::MAX as usize);
        let too_many = || BadArgument::TooManyBytes { count, dtype: request.dtype, blocks: nranks };
        let (input, output) = (bytes(input).ok_or_else(too_many)?, bytes(output).ok_or_else(too_many)?);
        if input > 0 && request.input.is_null() {
            return Err(BadArgument::Null { what: "input" });
        }
        if output > 0 && request.output.is_null() {
            return Err(BadArgument::Null { what: "output" });
        }
        let (from, to) = (request.input.addr(), request.output.addr());
        let apart = input == 0
            || output == 0
            || from.saturating_add(input) <= to
            || to.saturating_add(output) <= from;
        // In place: the same elements for a reduction, this rank's own block where there is one for each rank.
        let before = match request.kind {
            Kind::AllGatherV | Kind::ReduceScatterV => {
                (0..self.rank()).map(|rank| crate::moves::count_at(request.counts, rank)).sum()
            }
            _ => self.rank() * count,
        };
        let own_block = before * size;
        let in_place = match request.kind {
            Kind::Reduce => from == to,
            Kind::AllGather | Kind::AllGatherV | Kind::Gather => from == to + own_block,
            Kind::ReduceScatter | Kind::ReduceScatterV | Kind::Scatter => to == from + own_block,
            _ => false,
        };
        if apart || in_place { Ok(()) } else { Err(BadArgument::Overlap) }
    }

    /// Runs a call in raw parts.
    ///
    /// # Safety
    /// Input, output and lists of counts are null where they are not used, or valid for what the call reads and writes; nobody else writes
    /// them, or reads the output, meanwhile. After an error other than [`CollError::Argument`], a buffer that lies in the group's pool
    /// and was [shared](Request::shared) must not be used any more.
    #[inline(always)]
    pub unsafe fn run_raw(&self, request: Request) -> Result<(), CollError> {
        // SAFETY: the caller's promises.
        unsafe { self.check_raw(&request) }?;
        self.run_from(&request, Origin::Anywhere)
    }

    /// Starts a call in raw parts.
    ///
    /// # Safety
    /// As [`run_raw`](Self::run_raw), until [`wait_raw`](Self::wait_raw) or [`test_raw`](Self::test_raw) said that the call is over, or the
    /// group is dropped. The group must not be moved to another thread before that.
    pub unsafe fn start_raw(&self, request: Request) -> Result<Ticket, CollError> {
        // SAFETY: the caller's promises.
        unsafe { self.check_raw(&request) }?;
        if let Some(device) = self.device() {
            return device?.start(request, Origin::Anywhere);
        }
        let mut engine = self.enter()?;
        engine.check()?;
        let call = Call::new(&engine, request);
        Ok(engine.start(call))
    }

    /// Starts to send `count` elements to `to`.
    ///
    /// # Safety
    /// As [`start_raw`](Self::start_raw): `from` is valid for reads of so many elements until the message is sent.
    pub unsafe fn start_send_raw(
        &self,
        from: *const u8,
        count: usize,
        dtype: DType,
        to: usize,
        tag: u32,
    ) -> Result<Ticket, CollError> {
        self.start_message_raw(Direction::Send(from), from.is_null(), count, dtype, to, tag)
    }

    /// Starts to receive `count` elements from `from`.
    ///
    /// # Safety
    /// As [`start_raw`](Self::start_raw): `to` is valid for writes of so many elements until the message is received.
    pub unsafe fn start_recv_raw(
        &self,
        to: *mut u8,
        count: usize,
        dtype: DType,
        from: usize,
        tag: u32,
    ) -> Result<Ticket, CollError> {
        self.start_message_raw(Direction::Receive(to), to.is_null(), count, dtype, from, tag)
    }

    fn start_message_raw(
        &self,
        direction: Direction,
        is_null: bool,
        count: usize,
        dtype: DType,
        peer: usize,
        tag: u32,
    ) -> Result<Ticket, CollError> {
        let bytes = count.checked_mul(dtype.size()).filter(|bytes| *bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or(BadArgument::TooManyBytes { count, dtype, blocks: 1 })?;
        if is_null && bytes > 0 {
            return Err(BadArgument::Null { what: "the message" }.into());
        }
        if peer >= self.nranks() || peer == self.rank() {
            return Err(BadArgument::Peer { rank: peer, nranks: self.nranks(), me: self.rank() }.into());
        }
        let transfer = Transfer { direction, peer, tag, dtype, bytes, sent: 0, done: false };
        if let Some(device) = self.device() {
            return device?.start_transfer(&transfer, Origin::Anywhere);
        }
        let mut engine = self.enter()?;
        engine.check()?;
        Ok(engine.start_transfer(transfer))
    }

    /// Whether a started call is over. Works on all calls that were started.
    pub fn test_raw(&self, ticket: Ticket) -> Result<bool, CollError> {
        self.is_over(ticket)
    }

    /// Waits until a started call is over.
    pub fn wait_raw(&self, ticket: Ticket) -> Result<(), CollError> {
        self.finish(ticket)
    }

    /// Bytes of this rank's pool, until [`free_raw`](Self::free_raw) or the end of the group.
    pub fn alloc_raw(&self, bytes: usize) -> Result<NonNull<u8>, CollError> {
        if let Some(device) = self.device() {
            let at = device?
                .allocate(bytes)
                .map_err(|cause| CollError::Setup { what: "allocating memory", cause })?;
            return NonNull::new(at.0 as *mut u8).ok_or(CollError::Poisoned);
        }
        let engine = self.enter()?;
        let range = self.take_from_pool(Some(bytes))?;
        let at = engine.memory.window(self.rank()).wrapping_add(range.start);
        let at = NonNull::new(at).ok_or(CollError::Poisoned)?;
        self.local.untyped.borrow_mut().insert(at.addr().get(), range);
        Ok(at)
    }

    /// Takes back what [`alloc_raw`](Self::alloc_raw) returned.
    ///
    /// # Safety
    /// Nothing uses the memory any more.
    pub unsafe fn free_raw(&self, at: NonNull<u8>) -> Result<(), CollError> {
        if let Some(device) = self.device() {
            let freed = device?.free(DeviceAddr(at.addr().get() as u64));
            return freed.map_err(|cause| CollError::Setup { what: "freeing memory", cause });
        }
        self.enter()?;
        let range = self.local.untyped.borrow_mut().remove(&at.addr().get());
        let range = range.ok_or(BadArgument::NotInWindow { at: at.addr().get(), bytes: 0 })?;
        // Where a peer may still write nothing else shall be.
        if !self.has_failed() {
            self.local.pool.borrow_mut().put(range);
        }
        Ok(())
    }
}
