//! One mailbox for each chip, in one region that the chip processes inherit.

use crate::decode::{DecodeError, Failed, Reply, Success};
use crate::layout::MAILBOX_SIZE;
use crate::mailbox::Mailbox;
use crate::reader::{POLL_INTERVAL, Reader};
use crate::stamp::{Nonce, StampError};
use crate::writer::Writer;
use mailbox_atomics::{Wait, WaitError};
use shared_memory::{Region, RegionError};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The name of the memory in errors.
const LABEL: &str = "chipcomm-bootstrap";

/// Why a set could not be made, or a mailbox of it could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// No chips.
    #[error("a set of mailboxes needs at least one chip; give their number")]
    NoChips,
    /// There is no such chip.
    #[error("there is no mailbox for chip {chip}; the set has {count}, counted from 0")]
    NoSuchChip {
        /// The number that was given.
        chip: usize,
        /// How many chips there are.
        count: usize,
    },
    /// Too little memory, or the wrong memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The mailbox does not belong to this set.
    #[error("mailbox of chip {chip}: {cause}")]
    Stamp {
        /// Whose mailbox.
        chip: usize,
        /// What is wrong with it.
        #[source]
        cause: StampError,
    },
}

/// A chip that has not replied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Which chip.
    pub chip: usize,
    /// The step of the bring-up that it is in, as it last reported.
    pub phase: u32,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chip {} in phase {}", self.chip, self.phase)
    }
}

/// Why not every chip is ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// A chip reported a failure.
    #[error("chip {chip}: {failed}")]
    Failed {
        /// Which one.
        chip: usize,
        /// What it reported.
        #[source]
        failed: Failed,
    },
    /// What a chip published is not a reply.
    #[error("chip {chip} published a malformed reply: {cause}")]
    Malformed {
        /// Which one.
        chip: usize,
        /// What is wrong with it.
        #[source]
        cause: DecodeError,
    },
    /// The wait ended before everybody had replied.
    #[error("{cause}; no reply yet from {}", list(silent))]
    NoReply {
        /// The chips that had not replied, with their phases.
        silent: Vec<Silent>,
        /// What ended the wait.
        #[source]
        cause: WaitError,
    },
}

fn list(silent: &[Silent]) -> String {
    silent.iter().map(Silent::to_string).collect::<Vec<_>>().join(", ")
}

/// The mailboxes of all chips of a run. The parent makes it before it forks; parent and children use it
/// at the same address.
#[derive(Debug)]
pub struct ChannelSet {
    region: Region,
    nonce: Nonce,
    count: usize,
}

impl ChannelSet {
    /// Fresh mailboxes for chips 0 to `count` - 1, stamped.
    pub fn create(count: usize) -> Result<Self, SetError> {
        if count == 0 {
            return Err(SetError::NoChips);
        }
        let region = Region::create(LABEL, count.saturating_mul(MAILBOX_SIZE))?;
        let set = Self { region, nonce: Nonce::random(), count };
        for chip in 0..count {
            set.mailbox(chip).stamp(set.nonce);
        }
        Ok(set)
    }

    /// The set that another process made: its descriptor, its size and its nonce.
    pub fn attach(fd: OwnedFd, count: usize, nonce: Nonce) -> Result<Self, SetError> {
        if count == 0 {
            return Err(SetError::NoChips);
        }
        let region = Region::attach(fd, LABEL, count.saturating_mul(MAILBOX_SIZE))?;
        Ok(Self { region, nonce, count })
    }

    /// How many chips.
    #[expect(clippy::len_without_is_empty, reason = "a set is never empty")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The descriptor of the memory, for a process that is to [`attach`](Self::attach). A forked child
    /// does not need it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// What the mailboxes are stamped with, for a process that maps the memory by its descriptor.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// The side of chip `chip`; to be used in its process only.
    pub fn writer(&self, chip: usize) -> Result<Writer<'_>, SetError> {
        self.checked(chip)?.writer(self.nonce).map_err(|cause| SetError::Stamp { chip, cause })
    }

    /// The parent's side of chip `chip`'s mailbox.
    pub fn reader(&self, chip: usize) -> Result<Reader<'_>, SetError> {
        Ok(self.checked(chip)?.reader(self.nonce))
    }

    /// Waits until every chip is ready, and returns what they reported in the order of the chips.
    ///
    /// Ends with the first error that is found, whichever chip it comes from. `how` should watch all chips'
    /// processes. A dead chip ends the wait even if it had reported that it was ready: what it made died
    /// with it.
    pub fn gather(&self, how: &Wait<'_>) -> Result<Vec<Success>, GatherError> {
        self.gather_from(&(0..self.count).collect::<Vec<_>>(), how)
    }

    /// The same for some of the chips; the others do not report, and count as ready with nothing.
    pub fn gather_from(&self, chips: &[usize], how: &Wait<'_>) -> Result<Vec<Success>, GatherError> {
        let how = how.polling_every(POLL_INTERVAL);
        let report = |chip| (!chips.contains(&chip)).then(Success::default);
        let mut ready: Vec<Option<Success>> = (0..self.count).map(report).collect();
        while let Some(awaited) = ready.iter().position(Option::is_none) {
            // Parked on one chip's word, it notices the others whenever it polls.
            let replied =
                how.on(self.mailbox(awaited).state, None, |_| match self.take_replies(&mut ready) {
                    Ok(()) => ready[awaited].is_some().then_some(Ok(())),
                    failed => Some(failed),
                });
            replied.map_err(|cause| GatherError::NoReply { silent: self.silent(&ready), cause })??;
        }
        Ok(ready.into_iter().flatten().collect())
    }

    /// Takes the replies that have been published since the last call.
    fn take_replies(&self, ready: &mut [Option<Success>]) -> Result<(), GatherError> {
        for (chip, slot) in ready.iter_mut().enumerate().filter(|(_, slot)| slot.is_none()) {
            match self.mailbox(chip).reader(self.nonce).peek() {
                Ok(None) => {}
                Ok(Some(Reply::Success(success))) => *slot = Some(success),
                Ok(Some(Reply::Failed(failed))) => return Err(GatherError::Failed { chip, failed }),
                Err(cause) => return Err(GatherError::Malformed { chip, cause }),
            }
        }
        Ok(())
    }

    fn silent(&self, ready: &[Option<Success>]) -> Vec<Silent> {
        let silent = (0..self.count).filter(|chip| ready[*chip].is_none());
        silent.map(|chip| Silent { chip, phase: self.mailbox(chip).phase.load() }).collect()
    }

    fn checked(&self, chip: usize) -> Result<Mailbox<'_>, SetError> {
        if chip < self.count {
            Ok(self.mailbox(chip))
        } else {
            Err(SetError::NoSuchChip { chip, count: self.count })
        }
    }

    /// Only for a chip of this set.
    fn mailbox(&self, chip: usize) -> Mailbox<'_> {
        Mailbox::at(&self.region, chip * MAILBOX_SIZE).expect("the region holds a mailbox for each chip")
    }
}

impl AsFd for ChannelSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}
