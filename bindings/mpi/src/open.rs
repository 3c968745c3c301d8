//! A group of collectives for the ranks of a communicator that are on one host.

use collectives::{CollError, Collectives, Options, group_bytes};
use comm_context::comm::{AddressSpace, CommError, Communicator, Membership, Timeout};
use comm_sim::SimComm;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long ranks that all know of the group wait for each other.
const RENDEZVOUS: Duration = Duration::from_secs(20);

/// Addresses for contexts and guards, besides the group's window.
const BESIDES: usize = 1 << 20;

/// One rank's end.
pub(crate) struct Group {
    pub(crate) coll: Collectives<'static>,
    comm: Arc<Box<dyn Communicator>>,
}

/// Why a group was not made.
#[derive(Debug)]
pub(crate) enum OpenError {
    Comm(CommError),
    Coll(CollError),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Comm(error) => error.fmt(f),
            Self::Coll(error) => error.fmt(f),
        }
    }
}

impl From<CommError> for OpenError {
    fn from(error: CommError) -> Self {
        Self::Comm(error)
    }
}

impl From<CollError> for OpenError {
    fn from(error: CollError) -> Self {
        Self::Coll(error)
    }
}

impl Group {
    /// Meets the others at `path`. Programs have many communicators: each gets as many addresses as its window needs, and no pool.
    pub(crate) fn open(path: &Path, rank: u32, nranks: u32) -> Result<Self, OpenError> {
        let me = Membership::new(rank, nranks).map_err(CommError::from)?;
        let within = Timeout::new(RENDEZVOUS).map_err(CommError::from)?;
        let bytes = group_bytes(nranks as usize, 0).unwrap_or(0) + BESIDES;
        let space = AddressSpace::new(bytes).map_err(CommError::from)?;
        let comm = SimComm::rendezvous_with(path, me, Some(space), within)?;
        let comm: Arc<Box<dyn Communicator>> = Arc::new(Box::new(comm));
        // How long a rank computes before it comes to a call is its own affair; that it lives is watched.
        let options = Options::new().pool(0).timeout(Timeout::MAX);
        let coll = Collectives::new(comm.clone(), options)?;
        Ok(Self { coll, comm })
    }

    /// Ends this rank's part. What it gave to others stays there until they leave, too.
    pub(crate) fn close(self) {
        self.coll.abandon();
        if let Some(comm) = Arc::into_inner(self.comm) {
            let _ = comm.destroy(Timeout::DEFAULT);
        }
    }
}
