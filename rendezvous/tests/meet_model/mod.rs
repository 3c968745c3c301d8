//! Ranks that come to a path in any order, as a state machine: the first that gets the name is the host, the others visit it, and when all are there they enter the group's
//! memory and wait for each other once more.
//!
//! Any interleaving is a path of the model. Time passes only when nobody can take a step. Every step brings [`State::progress`] up, so that each path ends.

use stateright::{Model, Property};

/// The most ranks of a model.
const MOST: usize = 4;

/// A defect that the model must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The wait for the others in the group's memory looks at words only.
    BarrierWatchesNobody,
    /// A host that gives up closes its sockets and tells nobody why.
    HostGoesWithoutAWord,
    /// The host does not write down whom it let in.
    HostWritesNoPids,
}

/// Why a rank gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cause {
    Died(u8),
    Left(u8),
    TimedOut,
}

/// Where a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pc {
    /// It tries to take the name.
    Coming,
    /// It is connected to the host.
    Connected,
    /// It has said who it is.
    Asked,
    /// It knows that the host knows it.
    Seated,
    Hosting,
    /// The host has made the group's memory.
    Complete,
    /// The host has given up the name, and lets this rank in next.
    Welcoming(u8),
    /// It has the memory.
    Attached,
    /// Its pid is on its card.
    SignedIn,
    AtBarrier,
    /// The meeting has succeeded.
    In,
    Failed,
    Dead,
}

/// What the host says last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Word {
    Welcome,
    Lost(Cause),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rank {
    pc: Pc,
    /// How often it has come anew.
    tries: u8,
    cause: Option<Cause>,
    /// Whose guest it is, and what is under way between the two.
    host: u8,
    join: bool,
    seated: bool,
    word: Option<Word>,
    /// Whom it has seated as a host, a bit each.
    seats: u8,
    // Its card in the group's memory.
    signed_in: bool,
    arrived: bool,
    left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// Who has the name.
    name: Option<u8>,
    ranks: [Rank; MOST],
    /// The group's memory, once there is one: who made it, and whether it knows everybody's pid.
    host: Option<u8>,
    pids: bool,
    crashes: u8,
    crashed: Option<u8>,
    /// Those who were together with the rank that crashed, a bit each.
    company: u8,
    /// One of them said something else, or a deadline passed without any reason.
    slipped: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Meeting {
    pub(crate) ranks: usize,
    pub(crate) crashes: u8,
    pub(crate) mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The one thing that this rank can do.
    Step(u8),
    /// A host reads what this guest says of itself.
    Hear(u8, u8),
    /// A host notices that a seated rank is gone.
    Lose(u8),
    Crash(u8),
    Deadline(u8),
}

const NEW: Rank = Rank {
    pc: Pc::Coming,
    tries: 0,
    cause: None,
    host: 0,
    join: false,
    seated: false,
    word: None,
    seats: 0,
    signed_in: false,
    arrived: false,
    left: false,
};

impl Rank {
    fn lives(&self) -> bool {
        self.pc != Pc::Dead
    }

    /// Its sockets are closed.
    fn has_hung_up(&self) -> bool {
        matches!(self.pc, Pc::Failed | Pc::Dead)
    }
}

impl State {
    fn rank(&self, rank: u8) -> &Rank {
        &self.ranks[usize::from(rank)]
    }

    fn fail(&mut self, me: u8, cause: Cause) {
        if self.company >> me & 1 == 1 && !matches!(cause, Cause::Died(_)) {
            self.slipped = true;
        }
        let mine = &mut self.ranks[usize::from(me)];
        mine.left = mine.signed_in;
        (mine.pc, mine.cause) = (Pc::Failed, Some(cause));
        if self.name == Some(me) {
            self.name = None;
        }
    }

    /// Grows with every step.
    fn progress(&self) -> u64 {
        let order = |rank: &Rank| {
            let pc = match rank.pc {
                Pc::Coming => 0,
                Pc::Connected => 1,
                Pc::Asked => 2,
                Pc::Seated => 4,
                Pc::Hosting => 5,
                Pc::Complete => 6,
                Pc::Welcoming(next) => 7 + u64::from(next),
                Pc::Attached => 14,
                Pc::SignedIn => 15,
                Pc::AtBarrier => 16,
                Pc::In => 17,
                Pc::Failed => 18,
                Pc::Dead => 19,
            };
            // A message that was read is a step too.
            let unread = u64::from(rank.join);
            2 * (pc + 100 * u64::from(rank.tries)) + u64::from(rank.pc == Pc::Asked) - unread
        };
        self.ranks.iter().map(order).sum()
    }
}

impl Meeting {
    fn all(&self) -> impl Iterator<Item = u8> + use<> {
        0..self.ranks as u8
    }

    fn step(&self, state: &State, me: u8) -> Option<State> {
        let mut next = *state;
        let mine = &mut next.ranks[usize::from(me)];
        let again = Rank { tries: mine.tries + 1, ..NEW };
        match mine.pc {
            // meet/mod.rs, `meet`: the name, or a visit to who has it.
            Pc::Coming => match state.name {
                None => (mine.pc, next.name) = (Pc::Hosting, Some(me)),
                Some(host) => (mine.pc, mine.host) = (Pc::Connected, host),
            },
            // meet/guest.rs, `visit`: a host that is gone already is no host of ours.
            Pc::Connected if !has_listener(state.rank(mine.host)) => *mine = again,
            Pc::Connected => (mine.pc, mine.join) = (Pc::Asked, true),
            // `wait_to_be_let_in`: messages in their order, then the end of the connection.
            Pc::Asked if mine.seated => (mine.pc, mine.seated) = (Pc::Seated, false),
            Pc::Asked if state.rank(mine.host).has_hung_up() => *mine = again,
            Pc::Seated => match mine.word {
                Some(Word::Welcome) => (mine.pc, mine.word) = (Pc::Attached, None),
                Some(Word::Lost(cause)) => next.fail(me, cause),
                None => {
                    let host = mine.host;
                    // meet/departure.rs, `of_process`.
                    match state.rank(host).pc {
                        Pc::Dead => next.fail(me, Cause::Died(host)),
                        Pc::Failed => next.fail(me, Cause::Left(host)),
                        _ => return None,
                    }
                }
            },
            // meet/host.rs, `gather`: everybody is there; memory, pids, then the name, then the welcomes.
            Pc::Hosting if self.all().all(|rank| rank == me || mine.seats >> rank & 1 == 1) => {
                mine.pc = Pc::Complete;
                next.host = Some(me);
                next.pids = self.mutant != Some(Mutant::HostWritesNoPids);
            }
            Pc::Complete => (mine.pc, next.name) = (Pc::Welcoming(0), None),
            Pc::Welcoming(rank) => {
                let end = usize::from(rank) + 1 == self.ranks;
                mine.pc = if end { Pc::Attached } else { Pc::Welcoming(rank + 1) };
                if rank != me && !state.rank(rank).has_hung_up() {
                    next.ranks[usize::from(rank)].word = Some(Word::Welcome);
                }
            }
            // group.rs, `enter_memory`.
            Pc::Attached => (mine.pc, mine.signed_in) = (Pc::SignedIn, true),
            Pc::SignedIn => (mine.pc, mine.arrived) = (Pc::AtBarrier, true),
            Pc::AtBarrier => {
                let missing: Vec<u8> = self.all().filter(|rank| !state.rank(*rank).arrived).collect();
                if missing.is_empty() {
                    mine.pc = Pc::In;
                } else {
                    let cause = self.look(state, me, &missing)?;
                    next.fail(me, cause);
                }
            }
            Pc::Asked | Pc::Hosting | Pc::In | Pc::Failed | Pc::Dead => return None,
        }
        Some(next)
    }

    /// watch.rs, `Needed::look` and `ProcessWatches::cause`; group.rs, `describe`.
    fn look(&self, state: &State, me: u8, missing: &[u8]) -> Option<Cause> {
        if self.mutant == Some(Mutant::BarrierWatchesNobody) {
            return None;
        }
        let dead = |rank: u8| {
            let one = state.rank(rank);
            !one.lives() && (one.signed_in || state.pids)
        };
        let cause = |rank: u8| {
            let host = state.host.filter(|host| !state.rank(rank).signed_in && ![me, rank].contains(host));
            Cause::Died(host.filter(|host| !state.rank(*host).left && dead(*host)).unwrap_or(rank))
        };
        let gone = missing.iter().find(|rank| state.rank(**rank).left || dead(**rank))?;
        if !state.rank(*gone).left {
            return Some(cause(*gone));
        }
        let first = self.all().find(|rank| *rank != me && !state.rank(*rank).left && dead(*rank));
        Some(first.map_or(Cause::Left(*gone), cause))
    }

    /// meet/host.rs, `hear`: seats a rank. One that is gone is not seated: the answer cannot be sent.
    fn hear(&self, state: &State, host: u8, guest: u8) -> Option<State> {
        let one = state.rank(guest);
        (state.rank(host).pc == Pc::Hosting && one.join && one.host == host).then_some(())?;
        let mut next = *state;
        next.ranks[usize::from(guest)].join = false;
        if !one.has_hung_up() {
            next.ranks[usize::from(guest)].seated = true;
            next.ranks[usize::from(host)].seats |= 1 << guest;
        }
        Some(next)
    }

    /// meet/host.rs, `fill` and `lost`: the meeting is off, and everybody who is seated hears why.
    fn lose(&self, state: &State, host: u8) -> Option<State> {
        let mine = state.rank(host);
        let seated = |rank: &u8| mine.seats >> rank & 1 == 1;
        (mine.pc == Pc::Hosting).then_some(())?;
        let gone = self.all().filter(seated).find(|rank| state.rank(*rank).has_hung_up())?;
        let cause = if state.rank(gone).lives() { Cause::Left(gone) } else { Cause::Died(gone) };
        Some(self.off(state, host, cause))
    }

    fn off(&self, state: &State, host: u8, cause: Cause) -> State {
        let mut next = *state;
        let seats = state.rank(host).seats;
        if self.mutant != Some(Mutant::HostGoesWithoutAWord) {
            for guest in
                self.all().filter(|guest| seats >> guest & 1 == 1 && !state.rank(*guest).has_hung_up())
            {
                next.ranks[usize::from(guest)].word = Some(Word::Lost(cause));
            }
        }
        next.fail(host, cause);
        next
    }

    /// The kernel frees the name and closes the sockets.
    fn crash(&self, state: &State, rank: u8) -> Option<State> {
        let one = state.rank(rank);
        (state.crashes > 0 && !one.has_hung_up()).then_some(())?;
        let mut next = *state;
        next.company =
            self.all().filter(|other| together(state, rank, *other)).fold(0, |all, one| all | 1 << one);
        next.ranks[usize::from(rank)].pc = Pc::Dead;
        next.name = state.name.filter(|holder| *holder != rank);
        (next.crashes, next.crashed) = (state.crashes - 1, Some(rank));
        Some(next)
    }

    /// Time is over for a rank that waits: a host tells who is missing, a guest that it goes.
    fn deadline(&self, state: &State, me: u8) -> Option<State> {
        let mut next = match state.rank(me).pc {
            Pc::Hosting => self.off(state, me, Cause::TimedOut),
            Pc::Asked | Pc::Seated | Pc::AtBarrier => {
                let mut next = *state;
                next.fail(me, Cause::TimedOut);
                next
            }
            _ => return None,
        };
        next.slipped |= state.crashed.is_none();
        Some(next)
    }

    fn take(&self, state: &State, action: Action) -> Option<State> {
        match action {
            Action::Step(rank) => self.step(state, rank),
            Action::Hear(host, guest) => self.hear(state, host, guest),
            Action::Lose(host) => self.lose(state, host),
            Action::Crash(rank) => self.crash(state, rank),
            Action::Deadline(rank) => self.deadline(state, rank),
        }
    }

    /// The steps that somebody can take now, and if nobody can, the ends of waits that time brings.
    fn moves(&self, state: &State) -> Vec<Action> {
        let hears = self.all().flat_map(|host| self.all().map(move |guest| Action::Hear(host, guest)));
        let mut moves: Vec<Action> =
            self.all().map(Action::Step).chain(hears).chain(self.all().map(Action::Lose)).collect();
        moves.retain(|action| self.take(state, *action).is_some());
        if moves.is_empty() {
            moves.extend(
                self.all().map(Action::Deadline).filter(|action| self.take(state, *action).is_some()),
            );
        }
        moves
    }
}

/// Whether visitors can reach it.
fn has_listener(host: &Rank) -> bool {
    matches!(host.pc, Pc::Hosting | Pc::Complete)
}

/// Whether `other` knows of `rank`, because both sit at one meeting or are let into one group.
fn together(state: &State, rank: u8, other: u8) -> bool {
    let sits_at = |host: u8, guest: u8| {
        let seated = state.rank(host).seats >> guest & 1 == 1 && state.rank(guest).host == host;
        host == guest || (seated && (state.rank(guest).pc != Pc::Asked || state.rank(guest).seated))
    };
    let hosts =
        (0..MOST as u8).filter(|host| state.rank(*host).seats != 0 && !state.rank(*host).has_hung_up());
    rank != other
        && !state.rank(other).has_hung_up()
        && hosts.into_iter().any(|host| sits_at(host, rank) && sits_at(host, other))
}

impl Model for Meeting {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            name: None,
            ranks: [NEW; MOST],
            host: None,
            pids: false,
            crashes: self.crashes,
            crashed: None,
            company: 0,
            slipped: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(self.moves(state));
        actions.extend(self.all().map(Action::Crash));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let next = self.take(last, action)?;
        assert!(next.progress() > last.progress(), "{action:?} brings nothing on:\n{last:?}\n{next:?}");
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ENDS, |model: &Self, state: &State| {
                let over = |rank: &Rank| matches!(rank.pc, Pc::In | Pc::Failed | Pc::Dead);
                !model.moves(state).is_empty() || state.ranks[..model.ranks].iter().all(over)
            }),
            Property::always(BLAMED, |_, state: &State| !state.slipped),
            Property::always(TOGETHER, |model: &Self, state: &State| {
                let any = |pc: Pc| state.ranks[..model.ranks].iter().any(|rank| rank.pc == pc);
                !(any(Pc::In) && any(Pc::Failed))
            }),
            Property::always(FREE, |model: &Self, state: &State| {
                // A rank that has the group's memory can start the next meeting at once.
                let any =
                    state.ranks[..model.ranks].iter().any(|rank| matches!(rank.pc, Pc::Attached | Pc::In));
                !any || state.name.is_none()
            }),
            Property::sometimes("all ranks meet", |model: &Self, state: &State| {
                state.ranks[..model.ranks].iter().all(|rank| rank.pc == Pc::In)
            }),
        ]
    }
}

pub(crate) const BLAMED: &str = "who sat with the crashed rank blames it, and nobody waits without a reason";
const ENDS: &str = "every path ends";
const TOGETHER: &str = "survivors succeed together or not at all";
const FREE: &str = "the name is free before anybody knows that the meeting is over";
