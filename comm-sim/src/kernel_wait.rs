//! What a rank's kernel waits for, as it records it for the parent of the ranks.

use comm_context::abi::{CommWait, PlacedContext};
use rendezvous::Prepared;
use std::ops::Range;

/// Where a rank's record is: behind the context of its base window, on a cache line of its own.
pub(crate) fn wait_record(backend_bytes: Range<usize>) -> usize {
    backend_bytes.start + size_of::<PlacedContext>().next_multiple_of(64)
}

/// What the kernel of `rank` waits for, if a wait of it is slow. The kernel writes it and may write anything.
pub fn kernel_wait(prepared: &Prepared, rank: u32) -> Option<CommWait> {
    let mut bytes = [0; size_of::<CommWait>()];
    prepared.region().read(wait_record(prepared.backend_bytes(rank)), &mut bytes).ok()?;
    let wait = CommWait::decode(bytes);
    (wait.word != 0).then_some(wait)
}
