//! Allocation of windows: prepare, exchange, open, exchange, and commit or undo on every member.

use super::note::{Note, Refusal, Verdict, settle};
use super::{BASE, DOMAIN, HcclComm, LaneError, device_error, in_time, refusal_text};
use crate::window::{WindowTicket, WindowWay};
use comm_context::comm::{Allocated, CommError, Key, Phase};
use rendezvous::{Step, Tag};
use std::sync::Arc;
use std::time::Instant;

/// The stages of an allocation, in the low bits of its tag.
const MADE: u32 = 0;
const OPENED: u32 = 1;
const CLOSED: u32 = 2;

/// No way to share windows is there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no way to share a window works for every rank ({}); check the driver, ASCEND_RT_VISIBLE_DEVICES and the CANN version of every rank", .refusals.join("; "))]
pub struct NoWay {
    /// One text for each way, best first.
    pub refusals: Vec<String>,
}

/// One try of one way.
enum Tried {
    Made(Box<Allocated>),
    /// It does not work for everybody: who refused, if anybody did, and which way is next, in the order of the ways.
    Next(Option<Refusal>, usize),
}

/// What the notes about the windows that were made mean.
enum Agreed {
    /// Everybody has one, by one way.
    On(Vec<WindowTicket>),
    /// As in [`Tried`].
    Next(Option<Refusal>, usize),
}

/// What is being allocated.
struct Allocation<'a> {
    phase: Phase,
    tag: Tag,
    key: Key,
    members: &'a [u32],
    /// The position of this rank among the members.
    position: u32,
    asked: usize,
}

impl HcclComm {
    /// Allocates a window on every member, by the best way that all of them have.
    pub(super) fn allocate(
        &self,
        step: &Step<'_>,
        key: Key,
        members: &[u32],
        position: u32,
        asked: usize,
    ) -> Result<Allocated, CommError> {
        let (tag, phase) = match key {
            None => (Tag { kind: BASE, id: 0 }, Phase::AllocWindows),
            Some(id) => (Tag { kind: DOMAIN, id: id.0 }, Phase::AllocDomain),
        };
        let allocation = Allocation { phase, tag, key, members, position, asked };
        // What was refused once is not tried again. Members may know different things, and then agree.
        let (mut at, mut refusals) = {
            let state = self.state();
            let known = WindowWay::ALL.iter().position(|way| Some(*way) == state.way);
            (known.unwrap_or(0), state.refusals.clone())
        };
        while let Some(way) = WindowWay::ALL.get(at).copied() {
            match self.try_way(step, &allocation, way)? {
                Tried::Next(refusal, next) => {
                    refusals.extend(refusal.map(|refusal| (way, refusal)));
                    at = next;
                }
                Tried::Made(made) => {
                    let mut state = self.state();
                    state.way = Some(way);
                    state.refusals = refusals;
                    return Ok(*made);
                }
            }
        }
        let refusals = refusals.iter().map(|(way, refusal)| refusal_text(*way, refusal)).collect();
        let what = format!("{phase} on rank {}", self.me());
        Err(CommError::Backend { what, source: Arc::new(NoWay { refusals }) })
    }

    fn try_way(
        &self,
        step: &Step<'_>,
        allocation: &Allocation<'_>,
        way: WindowWay,
    ) -> Result<Tried, CommError> {
        let Allocation { phase, key, asked, members, .. } = *allocation;
        let peers = members.iter().filter(|rank| **rank != self.me());
        let peers: Vec<_> = peers.map(|rank| self.pids[*rank as usize]).collect();
        let made = self.on_lane(phase, step.deadline(), move |objects| objects.make(key, way, asked, &peers));
        let (note, own) = self.word(phase, way, made, |ticket| {
            [&(asked as u64).to_le_bytes()[..], &ticket.to_bytes()].concat()
        })?;
        let verdict = self.tell(step, allocation, MADE, &note, own);
        match verdict.and_then(|verdict| self.agree(allocation, verdict)) {
            Ok(Agreed::On(tickets)) => self.open(step, allocation, way, tickets),
            Ok(Agreed::Next(refusal, next)) => {
                self.undo(step, allocation)?;
                Ok(Tried::Next(refusal, next))
            }
            Err(error) => {
                let _ = self.undo(step, allocation);
                Err(error)
            }
        }
    }

    /// Opens what the others made, and commits when everybody could.
    fn open(
        &self,
        step: &Step<'_>,
        allocation: &Allocation<'_>,
        way: WindowWay,
        tickets: Vec<WindowTicket>,
    ) -> Result<Tried, CommError> {
        let Allocation { phase, key, position, .. } = *allocation;
        let others: Vec<_> = tickets
            .into_iter()
            .enumerate()
            .map(|(at, ticket)| (at != position as usize).then_some(ticket))
            .collect();
        let until = Instant::now() + step.deadline().left();
        let opened =
            self.on_lane(phase, step.deadline(), move |objects| objects.open(key, position, &others, until));
        let mut made = None;
        let (note, own) = self.word(phase, way, opened, |opened| {
            made = Some(opened);
            Vec::new()
        })?;
        // Also the failed ones say so before anybody frees its window: a slower member would find it gone.
        let verdict = self.tell(step, allocation, OPENED, &note, own);
        let refused = match (verdict, made) {
            (Ok(Verdict::Done(_)), Some(made)) => return Ok(Tried::Made(Box::new(made))),
            (Ok(Verdict::Refused { next, first, .. }), _) => Ok(Tried::Next(Some(first), next)),
            (Ok(Verdict::Failed(error)) | Err(error), _) => Err(error),
            (Ok(Verdict::Done(_)), None) => Err(CommError::Closed),
        };
        let phase = allocation.phase;
        let _ = self.on_lane(phase, in_time(step.deadline())?, move |objects| objects.close_peers(key));
        let undone = self
            .tell(step, allocation, CLOSED, &Note::Done(Vec::new()), None)
            .map(drop)
            .and(self.undo(step, allocation));
        // Why it failed counts before what went wrong in undoing it.
        let refused = refused?;
        undone.map(|()| refused)
    }

    /// Frees this rank's part. What goes wrong here stays with the device, which tells when it is closed.
    fn undo(&self, step: &Step<'_>, allocation: &Allocation<'_>) -> Result<(), CommError> {
        let key = allocation.key;
        match self.on_lane(allocation.phase, in_time(step.deadline())?, move |objects| objects.free(key)) {
            Ok(()) => Ok(()),
            Err(LaneError::Device(error)) => {
                self.device.keep_first_error(Err(error));
                Ok(())
            }
            Err(LaneError::Broken(error)) => Err(error),
        }
    }

    /// This rank's note about what its lane answered, and its own error if it failed.
    fn word<T>(
        &self,
        phase: Phase,
        way: WindowWay,
        answer: Result<T, LaneError>,
        payload: impl FnOnce(T) -> Vec<u8>,
    ) -> Result<(Note, Option<CommError>), CommError> {
        Ok(match answer {
            Ok(value) => (Note::Done(payload(value)), None),
            Err(LaneError::Device(error)) if error.is_unsupported() => {
                (Note::Refused(way, error.to_string()), None)
            }
            Err(LaneError::Device(error)) => {
                let error = device_error(error, self.me(), &self.device, phase);
                (Note::Failed(error.to_string()), Some(error))
            }
            Err(LaneError::Broken(error)) => return Err(error),
        })
    }

    fn tell(
        &self,
        step: &Step<'_>,
        allocation: &Allocation<'_>,
        stage: u32,
        note: &Note,
        own: Option<CommError>,
    ) -> Result<Verdict, CommError> {
        let tag = Tag { kind: allocation.tag.kind + stage, ..allocation.tag };
        let notes = self.group.exchange(step, tag, allocation.members, &note.encode())?;
        Ok(settle(&notes, allocation.members, own, allocation.phase))
    }

    /// The tickets of all members, if they agree on everything. Nothing of them is believed unchecked.
    fn agree(&self, allocation: &Allocation<'_>, verdict: Verdict) -> Result<Agreed, CommError> {
        let Allocation { phase, members, position, asked, .. } = *allocation;
        let (payloads, refused) = match verdict {
            Verdict::Done(payloads) => (payloads, None),
            Verdict::Refused { payloads, first, next } => (payloads, Some((first, next))),
            Verdict::Failed(error) => return Err(error),
        };
        let mut tickets: Vec<WindowTicket> = Vec::with_capacity(payloads.len());
        let told = |(_, payload): &(&u32, &Vec<u8>)| refused.is_none() || !payload.is_empty();
        for (rank, payload) in members.iter().zip(&payloads).filter(told) {
            let nonsense = |message: String| CommError::PeerFailed { rank: *rank, phase, message };
            let (wanted, ticket) = payload
                .split_first_chunk::<8>()
                .and_then(|(asked, ticket)| Some((u64::from_le_bytes(*asked), ticket.first_chunk()?)))
                .ok_or_else(|| nonsense("it sent half a window ticket".to_owned()))?;
            if wanted != asked as u64 {
                return Err(self.mismatch("the size of the window", *rank, asked as u64, wanted));
            }
            tickets.push(WindowTicket::from_bytes(ticket).map_err(|error| nonsense(error.to_string()))?);
        }
        // Whoever knows that a way does not work began with a later one; there all meet.
        let latest = tickets.iter().map(|ticket| ticket.way().position()).max().unwrap_or(0);
        if let Some((first, next)) = refused {
            return Ok(Agreed::Next(Some(first), next.max(latest)));
        }
        if tickets.iter().any(|ticket| ticket.way().position() != latest) {
            return Ok(Agreed::Next(None, latest));
        }
        let mine = tickets[position as usize].size;
        match members.iter().zip(&tickets).find(|(_, ticket)| ticket.size != mine) {
            Some((rank, ticket)) => {
                Err(self.mismatch("the rounded size of the window", *rank, mine as u64, ticket.size as u64))
            }
            None => Ok(Agreed::On(tickets)),
        }
    }

    fn mismatch(&self, what: &'static str, rank: u32, mine: u64, theirs: u64) -> CommError {
        CommError::Mismatch { what, rank, mine: format!("{mine} bytes"), theirs: format!("{theirs} bytes") }
    }
}
