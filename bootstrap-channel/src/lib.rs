//! The mailbox through which a chip process reports to its parent, once, how its bring-up ended.
//!
//! A parent makes one mailbox for each chip ([`ChannelSet`]) and starts the chip processes. Each brings
//! its chip up and publishes either a [`Success`] (the communication context, the window, the buffers)
//! or an error with its text through its [`Writer`]. The parent waits for one of them with a [`Reader`]
//! or for all with [`ChannelSet::gather`]. The 4096 bytes are an ABI (the module [`layout`] has the
//! table): a C++ program that knows the plain fields can be on either side.
//!
//! # Contract
//! - **BC-1** The layout is pinned: size, alignment, every offset, the list of fields. Zero-filled is a
//!   fresh mailbox.
//! - **BC-2** The state is written last. A reader that sees it sees the whole reply; a writer that dies
//!   before it has published nothing.
//! - **BC-3** A mailbox is published once. A second publish is an error and changes no byte.
//! - **BC-4** Decoding is total: any 4096 bytes give a [`Reply`] or a [`DecodeError`]. Counts are
//!   clamped, the NUL is not trusted, texts are escaped, and bytes are copied out of shared memory
//!   before they are checked.
//! - **BC-5** A reader returns a reply, or an error: the writer died, time ran out, or the wait was
//!   aborted, which are different errors. What was published wins over a death noticed later.
//! - **BC-6** A writer and a reader refuse a mailbox with another layout hash or another nonce. A hash
//!   of zero is a peer that does not know of stamps, and is accepted.
//! - **BC-7** What cannot be published (too many buffers, null addresses) and mailboxes that do not fit
//!   their region are refused before any byte is written. A text that is too long is cut in the middle,
//!   visibly.
//! - **BC-8** A reader needs no wake-up from the writer: one that only stores the state is noticed too.
//! - **BC-9** When all are awaited, an error that one chip published is reported although others are
//!   silent, and a time-out or a death names the silent chips with their phases.
//!
//! # Example
//! ```
//! use bootstrap_channel::{ChannelSet, Reply, Success};
//! use deadline::Deadline;
//! use mailbox_atomics::Wait;
//! use std::time::Duration;
//!
//! // In the parent, before it starts the chip processes.
//! let set = ChannelSet::create(2)?;
//!
//! // In chip process 1, which inherited the set.
//! let mut writer = set.writer(1)?;
//! writer.set_phase(3);
//! let success =
//!     Success { device_ctx: 0x1000, window_base: 0x2000, window_size: 4096, buffers: vec![0x2000, 0x2800] };
//! writer.publish_success(&success)?;
//!
//! // In the parent; a real one adds `.watching(…)`, so that a death is reported at once.
//! let wait = Wait::until(Deadline::after(Duration::from_secs(5))?);
//! assert_eq!(set.reader(1)?.wait(&wait)?, Reply::Success(success));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//! It starts no process and passes no descriptor. Addresses are carried as numbers: the user checks
//! whether they are valid where they are used. A nonce distinguishes mailboxes of different runs; it is
//! not a secret and keeps no intruder out.
#![forbid(unsafe_code)]

mod decode;
pub mod layout;
mod mailbox;
mod reader;
mod set;
mod stamp;
mod writer;

pub use decode::{DecodeError, Failed, Reply, Success, decode};
pub use mailbox::Mailbox;
pub use reader::{ReadError, Reader};
pub use set::{ChannelSet, GatherError, SetError, Silent};
pub use stamp::{Nonce, StampError};
pub use writer::{PublishError, Writer};
