//! A Worker with chips as a state machine: from the first fork to the last reaped process, with crashes and
//! processes that get stuck.
//!
//! Any process may take the next step: every interleaving is a path of the model, and so is every delay of
//! what one of them sees. Time passes only when no step is possible: deadlines are seconds and more, what
//! they bound takes milliseconds, and a deadline that passes while somebody could have gone on is not a
//! defect of the protocol. Every step increases [`State::progress`], so that each path ends, and what holds
//! at its end holds eventually.

mod chip;
mod parent;
pub(crate) mod state;

use state::{At, End, Pc, State, Wedge};
use stateright::{Model, Property};

/// A defect that the model must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// After a death the words that stop the others are not raised.
    StopsNobody,
    /// The parent waits for the mailboxes and not for deaths.
    GatherWatchesNobody,
    /// F32: requests and replies share one word.
    ReplyErasesShutdown,
    /// The shutdown word is raised, and sleeping children are not woken.
    ShutdownWakesNobody,
    /// A run whose closure failed half-way waits for kernels that wait for what was never submitted.
    FailedClosureCancelsNothing,
    /// F38: the parent waits for each child until it is gone.
    ReapsWithoutDeadline,
    /// A child that is forked just before its parent dies asks for the signal, and does not check whether it
    /// came too late.
    ParentDeathNotChecked,
    /// A chip that waits for one that left does not check whether a death made it leave.
    LeavingHidesDeath,
    /// A chip checks which peers left, then which are dead, and takes one that left and ended in between for
    /// one that died.
    LeftCheckedFirst,
}

/// The model: how many chips, how much may go wrong, and which defect it has.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) chips: usize,
    pub(crate) crashes: u8,
    pub(crate) mishaps: u8,
    pub(crate) mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Chip(u8),
    Parent,
    /// The kernel ends a chip whose parent is gone.
    ParentDeath(u8),
    Crash(u8),
    ParentCrash,
    Wedge(u8, Wedge),
    Fails(u8),
    ClosureFails,
    /// Time passes until a wait of a chip or the parent ends.
    ChipDeadline(u8),
    ParentDeadline,
}

impl Worker {
    pub(crate) fn all(&self) -> std::ops::Range<usize> {
        0..self.chips
    }

    pub(crate) fn last(&self) -> u8 {
        self.chips as u8 - 1
    }

    fn numbers(&self) -> std::ops::Range<u8> {
        0..self.chips as u8
    }

    /// The steps that somebody can take now.
    fn steps(&self, state: &State) -> impl Iterator<Item = Action> {
        let chips = self.numbers().map(Action::Chip).chain(self.numbers().map(Action::ParentDeath));
        [Action::Parent].into_iter().chain(chips).filter(|action| self.take(state, *action).is_some())
    }

    /// The ends of waits that time brings.
    fn delays(&self, state: &State) -> impl Iterator<Item = Action> {
        let chips = self.numbers().map(Action::ChipDeadline);
        [Action::ParentDeadline].into_iter().chain(chips).filter(|action| self.take(state, *action).is_some())
    }

    fn goes_on(&self, state: &State) -> bool {
        self.steps(state).chain(self.delays(state)).next().is_some()
    }

    fn take(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        let free = |chip: u8| state.chips[usize::from(chip)].is_alive();
        match action {
            Action::Chip(chip) => return self.chip_step(state, chip.into()),
            Action::Parent => return self.parent_step(state),
            Action::ChipDeadline(chip) => return self.chip_deadline(state, chip.into()),
            Action::ParentDeadline => return self.parent_deadline(state),
            Action::Fails(chip) => return self.chip_fails(state, chip.into()),
            Action::ClosureFails => return self.closure_fails(state),
            // child-process, child.rs: SIGKILL when the parent's end of the parent-death pipe is closed.
            Action::ParentDeath(chip) => {
                let one = &mut next.chips[usize::from(chip)];
                (state.at == At::Dead && one.is_alive() && one.bound).then_some(())?;
                one.end(End::Forced);
            }
            Action::Crash(chip) => {
                (state.crashes > 0 && free(chip) && state.at < At::Closed).then_some(())?;
                next.crashes -= 1;
                // A chip that the parent has given up already is not the first cause any more.
                next.crashed = (state.stuck >> chip & 1 == 0).then_some(chip);
                next.chips[usize::from(chip)].end(End::Crashed);
            }
            Action::ParentCrash => {
                let over = matches!(state.at, At::Down | At::Closed | At::Dead);
                (state.crashes > 0 && !over).then_some(())?;
                (next.crashes, next.at) = (state.crashes - 1, At::Dead);
            }
            Action::Wedge(chip, how) => {
                let one = &mut next.chips[usize::from(chip)];
                // A process that is stopped before it can ask to end with its parent outlives it until it is
                // continued.
                let can =
                    if how == Wedge::Spins { one.pc == Pc::AtKernelBarrier } else { one.pc > Pc::Forked };
                (state.mishaps > 0 && free(chip) && one.wedge == Wedge::No && can).then_some(())?;
                (next.mishaps, one.wedge) = (state.mishaps - 1, how);
            }
        }
        Some(next)
    }

    /// No process is left, and the user knows how it went.
    fn is_good_end(&self, state: &State) -> bool {
        let over = matches!(state.at, At::Down | At::Closed | At::Dead);
        let all = |good: fn(Pc) -> bool| self.all().all(|chip| good(state.chips[chip].pc));
        match state.at {
            // Only the system reaps orphans.
            At::Dead => all(|pc| matches!(pc, Pc::NotForked | Pc::Gone | Pc::Reaped)),
            _ => over && all(|pc| pc == Pc::Reaped),
        }
    }
}

impl Model for Worker {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.crashes, self.mishaps)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(self.steps(state));
        if actions.is_empty() {
            actions.extend(self.delays(state));
        }
        actions.extend([Action::ClosureFails, Action::ParentCrash]);
        actions.extend(self.numbers().flat_map(|chip| [Action::Crash(chip), Action::Fails(chip)]));
        actions.extend(
            self.numbers()
                .flat_map(|chip| [Wedge::Spins, Wedge::Stopped].map(|how| Action::Wedge(chip, how))),
        );
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let next = self.take(last, action)?;
        assert!(next.progress() > last.progress(), "{action:?} brings nothing on:\n{last:?}\n{next:?}");
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ENDS, |model: &Self, state: &State| {
                model.goes_on(state) || model.is_good_end(state)
            }),
            Property::always(NOBODY_LEFT, |model: &Self, state: &State| {
                !matches!(state.at, At::Down | At::Closed) || model.is_good_end(state)
            }),
            Property::always(REPORTED, |_, state: &State| {
                state.violation != Some(state::Violation::Unreported)
            }),
            Property::always(FIRST_CAUSE, |_, state: &State| {
                state.violation != Some(state::Violation::CauseLost)
            }),
            Property::always(NOT_DEAD, |_, state: &State| {
                state.violation != Some(state::Violation::CalledDead)
            }),
            Property::always(IN_TIME, |_, state: &State| {
                state.violation != Some(state::Violation::WaitedOut)
            }),
            Property::always(NOT_KILLED, |_, state: &State| {
                state.violation != Some(state::Violation::KilledNeedlessly)
            }),
            Property::always(REPEATABLE, |_, state: &State| state.attempt == 1 || state.outcome.is_none()),
            // That the model reaches these states at all.
            Property::sometimes(WORKS, |_, state: &State| state.at == At::Closed && state.outcome.is_none()),
            Property::sometimes(COMES_BACK, |_, state: &State| state.attempt == 2 && state.at == At::Closed),
        ]
    }
}

pub(crate) const ENDS: &str = "every path ends without processes left";
pub(crate) const NOBODY_LEFT: &str = "init that failed and close leave no process";
pub(crate) const REPORTED: &str = "the crash is reported to the user";
pub(crate) const FIRST_CAUSE: &str = "a survivor blames the crash";
pub(crate) const NOT_DEAD: &str = "a chip that left is not called dead";
pub(crate) const IN_TIME: &str = "no deadline passes unless somebody is stuck";
pub(crate) const NOT_KILLED: &str = "a process that makes progress is not killed";
pub(crate) const REPEATABLE: &str = "the next init succeeds";
pub(crate) const WORKS: &str = "a Worker comes up, runs and closes";
pub(crate) const COMES_BACK: &str = "a Worker comes up again after a crash";
