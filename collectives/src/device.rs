//! The same calls on a communicator whose devices have an engine for them: what is on the host is copied there and back.
//!
//! # Safety
//! Reads inputs and lists and writes outputs of the caller, who promised that they are valid until the call is over. Addresses of device
//! memory are passed on and not followed.
#![allow(unsafe_code)]

use crate::element::{DType, Op};
use crate::error::CollError;
use crate::pairs::{Direction, Transfer};
use crate::request::{CallText, Kind, Request, record};
use crate::started::Ticket;
use comm_context::abi::{self, DeviceAddr};
use comm_context::comm::{
    CommError, DeviceCall, DeviceCallUnderWay, DeviceGroup, DeviceInput, DeviceOutput, DeviceRequest,
    Leaving, ReduceOp, Reduction, Timeout,
};
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, Ordering};
use deadline::monotonic_ns;
use std::sync::Arc;
use std::time::Duration;

/// Where the buffers of a call may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// On the host: they are slices.
    Host,
    /// On the host or on the device: they are pointers of a C program.
    Anywhere,
}

/// One rank's side of a group whose calls the devices make.
pub(crate) struct DeviceEngine<'c> {
    group: Box<dyn DeviceGroup + 'c>,
    me: usize,
    nranks: usize,
    within: Timeout,
    state: RefCell<State>,
    /// Raised with the first cause.
    failed: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    under_way: Vec<UnderWay>,
    /// Those that were under way when the group broke.
    lost: Vec<Ticket>,
    calls: u64,
    broken: Option<Arc<CollError>>,
}

struct UnderWay {
    ticket: Ticket,
    call: Box<dyn DeviceCallUnderWay>,
    /// Where the bytes that come back go, and how many they are.
    output: (*mut u8, usize),
    text: CallText,
    /// When somebody first waited for it.
    since_ns: Option<u64>,
}

impl<'c> DeviceEngine<'c> {
    pub(crate) fn new(
        group: Box<dyn DeviceGroup + 'c>,
        me: usize,
        nranks: usize,
        within: Timeout,
        failed: Arc<AtomicBool>,
    ) -> Self {
        Self { group, me, nranks, within, state: RefCell::default(), failed }
    }

    /// Runs a call that was checked.
    pub(crate) fn run(&self, request: Request, origin: Origin) -> Result<(), CollError> {
        let ticket = self.start(request, origin)?;
        self.wait(ticket)
    }

    /// Starts a call that was checked.
    pub(crate) fn start(&self, request: Request, origin: Origin) -> Result<Ticket, CollError> {
        let text = CallText::of(&record(request.signature(self.nranks), 0, 0)).to_string();
        let (input, output) = request.extent(self.me, self.nranks);
        let size = request.dtype.size();
        let call = self.call(&request).map_err(|why| CollError::Unsupported { call: text.clone(), why })?;
        let scatters = matches!(request.kind, Kind::ReduceScatter | Kind::ReduceScatterV);
        let is_inside = (0..input * size).contains(&request.output.addr().wrapping_sub(request.input.addr()));
        if scatters
            && is_inside
            && output > 0
            && self.is_on_device(request.output, origin, &CallText::plain(text.clone()))?
        {
            let why = "devices have no reduce_scatter in place; pass an output that is apart from the input";
            return Err(CollError::Unsupported { call: text, why: why.to_owned() });
        }
        // The same on all ranks, since the counts are.
        let nothing = request.counts.is_null() && request.count == 0 && request.kind != Kind::Barrier;
        let give =
            if request.input.is_null() && input == 0 { None } else { Some((request.input, input * size)) };
        self.start_call(call, give, (request.output, output * size), text, origin, nothing)
    }

    /// Starts a message.
    pub(crate) fn start_transfer(&self, transfer: &Transfer, origin: Origin) -> Result<Ticket, CollError> {
        let Transfer { direction, peer, tag, dtype, bytes, .. } = *transfer;
        let text = format!("a message of {bytes} bytes of {dtype}");
        if tag != 0 {
            let why =
                "messages on devices have no tags and arrive in the order in which they are sent; pass tag 0";
            return Err(CollError::Unsupported { call: text, why: why.to_owned() });
        }
        let (peer, length) = (peer as u32, bytes as u64);
        let (call, give, take) = match direction {
            Direction::Send(from) => {
                (DeviceCall::Send(peer, length), Some((from, bytes)), (core::ptr::null_mut(), 0))
            }
            Direction::Receive(to) => (DeviceCall::Receive(peer, length), None, (to, bytes)),
        };
        self.start_call(call, give, take, text, origin, bytes == 0)
    }

    fn start_call(
        &self,
        call: DeviceCall,
        give: Option<(*const u8, usize)>,
        take: (*mut u8, usize),
        text: String,
        origin: Origin,
        nothing: bool,
    ) -> Result<Ticket, CollError> {
        if let Some(first) = &self.state.borrow().broken {
            return Err(CollError::broken(first));
        }
        self.group.check(&call).map_err(|why| CollError::Unsupported { call: text.clone(), why })?;
        let number = self.state.borrow().calls + 1;
        let text = CallText::plain(format!("{text}, call {number} of rank {}", self.me));
        let input = match give {
            None => DeviceInput::Nothing,
            Some((at, bytes)) if bytes > 0 && self.is_on_device(at, origin, &text)? => {
                DeviceInput::Device(DeviceAddr(at as u64))
            }
            Some((at, bytes @ 1..)) => {
                // SAFETY: on the host, valid for so many bytes: the caller's promise. Elements have no padding.
                let bytes = unsafe { core::slice::from_raw_parts(at, bytes) };
                DeviceInput::Host(bytes.to_vec())
            }
            Some(_) => DeviceInput::Host(Vec::new()),
        };
        let (to, bytes) = take;
        let output = match bytes {
            0 => DeviceOutput::Nowhere(scratch(&call, self.nranks)),
            _ if self.is_on_device(to, origin, &text)? => DeviceOutput::Device(DeviceAddr(to as u64)),
            bytes => DeviceOutput::Host(bytes),
        };
        let mut state = self.state.borrow_mut();
        state.calls = number;
        let ticket = Ticket::numbered(number);
        if nothing {
            return Ok(ticket);
        }
        let host_bytes = if let DeviceOutput::Host(bytes) = output { bytes } else { 0 };
        match self.group.start(DeviceRequest { call, input, output }) {
            Ok(call) => {
                let output = (to, host_bytes);
                state.under_way.push(UnderWay { ticket, call, output, text, since_ns: None });
                Ok(ticket)
            }
            Err(cause) => Err(self.lose(&mut state, CollError::Wait { call: text, cause })),
        }
    }

    fn is_on_device(&self, at: *const u8, origin: Origin, call: &CallText) -> Result<bool, CollError> {
        if origin == Origin::Host {
            return Ok(false);
        }
        let known = self.group.is_on_device(DeviceAddr(at as u64), self.within);
        known.map_err(|cause| CollError::Wait { call: call.clone(), cause })
    }

    /// What the device is asked for; refused where it has nothing that gives the same.
    fn call(&self, request: &Request) -> Result<DeviceCall, String> {
        let size = request.dtype.size() as u64;
        let bytes = request.count as u64 * size;
        let counts = |list: *const usize, each: u64| -> Vec<u64> {
            (0..self.nranks).map(|rank| crate::moves::count_at(list, rank) as u64 * each).collect()
        };
        Ok(match request.kind {
            Kind::Barrier => DeviceCall::Barrier,
            Kind::AllReduce => DeviceCall::AllReduce(reduction(request, request.count)?),
            Kind::ReduceScatter => DeviceCall::ReduceScatter(reduction(request, request.count)?),
            Kind::ReduceScatterV => {
                let own = crate::moves::count_at(request.counts, self.me);
                DeviceCall::ReduceScatterV(reduction(request, own)?, counts(request.counts, 1))
            }
            Kind::Reduce => DeviceCall::Reduce(reduction(request, request.count)?, request.root),
            Kind::Broadcast => DeviceCall::Broadcast(request.root, bytes),
            // A gather is an all_gather of which only the root keeps the result.
            Kind::AllGather | Kind::Gather => DeviceCall::AllGather(bytes),
            Kind::AllGatherV => DeviceCall::AllGatherV(counts(request.counts, size)),
            Kind::AllToAll => DeviceCall::AllToAll(bytes),
            Kind::AllToAllV => {
                DeviceCall::AllToAllV(counts(request.counts, size), counts(request.receive_counts, size))
            }
            Kind::Scatter => DeviceCall::Scatter(request.root, bytes),
        })
    }

    /// Whether a started call is over.
    pub(crate) fn test(&self, ticket: Ticket) -> Result<bool, CollError> {
        let mut state = self.state.borrow_mut();
        let Some(one) = state.under_way.iter_mut().find(|one| one.ticket == ticket) else {
            return state.outcome(ticket).map(|()| true);
        };
        if one.call.wait_for(Duration::ZERO) {
            drop(state);
            return self.wait(ticket).map(|()| true);
        }
        // Who only ever tests has to find out that a peer is gone, too.
        let since = *one.since_ns.get_or_insert_with(monotonic_ns);
        match self.group.check_members(since, self.within) {
            Ok(()) => Ok(false),
            Err(cause) => {
                let call = one.text.clone();
                Err(self.lose(&mut state, CollError::Wait { call, cause }))
            }
        }
    }

    /// Waits for a started call.
    pub(crate) fn wait(&self, ticket: Ticket) -> Result<(), CollError> {
        let mut state = self.state.borrow_mut();
        let Some(at) = state.under_way.iter().position(|one| one.ticket == ticket) else {
            return state.outcome(ticket);
        };
        let mut one = state.under_way.remove(at);
        let since = *one.since_ns.get_or_insert_with(monotonic_ns);
        let waited = self.group.wait(one.call.as_mut(), since, self.within);
        match waited {
            Ok(bytes) => {
                let (to, len) = one.output;
                debug_assert!(bytes.len() == len);
                // SAFETY: the output has room for so many bytes until the call is over: the caller's promise. They are of elements
                // of its type, and a `bool` was one where it came from.
                unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len().min(len)) };
                Ok(())
            }
            Err(cause) => {
                state.lost.push(ticket);
                let call = one.text;
                Err(self.lose(&mut state, CollError::Wait { call, cause }))
            }
        }
    }

    /// Waits for everything that was started.
    pub(crate) fn wait_for_all(&self) -> Result<(), CollError> {
        loop {
            let Some(ticket) = self.state.borrow().under_way.first().map(|one| one.ticket) else {
                return Ok(());
            };
            self.wait(ticket)?;
        }
    }

    /// Breaks the group. The others find out when they wait for this rank, at their deadline at the latest.
    pub(crate) fn give_up(&self, error: CollError) {
        self.lose(&mut self.state.borrow_mut(), error);
    }

    fn lose(&self, state: &mut State, error: CollError) -> CollError {
        if state.broken.is_none() {
            state.broken = Some(Arc::new(error.clone()));
            // Release: pairs with the acquire in `Local::has_failed`.
            self.failed.store(true, Ordering::Release);
        }
        let tickets: Vec<Ticket> = state.under_way.drain(..).map(|one| one.ticket).collect();
        state.lost.extend(tickets);
        error
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<DeviceAddr, CommError> {
        self.group.allocate(bytes.max(1), self.within)
    }

    pub(crate) fn free(&self, addr: DeviceAddr) -> Result<(), CommError> {
        self.group.free(addr, self.within)
    }

    pub(crate) fn close(self, leaving: Leaving, within: Timeout) -> Result<(), CommError> {
        self.group.close(leaving, within)
    }
}

impl State {
    /// How a call ended that is not under way.
    fn outcome(&self, ticket: Ticket) -> Result<(), CollError> {
        match &self.broken {
            Some(cause) if self.lost.contains(&ticket) => Err((**cause).clone()),
            _ => Ok(()),
        }
    }
}

/// Bytes that the device writes though nobody wants them here.
fn scratch(call: &DeviceCall, nranks: usize) -> usize {
    match call {
        DeviceCall::Reduce(how, _) => how.count as usize * how.dtype.size() as usize,
        DeviceCall::AllGather(bytes) => *bytes as usize * nranks,
        // One of no bytes has an address all the same.
        DeviceCall::AllToAllV(..) | DeviceCall::AllGatherV(_) | DeviceCall::ReduceScatterV(..) => 1,
        _ => 0,
    }
}

fn reduction(request: &Request, count: usize) -> Result<Reduction, String> {
    let op = match request.op {
        Some(Op::Sum) => ReduceOp::Sum,
        Some(Op::Prod) => ReduceOp::Prod,
        Some(Op::Max) => ReduceOp::Max,
        Some(Op::Min) => ReduceOp::Min,
        Some(op) => return Err(format!("devices have sum, prod, max and min, not {op}")),
        None => return Err("it has no operation".to_owned()),
    };
    let dtype = match request.dtype {
        DType::F32 => abi::DType::Float32,
        DType::F16 => abi::DType::Float16,
        DType::I32 => abi::DType::Int32,
        DType::I16 => abi::DType::Int16,
        DType::I8 => abi::DType::Int8,
        DType::U8 => abi::DType::Uint8,
        DType::Bf16 => abi::DType::Bfloat16,
        DType::I64 => abi::DType::Int64,
        DType::U64 => abi::DType::Uint64,
        DType::U16 => abi::DType::Uint16,
        DType::U32 => abi::DType::Uint32,
        other => return Err(format!("devices do not reduce {other}")),
    };
    Ok(Reduction { dtype, op, count: count as u64 })
}
