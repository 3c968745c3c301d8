//! Words in shared memory, and the one function that waits for them.
//!
//! Processes that share memory need three things: words whose stores publish what was written before
//! them, a wait that ends, and protocols in which no message can be lost or erased. This crate has the
//! words ([`WordU32`], [`WordU64`], [`WordI32`], [`StickyWord`]), the wait ([`Wait::on`]), and
//! protocols made of them: [`OneShot`], the phase [`Barrier`], [`MessageSlot`] for small messages, the
//! dispatch ring ([`DispatchSender`], [`DispatchReceiver`]) for tasks, [`Progress`] with its rings
//! for collectives, and the [`SignalWords`] of chips that signal each other. [`EntryLock`] and [`WorkSlot`] are for
//! threads of one process.
//!
//! # Contract
//! - **MA-1** Payload first, release store last: a reader that observes a state observes the payload
//!   that was written before it.
//! - **MA-2** No wake-up is lost: a waiter that parks has announced it before its last check, and a
//!   writer checks the announcement after its store.
//! - **MA-3** Every wait ends: with what it waited for, or as [`WaitError::TimedOut`],
//!   [`WaitError::PeerDied`], [`WaitError::Aborted`] or [`WaitError::Interrupted`], which are different
//!   errors. A death is reported within 200 ms.
//! - **MA-4** What was delivered wins over a death, an abort or a deadline noticed later.
//! - **MA-5** A raised [`StickyWord`] stays raised; a receiver cannot erase a shutdown.
//! - **MA-6** A fast party may enter a barrier again at once; its epochs only grow and have one writer
//!   each.
//! - **MA-7** A parked waiter costs under 1 % of a core, and with more parties than cores everybody
//!   still makes progress.
//! - **MA-8** A waiter parks on the low 32 bits of a word. A store that wakes changes them; the models
//!   panic where one does not.
//! - **MA-9** A park flag has one waiter at a time: the types let one thread wait with it.
//! - **MA-10** A reader of a [`MessageSlot`] gets whole messages only, and none of them twice.
//! - **MA-11** A rank that observes a step of a [`Progress`] observes its payload and what its publisher
//!   wrote before it.
//! - **MA-12** A line, or a buffer that a step announces, is written again only when all its readers have
//!   said that they finished.
//! - **MA-13** The [record](RecordRing) of a call is there as long as a rank of the group may still make
//!   that call.
//! - **MA-14** Messages of a [pair ring](PairSender) arrive once, in order, with their bytes.
//! - **MA-15** Of two parties that announce a [demand](Demands) and then look at the others', at least one sees
//!   the other's.
//! - **MA-16** Frames of a dispatch ring arrive once, in order, whole; a slot is written again only when the
//!   frame in it is done, and who sees that a frame is done sees what it did.
//! - **MA-17** A [shutdown](DispatchSender::shut_down) ends the receiver after the frames that it was sent,
//!   whether it sleeps or its ring is full. A receiver's claim to be done is checked.
//! - **MA-18** A chip that parks on its [doorbell](SignalWords) is woken by every signal that came after it last looked, and
//!   sees what the signalling chip wrote before.
//! - **MA-19** [`prove`] finds chips stuck only when none of them is busy, none has a signal that it has not looked at, and so
//!   none will ever signal again. However many waits they have, it finds them stuck when that is so.
//! - **MA-20** One thread at a time is inside an [`EntryLock`], and none once it is closed. Threads that come one after the other
//!   are let in; of two that come at once at least one is refused.
//! - **MA-21** A rank that sees a [stamp](StampLine) sees what its writer did before it, and the label of that call or of a later
//!   one. That a rank has come to a piece says that it has read everything before the piece, and not the piece.
//! - **MA-22** Work that is given in a [slot](WorkSlot) is done once, and whoever takes note of its end, one only, sees what it wrote.
//!
//! The mutants in `tests/loom_*` break the real code clause by clause; each must be rejected.
//!
//! Words have one writer each. That is a rule for the protocols above, not something that a type can
//! check across processes.
//!
//! # Example
//! ```
//! use deadline::Deadline;
//! use mailbox_atomics::{OneShot, Wait, WordI32};
//! use shared_memory::Region;
//! use std::{num::NonZeroI32, time::Duration};
//!
//! let region = Region::create("example", 4096)?;
//! let done = OneShot::new(region.words::<WordI32>(0)?);
//! std::thread::scope(|scope| {
//!     scope.spawn(|| done.publish(NonZeroI32::MIN, || region.write(64, b"hello").unwrap()));
//!     done.wait(&Wait::until(Deadline::after(Duration::from_secs(5))?))?;
//!     let mut payload = [0; 5];
//!     region.read(64, &mut payload)?;
//!     assert_eq!(&payload, b"hello");
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//! It passes no descriptors between running processes, and knows nothing of ranks or chips. It is not
//! a queue. It does not protect the payload from a hostile peer: copy it out, then check it. Linux on
//! little-endian processors only.

#[cfg(not(all(target_os = "linux", target_endian = "little")))]
compile_error!("mailbox-atomics parks with Linux futexes on the low half of little-endian words");

mod barrier;
mod cores;
mod demands;
mod dispatch_ring;
mod entry_lock;
mod interrupt;
mod listener;
#[cfg(loom)]
mod loom_futex;
mod message_slot;
mod one_shot;
mod pair_ring;
mod prefetch;
mod progress;
mod records;
mod seen;
#[cfg(not(loom))]
mod shared;
mod signal_words;
mod spin;
mod sticky;
mod sync;
#[cfg(not(loom))]
mod sys;
#[cfg(not(loom))]
mod view;
mod wait;
mod word;
mod work_slot;

pub use barrier::{Arrival, Barrier, BarrierError, Place};
#[cfg(not(loom))]
pub use cores::wake_promptly;
pub use cores::{AllowedCores, CpuQuota, current_core, move_this_thread_to, usable_cores};
pub use demands::Demands;
pub use dispatch_ring::{DispatchReceiver, DispatchSender, DoneNumber, Overclaimed, SlotNumber};
pub use entry_lock::{EntryLock, Inside, NotEntered, ThreadNumber};
pub use interrupt::{interrupt_waits, is_interrupted};
pub use listener::{Listener, ParkFlag};
pub use message_slot::{Message, MessageSlot, MessageState};
pub use one_shot::{AlreadyPublished, OneShot};
pub use pair_ring::{PAIR_PAYLOAD_WORDS, PAIR_SLOTS, PairLines, PairReceiver, PairSender, PairTaken};
pub use prefetch::{prefetch_to_read, prefetch_to_write};
pub use progress::{
    Credit, Halves, INLINE_WORDS, Observed, PARK_LANES, PROGRESS_LINES, Progress, ProgressLine,
    ProgressWords, StampLine, Stamped, Use,
};
pub use records::{RECORD_WORDS, RECORDS, RecordRing};
pub use seen::{SeenOn, keep_apart};
pub use signal_words::{PUBLISHED_WAITS, PublishedWait, Quiet, SignalWords, Stander, prove};
pub use spin::{Placement, SpinBudget};
pub use sticky::StickyWord;
#[cfg(loom)]
pub use sync::{Site, mutants};
pub use wait::{POLL_INTERVAL, Wait, WaitError};
pub use word::{ParkWord, WordI32, WordU32, WordU64};
pub use work_slot::WorkSlot;
