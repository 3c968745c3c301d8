//! The algorithms, and how to get one by name.

mod direct;
mod doubling;
mod forward;
mod hello;
mod hierarchy;
mod mesh;
mod ring;
mod tree;

pub use direct::{Direct, DirectKind, MAX_DIRECT};
pub use doubling::RecursiveDoubling;
pub use hello::HelloSend;
pub use hierarchy::Hierarchical;
pub use mesh::MeshAllReduce;
pub use ring::{Ring, RingAccumulate, RingKind};
pub use tree::TreeAllReduce;

use crate::program::Program;
use thiserror::Error;

/// Names that [`build`] knows, the canonical one first, then its other spellings.
pub const NAMES: &[&[&str]] = &[
    &["hello_send"],
    &["ring_accumulate", "ring_allreduce_tcm", "ring_allreduce_hbm", "ring_allreduce_sram"],
    &["ring_reduce_scatter_allgather"],
    &["mesh_allreduce", "mesh_allreduce_4"],
    &["tree_allreduce", "tree_allreduce_7"],
    &["recursive_doubling"],
    &["hierarchical"],
    &["all_gather"],
    &["reduce_scatter"],
    &["direct_one_shot"],
    &["direct_two_shot"],
    &["broadcast"],
    &["reduce"],
    &["gather"],
    &["scatter"],
    &["all_to_all"],
    &["direct_all_gather"],
    &["direct_reduce_scatter"],
    &["direct_reduce_two_shot"],
];

/// What an algorithm may need beside the number of ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Width and height of the mesh; unset: the most square one that fits.
    pub mesh: Option<(u32, u32)>,
    /// PEs per cube, cubes per SIP, SIPs, for `hierarchical`.
    pub levels: Option<[u32; 3]>,
    /// Parts of every message of a ring, or of the tensor of a tree, whose transfers overlap; 0 is 1.
    pub split: u32,
    /// Slots per queue: how many tokens a rank may send before it must receive.
    pub window: u32,
}

/// Why an algorithm cannot be built for a number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BuildError {
    /// No such algorithm.
    #[error("unknown algorithm {name:?}; known: {}", known())]
    Unknown {
        /// The name given.
        name: String,
    },
    /// Too few ranks.
    #[error("{name} needs at least {least} ranks, world_size is {ranks}")]
    TooFew {
        /// Algorithm.
        name: &'static str,
        /// Ranks given.
        ranks: u32,
        /// Ranks needed.
        least: u32,
    },
    /// Too many ranks.
    #[error(
        "{name} has a queue to every rank, for at most {most} ranks, and world_size is {ranks}; use fewer ranks, a ring or a tree"
    )]
    TooMany {
        /// Algorithm.
        name: &'static str,
        /// Ranks given.
        ranks: u32,
        /// The most.
        most: u32,
    },
    /// Not a power of two.
    #[error(
        "{name} needs a number of ranks that is a power of two, and world_size is {ranks}; use {below} or {above}"
    )]
    NotPowerOfTwo {
        /// Algorithm.
        name: &'static str,
        /// Ranks given.
        ranks: u32,
        /// Next lower power.
        below: u32,
        /// Next higher power.
        above: u64,
    },
    /// The mesh does not have as many places as there are ranks.
    #[error("a mesh of {width}x{height} has {} places, world_size is {ranks}", u64::from(*width) * u64::from(*height))]
    BadMesh {
        /// Width given.
        width: u32,
        /// Height given.
        height: u32,
        /// Ranks given.
        ranks: u32,
    },
    /// A prime number of ranks has no 2-D mesh.
    #[error("{ranks} ranks have no 2-D mesh but {ranks}x1; give a width and height, or use a ring")]
    NoMesh {
        /// Ranks given.
        ranks: u32,
    },
    /// The levels do not multiply to the ranks.
    #[error(
        "hierarchical levels {} PEs x {} cubes x {} SIPs make {} ranks, world_size is {ranks}",
        levels[0], levels[1], levels[2], levels.iter().map(|&x| u64::from(x)).product::<u64>()
    )]
    BadLevels {
        /// Levels given.
        levels: [u32; 3],
        /// Ranks given.
        ranks: u32,
    },
    /// More chunks than a chunk number can count.
    #[error(
        "{name} with {ranks} ranks and split {split} needs more than 2^31 chunks or steps; use fewer ranks, or a smaller split"
    )]
    TooLarge {
        /// Algorithm.
        name: &'static str,
        /// Ranks given.
        ranks: u32,
        /// Split given.
        split: u32,
    },
}

fn known() -> String {
    NAMES.iter().flat_map(|names| names.iter()).copied().collect::<Vec<_>>().join(", ")
}

/// The canonical name behind any spelling.
pub fn canonical(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|names| names.contains(&name)).map(|names| names[0])
}

/// Builds an algorithm by any of its names.
pub fn build(name: &str, ranks: u32, shape: &Shape) -> Result<Box<dyn Program>, BuildError> {
    let ring = |kind| Ok(Box::new(Ring::new(kind, ranks, shape)?) as Box<dyn Program>);
    let direct = |kind| Ok(Box::new(Direct::new(kind, ranks)?) as Box<dyn Program>);
    match canonical(name) {
        Some("hello_send") => Ok(Box::new(HelloSend::new(ranks)?)),
        Some("ring_accumulate") => Ok(Box::new(RingAccumulate::new(ranks)?)),
        Some("ring_reduce_scatter_allgather") => ring(RingKind::AllReduce),
        Some("all_gather") => ring(RingKind::AllGather),
        Some("reduce_scatter") => ring(RingKind::ReduceScatter),
        Some("mesh_allreduce") => Ok(Box::new(MeshAllReduce::new(ranks, shape.mesh)?)),
        Some("tree_allreduce") => Ok(Box::new(TreeAllReduce::new(ranks, shape.split)?)),
        Some("recursive_doubling") => Ok(Box::new(RecursiveDoubling::new(ranks)?)),
        Some("hierarchical") => Ok(Box::new(Hierarchical::new(ranks, shape)?)),
        Some("direct_one_shot") => direct(DirectKind::OneShot),
        Some("direct_two_shot") => direct(DirectKind::TwoShot),
        Some("broadcast") => direct(DirectKind::Broadcast),
        Some("reduce") => direct(DirectKind::Reduce),
        Some("gather") => direct(DirectKind::Gather),
        Some("scatter") => direct(DirectKind::Scatter),
        Some("all_to_all") => direct(DirectKind::AllToAll),
        Some("direct_all_gather") => direct(DirectKind::AllGather),
        Some("direct_reduce_scatter") => direct(DirectKind::ReduceScatter),
        Some("direct_reduce_two_shot") => direct(DirectKind::ReduceTwoShot),
        _ => Err(BuildError::Unknown { name: name.to_owned() }),
    }
}

/// `a + b` mod `n` for `a`, `b` below `n`.
#[inline]
fn add_mod(a: u32, b: u32, n: u32) -> u32 {
    let gap = n - b;
    if a >= gap { a - gap } else { a + b }
}

/// `a - b` mod `n` for `a`, `b` below `n`.
#[inline]
fn sub_mod(a: u32, b: u32, n: u32) -> u32 {
    if a >= b { a - b } else { n - (b - a) }
}

fn at_least(name: &'static str, ranks: u32, least: u32) -> Result<(), BuildError> {
    if ranks < least { Err(BuildError::TooFew { name, ranks, least }) } else { Ok(()) }
}
