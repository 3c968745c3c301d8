//! Collectives between chips: which groups the chips have, and the commands that make and close them.

use super::{Domain, Orchestrator};
use crate::log;
use crate::shared::{Frame, Kind};
use collectives::Options;
use fault_points::fault_point;
use worker_errors::{ErrorCode, Failure};

/// The groups that chips have. They outlive a run that succeeds.
#[derive(Debug, Default)]
pub(super) struct Groups {
    live: Vec<Live>,
}

#[derive(Debug)]
struct Live {
    id: u8,
    chips: Vec<usize>,
    /// The domain that it is for, and with which it ends.
    domain: Option<String>,
}

impl Groups {
    /// The group of a `submit_group` to these chips; 0 for none.
    pub(super) fn of(&self, chips: impl Iterator<Item = usize> + Clone) -> u8 {
        let same = |live: &&Live| live.domain.is_none() && live.chips.iter().copied().eq(chips.clone());
        self.live.iter().find(same).map_or(0, |live| live.id)
    }

    fn free_id(&self) -> Option<u8> {
        (1..=u8::MAX).find(|id| self.live.iter().all(|live| live.id != *id))
    }
}

/// Which groups end with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::parent) enum RunEnd {
    /// Those of its domains.
    Succeeded,
    /// All: a member may have left one in the middle of a call.
    Failed,
}

impl Orchestrator<'_> {
    /// Makes the collectives of `chips`, in this order, so that functions that are submitted to exactly these chips with
    /// [`submit_group`](Self::submit_group) have [`Task::collectives`](crate::Task::collectives). Waits for the earlier tasks of these
    /// chips first.
    ///
    /// They are kept: in later runs the call returns at once, with the options of the first. After a run that failed it makes them
    /// anew.
    pub fn collectives(&mut self, chips: &[usize], options: Options) -> Result<(), Failure> {
        match self.base.groups.of(chips.iter().copied()) {
            0 => self.make_collectives(chips, None, options),
            _ => Ok(()),
        }
    }

    /// Makes the collectives of a domain's chips, for [`Task::collectives_of`](crate::Task::collectives_of) its name. They end with
    /// the domain. All chips of the domain must get a task that uses them.
    pub fn domain_collectives(&mut self, domain: &Domain, options: Options) -> Result<(), Failure> {
        let chips: Vec<usize> = domain.contexts().iter().map(|member| member.chip).collect();
        let named = |live: &Live| live.domain.as_deref() == Some(domain.name());
        if self.base.groups.live.iter().any(|live| named(live) && live.chips == chips) {
            return Ok(());
        }
        if self.base.groups.live.iter().any(named) {
            let text =
                format!("there are collectives of another domain `{}`; use another name", domain.name());
            return Err(Failure::new(ErrorCode::Invalid, text).in_phase("collectives"));
        }
        self.make_collectives(&chips, Some(domain.name()), options)
    }

    fn make_collectives(
        &mut self,
        chips: &[usize],
        domain: Option<&str>,
        options: Options,
    ) -> Result<(), Failure> {
        let span = log::span(|| tracing::debug_span!("collectives", ?chips, domain));
        let _entered = span.enter();
        let bad = |text: String| Failure::new(ErrorCode::Invalid, text).in_phase("collectives");
        self.check_members(chips).map_err(bad)?;
        let id = self.base.groups.free_id();
        let id = id.ok_or_else(|| {
            bad("there are collectives of 255 groups of chips already; use these, or close the Worker"
                .to_owned())
        })?;
        self.join_all()?;
        self.settle(chips)?;
        fault_point!("worker.collectives.sending");
        self.collectively(chips, |orch| {
            // A chip's number fits a byte: there are at most 64 ranks.
            let ranks = chips.iter().map(|chip| orch.children.ranks()[*chip] as u8);
            let mut blob: Vec<u8> = [chips.len() as u8].into_iter().chain(ranks).collect();
            blob.extend_from_slice(domain.unwrap_or_default().as_bytes());
            let scalars: Vec<u64> = [id.into()].into_iter().chain(options.to_words()).collect();
            // Also where it cannot be made on all: what is made is closed with the failed run.
            orch.base.groups.live.push(Live { id, chips: chips.to_vec(), domain: domain.map(str::to_owned) });
            let mut sent = Vec::with_capacity(chips.len());
            for chip in chips {
                let frame =
                    Frame { scalars: &scalars, blob: &blob, ..Frame::new(Kind::MakeCollectives, orch.run) };
                sent.push(orch.children.send(*chip, &frame, orch.deadline)?);
            }
            for (chip, seq) in chips.iter().zip(sent) {
                orch.children.await_done(*chip, seq, orch.deadline)?;
                orch.check_child(*chip)?;
            }
            Ok(())
        })
    }

    /// Sends the chips what closes the group of a domain that is released before its run is over.
    pub(super) fn close_collectives_of(&mut self, domain: &str) -> Result<(), Failure> {
        let groups = &mut self.base.groups.live;
        let Some(at) = groups.iter().position(|live| live.domain.as_deref() == Some(domain)) else {
            return Ok(());
        };
        let live = groups.remove(at);
        for chip in live.chips {
            let frame =
                Frame { scalars: &[live.id.into(), 0], ..Frame::new(Kind::CloseCollectives, self.run) };
            self.children.send(chip, &frame, self.deadline)?;
        }
        Ok(())
    }

    /// Sends the chips what closes the groups that end with this run.
    pub(super) fn close_collectives(&mut self, clean_up: u64, end: RunEnd) -> Result<(), Failure> {
        let live = std::mem::take(&mut self.base.groups.live);
        let (ended, kept) = live.into_iter().partition(|live| end == RunEnd::Failed || live.domain.is_some());
        self.base.groups.live = kept;
        let ended: Vec<Live> = ended;
        for (id, chip) in ended.iter().flat_map(|live| live.chips.iter().map(|chip| (live.id, *chip))) {
            let failed = u64::from(end == RunEnd::Failed);
            let frame =
                Frame { scalars: &[id.into(), failed], ..Frame::new(Kind::CloseCollectives, clean_up) };
            self.children.send(chip, &frame, self.deadline)?;
        }
        Ok(())
    }

    /// Whether groups end with this run.
    pub(super) fn has_collectives_to_close(&self, end: RunEnd) -> bool {
        self.base.groups.live.iter().any(|live| end == RunEnd::Failed || live.domain.is_some())
    }
}
