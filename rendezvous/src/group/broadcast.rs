//! One broadcast in the life of a group.

use super::watch::Needed;
use super::{Group, Step};
use crate::hosts::Event;
use crate::memory::layout::BROADCAST_BYTES;
use comm_context::comm::CommError;
use std::num::NonZeroI32;
use std::sync::Arc;

impl Group {
    /// Sends `bytes` to every rank: for what does not fit into a message. One rank may do so, once in the
    /// group's life.
    ///
    /// # Panics
    /// When there are more than [`BROADCAST_BYTES`].
    pub fn broadcast(&self, bytes: &[u8]) -> Result<(), CommError> {
        assert!(bytes.len() <= BROADCAST_BYTES, "a broadcast has at most {BROADCAST_BYTES} bytes");
        let state = self.memory.broadcast_state();
        state.publish(NonZeroI32::MIN, || self.memory.write_broadcast(bytes)).map_err(|error| {
            CommError::Backend { what: "broadcast to the group".to_owned(), source: Arc::new(error) }
        })?;
        self.tell(|| Event::Broadcast(bytes.to_vec()));
        Ok(())
    }

    /// Waits for the broadcast of rank `from`. The bytes are a copy, bounded but not checked.
    pub fn receive_broadcast(&self, step: &Step<'_>, from: u32) -> Result<Vec<u8>, CommError> {
        let needed = Needed::new(self, || vec![from]);
        self.memory
            .broadcast_state()
            .wait(&self.wait(step, &needed))
            .map_err(|error| self.give_up(error, step.phase(), vec![from]))?;
        Ok(self.memory.read_broadcast())
    }
}
