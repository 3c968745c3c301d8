//! The sizes at which one way of doing things gives way to another: measured, and all in one place. All ranks must use the same, so they
//! are part of the layout's hash.

/// A payload of at most so many bytes travels in the line of its step.
pub(crate) const INLINE: usize = 48;
/// Below this, a tensor in the window is treated like any other memory.
pub(crate) const WINDOW_MIN: usize = 8 << 10;
/// From so many bytes on, input in the window is read where it stands, and not staged.
pub(crate) const BY_REFERENCE_MIN: usize = 32 << 10;
/// From so many staged bytes of one call on, it goes in pieces of [`PIECE`] bytes, so that what is staged is still in the cache when it
/// is read.
pub(crate) const PIECES_FROM: usize = 1 << 20;
/// Bytes of such a piece.
pub(crate) const PIECE: usize = 256 << 10;
/// Bytes of a piece where one rank stages for the others or the others for one: it stages the next one while they read the last.
pub(crate) const ROOTED_PIECE: usize = 64 << 10;
/// With more than two ranks every rank reads what all staged as long as that is at most so many bytes; beyond, each reduces a slice.
pub(crate) const ONE_SHOT_READS: usize = 32 << 10;
/// The same for a reduction to one rank.
pub(crate) const REDUCE_READS: usize = 64 << 10;
/// Slices of a reduction start at multiples of so many bytes: no two ranks write one cache line.
pub(crate) const SLICE_ALIGN: usize = 128;
/// A piece of at least so many bytes is worth waking others before it is read.
pub(crate) const NOTIFY_FIRST: usize = 2 << 10;

/// A call that staged at most so many bytes asks for the next half while its caller computes: 64 B to 1 KiB take a quarter less for it,
/// 16 KiB a tenth, and from 64 KiB on it is in the way. Ranks need not agree on it.
pub(crate) const PREFETCH: usize = 16 << 10;

/// All of them that ranks must agree on, for the hash.
pub(crate) const ALL: [u64; 10] = [
    INLINE as u64,
    WINDOW_MIN as u64,
    BY_REFERENCE_MIN as u64,
    PIECES_FROM as u64,
    PIECE as u64,
    ROOTED_PIECE as u64,
    ONE_SHOT_READS as u64,
    REDUCE_READS as u64,
    SLICE_ALIGN as u64,
    NOTIFY_FIRST as u64,
];

/// Bytes of each half of a rank's staging area.
pub(crate) fn half(nranks: usize) -> usize {
    if nranks <= 16 { 1 << 20 } else { 256 << 10 }
}

/// Bytes of a slot of the ring between two ranks: all rings of a rank take half a megabyte.
pub(crate) fn slot(nranks: usize) -> usize {
    (128 << 10) / nranks.next_power_of_two()
}

/// How many times a rank polls for a step before it waits through the communicator, which takes a clock and a phase. With a core each
/// that is some microseconds.
pub(crate) fn polls(core_per_rank: bool) -> u32 {
    if core_per_rank { 1000 } else { 1 }
}

/// How many times a rank without a core of its own then yields it, before it takes a clock and a phase. Every turn lets the others make
/// their step.
pub(crate) const YIELDS: u32 = 16;

/// How many times it polls before it yields where everybody on its core has come: as long as a yield takes, a microsecond.
pub(crate) const SPINS: u32 = 75;
