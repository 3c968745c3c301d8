//! The steps of a chip's process. Each names the code that it stands for.

use super::state::{At, Cause, Chip, End, Mail, Note, Pc, Slip, State, Wedge};
use super::{Mutant, Worker};

impl Worker {
    /// What chip `me` does next; `None` while it can only wait.
    pub(crate) fn chip_step(&self, state: &State, me: usize) -> Option<State> {
        let chip = state.chips[me];
        if !chip.lives() || chip.wedge != Wedge::No {
            return None;
        }
        let mut next = *state;
        let mine = &mut next.chips[me];
        match chip.pc {
            Pc::Unborn | Pc::Gone | Pc::Reaped => return None,
            // mailbox-atomics, process.rs, `hang_on`: asks the kernel for the signal, then looks whether the parent was gone before.
            Pc::Forked if state.at == At::Dead && self.mutant != Some(Mutant::LeashNotLookedAt) => {
                mine.end(End::Forced);
            }
            Pc::Forked => (mine.pc, mine.leashed) = (Pc::Started, state.at != At::Dead),
            // rendezvous, group.rs, `enter_memory`: the pid on the card.
            Pc::Started => (mine.pc, mine.signed_in) = (Pc::SignedIn, true),
            // mailbox-atomics, barrier.rs, `wait`: its own place.
            Pc::SignedIn => (mine.pc, mine.arrived) = (Pc::AtBarrier, true),
            Pc::AtBarrier => {
                let missing = |peer: usize| !state.chips[peer].arrived;
                return self.await_peers(state, me, missing, |mine| mine.pc = Pc::Joined);
            }
            // rendezvous, notes.rs, `exchange`, called by comm-sim's `alloc_windows`.
            Pc::Joined => {
                mine.note = Note::Posted;
                mine.pc = Pc::Collecting(self.last());
            }
            Pc::Collecting(peer) if usize::from(peer) == me => self.count_down(mine, peer),
            Pc::Collecting(peer) => {
                let missing =
                    |other: usize| other == usize::from(peer) && !has_note(&state.chips[usize::from(peer)]);
                return self.await_peers(state, me, missing, |mine| self.count_down(mine, peer));
            }
            Pc::AwaitingSeen(peer) if usize::from(peer) == me => self.count_down(mine, peer),
            Pc::AwaitingSeen(peer) => {
                let posted = state.chips[usize::from(peer)].note == Note::Posted;
                let missing = |other: usize| other == usize::from(peer) && posted;
                return self.await_peers(state, me, missing, |mine| self.count_down(mine, peer));
            }
            // chip-bootstrap, bring_up.rs, `bring_up_and_publish`.
            Pc::Allocated => (mine.pc, mine.mail) = (Pc::Looking, Mail::Ready),
            // worker-orch, serve.rs, `next_frame`: the slot first, then the shutdown word, then sleep.
            Pc::Looking if chip.frame => mine.pc = Pc::Called,
            // F32: one word for requests and replies, which the chip sets back to idle when its reply is out.
            Pc::LookingAgain if self.mutant == Some(Mutant::ReplyErasesShutdown) => {
                (mine.pc, mine.farewell) = (Pc::ParkedAgain, false);
                next.shutdown = false;
            }
            Pc::Looking | Pc::LookingAgain if chip.farewell || state.shutdown => mine.pc = Pc::GoingHome,
            Pc::Looking => mine.pc = Pc::Parked,
            Pc::LookingAgain => mine.pc = Pc::ParkedAgain,
            // Asleep on the word of its next slot: only a frame wakes it, and the shutdown word is looked at then.
            Pc::Parked if chip.frame => mine.pc = Pc::Called,
            Pc::Parked | Pc::ParkedAgain if chip.farewell => mine.pc = Pc::GoingHome,
            Pc::Parked | Pc::ParkedAgain => return None,
            // comm_kernel.h, `comm_phase_barrier`.
            Pc::Called => (mine.pc, mine.reached) = (Pc::Meeting, true),
            Pc::Meeting => {
                let all = self.all().all(|peer| state.chips[peer].reached);
                (all || state.abort || state.cancelled).then_some(())?;
                mine.pc = Pc::Returned;
            }
            // serve.rs, `serve`: progress is the chip's own word.
            Pc::Returned => (mine.pc, mine.done) = (Pc::LookingAgain, true),
            // life.rs, `chip_main`: `tear_down`, which leaves the group.
            Pc::GoingHome => (mine.pc, mine.left, mine.end) = (Pc::Ending, true, End::Home),
            // Dropping the communicator, if there is one, takes the note down and leaves the group.
            Pc::Failing => {
                if mine.note != Note::None {
                    mine.note = Note::TakenDown;
                }
                (mine.pc, mine.left) = (Pc::Telling, chip.signed_in);
            }
            // chip-bootstrap, bring_up.rs, `bring_up_and_publish`: the error.
            Pc::Telling => {
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
                mine.note = Note::Seen;
                Pc::AwaitingSeen(self.last())
            }
            (_, Some(next)) => Pc::AwaitingSeen(next),
            (_, None) => {
                mine.note = Note::TakenDown;
                Pc::Allocated
            }
        };
    }

    /// mailbox-atomics, wait.rs, `Wait::on`, as rendezvous uses it: what was waited for wins, then whatever ends the wait.
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
            let cause = self.look(state, me, &missing)?;
            match state.chips[me].found {
                None => next.chips[me].found = Some(self.glance(state)),
                Some(_) => fail(&mut next, me, cause),
            }
        }
        Some(next)
    }

    /// The first half of a look. Words and processes cannot be read at one moment, and others go on in between: the dead come first, since who is found dead and has
    /// not left after that has died without leaving.
    fn glance(&self, state: &State) -> u8 {
        let seen = |chip: &Chip| match self.mutant {
            Some(Mutant::LeftLookedAtFirst) => chip.left,
            _ => is_dead(chip),
        };
        self.all().filter(|chip| seen(&state.chips[*chip])).fold(0, |all, chip| all | 1 << chip)
    }

    /// rendezvous, watch.rs, `Needed::look` and `first_dead`, and group.rs, `describe`: the parent's word, then who of the needed left or died.
    fn look(&self, state: &State, me: usize, needed: &[usize]) -> Option<Cause> {
        if let Some(dead) = state.verdict {
            return Some(Cause::Died(dead));
        }
        if state.abort {
            return Some(Cause::Aborted);
        }
        let found = state.chips[me].found.unwrap_or_else(|| self.glance(state));
        let found = |chip: usize| found >> chip & 1 == 1;
        let died = |chip: usize| match self.mutant {
            Some(Mutant::LeftLookedAtFirst) => is_dead(&state.chips[chip]) && !found(chip),
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

    /// chip-bootstrap, bring_up.rs, `steps`: the device cannot be taken, or no window be reserved.
    pub(crate) fn chip_fails(&self, state: &State, me: usize) -> Option<State> {
        let chip = &state.chips[me];
        (matches!(chip.pc, Pc::Started | Pc::Joined) && chip.wedge == Wedge::No && state.mishaps > 0)
            .then_some(())?;
        let mut next = State { own: true, mishaps: state.mishaps - 1, ..*state };
        (next.chips[me].pc, next.chips[me].cause) = (Pc::Failing, Some(Cause::Own));
        Some(next)
    }

    /// The deadline of its bring-up comes to a chip that waits.
    pub(crate) fn chip_deadline(&self, state: &State, me: usize) -> Option<State> {
        let chip = state.chips[me];
        let waits = matches!(chip.pc, Pc::AtBarrier | Pc::Collecting(_) | Pc::AwaitingSeen(_));
        (waits && chip.wedge == Wedge::No).then(|| {
            let mut next = *state;
            fail(&mut next, me, Cause::TimedOut);
            next
        })
    }
}

/// Only a pid that is on a card can be watched.
fn is_dead(chip: &Chip) -> bool {
    chip.signed_in && chip.pc >= Pc::Gone
}

fn has_note(chip: &Chip) -> bool {
    matches!(chip.note, Note::Posted | Note::Seen)
}

fn fail(next: &mut State, me: usize, cause: Cause) {
    let beside = matches!(cause, Cause::TimedOut) || (matches!(cause, Cause::Left(_)) && !next.own);
    if next.crashed.is_some() && beside {
        next.slipped(Slip::CauseLost);
    }
    if let Cause::Died(dead) = cause
        && matches!(next.chips[usize::from(dead)].end, End::Home | End::NotUp)
    {
        next.slipped(Slip::CalledDead);
    }
    (next.chips[me].pc, next.chips[me].cause) = (Pc::Failing, Some(cause));
}
