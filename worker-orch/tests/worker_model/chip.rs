//! The steps of a chip's process. Each names the code that it stands for.

use super::state::{At, Cause, Chip, End, Mail, Message, Pc, State, Violation, Wedge};
use super::{Mutant, Worker};

impl Worker {
    /// What chip `me` does next; `None` while it can only wait.
    pub(crate) fn chip_step(&self, state: &State, me: usize) -> Option<State> {
        let chip = state.chips[me];
        if !chip.is_alive() || chip.wedge != Wedge::No {
            return None;
        }
        let mut next = *state;
        let mine = &mut next.chips[me];
        match chip.pc {
            Pc::NotForked | Pc::Gone | Pc::Reaped => return None,
            // child-process, child.rs: asks the kernel for the signal, then checks whether the parent was
            // gone before.
            Pc::Forked if state.at == At::Dead && self.mutant != Some(Mutant::ParentDeathNotChecked) => {
                mine.end(End::Forced);
            }
            Pc::Forked => (mine.pc, mine.bound) = (Pc::Started, state.at != At::Dead),
            // rendezvous, group.rs: writes its pid into its rank block.
            Pc::Started => (mine.pc, mine.registered) = (Pc::Registered, true),
            // mailbox-atomics, barrier.rs, `wait`: its own slot.
            Pc::Registered => (mine.pc, mine.arrived) = (Pc::AtBarrier, true),
            Pc::AtBarrier => {
                let missing = |peer: usize| !state.chips[peer].arrived;
                return self.await_peers(state, me, missing, |mine| mine.pc = Pc::Joined);
            }
            // rendezvous, `exchange`, called by `alloc_windows`.
            Pc::Joined => {
                mine.message = Message::Sent;
                mine.pc = Pc::Collecting(self.last());
            }
            Pc::Collecting(peer) if usize::from(peer) == me => self.count_down(mine, peer),
            Pc::Collecting(peer) => {
                let missing = |other: usize| {
                    other == usize::from(peer) && !has_message(&state.chips[usize::from(peer)])
                };
                return self.await_peers(state, me, missing, |mine| self.count_down(mine, peer));
            }
            Pc::AwaitingRead(peer) if usize::from(peer) == me => self.count_down(mine, peer),
            Pc::AwaitingRead(peer) => {
                let posted = state.chips[usize::from(peer)].message == Message::Sent;
                let missing = |other: usize| other == usize::from(peer) && posted;
                return self.await_peers(state, me, missing, |mine| self.count_down(mine, peer));
            }
            // chip-bootstrap, bring_up.rs, `bring_up_and_publish`.
            Pc::Allocated => (mine.pc, mine.mail) = (Pc::Polling, Mail::Ready),
            // child/serve.rs, `next_frame`: the slot first, then the shutdown word, then sleep.
            Pc::Polling if chip.task_frame => mine.pc = Pc::InTask,
            // F32: one word for requests and replies, which the chip resets to idle when its reply is out.
            Pc::PollingAgain if self.mutant == Some(Mutant::ReplyErasesShutdown) => {
                (mine.pc, mine.shutdown_frame) = (Pc::ParkedAgain, false);
                next.shutdown = false;
            }
            Pc::Polling | Pc::PollingAgain if chip.shutdown_frame || state.shutdown => {
                mine.pc = Pc::TearingDown
            }
            Pc::Polling => mine.pc = Pc::Parked,
            Pc::PollingAgain => mine.pc = Pc::ParkedAgain,
            // Asleep on the word of its next slot: only a frame wakes it, and then it checks the shutdown
            // word.
            Pc::Parked if chip.task_frame => mine.pc = Pc::InTask,
            Pc::Parked | Pc::ParkedAgain if chip.shutdown_frame => mine.pc = Pc::TearingDown,
            Pc::Parked | Pc::ParkedAgain => return None,
            // comm_kernel.h, `comm_phase_barrier`.
            Pc::InTask => (mine.pc, mine.reached) = (Pc::AtKernelBarrier, true),
            Pc::AtKernelBarrier => {
                let all = self.all().all(|peer| state.chips[peer].reached);
                (all || state.abort || state.cancelled).then_some(())?;
                mine.pc = Pc::Returned;
            }
            // child/serve.rs, `serve`: progress is the chip's own word.
            Pc::Returned => (mine.pc, mine.done) = (Pc::PollingAgain, true),
            // child/roles.rs, `chip_main`: `tear_down`, which leaves the group.
            Pc::TearingDown => (mine.pc, mine.left, mine.end) = (Pc::Ending, true, End::Clean),
            // Dropping the communicator, if there is one, clears the message and leaves the group.
            Pc::Failing => {
                if mine.message != Message::None {
                    mine.message = Message::Cleared;
                }
                (mine.pc, mine.left) = (Pc::Publishing, chip.registered);
            }
            // chip-bootstrap, bring_up.rs, `bring_up_and_publish`: the error.
            Pc::Publishing => {
                mine.mail = Mail::Failed(chip.cause?);
                (mine.pc, mine.end) = (Pc::Ending, End::NotUp);
            }
            Pc::Ending => mine.end(chip.end),
        }
        Some(next)
    }

    /// The next chip of an exchange, from the last down; after the first, the next part of it.
    fn count_down(&self, mine: &mut Chip, peer: u8) {
        mine.pc = match (mine.pc, peer.checked_sub(1)) {
            (Pc::Collecting(_), Some(next)) => Pc::Collecting(next),
            (Pc::Collecting(_), None) => {
                mine.message = Message::Read;
                Pc::AwaitingRead(self.last())
            }
            (_, Some(next)) => Pc::AwaitingRead(next),
            (_, None) => {
                mine.message = Message::Cleared;
                Pc::Allocated
            }
        };
    }

    /// mailbox-atomics, wait.rs, `Wait::on`, as rendezvous uses it: what was waited for wins over what ends
    /// the wait.
    fn await_peers(
        &self,
        state: &State,
        me: usize,
        missing: impl Fn(usize) -> bool,
        go_on: impl FnOnce(&mut Chip),
    ) -> Option<State> {
        let missing: Vec<usize> = self.all().filter(|peer| *peer != me && missing(*peer)).collect();
        let mut next = *state;
        next.chips[me].found = None;
        if missing.is_empty() {
            go_on(&mut next.chips[me]);
        } else {
            let cause = self.check(state, me, &missing)?;
            match state.chips[me].found {
                None => next.chips[me].found = Some(self.first_check(state)),
                Some(_) => fail(&mut next, me, cause),
            }
        }
        Some(next)
    }

    /// The first half of a check. Words and processes cannot be read at one moment, and others run in
    /// between. The dead come first: a process that is found dead, and then has not left, has died without
    /// leaving.
    fn first_check(&self, state: &State) -> u8 {
        let seen = |chip: &Chip| match self.mutant {
            Some(Mutant::LeftCheckedFirst) => chip.left,
            _ => is_dead(chip),
        };
        self.all().filter(|chip| seen(&state.chips[*chip])).fold(0, |all, chip| all | 1 << chip)
    }

    /// rendezvous, watch.rs: the death word of the parent, then which of the needed chips left or died.
    fn check(&self, state: &State, me: usize, needed: &[usize]) -> Option<Cause> {
        if let Some(dead) = state.death_word {
            return Some(Cause::Died(dead));
        }
        if state.abort {
            return Some(Cause::Aborted);
        }
        let found = state.chips[me].found.unwrap_or_else(|| self.first_check(state));
        let found = |chip: usize| found >> chip & 1 == 1;
        let died = |chip: usize| match self.mutant {
            Some(Mutant::LeftCheckedFirst) => is_dead(&state.chips[chip]) && !found(chip),
            _ => found(chip) && !state.chips[chip].left,
        };
        let gone = |chip: &&usize| state.chips[**chip].left || died(**chip);
        let peer = *needed.iter().find(gone)?;
        if !state.chips[peer].left {
            return Some(Cause::Died(peer as u8));
        }
        let first_dead = self.all().find(|other| *other != me && died(*other));
        let explained = first_dead.filter(|_| self.mutant != Some(Mutant::LeavingHidesDeath));
        Some(explained.map_or(Cause::Left(peer as u8), |other| Cause::Died(other as u8)))
    }

    /// chip-bootstrap, bring_up.rs: the device cannot be opened, or no window can be reserved.
    pub(crate) fn chip_fails(&self, state: &State, me: usize) -> Option<State> {
        let chip = &state.chips[me];
        (matches!(chip.pc, Pc::Started | Pc::Joined) && chip.wedge == Wedge::No && state.mishaps > 0)
            .then_some(())?;
        let mut next = State { own: true, mishaps: state.mishaps - 1, ..*state };
        (next.chips[me].pc, next.chips[me].cause) = (Pc::Failing, Some(Cause::Own));
        Some(next)
    }

    /// The bring-up deadline of a chip that waits passes.
    pub(crate) fn chip_deadline(&self, state: &State, me: usize) -> Option<State> {
        let chip = state.chips[me];
        let waits = matches!(chip.pc, Pc::AtBarrier | Pc::Collecting(_) | Pc::AwaitingRead(_));
        (waits && chip.wedge == Wedge::No).then(|| {
            let mut next = *state;
            fail(&mut next, me, Cause::TimedOut);
            next
        })
    }
}

/// Only a pid that is in a rank block can be watched.
fn is_dead(chip: &Chip) -> bool {
    chip.registered && chip.pc >= Pc::Gone
}

fn has_message(chip: &Chip) -> bool {
    matches!(chip.message, Message::Sent | Message::Read)
}

fn fail(next: &mut State, me: usize, cause: Cause) {
    let beside = matches!(cause, Cause::TimedOut) || (matches!(cause, Cause::Left(_)) && !next.own);
    if next.crashed.is_some() && beside {
        next.record(Violation::CauseLost);
    }
    if let Cause::Died(dead) = cause
        && matches!(next.chips[usize::from(dead)].end, End::Clean | End::NotUp)
    {
        next.record(Violation::CalledDead);
    }
    (next.chips[me].pc, next.chips[me].cause) = (Pc::Failing, Some(cause));
}
