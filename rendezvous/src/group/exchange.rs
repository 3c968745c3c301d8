//! Exchange of small messages between some of the ranks.
//!
//! Each rank has message slots that only it writes. To exchange, every member posts a message, takes the
//! others' messages, marks its own as *seen* and waits until every other member has marked its own so or has
//! moved on. Then nobody needs its message any more and the slot is free again. A message is recognised by
//! its tag; its generation, which only grows, keeps a member from taking it twice. A member that finds
//! another list of members than its own marks its message as *refused* and leaves it, so that the other side
//! finds the disagreement too, however late it comes.

use super::message::{Received, Tag, members_hash};
use super::outbox::Posted;
use super::watch::Needed;
use super::{Group, Step};
use crate::memory::layout::MESSAGE_BYTES;
use comm_context::comm::CommError;
use fault_points::fault_point;

impl Group {
    /// Sends `message` to every member and returns the members' messages in the order of `members`, which
    /// must be the same on each of them and include this rank. Returns on no member before every member has
    /// called.
    ///
    /// # Panics
    /// When the message has more than [`MESSAGE_BYTES`].
    pub fn exchange(
        &self,
        step: &Step<'_>,
        tag: Tag,
        members: &[u32],
        message: &[u8],
    ) -> Result<Vec<Vec<u8>>, CommError> {
        assert!(message.len() <= MESSAGE_BYTES, "a message has at most {MESSAGE_BYTES} bytes");
        fault_point!("exchange.posting");
        let posted = self.post(step, tag, members, message)?;
        fault_point!("exchange.posted");
        let me = self.me.rank();
        let mut collected: Vec<Option<Received>> = members.iter().map(|_| None).collect();
        // From the last down, as the barrier does.
        for (at, &peer) in members.iter().enumerate().rev().filter(|(_, peer)| **peer != me) {
            let theirs = self.take(step, tag, peer)?;
            if theirs.members != members_hash(members) || theirs.refused {
                posted.refuse(tag);
                return Err(disagreement(step, members, peer, &theirs));
            }
            collected[at] = Some(theirs);
        }
        fault_point!("exchange.collected");
        posted.mark_seen();
        fault_point!("exchange.seen");
        for (&peer, theirs) in members.iter().zip(&collected).rev() {
            if let Some(theirs) = theirs {
                self.await_seen(step, peer, theirs)?;
            }
        }
        drop(posted);
        fault_point!("exchange.done");
        let bytes = |theirs: Option<Received>| theirs.map_or_else(|| message.to_vec(), |theirs| theirs.bytes);
        Ok(collected.into_iter().map(bytes).collect())
    }

    fn post(
        &self,
        step: &Step<'_>,
        tag: Tag,
        members: &[u32],
        message: &[u8],
    ) -> Result<Posted<'_>, CommError> {
        let (me, end) = (self.me.rank(), step.deadline());
        self.outbox.post(end.left(), tag, members_hash(members), message).ok_or_else(|| {
            self.record_failure(CommError::TimedOut {
                phase: step.phase(),
                waited: end.elapsed(),
                limit: end.limit(),
                missing: vec![me],
                table: self.table(),
            })
        })
    }

    /// Waits for the message of `peer` about `tag`.
    fn take(&self, step: &Step<'_>, tag: Tag, peer: u32) -> Result<Received, CommError> {
        let needed = Needed::new(self, || vec![peer]);
        let message = self
            .wait(step, &needed)
            .on(self.memory.doorbell(peer), None, |_| self.inbox.find(peer, tag))
            .map_err(|error| self.give_up(error, step.phase(), vec![peer]))?;
        self.inbox.take(peer, &message);
        Ok(message)
    }

    /// Waits until `peer` does not need this rank's message any more.
    fn await_seen(&self, step: &Step<'_>, peer: u32, theirs: &Received) -> Result<(), CommError> {
        let needed = Needed::new(self, || vec![peer]);
        let slot = &self.memory.slots(peer)[theirs.slot];
        self.wait(step, &needed)
            .on(self.memory.doorbell(peer), None, |_| (!slot.is_posted(theirs.generation)).then_some(()))
            .map_err(|error| self.give_up(error, step.phase(), vec![peer]))
    }
}

fn disagreement(step: &Step<'_>, members: &[u32], peer: u32, theirs: &Received) -> CommError {
    if theirs.members == members_hash(members) {
        let message = "it found another member with another list of members".to_owned();
        return CommError::PeerFailed { rank: peer, phase: step.phase(), message };
    }
    CommError::Mismatch {
        what: "the members of the operation",
        rank: peer,
        mine: format!("{members:?}"),
        theirs: "another list".to_owned(),
    }
}
