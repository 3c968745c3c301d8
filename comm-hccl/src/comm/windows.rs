//! Allocation of windows. Each attempt has the stages make, open and, when it failed, close; the members exchange results
//! after each, so that all of them commit, try the next mode, or fail.

use super::message::{Message, Outcome, Refusal};
use super::{BASE, CallError, DOMAIN, HcclComm, device_error, with_grace};
use crate::window::{ShareMode, WindowTicket};
use comm_context::comm::{Allocated, CommError, WindowRequest};
use rendezvous::{Step, Tag};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;
use worker_errors::cursor::{Reader, Writer};

/// The stages of an attempt, in the low bits of its tag.
const MADE: u32 = 0;
const OPENED: u32 = 1;
const CLOSED: u32 = 2;

/// No mode of sharing windows works for every rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "windows cannot be shared in any mode ({}); check the driver, ASCEND_RT_VISIBLE_DEVICES and the CANN version of every rank",
    Joined(.refusals)
)]
pub struct NotShareable {
    /// One for each mode, in the order of [`ShareMode::ALL`].
    pub refusals: Vec<Refusal>,
}

/// The ranks are on several hosts, and Fabric does not work for every one of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {} on {} and rank {} on {} can share windows by Fabric only, which reaches other hosts in an Atlas A3 super node \
     ({}); give each host a domain of its own, or use HCCL's collectives between hosts",
    .ranks[0], .hosts[0], .ranks[1], .hosts[1], Joined(.refusals)
)]
pub struct NotAcrossHosts {
    /// The first two ranks that are not on one host.
    pub ranks: [u32; 2],
    /// Their hosts.
    pub hosts: [String; 2],
    /// Why Fabric was refused.
    pub refusals: Vec<Refusal>,
}

struct Joined<'a>(&'a [Refusal]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, refusal) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{refusal}")?;
        }
        Ok(())
    }
}

/// What an attempt led to.
enum Attempt<T> {
    /// It worked for every member.
    Done(T),
    /// It did not. The first refusal, if there was one, and the position of the mode to try next.
    Next(Option<Refusal>, usize),
}

/// This rank's result of a stage, as the other members get it.
type StageResult = Result<Vec<u8>, CommError>;

impl HcclComm {
    /// Allocates a window on every member, in the best mode that all of them support.
    pub(super) fn allocate_window(
        &self,
        step: &Step<'_>,
        request: &WindowRequest<'_>,
    ) -> Result<Allocated, CommError> {
        if let Some(apart) = self.group.first_apart(request.members) {
            return match self.try_mode(step, request, ShareMode::Fabric)? {
                Attempt::Done(made) => {
                    self.state().mode = Some(ShareMode::Fabric);
                    Ok(made)
                }
                Attempt::Next(refusal, _) => {
                    let (ranks, hosts) =
                        (apart.map(|(rank, _)| rank), apart.map(|(_, host)| host.to_owned()));
                    let source = NotAcrossHosts { ranks, hosts, refusals: refusal.into_iter().collect() };
                    let what = format!("{} on rank {}", request.phase(), self.me());
                    Err(CommError::Backend { what, source: Arc::new(source) })
                }
            };
        }
        // A mode that was refused once is not tried again. Members may know different refusals; they then agree.
        let (mut at, mut refusals) = {
            let state = self.state();
            (state.mode.map_or(0, ShareMode::position), state.refusals.clone())
        };
        while let Some(mode) = ShareMode::ALL.get(at).copied() {
            match self.try_mode(step, request, mode)? {
                Attempt::Next(refusal, next) => {
                    refusals.extend(refusal);
                    at = next;
                }
                Attempt::Done(made) => {
                    let mut state = self.state();
                    state.mode = Some(mode);
                    state.refusals = refusals;
                    return Ok(made);
                }
            }
        }
        let what = format!("{} on rank {}", request.phase(), self.me());
        Err(CommError::Backend { what, source: Arc::new(NotShareable { refusals }) })
    }

    fn try_mode(
        &self,
        step: &Step<'_>,
        request: &WindowRequest<'_>,
        mode: ShareMode,
    ) -> Result<Attempt<Allocated>, CommError> {
        let (key, size, phase) = (request.key, request.size, request.phase());
        let peers = request.members.iter().filter(|rank| **rank != self.me());
        let peers: Vec<_> = peers.map(|rank| self.pids[*rank as usize]).collect();
        let peers = self.group.first_apart(request.members).is_none().then_some(peers);
        let made = self.on_vendor_thread(phase, step.deadline(), move |objects| {
            objects.make(key, mode, size, peers.as_deref())
        });
        let own = self.stage_result(request, mode, made, |ticket| {
            let mut to = Writer::default();
            to.u64(size as u64).raw(&ticket.to_bytes());
            to.into_bytes()
        })?;
        match self.exchange_stage(step, request, MADE, own).and_then(|made| agree(request, made)) {
            Ok(Attempt::Done(tickets)) => self.open(step, request, mode, tickets),
            Ok(Attempt::Next(refusal, next)) => {
                self.discard(step, request)?;
                Ok(Attempt::Next(refusal, next))
            }
            Err(error) => {
                let _ = self.discard(step, request);
                Err(error)
            }
        }
    }

    /// Opens the windows of the others, and commits when every member could.
    fn open(
        &self,
        step: &Step<'_>,
        request: &WindowRequest<'_>,
        mode: ShareMode,
        tickets: Vec<WindowTicket>,
    ) -> Result<Attempt<Allocated>, CommError> {
        let (key, position, phase) = (request.key, request.position, request.phase());
        let others: Vec<_> = tickets
            .into_iter()
            .enumerate()
            .map(|(at, ticket)| (at != position as usize).then_some(ticket))
            .collect();
        let until = Instant::now() + step.deadline().left();
        let opened = self.on_vendor_thread(phase, step.deadline(), move |objects| {
            objects.open(key, position, &others, until)
        });
        let mut made = None;
        let own = self.stage_result(request, mode, opened, |opened| {
            made = Some(opened);
            Vec::new()
        })?;
        // A member that failed says so before any member frees its window, which a slower one may still want to open.
        let failed = match (self.exchange_stage(step, request, OPENED, own), made) {
            (Ok(Outcome { refusal: None, .. }), Some(made)) => return Ok(Attempt::Done(made)),
            (Ok(Outcome { refusal: None, .. }), None) => Err(CommError::Closed),
            (Ok(Outcome { refusal, next, .. }), _) => Ok(Attempt::Next(refusal, next)),
            (Err(error), _) => Err(error),
        };
        let until = with_grace(step.deadline())?;
        let _ = self.on_vendor_thread(phase, until, move |objects| objects.close_peers(key));
        let undone = self
            .exchange_stage(step, request, CLOSED, Ok(Message::Done(Vec::new()).encode()))
            .map(drop)
            .and(self.discard(step, request));
        // The cause of the failure takes precedence over an error while undoing it.
        let next = failed?;
        undone.map(|()| next)
    }

    /// Frees this rank's window. An error of the device is kept, and [`Device::close`](crate::Device::close) returns it.
    fn discard(&self, step: &Step<'_>, request: &WindowRequest<'_>) -> Result<(), CommError> {
        let (key, until) = (request.key, with_grace(step.deadline())?);
        match self.on_vendor_thread(request.phase(), until, move |objects| objects.free(key)) {
            Ok(()) => Ok(()),
            Err(CallError::Device(error)) => {
                self.device.keep_first_error(Err(error));
                Ok(())
            }
            Err(CallError::Broken(error)) => Err(error),
        }
    }

    /// Turns the answer of the vendor thread into this rank's result of a stage.
    fn stage_result<T>(
        &self,
        request: &WindowRequest<'_>,
        mode: ShareMode,
        answer: Result<T, CallError>,
        payload: impl FnOnce(T) -> Vec<u8>,
    ) -> Result<StageResult, CommError> {
        match answer {
            Ok(value) => Ok(Ok(Message::Done(payload(value)).encode())),
            Err(CallError::Device(error)) if error.is_unsupported() => {
                Ok(Ok(Message::Refused(mode, error.to_string()).encode()))
            }
            Err(CallError::Device(error)) => {
                Ok(Err(device_error(error, self.me(), &self.device, request.phase())))
            }
            Err(CallError::Broken(error)) => Err(error),
        }
    }

    fn exchange_stage(
        &self,
        step: &Step<'_>,
        request: &WindowRequest<'_>,
        stage: u32,
        own: StageResult,
    ) -> Result<Outcome, CommError> {
        let tag = match request.key {
            None => Tag { kind: BASE + stage, id: 0 },
            Some(id) => Tag { kind: DOMAIN + stage, id: id.0 },
        };
        let messages = self.group.exchange_results(step, tag, request.members, own)?;
        Outcome::of(&messages, request.members, request.phase())
    }
}

/// The tickets of all members, if they agree on everything. Nothing that a peer sent is trusted unchecked.
fn agree(request: &WindowRequest<'_>, made: Outcome) -> Result<Attempt<Vec<WindowTicket>>, CommError> {
    let Outcome { payloads, refusal, next } = made;
    let mut tickets: Vec<WindowTicket> = Vec::with_capacity(payloads.len());
    let sent = |(_, payload): &(&u32, &Vec<u8>)| refusal.is_none() || !payload.is_empty();
    for (&rank, payload) in request.members.iter().zip(&payloads).filter(sent) {
        let malformed = |message: String| CommError::PeerFailed { rank, phase: request.phase(), message };
        let (size, ticket) =
            decode(payload).ok_or_else(|| malformed("it sent half a window ticket".to_owned()))?;
        if size != request.size as u64 {
            return Err(mismatch("the size of the window", rank, request.size as u64, size));
        }
        tickets.push(WindowTicket::from_bytes(ticket).map_err(|error| malformed(error.to_string()))?);
    }
    // A member that knows of an earlier refusal started with a later mode; all continue there.
    let latest = tickets.iter().map(|ticket| ticket.mode().position()).max().unwrap_or(0);
    if refusal.is_some() {
        return Ok(Attempt::Next(refusal, next.max(latest)));
    }
    if tickets.iter().any(|ticket| ticket.mode().position() != latest) {
        return Ok(Attempt::Next(None, latest));
    }
    let mine = tickets[request.position as usize].size();
    match request.members.iter().zip(&tickets).find(|(_, ticket)| ticket.size() != mine) {
        Some((rank, ticket)) => {
            Err(mismatch("the rounded size of the window", *rank, mine as u64, ticket.size() as u64))
        }
        None => Ok(Attempt::Done(tickets)),
    }
}

/// The size that the member asked for, and its ticket.
fn decode(payload: &[u8]) -> Option<(u64, &[u8; WindowTicket::LEN])> {
    let mut from = Reader::new(payload);
    let size = from.u64()?;
    Some((size, from.rest().try_into().ok()?))
}

/// What another member sent as its size and ticket.
#[cfg(fuzzing)]
pub(super) fn judge(payload: &[u8]) {
    if let Some((_, ticket)) = decode(payload)
        && let Ok(ticket) = WindowTicket::from_bytes(ticket)
    {
        assert_eq!(&ticket.to_bytes()[..], &payload[8..]);
    }
}

fn mismatch(what: &'static str, rank: u32, mine: u64, theirs: u64) -> CommError {
    CommError::Mismatch { what, rank, mine: format!("{mine} bytes"), theirs: format!("{theirs} bytes") }
}
