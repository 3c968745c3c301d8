//! The collectives of a chip: made and closed by commands of the parent, used by tasks.

use super::serve::malformed;
use crate::shared::ReceivedFrame;
use chip_bootstrap::{Chip, ChipError};
use collectives::{Collectives, Options};
use fault_points::fault_point;
use worker_errors::{ErrorCode, Failure};

/// The groups that this chip is a member of.
#[derive(Debug, Default)]
pub(super) struct ChipCollectives {
    list: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    id: u8,
    /// The domain that they are for; empty where they are for a `submit_group`.
    domain: String,
    group: Collectives<'static>,
}

impl ChipCollectives {
    /// Makes a group, together with the other members.
    pub(super) fn make(&mut self, frame: &ReceivedFrame, chip: &Chip) -> Result<(), Failure> {
        let [id, options @ ..] = frame.scalars.as_slice() else { return Err(malformed()) };
        let options = Options::from_words(options).ok_or_else(malformed)?;
        let (count, rest) = frame.blob.split_first().ok_or_else(malformed)?;
        let (ranks, domain) = rest.split_at_checked(usize::from(*count)).ok_or_else(malformed)?;
        let ranks: Vec<u32> = ranks.iter().map(|rank| u32::from(*rank)).collect();
        let comm = chip.shared_comm().ok_or(ChipError::NoCommunicator)?;
        fault_point!("worker.collectives.make");
        let group = Collectives::over(comm, &ranks, options)?;
        // In the list before anything else happens: a panic then abandons it, and does not wait for the others.
        let domain = String::from_utf8_lossy(domain).into_owned();
        self.list.push(Member { id: *id as u8, domain, group });
        fault_point!("worker.collectives.made");
        Ok(())
    }

    /// Closes a group, together with the other members. Does nothing where it could not be made.
    pub(super) fn close(&mut self, frame: &ReceivedFrame) -> Result<(), Failure> {
        let &[id, failed] = frame.scalars.as_slice() else { return Err(malformed()) };
        fault_point!("worker.collectives.close");
        // Some member may have left it in the middle of a call: then none waits for the others.
        if failed != 0 {
            self.give_up();
        }
        match self.list.iter().position(|member| u64::from(member.id) == id) {
            Some(at) => Ok(self.list.swap_remove(at).group.close()?),
            None => Ok(()),
        }
    }

    /// A task of this chip is not done as it should be: members that wait for it fail at once. The parent makes the groups
    /// anew.
    pub(super) fn give_up(&self) {
        self.list.iter().for_each(|member| member.group.give_up("its task failed"));
    }

    /// The group of the `submit_group` that a task came with.
    pub(super) fn of_group(&self, id: u8) -> Result<&Collectives<'static>, Failure> {
        let found = self.list.iter().find(|member| id != 0 && member.id == id);
        found.map(|member| &member.group).ok_or_else(|| {
            let text = "this task has no collectives; call `collectives` of the orchestrator with the chips of a group, and then \
                        submit the task to that group";
            Failure::new(ErrorCode::Invalid, text).in_phase("collectives")
        })
    }

    /// The group of a domain.
    pub(super) fn of_domain(&self, name: &str) -> Result<&Collectives<'static>, Failure> {
        let found = self.list.iter().find(|member| !name.is_empty() && member.domain == name);
        found.map(|member| &member.group).ok_or_else(|| {
            let text = format!(
                "domain `{name}` has no collectives on this chip; call `domain_collectives` of the orchestrator in the \
                 same run, before the task is submitted"
            );
            Failure::new(ErrorCode::Invalid, text).in_phase("collectives")
        })
    }
}

impl Drop for ChipCollectives {
    /// Without the others: the chip is about to leave its communicator, and one of them may hang.
    fn drop(&mut self) {
        self.list.drain(..).for_each(|member| member.group.abandon());
    }
}
