//! The chip's side.

use crate::decode::Success;
use crate::layout::*;
use crate::mailbox::Mailbox;
use core::num::NonZeroI32;
use fault_points::fault_point;
use mailbox_atomics::AlreadyPublished;
use worker_errors::{ErrorCode, clip};

const SUCCESS: NonZeroI32 = NonZeroI32::new(STATE_SUCCESS).unwrap();
const ERROR: NonZeroI32 = NonZeroI32::new(STATE_ERROR).unwrap();

/// Why nothing was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The mailbox has a reply already.
    #[error("the mailbox has a reply already (state {state}); a chip reports its bring-up once")]
    AlreadyPublished {
        /// The state that was found.
        state: i32,
    },
    /// More buffers than the mailbox holds.
    #[error("{count} buffers do not fit; a mailbox holds at most {MAX_BUFFERS}: join some")]
    TooManyBuffers {
        /// How many.
        count: usize,
    },
    /// A buffer without an address.
    #[error("buffer {index} has a null address; leave it out, or give it memory")]
    NullBuffer {
        /// Which one, from 0.
        index: usize,
    },
    /// A window with a size and without an address.
    #[error("the window of {size} bytes has a null address; say 0 bytes where there is none")]
    NullWindow {
        /// Its size.
        size: u64,
    },
}

impl From<AlreadyPublished> for PublishError {
    fn from(found: AlreadyPublished) -> Self {
        Self::AlreadyPublished { state: found.state }
    }
}

/// The side of a mailbox that publishes, once.
#[derive(Debug)]
pub struct Writer<'a> {
    mailbox: Mailbox<'a>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(mailbox: Mailbox<'a>) -> Self {
        Self { mailbox }
    }

    /// Reports which step of the bring-up begins, for the parent's errors. Parent and chip agree on what
    /// the numbers mean.
    pub fn set_phase(&self, phase: u32) {
        self.mailbox.phase.store(phase);
    }

    /// Publishes that the chip is ready.
    pub fn publish_success(&mut self, success: &Success) -> Result<(), PublishError> {
        let Success { device_ctx, window_base, window_size, buffers } = success;
        check(success)?;
        let pointers: Vec<u8> = buffers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
        self.mailbox.shot().publish(SUCCESS, || {
            fault_point!("channel.writing");
            // At most MAX_BUFFERS: fits.
            self.mailbox.write(BUFFER_COUNT_AT, &(buffers.len() as i32).to_le_bytes());
            self.mailbox.write(DEVICE_CTX_AT, &device_ctx.to_le_bytes());
            self.mailbox.write(WINDOW_BASE_AT, &window_base.to_le_bytes());
            self.mailbox.write(WINDOW_SIZE_AT, &window_size.to_le_bytes());
            self.mailbox.write(BUFFERS_AT, &pointers);
            fault_point!("channel.written");
        })?;
        fault_point!("channel.published");
        Ok(())
    }

    /// Publishes that the chip could not be brought up. A message that is too long keeps its head and its
    /// tail; a NUL in it, which would end it early, is escaped.
    pub fn publish_error(&mut self, code: ErrorCode, message: &str) -> Result<(), PublishError> {
        let without_nul = message.replace('\0', "\\0");
        let text = clip(&without_nul, MESSAGE_SIZE - 1);
        self.mailbox.shot().publish(ERROR, || {
            fault_point!("channel.error.writing");
            self.mailbox.write(ERROR_CODE_AT, &code.as_i32().to_le_bytes());
            self.mailbox.write(MESSAGE_AT, text.as_bytes());
            self.mailbox.write(MESSAGE_AT + text.len(), &[0]);
            fault_point!("channel.error.written");
        })?;
        fault_point!("channel.error.published");
        Ok(())
    }
}

fn check(success: &Success) -> Result<(), PublishError> {
    let Success { window_base, window_size, buffers, .. } = success;
    if buffers.len() > MAX_BUFFERS {
        return Err(PublishError::TooManyBuffers { count: buffers.len() });
    }
    if let Some(index) = buffers.iter().position(|pointer| *pointer == 0) {
        return Err(PublishError::NullBuffer { index });
    }
    if *window_base == 0 && *window_size > 0 {
        return Err(PublishError::NullWindow { size: *window_size });
    }
    Ok(())
}
