//! Request and reply between one requester and one responder, with a shutdown that sticks.

use crate::listener::{Listener, ParkFlag};
use crate::sticky::StickyWord;
use crate::sync::{Site, intact};
use crate::wait::{Wait, WaitError};
use crate::word::{WordU32, WordU64};
use core::num::NonZeroU32;

/// The words of a mailbox, in shared memory. Zero-filled is a fresh mailbox.
///
/// The requester's words and the responder's are on separate cache lines.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub struct MailboxWords {
    requester: RequesterWords,
    responder: ResponderWords,
}

/// Written by the requester only.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
struct RequesterWords {
    /// Changes with every request and with the shutdown; the responder parks on it.
    doorbell: WordU64,
    /// The requester is parked on `done`.
    parked: WordU32,
    shutdown: StickyWord,
}

/// Written by the responder only.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
struct ResponderWords {
    /// The number of the last request that was answered.
    done: WordU64,
    /// The responder is parked on `doorbell`.
    parked: WordU32,
}

/// The number of a request; numbers only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestNumber(u64);

impl RequestNumber {
    /// The number, counted from 1; shutdown takes one too.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// The side that sends requests.
///
/// It has one park flag, so that two threads must not wait at once (MA-9):
///
/// ```compile_fail,E0499
/// # use deadline::Deadline;
/// # use mailbox_atomics::{MailboxWords, Requester, Wait};
/// # let soon = || Wait::until(Deadline::after(std::time::Duration::from_secs(1)).unwrap());
/// let words = MailboxWords::default();
/// let mut requester = Requester::new(&words);
/// let request = requester.send(|| ());
/// std::thread::scope(|scope| {
///     scope.spawn(|| requester.wait(request, &soon()));
///     scope.spawn(|| requester.wait(request, &soon()));
/// });
/// ```
#[derive(Debug)]
pub struct Requester<'a> {
    words: &'a MailboxWords,
    doorbell: u64,
}

/// The side that answers.
#[derive(Debug)]
pub struct Responder<'a> {
    words: &'a MailboxWords,
    seen: u64,
}

/// What the responder was woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A request is in the payload area.
    Request(RequestNumber),
    /// No more requests will come.
    Shutdown(NonZeroU32),
}

impl<'a> Requester<'a> {
    /// The requester's side of a fresh mailbox. There must be only one.
    pub fn new(words: &'a MailboxWords) -> Self {
        Self { words, doorbell: words.requester.doorbell.load() }
    }

    /// Runs `write_payload`, then announces the request. The payload area belongs to the responder
    /// until [`wait`](Self::wait) returns its answer. A request that is sent before the last one was
    /// answered replaces it, and needs a payload area of its own.
    pub fn send(&mut self, write_payload: impl FnOnce()) -> RequestNumber {
        write_payload();
        self.notify();
        RequestNumber(self.doorbell)
    }

    /// Waits for the answer to `request`; afterwards the answer is in the payload area.
    pub fn wait(&mut self, request: RequestNumber, how: &Wait<'_>) -> Result<(), WaitError> {
        let mut parked = ParkFlag::new(&self.words.requester.parked);
        how.on(&self.words.responder.done, Some(&mut parked), |done| (done >= request.0).then_some(()))
    }

    /// Whether `request` has been answered.
    pub fn is_done(&self, request: RequestNumber) -> bool {
        self.words.responder.done.load() >= request.0
    }

    /// Asks the responder to stop. Nothing that the responder does can erase it.
    pub fn shut_down(&mut self, reason: NonZeroU32) {
        self.words.requester.shutdown.raise(reason);
        if intact(Site::ShutdownNotifies) {
            self.notify();
        }
    }

    fn notify(&mut self) {
        self.doorbell += 1;
        let listener = Listener::new(&self.words.responder.parked);
        self.words.requester.doorbell.store_and_notify(self.doorbell, [listener]);
    }
}

impl<'a> Responder<'a> {
    /// The responder's side. There must be only one.
    pub fn new(words: &'a MailboxWords) -> Self {
        Self { words, seen: words.responder.done.load() }
    }

    /// Waits for the next request or the shutdown. The shutdown comes first: a request that was sent
    /// and overtaken by it is not served.
    pub fn next(&mut self, how: &Wait<'_>) -> Result<Call, WaitError> {
        let mut parked = ParkFlag::new(&self.words.responder.parked);
        let newer = |doorbell| (doorbell > self.seen).then_some(doorbell);
        let doorbell = how.on(&self.words.requester.doorbell, Some(&mut parked), newer)?;
        self.seen = doorbell;
        Ok(match self.words.requester.shutdown.raised() {
            Some(reason) => Call::Shutdown(reason),
            None => Call::Request(RequestNumber(doorbell)),
        })
    }

    /// Runs `write_payload`, then announces the answer to `request`.
    pub fn reply(&mut self, request: RequestNumber, write_payload: impl FnOnce()) {
        write_payload();
        if !intact(Site::ShutdownHasOwnWord) {
            self.words.requester.shutdown.erase_as_a_shared_word_would();
        }
        let number =
            if intact(Site::ReplyNumbered) { request.0 } else { self.words.requester.doorbell.load() };
        self.words.responder.done.store_and_notify(number, [Listener::new(&self.words.requester.parked)]);
    }
}
