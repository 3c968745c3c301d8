//! The windows of this chip and its peers on their devices, and what is done with words of them.

use crate::signals::{Declarations, Domain, Peers, Signal, SignalError, SignalOp, Signaller, Wait};
use comm_context::abi::{CommContext, DeviceAddr};
use comm_context::comm::{CommError, Communicator, DeviceWords, Timeout};
use deadline::{Deadline, monotonic_ns};
use shared_memory::Region;
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
    /// Where graphs tell each other what they signal, if they do.
    declarations: Option<Declarations>,
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

impl Windows {
    fn no_rank(&self, rank: u32) -> SignalError {
        SignalError::NoSuchRank { rank, nranks: self.members.len() as u32, window: self.name.clone() }
    }
}

impl DeviceWindows {
    pub(super) fn over(comm: Arc<Box<dyn Communicator>>) -> Result<Self, SignalError> {
        let base = comm.window();
        let mut windows = Self { comm, domains: Vec::new(), declarations: None };
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
            let (rank, window) = (members.len() as u32, name.to_owned());
            return Err(SignalError::NoSuchRank { rank, nranks, window });
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

    /// Graphs tell each other what they signal, through words that lie at `words_at` of a region that all ranks share.
    pub(super) fn exchange_over(&mut self, words: Arc<Region>, words_at: usize) -> Result<(), SignalError> {
        let (rank, nranks) = (self.rank(), self.comm.nranks());
        self.declarations = Some(Declarations::new(words, words_at, rank, nranks)?);
        Ok(())
    }

    pub(super) fn declarations(&self) -> Option<&Declarations> {
        self.declarations.as_ref()
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
        let size = windows.size;
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(SignalError::OutsideWindow { offset, size, window: windows.name.clone() });
        }
        let base = windows.bases.get(rank as usize).ok_or_else(|| windows.no_rank(rank))?;
        Ok(DeviceAddr(base.0 + offset))
    }

    fn word(&self, domain: Domain, rank: u32, offset: u64) -> Result<DeviceAddr, SignalError> {
        let word = self.part(domain, rank, offset, size_of::<u32>() as u64)?;
        if offset.is_multiple_of(4) { Ok(word) } else { Err(SignalError::NotAligned { at: offset }) }
    }

    /// The word of a wait, and the rank of the communicator that signals it, if it names one.
    pub(super) fn awaited(&self, wait: &Wait) -> Result<(DeviceAddr, Option<u32>), SignalError> {
        let from = match wait.from {
            Signaller::Unknown => None,
            Signaller::Rank(rank) => Some(self.member(wait.domain, rank)?),
        };
        Ok((self.word(wait.domain, self.domain(wait.domain)?.me, wait.offset)?, from))
    }

    /// A rank of a domain as one of the communicator.
    pub(super) fn member(&self, domain: Domain, rank: u32) -> Result<u32, SignalError> {
        let windows = self.domain(domain)?;
        windows.members.get(rank as usize).copied().ok_or_else(|| windows.no_rank(rank))
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

    /// Copies bytes of the host to a window.
    pub(super) fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), SignalError> {
        Ok(self.comm.write(to, bytes)?)
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

    /// What the word of a signal holds, some time after it was sent.
    pub(super) fn value(&self, signal: &Signal) -> Result<u32, SignalError> {
        self.load(self.word(signal.domain, signal.rank, signal.offset)?)
    }

    /// Fails when one of these ranks is gone or the run was cancelled; tells this chip's kernels if it was.
    pub(super) fn check_ranks(&self, ranks: &[u32], until: Deadline) -> Result<(), SignalError> {
        self.comm.relay_abort()?;
        Ok(self.words()?.check_ranks(ranks, until.start_ns(), Timeout::MAX)?)
    }

    pub(super) fn everybody(&self) -> Vec<u32> {
        (0..self.comm.nranks()).filter(|rank| *rank != self.rank()).collect()
    }

    pub(super) fn holds(&self, at: DeviceAddr) -> bool {
        self.ranges().any(|range| range.contains(&at.0))
    }

    fn words(&self) -> Result<&dyn DeviceWords, SignalError> {
        self.comm.device_words().ok_or(SignalError::NoWindow { domain: Domain::BASE })
    }

    fn domain(&self, domain: Domain) -> Result<&Windows, SignalError> {
        let windows = self.domains.get(domain.0 as usize).filter(|windows| !windows.bases.is_empty());
        windows.ok_or(SignalError::NoWindow { domain })
    }
}

impl Peers for DeviceWindows {
    fn check_rank(&self, rank: u32) -> Result<(), SignalError> {
        self.check_ranks(&[rank], Deadline::since(monotonic_ns(), MOMENT))
    }

    fn patiently(&self, until: Deadline) -> mailbox_atomics::Wait<'_> {
        mailbox_atomics::Wait::until(until)
    }

    fn window_name(&self, domain: Domain) -> String {
        self.name(domain).to_owned()
    }
}

impl fmt::Debug for DeviceWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceWindows").field("domains", &self.domains).finish_non_exhaustive()
    }
}
