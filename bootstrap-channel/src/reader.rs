//! The parent's side.

use crate::decode::{DecodeError, Reply, decode_of_run};
use crate::mailbox::Mailbox;
use crate::stamp::Nonce;
use mailbox_atomics::{Wait, WaitError};
use std::time::Duration;

/// How often a waiting reader checks the state: a C++ writer stores it and wakes nobody.
///
/// A tenth of the 200 ms within which an error must be reported. At 5 ms a waiting parent was measured to
/// use over 1 % of a core.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The wait ended first: the writer died, time ran out, or it was aborted.
    #[error("no reply from the chip, which is in phase {phase}: {cause}")]
    NoReply {
        /// The step that the chip was in, as it last reported.
        phase: u32,
        /// What ended the wait.
        #[source]
        cause: WaitError,
    },
    /// What was published is not a reply.
    #[error("the chip published a malformed reply: {0}")]
    Malformed(#[from] DecodeError),
}

/// The side of a mailbox that waits for the reply.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    mailbox: Mailbox<'a>,
    nonce: Nonce,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(mailbox: Mailbox<'a>, nonce: Nonce) -> Self {
        Self { mailbox, nonce }
    }

    /// Waits for the reply. A `how` that watches the writer's process ends with its death; any other waits
    /// until its deadline.
    pub fn wait(&self, how: &Wait<'_>) -> Result<Reply, ReadError> {
        self.mailbox
            .shot()
            .wait(&how.polling_every(POLL_INTERVAL))
            .map_err(|cause| ReadError::NoReply { phase: self.phase(), cause })?;
        Ok(self.decode()?)
    }

    /// The reply, if there is one by now.
    pub fn peek(&self) -> Result<Option<Reply>, DecodeError> {
        match self.mailbox.shot().peek() {
            None => Ok(None),
            Some(_) => self.decode().map(Some),
        }
    }

    /// The step of the bring-up that the chip is in, as it last reported; 0 before the first.
    pub fn phase(&self) -> u32 {
        self.mailbox.phase.load()
    }

    fn decode(&self) -> Result<Reply, DecodeError> {
        decode_of_run(&self.mailbox.copy(), self.nonce)
    }
}
