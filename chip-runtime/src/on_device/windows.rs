//! The windows of this chip and its peers on their devices, and what is done with words of them.

use crate::signals::{Domain, Signal, SignalError, SignalOp, Signaller, Wait};
use comm_context::abi::{CommContext, DeviceAddr};
use comm_context::comm::{CommError, Communicator, DeviceWords, Timeout};
use deadline::Deadline;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const MOMENT: Duration = Duration::from_millis(1);

/// The windows that a chip and its peers have on their devices.
pub(super) struct DeviceWindows {
    comm: Arc<Box<dyn Communicator>>,
    /// The base window first; without bases where there is none.
    domains: Vec<Windows>,
}

#[derive(Debug)]
struct Windows {
    name: String,
    context: DeviceAddr,
    /// Ranks of the communicator.
    members: Vec<u32>,
    /// This chip's rank in the domain.
    me: u32,
    size: u64,
    bases: Vec<DeviceAddr>,
}

impl DeviceWindows {
    pub(super) fn over(comm: Arc<Box<dyn Communicator>>) -> Result<Self, SignalError> {
        let base = comm.window();
        let mut windows = Self { comm, domains: Vec::new() };
        match base {
            Ok(window) => {
                let everybody: Vec<u32> = (0..windows.comm.nranks()).collect();
                windows.add("base", window.context, &everybody)?;
            }
            Err(CommError::NoWindow) => {
                let (name, members, bases) = (String::new(), Vec::new(), Vec::new());
                let context = DeviceAddr::NULL;
                windows.domains.push(Windows { name, context, members, me: 0, size: 0, bases });
            }
            Err(error) => return Err(error.into()),
        }
        Ok(windows)
    }

    pub(super) fn add(
        &mut self,
        name: &str,
        context: DeviceAddr,
        members: &[u32],
    ) -> Result<Domain, SignalError> {
        let mut bytes = [0; size_of::<CommContext>()];
        self.comm.read(context, &mut bytes)?;
        let decoded = CommContext::decode(&bytes).map_err(CommError::impossible)?;
        let nranks = decoded.nranks();
        if members.len() != nranks as usize {
            return Err(SignalError::NoSuchRank { rank: members.len() as u32, nranks });
        }
        self.domains.push(Windows {
            name: name.to_owned(),
            context,
            members: members.to_vec(),
            me: decoded.rank(),
            size: decoded.win_size,
            bases: decoded.windows_in[..members.len()].iter().copied().map(DeviceAddr).collect(),
        });
        Ok(Domain(self.domains.len() as u32 - 1))
    }

    pub(super) fn forget_domains(&mut self) {
        self.domains.truncate(1);
    }

    /// The domain whose `CommContext` is at `context`.
    pub(super) fn at(&self, context: DeviceAddr) -> Option<Domain> {
        let at = self.domains.iter().position(|windows| !context.is_null() && windows.context == context)?;
        Some(Domain(at as u32))
    }

    pub(super) fn rank(&self) -> u32 {
        self.comm.rank()
    }

    pub(super) fn name(&self, domain: Domain) -> &str {
        self.domains.get(domain.0 as usize).map_or("?", |windows| &windows.name)
    }

    /// Where all windows lie.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.domains.iter().flat_map(|windows| windows.bases.iter().map(|base| base.0..base.0 + windows.size))
    }

    /// The part of a window that starts at `offset`.
    pub(super) fn part(
        &self,
        domain: Domain,
        rank: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<DeviceAddr, SignalError> {
        let windows = self.domain(domain)?;
        let (size, nranks) = (windows.size, windows.members.len() as u32);
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(SignalError::OutsideWindow { offset, size });
        }
        let base = windows.bases.get(rank as usize).ok_or(SignalError::NoSuchRank { rank, nranks })?;
        Ok(DeviceAddr(base.0 + offset))
    }

    fn word(&self, domain: Domain, rank: u32, offset: u64) -> Result<DeviceAddr, SignalError> {
        let word = self.part(domain, rank, offset, size_of::<u32>() as u64)?;
        if offset.is_multiple_of(4) { Ok(word) } else { Err(SignalError::NotAligned { at: offset }) }
    }

    /// The word of a wait, and the rank of the communicator that signals it, if it names one.
    pub(super) fn awaited(&self, wait: &Wait) -> Result<(DeviceAddr, Option<u32>), SignalError> {
        let windows = self.domain(wait.domain)?;
        let nranks = windows.members.len() as u32;
        let from = match wait.from {
            Signaller::Unknown => None,
            Signaller::Rank(rank) => {
                let member = windows.members.get(rank as usize).copied();
                Some(member.ok_or(SignalError::NoSuchRank { rank, nranks })?)
            }
        };
        Ok((self.word(wait.domain, windows.me, wait.offset)?, from))
    }

    /// Refuses a signal that cannot be.
    pub(super) fn check_signal(&self, signal: &Signal) -> Result<(), SignalError> {
        self.word(signal.domain, signal.rank, signal.offset)?;
        self.words().map(drop)
    }

    /// What a word holds.
    pub(super) fn load(&self, word: DeviceAddr) -> Result<u32, SignalError> {
        let mut bytes = [0; 4];
        self.comm.read(word, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Copies bytes of a window to the host.
    pub(super) fn read(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), SignalError> {
        Ok(self.comm.read(from, into)?)
    }

    /// Sends a signal. It has arrived when this returns.
    pub(super) fn send(&self, signal: &Signal, until: Deadline) -> Result<(), SignalError> {
        let word = self.word(signal.domain, signal.rank, signal.offset)?;
        match signal.op {
            SignalOp::Set(value) => self.comm.write(word, &value.to_le_bytes())?,
            SignalOp::Add(by) => {
                // The caller has found that time is left; a moment of it at least.
                let within = Timeout::new(until.left().max(MOMENT)).map_err(CommError::from)?;
                self.words()?.add_word(word, by, within)?;
            }
        }
        Ok(())
    }

    /// Fails when one of these ranks is gone or the run was cancelled; tells this chip's kernels if it was.
    pub(super) fn check_ranks(&self, ranks: &[u32], until: Deadline) -> Result<(), SignalError> {
        self.comm.relay_abort()?;
        Ok(self.words()?.check_ranks(ranks, until.start_ns(), Timeout::MAX)?)
    }

    pub(super) fn everybody(&self) -> Vec<u32> {
        (0..self.comm.nranks()).filter(|rank| *rank != self.rank()).collect()
    }

    fn words(&self) -> Result<&dyn DeviceWords, SignalError> {
        self.comm.device_words().ok_or(SignalError::NoWindow { domain: Domain::BASE })
    }

    fn domain(&self, domain: Domain) -> Result<&Windows, SignalError> {
        let windows = self.domains.get(domain.0 as usize).filter(|windows| !windows.bases.is_empty());
        windows.ok_or(SignalError::NoWindow { domain })
    }
}

impl fmt::Debug for DeviceWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceWindows").field("domains", &self.domains).finish_non_exhaustive()
    }
}
