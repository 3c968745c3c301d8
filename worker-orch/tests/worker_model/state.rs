//! What the model knows: processes, the words that they share, and what must never happen.

/// The most chips of a model.
pub(crate) const MOST: usize = 4;

/// Why a process gave up, as it reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// That chip's process is gone.
    Died(u8),
    /// That chip left its group.
    Left(u8),
    /// Something went wrong on this chip itself.
    Own,
    /// The parent stopped the run.
    Aborted,
    /// The deadline passed.
    TimedOut,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    /// Exit code 0.
    Clean,
    /// It could not be brought up, and reported that: `NOT_UP`.
    NotUp,
    /// It crashed.
    Crashed,
    /// Its parent, or the parent-death pipe, ended it.
    Forced,
}

/// Where a chip's process is, in the order in which a process goes through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Pc {
    /// Not forked yet.
    NotForked,
    /// Just forked; the kernel does not know yet that it ends with its parent.
    Forked,
    /// About to join the group.
    Started,
    /// Its pid is in its rank block.
    Registered,
    /// It has arrived at the first barrier and waits for the others.
    AtBarrier,
    /// About to send its message for the base window.
    Joined,
    /// It waits for the message of this chip.
    Collecting(u8),
    /// It waits until this chip has read all messages.
    AwaitingRead(u8),
    /// Up; about to publish it.
    Allocated,
    /// It polls for its first frame, or for the shutdown.
    Polling,
    /// It sleeps until it is notified.
    Parked,
    /// It has the task.
    InTask,
    /// Its kernel waits for the peers' kernels.
    AtKernelBarrier,
    /// The task is over; about to publish that.
    Returned,
    /// As `Polling`, after the task.
    PollingAgain,
    /// As `Parked`, after the task.
    ParkedAgain,
    /// It releases its communicator and its device.
    TearingDown,
    /// It cannot come up; about to leave the group.
    Failing,
    /// About to publish its error.
    Publishing,
    /// It ends with this.
    Ending,
    /// A zombie.
    Gone,
    /// Its parent knows how it ended.
    Reaped,
}

/// Whether a process makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wedge {
    /// It does.
    No,
    /// Its kernel spins for ever and polls nothing.
    Spins,
    /// It is stopped: signals other than SIGKILL wait.
    Stopped,
}

/// What is in a chip's message slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    None,
    Sent,
    Read,
    Cleared,
}

/// What is in a chip's bootstrap mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mail {
    Idle,
    Ready,
    Failed(Cause),
}

/// A chip's process, and the words that only it writes and that stay when it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Chip {
    pub(crate) pc: Pc,
    pub(crate) wedge: Wedge,
    pub(crate) end: End,
    pub(crate) cause: Option<Cause>,
    /// It checks which peers are gone: those found so far, a bit each.
    pub(crate) found: Option<u8>,
    pub(crate) registered: bool,
    pub(crate) arrived: bool,
    pub(crate) message: Message,
    pub(crate) left: bool,
    pub(crate) mail: Mail,
    pub(crate) reached: bool,
    pub(crate) done: bool,
    /// The kernel ends it with its parent.
    pub(crate) bound: bool,
    // Written by the parent, for this chip.
    pub(crate) task_frame: bool,
    pub(crate) shutdown_frame: bool,
}

impl Chip {
    const NOT_FORKED: Self = Self {
        pc: Pc::NotForked,
        wedge: Wedge::No,
        end: End::Clean,
        cause: None,
        found: None,
        registered: false,
        arrived: false,
        message: Message::None,
        left: false,
        mail: Mail::Idle,
        reached: false,
        done: false,
        bound: false,
        task_frame: false,
        shutdown_frame: false,
    };

    pub(crate) fn is_alive(&self) -> bool {
        (Pc::Forked..Pc::Gone).contains(&self.pc)
    }

    /// The kernel ends it, whatever it does.
    pub(crate) fn end(&mut self, how: End) {
        (self.pc, self.end) = (Pc::Gone, how);
    }
}

/// Where the parent is, in the order of `Pc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum At {
    Preparing,
    Forking(u8),
    Gathering,
    /// init failed: this child is killed and reaped next.
    Dropping(u8),
    /// init failed and everything is cleaned up.
    Down,
    /// The run sends the task to this chip next.
    Sending(u8),
    Draining(u8),
    /// It knows of a death and has reported it.
    Reported,
    /// All children must stop; grace for this chip to do so.
    Grace(u8),
    /// About to raise the shutdown word.
    Closing,
    Notifying(u8),
    Reaping(u8),
    /// About to send SIGTERM to those that are stuck.
    Term,
    /// Grace for them to end.
    TermGrace,
    Closed,
    /// The parent itself is gone.
    Dead,
}

/// What must never happen. It is recorded when it does, since the state after it may look harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Violation {
    /// A process reported "timed out", or that a peer left, after a crash that explains it.
    CauseLost,
    /// A process that had left and ended in order was called dead.
    CalledDead,
    /// A deadline passed although no process was stuck, or although a crash was not reported yet.
    WaitedOut,
    /// Something else than the crash was reported to the user, or nothing.
    Unreported,
    /// A chip that only waited for its peers, or for work, was killed because it never learnt that it must
    /// stop.
    KilledNeedlessly,
}

/// Everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) at: At,
    pub(crate) chips: [Chip; MOST],
    /// `rendezvous`, header: the death word of the parent.
    pub(crate) death_word: Option<u8>,
    /// The abort words of control block and group, raised together.
    pub(crate) abort: bool,
    /// The user's closure failed: kernels return, and the run drains.
    pub(crate) cancelled: bool,
    /// The shutdown word of the control block.
    pub(crate) shutdown: bool,
    /// The deadline of `close` has passed.
    pub(crate) late: bool,
    /// Chips that did not end by themselves, a bit each.
    pub(crate) stuck: u8,
    /// The loss: the Worker cannot be used any more.
    pub(crate) lost: Option<Cause>,
    /// The first error that was reported to the user.
    pub(crate) outcome: Option<Cause>,
    /// The chip that crashed.
    pub(crate) crashed: Option<u8>,
    /// A chip failed by itself, which explains that others find it gone.
    pub(crate) own: bool,
    /// Crashes that may still come, and other mishaps: a chip that gets stuck, or fails by itself.
    pub(crate) crashes: u8,
    pub(crate) mishaps: u8,
    /// Which bring-up of the same Worker it is.
    pub(crate) attempt: u8,
    pub(crate) violation: Option<Violation>,
}

impl State {
    pub(crate) fn new(crashes: u8, mishaps: u8) -> Self {
        Self {
            at: At::Preparing,
            chips: [Chip::NOT_FORKED; MOST],
            death_word: None,
            abort: false,
            cancelled: false,
            shutdown: false,
            late: false,
            stuck: 0,
            lost: None,
            outcome: None,
            crashed: None,
            own: false,
            crashes,
            mishaps,
            attempt: 1,
            violation: None,
        }
    }

    /// Fresh memory for the next bring-up of the same Worker, in which nothing goes wrong any more.
    pub(crate) fn again(&self) -> Self {
        Self { attempt: self.attempt + 1, violation: self.violation, ..Self::new(0, 0) }
    }

    pub(crate) fn record(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// Reports to the user.
    pub(crate) fn report(&mut self, cause: Cause) {
        if self.outcome.is_none() {
            if self.crashed.is_some_and(|chip| cause != Cause::Died(chip)) {
                self.record(Violation::Unreported);
            }
            self.outcome = Some(cause);
        }
    }

    /// Grows with every step, so that no run of the model goes on for ever.
    pub(crate) fn progress(&self) -> u64 {
        let chip = |chip: &Chip| {
            order(chip.pc) * 3 + u64::from(chip.wedge != Wedge::No) + u64::from(chip.found.is_some())
        };
        let at = match self.at {
            At::Preparing => 0,
            At::Forking(k) => 1 + u64::from(k),
            At::Gathering => 10,
            At::Dropping(k) => 11 + u64::from(k),
            At::Down => 20,
            At::Sending(k) => 21 + u64::from(k),
            At::Draining(k) => 30 + u64::from(k),
            At::Reported => 40,
            At::Grace(k) => 41 + u64::from(k),
            At::Closing => 50,
            At::Notifying(k) => 51 + u64::from(k),
            At::Reaping(k) => 60 + u64::from(k),
            At::Term => 70,
            At::TermGrace => 71,
            At::Closed => 72,
            At::Dead => 73,
        };
        let now = at + self.chips.iter().map(chip).sum::<u64>() + u64::from(self.late);
        u64::from(self.attempt) * 100_000 + now
    }
}

fn order(pc: Pc) -> u64 {
    let steps = MOST as u64;
    match pc {
        Pc::NotForked => 0,
        Pc::Forked => 1,
        Pc::Started => 2,
        Pc::Registered => 3,
        Pc::AtBarrier => 4,
        Pc::Joined => 5,
        // From the last chip down.
        Pc::Collecting(peer) => 6 + steps - u64::from(peer),
        Pc::AwaitingRead(peer) => 7 + 2 * steps - u64::from(peer),
        Pc::Allocated => 20,
        Pc::Polling => 21,
        Pc::Parked => 22,
        Pc::InTask => 23,
        Pc::AtKernelBarrier => 24,
        Pc::Returned => 25,
        Pc::PollingAgain => 26,
        Pc::ParkedAgain => 27,
        Pc::TearingDown => 28,
        Pc::Failing => 29,
        Pc::Publishing => 30,
        Pc::Ending => 31,
        Pc::Gone => 32,
        Pc::Reaped => 33,
    }
}
