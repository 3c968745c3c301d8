//! A program on a topology with settings: everything that an engine reads, computed once.

use crate::config::{
    Backpressure, BufferKind, CreditAt, CreditLatency, CreditWait, Fabric, Flow, Passing, Settings, Skew,
    Topology,
};
use crate::kernel::{KernelProgram, Space};
use crate::net::Net;
use crate::schedule_file::ScheduleFileError;
use crate::units::Ps;
pub use ccl_schedule::Cut;
use ccl_schedule::algo::BuildError;
use ccl_schedule::{Op, Program, Tile, Wiring, WiringError};
use thiserror::Error;

/// Above this many messages a simulation is refused: it would take minutes.
pub const MESSAGE_LIMIT: u64 = 4_000_000_000;

/// Above this many channels a simulation is refused: it would need more than about 10 GiB.
pub const CHANNEL_LIMIT: u64 = 1 << 26;

/// Why a program cannot run on a topology.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The algorithm cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The program cannot be wired.
    #[error(transparent)]
    Wiring(#[from] WiringError),
    /// More ranks than PEs.
    #[error(
        "world_size = {ranks}: the topology has {pes} PEs ({} SIPs x {} cubes x {} PEs); use fewer ranks",
        levels[2], levels[1], levels[0]
    )]
    TooManyRanks {
        /// Ranks asked for.
        ranks: u32,
        /// PEs of the topology.
        pes: u32,
        /// PEs per cube, cubes per SIP, SIPs.
        levels: [u32; 3],
    },
    /// A tile does not fit a slot.
    #[error(
        "n_elem = {n_elem}: a tile of {tile} bytes ({n_elem} x {dtype} in {chunks} chunks) does not fit slot_size = \
         {slot} bytes; raise slot_size or cut the tile (split)"
    )]
    TileTooLarge {
        /// Elements of a rank.
        n_elem: u64,
        /// Format.
        dtype: &'static str,
        /// Chunks they are cut into.
        chunks: u32,
        /// Bytes of the largest tile.
        tile: u64,
        /// Bytes of a slot.
        slot: u64,
    },
    /// Queues without slots.
    #[error("n_slots = 0: a queue needs at least one slot; set n_slots to 1 or more")]
    NoSlots,
    /// The straggler's rank does not exist.
    #[error("skew_rank = {rank}: there are only {ranks} ranks, counted from 0")]
    NoSuchStraggler {
        /// Rank given.
        rank: u32,
        /// Ranks of the schedule.
        ranks: u32,
    },
    /// Traffic where channels have wires of their own.
    #[error(
        "traffic from PE {from} to PE {to} needs links that channels share, and here each channel has a wire of its own; use fabric: cubes"
    )]
    TrafficNeedsLinks {
        /// Its source.
        from: u32,
        /// Its destination.
        to: u32,
    },
    /// Traffic of a PE that does not exist, or to itself.
    #[error("traffic from PE {from} to PE {to}: these must be two of the {pes} PEs, which count from 0")]
    NoSuchTraffic {
        /// Its source.
        from: u32,
        /// Its destination.
        to: u32,
        /// PEs of the topology.
        pes: u32,
    },
    /// A schedule file that cannot be used.
    #[error(transparent)]
    File(#[from] ScheduleFileError),
    /// A schedule file with other ranks than the settings.
    #[error("world_size = {wanted}: the schedule in {} has {ranks} ranks; ask for as many", file.display())]
    OtherRanks {
        /// The file.
        file: std::path::PathBuf,
        /// Its ranks.
        ranks: u32,
        /// Those asked for.
        wanted: u32,
    },
    /// Too many channels.
    #[error(
        "world_size = {ranks}: up to {channels} channels are more than the limit of {CHANNEL_LIMIT}; use fewer ranks"
    )]
    TooManyChannels {
        /// Ranks.
        ranks: u32,
        /// Directions of all ranks.
        channels: u64,
    },
    /// Too many messages.
    #[error("{messages} messages are more than the limit of {limit} (world_size = {ranks}); use fewer ranks")]
    TooManyMessages {
        /// Messages of the schedule.
        messages: u64,
        /// Its ranks.
        ranks: u32,
        /// The limit.
        limit: u64,
    },
}

/// What every action costs for one of the two chunk sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Bytes.
    pub bytes: u64,
    /// On a link, by bandwidth.
    pub link: [Ps; 4],
    /// Writing a slot.
    pub write: Ps,
    /// Reading a slot.
    pub read: Ps,
    /// Adding.
    pub math: Ps,
    /// Copying within the PE.
    pub copy: Ps,
}

/// Everything an engine reads.
pub struct Plan<'p> {
    /// The schedule.
    pub program: &'p dyn Program,
    /// Its channels.
    pub wiring: Wiring,
    /// Their paths.
    pub net: Net,
    /// How the tensor is cut.
    pub cut: Cut,
    /// Costs of the two chunk sizes, the larger first, then of the other sizes of a kernel.
    pub costs: Vec<Costs>,
    /// Chunks from this one on are the smaller kind.
    pub(crate) smaller_from: u32,
    /// Slots per queue.
    pub slots: u32,
    /// Whether the first send of what a tile holds copies it to the window.
    pub(crate) stages: bool,
    /// Whether moves to and from scratch tiles are part of the sum that they belong to, and take no time of their own.
    pub(crate) fuses: bool,
    /// The memory that they lie in.
    pub(crate) buffer_kind: BufferKind,
    /// Bytes of a slot.
    pub(crate) slot_size: u64,
    /// How a PE waits.
    pub backpressure: Backpressure,
    /// When a credit is returned.
    pub credit_at: CreditAt,
    /// Whether a receive waits for its credit.
    pub credit_wait: CreditWait,
    /// Latency of a credit, per channel.
    pub credit_latency: Vec<Ps>,
    /// Stragglers.
    pub skew: Skew,
    /// The program, if it is a recorded kernel.
    pub(crate) kernel: Option<&'p KernelProgram>,
    /// Compute traffic; its paths are behind those of the channels, and its size classes are the last.
    pub(crate) flows: Vec<Flow>,
    /// What an earlier run on the same clock left behind.
    pub(crate) before: Option<Before>,
}

/// The state of a system in which a run starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before {
    /// When every PE is free.
    pub(crate) pes: Vec<Ps>,
    /// When every link is free; those of another wiring do not count.
    pub(crate) links: Vec<Ps>,
}

/// The most messages of one channel.
fn most_sends(program: &dyn Program, wiring: &Wiring) -> u32 {
    let mut sends = vec![0_u32; wiring.channels().len()];
    for rank in 0..program.ranks() {
        for op in (0..).map_while(|step| program.op(rank, step)) {
            if let Op::Send { dir, .. } = op
                && let Some(count) = sends.get_mut(wiring.tx(rank, dir) as usize)
            {
                *count += 1;
            }
        }
    }
    sends.into_iter().max().unwrap_or(0).max(1)
}

impl<'p> Plan<'p> {
    /// Wires, routes and prices a program; `limit` bounds its messages.
    pub fn new(
        program: &'p dyn Program,
        topology: &Topology,
        settings: &Settings,
        limit: u64,
    ) -> Result<Plan<'p>, PlanError> {
        let ranks = program.ranks();
        if topology.fabric == Fabric::Cubes && ranks > topology.pe_count() {
            let levels = topology.levels();
            return Err(PlanError::TooManyRanks { ranks, pes: topology.pe_count(), levels });
        }
        if settings.n_slots == 0 {
            return Err(PlanError::NoSlots);
        }
        if let Skew::One(rank, _) = settings.skew
            && rank >= ranks
        {
            return Err(PlanError::NoSuchStraggler { rank, ranks });
        }
        if program.messages() > limit {
            return Err(PlanError::TooManyMessages { messages: program.messages(), ranks, limit });
        }
        let channels = u64::from(ranks) * program.dirs().len() as u64;
        if channels > CHANNEL_LIMIT {
            return Err(PlanError::TooManyChannels { ranks, channels });
        }
        let cut =
            Cut { elems: settings.n_elem, chunks: program.chunks(), elem_bytes: settings.dtype.bytes() };
        let kernel = program.known().and_then(|any| any.downcast_ref::<KernelProgram>());
        let [tile, _] = cut.sizes();
        let in_memory = topology.fabric == Fabric::Memory;
        // A kernel need not send whole chunks; its own check knows what it sends.
        if kernel.is_none() && !in_memory && tile > settings.slot_size {
            return Err(PlanError::TileTooLarge {
                n_elem: settings.n_elem,
                dtype: settings.dtype.name(),
                chunks: cut.chunks,
                tile,
                slot: settings.slot_size,
            });
        }
        let flows = &settings.traffic;
        if let Some(Flow { from, to, .. }) = flows.first()
            && topology.has_wires()
        {
            return Err(PlanError::TrafficNeedsLinks { from: *from, to: *to });
        }
        let outside = |flow: &&Flow| flow.from.max(flow.to) >= topology.pe_count() || flow.from == flow.to;
        if let Some(Flow { from, to, .. }) = flows.iter().find(outside) {
            return Err(PlanError::NoSuchTraffic { from: *from, to: *to, pes: topology.pe_count() });
        }
        let wiring = Wiring::install(program)?;
        let whole = cut.elems * cut.elem_bytes;
        let of_memory = topology.of_memory(whole);
        let topology = if in_memory { &of_memory } else { topology };
        let net = Net::new(topology, &wiring, flows);
        let memory = topology.memory(settings.buffer_kind);
        let others = kernel.map_or(&[][..], |kernel| &kernel.classes);
        let sizes = cut.sizes().into_iter().chain(others.iter().copied());
        let sizes = sizes.chain(flows.iter().map(|flow| flow.bytes));
        let host = |bytes| {
            let host = topology.host.costs(ranks, whole, bytes);
            Costs {
                bytes,
                link: [0; 4],
                write: 0,
                read: host.take,
                math: host.fold - host.take,
                copy: host.stage,
            }
        };
        let wires = |bytes| Costs {
            bytes,
            link: net.rates().map(|rate| rate.time(bytes)),
            write: memory.access(bytes),
            read: memory.access(bytes),
            math: topology.math.time(bytes),
            copy: topology.copy.time(bytes),
        };
        let costs: Vec<Costs> =
            sizes.map(|bytes| if in_memory { host(bytes) } else { wires(bytes) }).collect();
        let credit_latency = (0..wiring.channels().len() as u32)
            .map(|channel| {
                let slowest = net.path(channel).map(|hop| net.rates()[hop.rate as usize]);
                let drain =
                    slowest.reduce(|a, b| a.min(b)).map_or(0, |rate| rate.time(settings.credit_bytes));
                let latency: u64 =
                    net.path(channel).map(|hop| u64::from(hop.over) + u64::from(hop.prop)).sum();
                match settings.credit_latency {
                    CreditLatency::Drain if !in_memory => drain,
                    CreditLatency::Drain => latency,
                    CreditLatency::Path => drain + latency,
                }
            })
            .collect();
        let slots = if in_memory { most_sends(program, &wiring) } else { settings.n_slots };
        Ok(Plan {
            program,
            wiring,
            net,
            cut,
            costs,
            smaller_from: if cut.larger() > 0 { cut.larger() } else { 0 },
            // Nothing is copied to slots where ranks read each other's memory.
            slots,
            stages: in_memory && topology.host.passing == Passing::Staged,
            fuses: in_memory,
            buffer_kind: settings.buffer_kind,
            slot_size: settings.slot_size,
            backpressure: settings.backpressure,
            credit_at: settings.credit_at,
            credit_wait: settings.credit_wait,
            credit_latency,
            skew: settings.skew,
            kernel,
            flows: flows.clone(),
            before: None,
        })
    }

    /// The size class of a tile of `program`, which is this plan's; scratch tiles of a schedule count as the largest chunk.
    #[inline]
    pub(crate) fn class<G: Program + ?Sized>(&self, program: &G, rank: u32, tile: u32) -> usize {
        match program.size_class(rank, tile) {
            Some(class) => class as usize,
            None => usize::from(tile >= self.smaller_from && tile < self.cut.chunks),
        }
    }

    /// How many bits a size class takes.
    pub(crate) fn class_bits(&self) -> u32 {
        (self.costs.len() - 1).ilog2() + 1
    }

    /// What it costs a kernel to reach memory that is not TCM, besides the copy.
    pub(crate) fn reach(&self, rank: u32, tile: u32) -> Ps {
        let Some(kernel) = self.kernel else { return 0 };
        let tile = kernel.map.tile(rank, tile);
        match tile.home {
            None | Some((Space::Tcm, _)) => 0,
            Some((space, _)) => self.net.topology().memory(space).access(tile.bytes),
        }
    }

    /// The time of a copy within the PE.
    #[inline]
    pub(crate) fn copy(&self, costs: &Costs, from: Tile, to: u32) -> Ps {
        let is_scratch = |tile: u32| tile >= self.cut.chunks;
        let is_fused = self.fuses
            && (is_scratch(to) || if let Tile::Mem(tile) = from { is_scratch(tile) } else { true });
        if is_fused { 0 } else { costs.copy }
    }

    /// The time of a computation that passes over its data so many times.
    pub(crate) fn math(&self, class: usize, passes: u64) -> Ps {
        let once = self.costs[class].math;
        once + (passes - 1) * once.saturating_sub(self.net.topology().math.setup)
    }

    /// When the first PE may start.
    pub(crate) fn earliest(&self) -> Ps {
        self.before.as_ref().and_then(|before| before.pes.iter().min()).copied().unwrap_or(0)
    }

    /// When a rank starts.
    pub fn start(&self, rank: u32) -> Ps {
        self.before.as_ref().map_or(0, |before| before.pes[rank as usize]) + self.late(rank)
    }

    fn late(&self, rank: u32) -> Ps {
        match self.skew {
            Skew::None => 0,
            Skew::One(late, by) => {
                if rank == late {
                    by
                } else {
                    0
                }
            }
            Skew::Random(seed, below) => {
                let mut x = seed ^ u64::from(rank).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                if below == 0 { 0 } else { (x ^ (x >> 31)) % below }
            }
        }
    }
}
