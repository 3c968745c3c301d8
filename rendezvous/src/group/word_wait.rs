//! Waits for words that do not belong to the group's own memory: those of collectives, in windows.

use super::Group;
use super::watch::Needed;
use comm_context::comm::{CommError, Phase, Timeout, WordWait};
use deadline::{Deadline, Watch};
use mailbox_atomics::{ParkFlag, WaitError, WordU32, WordU64};
use std::num::NonZeroU32;

impl Group {
    /// Waits until `ready` accepts the value of the word, as every wait of the group does: deadline, deaths, abort, spin policy.
    pub fn wait_on_word(
        &self,
        wait: &WordWait<'_>,
        ready: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), CommError> {
        self.check()?;
        let step = self.begin(Phase::Collective, Deadline::since(wait.since_ns, wait.within.get()));
        let needed = Needed::new(self, || wait.needed.to_vec());
        let mut how = self.wait(&step, &needed);
        if let Some(poll) = wait.poll {
            how = how.polling_every(poll);
        }
        let mut flag = ParkFlag::tagged(WordU32::of(wait.parked_on), wait.tag);
        how.on(WordU64::of(wait.word), Some(&mut flag), |value| ready(value).then_some(()))
            .map_err(|error| self.end_collective(error, wait.needed))
    }

    /// What a wait of a collective ended with. A run that was cancelled ends the collective and not the communicator: the ranks make
    /// the collective's group anew.
    fn end_collective(&self, error: WaitError, needed: &[u32]) -> CommError {
        let halted = self.memory.halt_word().raised().is_some() || self.memory.reported_death().is_some();
        match error {
            WaitError::Aborted { .. } if !halted => self.describe(error, Phase::Collective, needed.to_vec()),
            error => self.give_up(error, Phase::Collective, needed.to_vec()),
        }
    }

    /// What a wait for `ranks` that began at `since_ns` would end with now.
    pub fn check_ranks(&self, ranks: &[u32], since_ns: u64, within: Timeout) -> Result<(), CommError> {
        self.check()?;
        let deadline = Deadline::since(since_ns, within.get());
        let cancelled = || NonZeroU32::new(self.memory.abort_word().load());
        let aborted = self.memory.halt_word().raised().or_else(cancelled);
        let late = || WaitError::TimedOut { waited: deadline.elapsed(), limit: deadline.limit() };
        let needed = Needed::new(self, || ranks.to_vec());
        let ended = aborted.map(|reason| WaitError::Aborted { reason });
        let ended = ended.or_else(|| needed.first_death().map(WaitError::PeerDied));
        match ended.or_else(|| deadline.has_passed().then(late)) {
            Some(error) => Err(self.end_collective(error, ranks)),
            None => Ok(()),
        }
    }

    /// Whether every rank has a core to itself.
    pub fn has_core_per_rank(&self) -> bool {
        self.me.nranks() as usize <= self.cores()
    }

    /// How many cores the ranks may use between them all the time, the quotas of their cgroups included.
    pub fn cores(&self) -> usize {
        self.memory.cores()
    }
}
