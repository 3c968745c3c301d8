//! What the cases share.

use super::TestRank;
use crate::abi::{AbiError, CommContext, DeviceAddr};
use crate::comm::{AllocationId, CommError, Communicator, DomainSpec, Membership, Window};

/// What a case returns.
pub(super) type Outcome<T = ()> = Result<T, String>;

/// Fails the case with a text unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

/// Fails the case unless a call is refused with an error of this shape.
macro_rules! ensure_refused {
    ($call:expr, $pattern:pat $(if $guard:expr)?) => {
        match $call {
            Err($pattern) $(if $guard)? => {}
            Err(other) => {
                let (call, pattern) = (stringify!($call), stringify!($pattern));
                return Err(format!("{call} gave `{other}` ({other:?}), not {pattern}"));
            }
            Ok(_) => return Err(format!("{} was accepted, not {}", stringify!($call), stringify!($pattern))),
        }
    };
}

pub(super) use {ensure, ensure_refused};

/// Adds to an error what the case was doing.
pub(super) trait During<T> {
    fn during(self, what: &str) -> Outcome<T>;
}

impl<T> During<T> for Result<T, CommError> {
    fn during(self, what: &str) -> Outcome<T> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

impl<T> During<T> for Result<T, AbiError> {
    fn during(self, what: &str) -> Outcome<T> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

impl TestRank<'_> {
    /// Joins the group.
    pub(super) fn join(&self) -> Outcome<Box<dyn Communicator>> {
        let me = Membership::new(self.rank, self.nranks).map_err(|error| error.to_string())?;
        let comm = (self.open)(me).during("open")?;
        let is = (comm.rank(), comm.nranks());
        ensure!(is == (self.rank, self.nranks), "the communicator says it is rank {} of {}", is.0, is.1);
        Ok(comm)
    }

    /// Waits for all ranks, so that none leaves while another still reads, and destroys the communicator.
    pub(super) fn leave(&self, comm: Box<dyn Communicator>) -> Outcome {
        self.barrier(comm.as_ref(), "the barrier before destroy")?;
        comm.destroy(self.timeout).during("destroy")
    }

    /// A barrier that must succeed.
    pub(super) fn barrier(&self, comm: &dyn Communicator, what: &str) -> Outcome {
        comm.barrier(self.timeout).during(what)
    }

    /// Every rank of the group, in order.
    pub(super) fn all_ranks(&self) -> Vec<u32> {
        (0..self.nranks).collect()
    }

    /// A domain of `ranks` as this rank asks for it, if it is a member.
    pub(super) fn domain<'r>(&self, id: u64, ranks: &'r [u32], window_size: usize) -> Option<DomainSpec<'r>> {
        let at = ranks.iter().position(|rank| *rank == self.rank)?;
        Some(DomainSpec { id: AllocationId(id), ranks, domain_rank: u32::try_from(at).ok()?, window_size })
    }
}

/// Reads a context back through the communicator and decodes it.
pub(super) fn context_at(comm: &dyn Communicator, at: DeviceAddr) -> Outcome<CommContext> {
    let mut bytes = [0; size_of::<CommContext>()];
    comm.read(at, &mut bytes).during("reading the context back")?;
    CommContext::decode(&bytes).during("decoding the context")
}

/// The context of a window, checked against the window.
pub(super) fn context_of(comm: &dyn Communicator, window: &Window) -> Outcome<CommContext> {
    let context = context_at(comm, window.context)?;
    ensure!(
        context.win_size == window.size as u64,
        "winSize is {}, the window has {} bytes",
        context.win_size,
        window.size
    );
    let own = context.window_in(context.rank()).during("its own window")?;
    ensure!(own == window.base, "windowsIn[{}] is {own}, the window is at {}", context.rank(), window.base);
    Ok(context)
}

/// The address `offset` bytes into the window of `rank`.
pub(super) fn address_in(context: &CommContext, rank: u32, offset: usize) -> Outcome<DeviceAddr> {
    let base = context.window_in(rank).during("a peer's window")?;
    base.checked_add(offset as u64).ok_or_else(|| format!("{base} + {offset} overflows"))
}

/// Fails unless `len` bytes from `at` are zero.
pub(super) fn ensure_zero(comm: &dyn Communicator, at: DeviceAddr, len: usize, whose: &str) -> Outcome {
    let mut bytes = vec![0xaa; len];
    comm.read(at, &mut bytes).during(whose)?;
    match bytes.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(offset) => Err(format!("byte {offset} of {whose} is {:#04x}, not 0", bytes[offset])),
    }
}

/// 64 bytes that are unique to this writer, owner and round.
pub(super) fn pattern(writer: u32, owner: u32, round: u32) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (index, chunk) in bytes.chunks_exact_mut(16).enumerate() {
        let words = [writer + 1, owner + 1, round + 1, index as u32];
        for (slot, word) in chunk.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

/// Fails unless the pattern of this writer, owner and round is at `at`.
pub(super) fn ensure_pattern(
    comm: &dyn Communicator,
    at: DeviceAddr,
    (writer, owner, round): (u32, u32, u32),
) -> Outcome {
    let mut bytes = [0; 64];
    comm.read(at, &mut bytes).during("reading a pattern")?;
    ensure!(
        bytes == pattern(writer, owner, round),
        "at {at} is not what rank {writer} wrote to rank {owner} in round {round}, but {bytes:02x?}"
    );
    Ok(())
}
