//! Ranks that come to a path in any order, as a state machine: the first that gets the name is the leader,
//! the others connect to it, and when all have joined they enter the group's memory and wait for each other
//! once more.
//!
//! Any interleaving is a path of the model. Time passes only when no rank can take a step. Every step
//! increases [`State::progress`], so that each path ends.

use stateright::{Model, Property};

/// The most ranks of a model.
const MOST: usize = 4;

/// A defect that the model must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The wait for the others in the group's memory checks words only.
    BarrierWatchesNobody,
    /// A leader that fails closes its sockets without a message.
    LeaderEndsSilently,
    /// The leader does not record the processes of the ranks that it accepted.
    LeaderWritesNoPids,
}

/// Why a rank failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cause {
    Died(u8),
    Left(u8),
    TimedOut,
}

/// Which step a rank has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pc {
    /// It tries to take the name.
    Binding,
    /// It is connected to the leader.
    Connected,
    /// It has sent its `Join`.
    JoinSent,
    /// It knows that the leader has accepted it.
    Accepted,
    Leading,
    /// The leader has created the group's memory.
    Complete,
    /// The leader has freed the name, and sends the memory to this rank next.
    Sending(u8),
    /// It has the memory.
    Attached,
    /// Its pid is in its rank block.
    SignedIn,
    AtBarrier,
    /// The rendezvous has succeeded.
    Entered,
    Failed,
    Dead,
}

/// The leader's last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Last {
    Memory,
    Lost(Cause),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rank {
    pc: Pc,
    /// How often it has started over.
    tries: u8,
    cause: Option<Cause>,
    /// The leader that it is connected to, and the messages under way between the two.
    leader: u8,
    join: bool,
    accepted: bool,
    last: Option<Last>,
    /// The ranks that it has accepted as a leader, a bit each.
    slots: u8,
    // Its rank block in the group's memory.
    signed_in: bool,
    arrived: bool,
    left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The rank that holds the name.
    name: Option<u8>,
    ranks: [Rank; MOST],
    /// The group's memory, once there is one: which rank created it, and whether it holds every rank's pid.
    leader: Option<u8>,
    pids: bool,
    crashes: u8,
    crashed: Option<u8>,
    /// The ranks that knew of the rank that crashed, a bit each.
    witnesses: u8,
    /// One of them named another cause, or a deadline passed without any reason.
    wrong_cause: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Rendezvous {
    pub(crate) ranks: usize,
    pub(crate) crashes: u8,
    pub(crate) mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The one thing that this rank can do.
    Step(u8),
    /// A leader receives the `Join` of this joiner.
    Receive(u8, u8),
    /// A leader notices that an accepted rank is gone.
    Lose(u8),
    Crash(u8),
    Deadline(u8),
}

const NEW: Rank = Rank {
    pc: Pc::Binding,
    tries: 0,
    cause: None,
    leader: 0,
    join: false,
    accepted: false,
    last: None,
    slots: 0,
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
        if self.witnesses >> me & 1 == 1 && !matches!(cause, Cause::Died(_)) {
            self.wrong_cause = true;
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
                Pc::Binding => 0,
                Pc::Connected => 1,
                Pc::JoinSent => 2,
                Pc::Accepted => 4,
                Pc::Leading => 5,
                Pc::Complete => 6,
                Pc::Sending(next) => 7 + u64::from(next),
                Pc::Attached => 14,
                Pc::SignedIn => 15,
                Pc::AtBarrier => 16,
                Pc::Entered => 17,
                Pc::Failed => 18,
                Pc::Dead => 19,
            };
            // A message that was read is a step too.
            let unread = u64::from(rank.join);
            2 * (pc + 100 * u64::from(rank.tries)) + u64::from(rank.pc == Pc::JoinSent) - unread
        };
        self.ranks.iter().map(order).sum()
    }
}

impl Rendezvous {
    fn all(&self) -> impl Iterator<Item = u8> + use<> {
        0..self.ranks as u8
    }

    fn step(&self, state: &State, me: u8) -> Option<State> {
        let mut next = *state;
        let mine = &mut next.ranks[usize::from(me)];
        let again = Rank { tries: mine.tries + 1, ..NEW };
        match mine.pc {
            // join/mod.rs, `rendezvous`: takes the name, or connects to the rank that holds it.
            Pc::Binding => match state.name {
                None => (mine.pc, next.name) = (Pc::Leading, Some(me)),
                Some(leader) => (mine.pc, mine.leader) = (Pc::Connected, leader),
            },
            // join/joiner.rs, `join`: a leader that is gone already was not this rank's leader.
            Pc::Connected if !has_listener(state.rank(mine.leader)) => *mine = again,
            Pc::Connected => (mine.pc, mine.join) = (Pc::JoinSent, true),
            // `await_memory`: messages in their order, then the end of the connection.
            Pc::JoinSent if mine.accepted => (mine.pc, mine.accepted) = (Pc::Accepted, false),
            Pc::JoinSent if state.rank(mine.leader).has_hung_up() => *mine = again,
            Pc::Accepted => match mine.last {
                Some(Last::Memory) => (mine.pc, mine.last) = (Pc::Attached, None),
                Some(Last::Lost(cause)) => next.fail(me, cause),
                None => {
                    let leader = mine.leader;
                    // join/departure.rs, `of_process`.
                    match state.rank(leader).pc {
                        Pc::Dead => next.fail(me, Cause::Died(leader)),
                        Pc::Failed => next.fail(me, Cause::Left(leader)),
                        _ => return None,
                    }
                }
            },
            // join/leader.rs, `lead`: all have joined. Memory, pids, then the name, then the messages.
            Pc::Leading if self.all().all(|rank| rank == me || mine.slots >> rank & 1 == 1) => {
                mine.pc = Pc::Complete;
                next.leader = Some(me);
                next.pids = self.mutant != Some(Mutant::LeaderWritesNoPids);
            }
            Pc::Complete => (mine.pc, next.name) = (Pc::Sending(0), None),
            Pc::Sending(rank) => {
                let end = usize::from(rank) + 1 == self.ranks;
                mine.pc = if end { Pc::Attached } else { Pc::Sending(rank + 1) };
                if rank != me && !state.rank(rank).has_hung_up() {
                    next.ranks[usize::from(rank)].last = Some(Last::Memory);
                }
            }
            // group/mod.rs, `enter`.
            Pc::Attached => (mine.pc, mine.signed_in) = (Pc::SignedIn, true),
            Pc::SignedIn => (mine.pc, mine.arrived) = (Pc::AtBarrier, true),
            Pc::AtBarrier => {
                let missing: Vec<u8> = self.all().filter(|rank| !state.rank(*rank).arrived).collect();
                if missing.is_empty() {
                    mine.pc = Pc::Entered;
                } else {
                    let cause = self.check_peers(state, me, &missing)?;
                    next.fail(me, cause);
                }
            }
            Pc::JoinSent | Pc::Leading | Pc::Entered | Pc::Failed | Pc::Dead => return None,
        }
        Some(next)
    }

    /// group/watch.rs, `Needed::first_death` and `ProcessWatches::cause`; group/failure.rs, `describe`.
    fn check_peers(&self, state: &State, me: u8, missing: &[u8]) -> Option<Cause> {
        if self.mutant == Some(Mutant::BarrierWatchesNobody) {
            return None;
        }
        let dead = |rank: u8| {
            let one = state.rank(rank);
            !one.lives() && (one.signed_in || state.pids)
        };
        let cause = |rank: u8| {
            let leader =
                state.leader.filter(|leader| !state.rank(rank).signed_in && ![me, rank].contains(leader));
            Cause::Died(leader.filter(|leader| !state.rank(*leader).left && dead(*leader)).unwrap_or(rank))
        };
        let gone = missing.iter().find(|rank| state.rank(**rank).left || dead(**rank))?;
        if !state.rank(*gone).left {
            return Some(cause(*gone));
        }
        let first = self.all().find(|rank| *rank != me && !state.rank(*rank).left && dead(*rank));
        Some(first.map_or(Cause::Left(*gone), cause))
    }

    /// join/leader.rs, `receive`: accepts a rank. One that is gone is not accepted: the answer cannot be
    /// sent.
    fn receive(&self, state: &State, leader: u8, joiner: u8) -> Option<State> {
        let one = state.rank(joiner);
        (state.rank(leader).pc == Pc::Leading && one.join && one.leader == leader).then_some(())?;
        let mut next = *state;
        next.ranks[usize::from(joiner)].join = false;
        if !one.has_hung_up() {
            next.ranks[usize::from(joiner)].accepted = true;
            next.ranks[usize::from(leader)].slots |= 1 << joiner;
        }
        Some(next)
    }

    /// join/leader.rs, `collect` and `departed`: aborts the rendezvous, and sends the cause to all accepted
    /// ranks.
    fn lose(&self, state: &State, leader: u8) -> Option<State> {
        let mine = state.rank(leader);
        let accepted = |rank: &u8| mine.slots >> rank & 1 == 1;
        (mine.pc == Pc::Leading).then_some(())?;
        let gone = self.all().filter(accepted).find(|rank| state.rank(*rank).has_hung_up())?;
        let cause = if state.rank(gone).lives() { Cause::Left(gone) } else { Cause::Died(gone) };
        Some(self.abort(state, leader, cause))
    }

    fn abort(&self, state: &State, leader: u8, cause: Cause) -> State {
        let mut next = *state;
        let slots = state.rank(leader).slots;
        if self.mutant != Some(Mutant::LeaderEndsSilently) {
            for joiner in
                self.all().filter(|joiner| slots >> joiner & 1 == 1 && !state.rank(*joiner).has_hung_up())
            {
                next.ranks[usize::from(joiner)].last = Some(Last::Lost(cause));
            }
        }
        next.fail(leader, cause);
        next
    }

    /// The kernel frees the name and closes the sockets.
    fn crash(&self, state: &State, rank: u8) -> Option<State> {
        let one = state.rank(rank);
        (state.crashes > 0 && !one.has_hung_up()).then_some(())?;
        let mut next = *state;
        next.witnesses =
            self.all().filter(|other| knows(state, rank, *other)).fold(0, |all, one| all | 1 << one);
        next.ranks[usize::from(rank)].pc = Pc::Dead;
        next.name = state.name.filter(|holder| *holder != rank);
        (next.crashes, next.crashed) = (state.crashes - 1, Some(rank));
        Some(next)
    }

    /// The deadline of a rank that waits: a leader sends which ranks are missing, a joiner that it leaves.
    fn deadline(&self, state: &State, me: u8) -> Option<State> {
        let mut next = match state.rank(me).pc {
            Pc::Leading => self.abort(state, me, Cause::TimedOut),
            Pc::JoinSent | Pc::Accepted | Pc::AtBarrier => {
                let mut next = *state;
                next.fail(me, Cause::TimedOut);
                next
            }
            _ => return None,
        };
        next.wrong_cause |= state.crashed.is_none();
        Some(next)
    }

    fn take(&self, state: &State, action: Action) -> Option<State> {
        match action {
            Action::Step(rank) => self.step(state, rank),
            Action::Receive(leader, joiner) => self.receive(state, leader, joiner),
            Action::Lose(leader) => self.lose(state, leader),
            Action::Crash(rank) => self.crash(state, rank),
            Action::Deadline(rank) => self.deadline(state, rank),
        }
    }

    /// The steps that somebody can take now, and if nobody can, the ends of waits that time brings.
    fn moves(&self, state: &State) -> Vec<Action> {
        let receives =
            self.all().flat_map(|leader| self.all().map(move |joiner| Action::Receive(leader, joiner)));
        let mut moves: Vec<Action> =
            self.all().map(Action::Step).chain(receives).chain(self.all().map(Action::Lose)).collect();
        moves.retain(|action| self.take(state, *action).is_some());
        if moves.is_empty() {
            moves.extend(
                self.all().map(Action::Deadline).filter(|action| self.take(state, *action).is_some()),
            );
        }
        moves
    }
}

/// Whether joiners can connect to it.
fn has_listener(leader: &Rank) -> bool {
    matches!(leader.pc, Pc::Leading | Pc::Complete)
}

/// Whether `other` knows of `rank`, because both have joined one rendezvous or have one group's memory.
fn knows(state: &State, rank: u8, other: u8) -> bool {
    let has_joined = |leader: u8, joiner: u8| {
        let accepted = state.rank(leader).slots >> joiner & 1 == 1 && state.rank(joiner).leader == leader;
        leader == joiner
            || (accepted && (state.rank(joiner).pc != Pc::JoinSent || state.rank(joiner).accepted))
    };
    let leaders =
        (0..MOST as u8).filter(|leader| state.rank(*leader).slots != 0 && !state.rank(*leader).has_hung_up());
    rank != other
        && !state.rank(other).has_hung_up()
        && leaders.into_iter().any(|leader| has_joined(leader, rank) && has_joined(leader, other))
}

impl Model for Rendezvous {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            name: None,
            ranks: [NEW; MOST],
            leader: None,
            pids: false,
            crashes: self.crashes,
            crashed: None,
            witnesses: 0,
            wrong_cause: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(self.moves(state));
        actions.extend(self.all().map(Action::Crash));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let next = self.take(last, action)?;
        assert!(next.progress() > last.progress(), "{action:?} makes no progress:\n{last:?}\n{next:?}");
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ENDS, |model: &Self, state: &State| {
                let over = |rank: &Rank| matches!(rank.pc, Pc::Entered | Pc::Failed | Pc::Dead);
                !model.moves(state).is_empty() || state.ranks[..model.ranks].iter().all(over)
            }),
            Property::always(BLAMED, |_, state: &State| !state.wrong_cause),
            Property::always(TOGETHER, |model: &Self, state: &State| {
                let any = |pc: Pc| state.ranks[..model.ranks].iter().any(|rank| rank.pc == pc);
                !(any(Pc::Entered) && any(Pc::Failed))
            }),
            Property::always(FREE, |model: &Self, state: &State| {
                // A rank that has the group's memory can start the next rendezvous at once.
                let any = state.ranks[..model.ranks]
                    .iter()
                    .any(|rank| matches!(rank.pc, Pc::Attached | Pc::Entered));
                !any || state.name.is_none()
            }),
            Property::sometimes("all ranks succeed", |model: &Self, state: &State| {
                state.ranks[..model.ranks].iter().all(|rank| rank.pc == Pc::Entered)
            }),
        ]
    }
}

pub(crate) const BLAMED: &str =
    "ranks that knew the crashed rank name it, and no deadline passes without a reason";
const ENDS: &str = "every path ends";
const TOGETHER: &str = "survivors succeed together or not at all";
const FREE: &str = "the name is free before any rank knows that the rendezvous is over";
