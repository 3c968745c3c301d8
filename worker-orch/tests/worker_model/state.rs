//! What the model knows: processes, the words that they share, and what must never happen.

/// The most chips of a model.
pub(crate) const MOST: usize = 4;

/// Why somebody gave up, as it tells it.
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
    /// The deadline came.
    TimedOut,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    /// Exit code 0.
    Home,
    /// It could not be brought up, and said so: `life.rs`, `NOT_UP`.
    NotUp,
    /// It crashed.
    Crashed,
    /// Its parent, or the leash to it, ended it.
    Forced,
}

/// Where a chip's process is. The order is that in which a process can come through them: every step of it goes down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Pc {
    /// Not forked yet.
    Unborn,
    /// Just forked; the kernel does not know yet that it ends with its parent.
    Forked,
    /// About to join the group.
    Started,
    /// Its pid is on its card.
    SignedIn,
    /// It has come to the first barrier and waits for the others.
    AtBarrier,
    /// About to post its note for the base window.
    Joined,
    /// It waits for the note of this chip.
    Collecting(u8),
    /// It waits until this chip has seen all notes.
    AwaitingSeen(u8),
    /// Up; about to publish it.
    Allocated,
    /// It looks for its first frame, or for the shutdown.
    Looking,
    /// It sleeps until it is rung.
    Parked,
    /// It has the task.
    Called,
    /// Its kernel waits for the peers' kernels.
    Meeting,
    /// The task is over; about to say so.
    Returned,
    /// As `Looking`, after the task.
    LookingAgain,
    /// As `Parked`, after the task.
    ParkedAgain,
    /// It releases its communicator and its device.
    GoingHome,
    /// It cannot come up; about to leave the group.
    Failing,
    /// About to publish its error.
    Telling,
    /// It ends with this.
    Ending,
    /// A zombie.
    Gone,
    /// Its parent knows how it ended.
    Reaped,
}

/// Whether a process gets on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wedge {
    /// It does.
    No,
    /// Its kernel spins for ever and looks at nothing.
    Spins,
    /// It is stopped: signals other than SIGKILL wait.
    Stopped,
}

/// What is in a chip's note slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Note {
    None,
    Posted,
    Seen,
    TakenDown,
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
    /// It looks who is gone: whom it has found so far, a bit each.
    pub(crate) found: Option<u8>,
    pub(crate) signed_in: bool,
    pub(crate) arrived: bool,
    pub(crate) note: Note,
    pub(crate) left: bool,
    pub(crate) mail: Mail,
    pub(crate) reached: bool,
    pub(crate) done: bool,
    /// The kernel ends it with its parent.
    pub(crate) leashed: bool,
    // Written by the parent, for this chip.
    pub(crate) frame: bool,
    pub(crate) farewell: bool,
}

impl Chip {
    const UNBORN: Self = Self {
        pc: Pc::Unborn,
        wedge: Wedge::No,
        end: End::Home,
        cause: None,
        found: None,
        signed_in: false,
        arrived: false,
        note: Note::None,
        left: false,
        mail: Mail::Idle,
        reached: false,
        done: false,
        leashed: false,
        frame: false,
        farewell: false,
    };

    pub(crate) fn lives(&self) -> bool {
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
    /// It knows of a death and has told it.
    Told,
    /// Everybody was told to stop; a moment for this chip to do so.
    Grace(u8),
    /// About to raise the shutdown word.
    Closing,
    Ringing(u8),
    Reaping(u8),
    /// About to send SIGTERM to those that are stuck.
    Term,
    /// A moment for them to go.
    TermGrace,
    Closed,
    /// The parent itself is gone.
    Dead,
}

/// What must never happen; remembered when it does, since the state after it may look harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Slip {
    /// Somebody said "timed out", or that a peer left, after a crash that explains it.
    CauseLost,
    /// Somebody was called dead who had left and ended in order.
    CalledDead,
    /// A deadline passed although nobody was stuck, or although somebody had crashed and nobody was told yet.
    WaitedOut,
    /// The user was told something else than the crash, or nothing.
    Untold,
    /// A chip that only waited for its peers, or for work, was killed because nobody told it to stop.
    ForcedForNothing,
}

/// Everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) at: At,
    pub(crate) chips: [Chip; MOST],
    /// `rendezvous`, header: who died, by the parent's word.
    pub(crate) verdict: Option<u8>,
    /// The abort words of board and group, raised together.
    pub(crate) abort: bool,
    /// The user's own part of the run failed: kernels are told to return, and the run drains.
    pub(crate) cancelled: bool,
    /// The board's shutdown word.
    pub(crate) shutdown: bool,
    /// The deadline of `close` has passed.
    pub(crate) late: bool,
    /// Chips that did not go by themselves, a bit each.
    pub(crate) stuck: u8,
    /// `Hands::lost`: the Worker is of no use any more.
    pub(crate) lost: Option<Cause>,
    /// The first error that the user was told.
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
    pub(crate) slip: Option<Slip>,
}

impl State {
    pub(crate) fn new(crashes: u8, mishaps: u8) -> Self {
        Self {
            at: At::Preparing,
            chips: [Chip::UNBORN; MOST],
            verdict: None,
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
            slip: None,
        }
    }

    /// Fresh memory for the next bring-up of the same Worker, in which nothing goes wrong any more.
    pub(crate) fn again(&self) -> Self {
        Self { attempt: self.attempt + 1, slip: self.slip, ..Self::new(0, 0) }
    }

    pub(crate) fn slipped(&mut self, slip: Slip) {
        self.slip.get_or_insert(slip);
    }

    /// The user is told.
    pub(crate) fn tell(&mut self, cause: Cause) {
        if self.outcome.is_none() {
            if self.crashed.is_some_and(|chip| cause != Cause::Died(chip)) {
                self.slipped(Slip::Untold);
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
            At::Told => 40,
            At::Grace(k) => 41 + u64::from(k),
            At::Closing => 50,
            At::Ringing(k) => 51 + u64::from(k),
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
        Pc::Unborn => 0,
        Pc::Forked => 1,
        Pc::Started => 2,
        Pc::SignedIn => 3,
        Pc::AtBarrier => 4,
        Pc::Joined => 5,
        // From the last chip down.
        Pc::Collecting(peer) => 6 + steps - u64::from(peer),
        Pc::AwaitingSeen(peer) => 7 + 2 * steps - u64::from(peer),
        Pc::Allocated => 20,
        Pc::Looking => 21,
        Pc::Parked => 22,
        Pc::Called => 23,
        Pc::Meeting => 24,
        Pc::Returned => 25,
        Pc::LookingAgain => 26,
        Pc::ParkedAgain => 27,
        Pc::GoingHome => 28,
        Pc::Failing => 29,
        Pc::Telling => 30,
        Pc::Ending => 31,
        Pc::Gone => 32,
        Pc::Reaped => 33,
    }
}
