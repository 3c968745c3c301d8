//! Errors of this crate, and the errors of others as a communicator's.

use comm_context::comm::CommError;
use shared_memory::RegionError;
use std::path::PathBuf;
use std::sync::Arc;

/// What a rank says of a process that was asked to stop.
pub(crate) const INTERRUPTED: &str = "this process was interrupted; start the whole group again";

/// Why ranks cannot join at a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
    /// The path's folder does not exist, or is not a folder.
    #[error(
        "{}: the folder of the rendezvous path cannot be used ({reason}); create it, or choose another path",
        .path.display()
    )]
    NoFolder {
        /// The path.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The path's folder is not the one any more at which ranks have begun to join.
    #[error(
        "{}: the folder of the rendezvous path was replaced while ranks joined ({what}), so that ranks which come \
         now cannot find those that have joined; keep the folder until all ranks have joined, and start them again",
        .path.display()
    )]
    FolderReplaced {
        /// The path.
        path: PathBuf,
        /// What became of the folder.
        what: &'static str,
    },
    /// Something exists at the path.
    #[error(
        "{}: nothing may exist at the rendezvous path, and there is {what}; \
         remove it, or choose another path",
        .path.display()
    )]
    PathTaken {
        /// The path.
        path: PathBuf,
        /// What it is, whose, and what is odd about it.
        what: String,
    },
    /// A process of another user holds the name.
    #[error(
        "{}: the rendezvous name is held by a process of another user (uid {uid}); \
         choose a path in a folder of your own",
        .path.display()
    )]
    ForeignOwner {
        /// The path.
        path: PathBuf,
        /// The other user.
        uid: u32,
    },
    /// A process holds the name and takes part in no rendezvous.
    #[error(
        "{}: the rendezvous name is held by {holder}, which {why}; end that process, or choose another path",
        .path.display()
    )]
    NameHeld {
        /// The path.
        path: PathBuf,
        /// The process, as far as it is visible.
        holder: String,
        /// What it does instead.
        why: String,
    },
    /// This process is a forked copy of the one that joined the group.
    #[error(
        "the communicator belongs to pid {owner}, and this process is a forked copy of it; \
         create a communicator in this process"
    )]
    ForkedCopy {
        /// The process that joined.
        owner: u32,
    },
    /// The leader refused this rank, or ranks disagree.
    #[error("{}: the rendezvous failed: {reason}", .path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

impl From<RendezvousError> for CommError {
    fn from(error: RendezvousError) -> Self {
        Self::Backend { what: "init".to_owned(), source: Arc::new(error) }
    }
}

/// A region's error as a communicator's.
pub fn region_error(error: RegionError) -> CommError {
    match error {
        RegionError::OutOfMemory { label, need, have, limit } => {
            CommError::OutOfMemory { what: format!("{label} ({limit})"), need, have: Some(have) }
        }
        RegionError::System { call, errno } => {
            CommError::System { call, errno, what: "the group's shared memory".to_owned() }
        }
        other => {
            CommError::Backend { what: "shared memory of the group".to_owned(), source: Arc::new(other) }
        }
    }
}
