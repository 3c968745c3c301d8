//! Kernels of processing elements, written as code.
//!
//! A kernel is a function of the [`Pe`] that it runs on: it loads, computes, sends and receives tensors.
//! [`Kernel::record`] runs it once for every rank and keeps what it does as a schedule, a [`KernelProgram`]. That one schedule
//! is then proved ([`KernelProgram::prove`]), executed with data and timed ([`KernelProgram::run`]).
//!
//! ```
//! use ccl_schedule::Dir;
//! use ipcq_sim::config::{DType, Settings, Topology};
//! use ipcq_sim::engine::Engine;
//! use ipcq_sim::kernel::{Kernel, Pe};
//!
//! /// Every rank passes its tile to the east and adds what arrives from the west.
//! fn ring(pe: &Pe) {
//!     let mine = pe.tensor();
//!     let mut sum = pe.load(&mine);
//!     pe.send(Dir::E, &mine);
//!     for round in 1..pe.ranks() {
//!         let tile = pe.recv(Dir::W, mine.shape(), mine.dtype());
//!         sum += &tile;
//!         if round + 1 < pe.ranks() {
//!             pe.send(Dir::E, &tile); // out of the slot, which is free after this
//!         }
//!     }
//!     pe.store(&mine, &sum);
//! }
//!
//! let program = Kernel::new("ring", 8, &[32], DType::F16).record(ring)?;
//! let settings = program.settings(&Settings::default());
//! program.prove(&settings)?;
//! let start: Vec<Vec<f32>> = (1..=8).map(|rank| vec![rank as f32; 32]).collect();
//! let run = program.run(&Topology::default(), &settings, Engine::Auto, &start)?;
//! assert!((0..8).all(|rank| run.values(rank) == [36.0; 32]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Contract
//! - **IQ-9** A recorded kernel is proved, executed and timed as one schedule: its operations are those of the code, in
//!   the order of the code, and an error names kernel, line and rank.
//! - **IQ-10** Shapes and formats are checked when the kernel is recorded, on both ends of every message.
//!
//! A kernel must do the same when it is recorded again. It cannot see the values of its tensors: what it does may depend on
//! its rank, not on data. Data is captured when it is sent. Computations take the topology's math time once for their first
//! operand's bytes, softmax three times; loads and stores take its copy time, and the access time of memory that is not TCM.

mod error;
mod lower;
mod pe;
mod program;
mod recorder;
mod run;
mod scratch;
mod tensor;

pub use crate::config::BufferKind as Space;
pub use error::{Form, KernelError, KernelFault, Site};
pub use pe::{Pe, RecvFuture, ceil_div};
pub use program::KernelProgram;
pub(crate) use program::TileMap;
pub use run::KernelRun;
pub use tensor::Tensor;

use crate::config::DType;
use ccl_schedule::{Dir, Goal};
use recorder::{Place, Recorder, here};
use scratch::Scratch;
use std::cell::RefCell;
use std::rc::Rc;

/// The most operations of one rank.
pub const MAX_STEPS: usize = 1 << 22;

/// Bytes of scratch memory unless the kernel asks for more.
pub const SCRATCH: u64 = 1 << 20;

type Wires = Box<dyn Fn(u32, Dir) -> Option<(u32, Dir)>>;

/// A kernel to be recorded: ranks, tensor, channels and goal.
pub struct Kernel {
    name: String,
    ranks: u32,
    form: Form,
    space: Space,
    scratch: u64,
    goal: Goal,
    wires: Wires,
}

impl Kernel {
    /// An all-reduce on a ring, with a tensor of this shape and format on every rank, in TCM.
    pub fn new(name: &str, ranks: u32, shape: &[u64], dtype: DType) -> Kernel {
        let kernel = Kernel {
            name: name.to_owned(),
            ranks,
            form: Form { shape: shape.to_vec(), dtype },
            space: Space::Tcm,
            scratch: SCRATCH,
            goal: Goal::AllReduce,
            wires: Box::new(|_, _| None),
        };
        kernel.on_ring()
    }

    /// What is proved at the end; [`Goal::Any`] for a kernel that is not a collective.
    pub fn goal(self, goal: Goal) -> Kernel {
        Kernel { goal, ..self }
    }

    /// Where the tensor lies.
    pub fn tensor_in(self, space: Space) -> Kernel {
        Kernel { space, ..self }
    }

    /// Bytes of scratch memory of a PE.
    pub fn scratch(self, bytes: u64) -> Kernel {
        Kernel { scratch: bytes, ..self }
    }

    /// Channels to any peers: where a send of a rank in a direction goes, and from which direction it arrives.
    pub fn on(self, wires: impl Fn(u32, Dir) -> Option<(u32, Dir)> + 'static) -> Kernel {
        Kernel { wires: Box::new(wires), ..self }
    }

    /// E to the next rank and W to the one before, around a ring.
    pub fn on_ring(self) -> Kernel {
        let n = self.ranks;
        self.on(move |rank, dir| match dir {
            Dir::E if n > 1 => Some(((rank + 1) % n, Dir::W)),
            Dir::W if n > 1 => Some(((rank + n - 1) % n, Dir::E)),
            _ => None,
        })
    }

    /// E, W, S and N on a mesh whose rows and columns close to rings; rank = row * width + column.
    pub fn on_mesh(self, width: u32, height: u32) -> Kernel {
        self.on(move |rank, dir| {
            let (x, y) = (rank % width, rank / width);
            match dir {
                Dir::E if width > 1 => Some((y * width + (x + 1) % width, Dir::W)),
                Dir::W if width > 1 => Some((y * width + (x + width - 1) % width, Dir::E)),
                Dir::S if height > 1 => Some(((y + 1) % height * width + x, Dir::N)),
                Dir::N if height > 1 => Some(((y + height - 1) % height * width + x, Dir::S)),
                _ => None,
            }
        })
    }

    /// `parent`, `child_left` and `child_right` on a binary tree in heap order.
    pub fn on_tree(self) -> Kernel {
        let n = self.ranks;
        self.on(move |rank, dir| match dir {
            Dir::PARENT if rank > 0 => {
                Some(((rank - 1) / 2, if rank % 2 == 1 { Dir::CHILD_LEFT } else { Dir::CHILD_RIGHT }))
            }
            Dir::CHILD_LEFT if 2 * rank + 1 < n => Some((2 * rank + 1, Dir::PARENT)),
            Dir::CHILD_RIGHT if 2 * rank + 2 < n => Some((2 * rank + 2, Dir::PARENT)),
            _ => None,
        })
    }

    /// Runs the kernel for every rank, and pairs every send with its receive.
    #[track_caller]
    pub fn record(&self, body: impl Fn(&Pe)) -> Result<KernelProgram, KernelError> {
        let site = here();
        let mut recorded: Vec<Recorder> = Vec::with_capacity(self.ranks as usize);
        let mut cut = None;
        for rank in 0..self.ranks {
            let mut recorder = self.record_rank(rank, site, &body);
            if let (Some((this, at)), Some((other, _))) = (recorder.cut, cut)
                && this != other
            {
                recorder.fail(at, KernelFault::Cuts { this, other });
            }
            if let Some((dir, _, posted)) = recorder.posted.first().copied() {
                recorder.fail(posted, KernelFault::NeverWaited(dir));
            }
            if let Some(at) = self.host_data(&recorder) {
                recorder.fail(at, KernelFault::HostData);
            }
            if let Some(error) = recorder.error {
                return Err(error);
            }
            cut = cut.or(recorder.cut);
            recorded.push(recorder);
        }
        let chunks = cut.map_or(1, |(chunks, _)| chunks);
        let mut ranks = Vec::with_capacity(recorded.len());
        let mut traffic = Vec::with_capacity(recorded.len());
        for recorder in &recorded {
            let (lowered, own) = lower::lower(recorder, chunks)?;
            ranks.push(lowered);
            traffic.push(own);
        }
        let peers = lower::connect(self, &traffic)?;
        Ok(KernelProgram::new(self, chunks, ranks, peers))
    }

    fn record_rank(&self, rank: u32, site: Site, body: &impl Fn(&Pe)) -> Recorder {
        let recorder = Rc::new(RefCell::new(self.recorder(rank)));
        let whole = Tensor::at(&recorder, Place::Whole, self.form.clone(), site);
        body(&Pe { recorder: recorder.clone(), ranks: self.ranks, tensor: whole });
        // A kernel may keep tensors beyond its end; what was recorded is complete all the same.
        recorder.replace(self.recorder(rank))
    }

    fn recorder(&self, rank: u32) -> Recorder {
        let base = if self.space == Space::Tcm { self.form.bytes() } else { 0 };
        Recorder {
            kernel: self.name.clone(),
            rank,
            steps: Vec::new(),
            values: Vec::new(),
            scratch: Scratch::new(base, self.scratch),
            tensor: (self.space, self.form.bytes()),
            cut: None,
            posted: Vec::new(),
            error: None,
        }
    }

    /// A read of memory that this kernel has not written before, in a kernel whose goal is about contributions.
    fn host_data(&self, recorder: &Recorder) -> Option<Site> {
        if self.goal == Goal::Any {
            return None;
        }
        let mut written = Vec::new();
        for (step, site) in &recorder.steps {
            let place = |value: u32| recorder.values[value as usize].place;
            let region = |value: &u32| matches!(place(*value), Place::Region(..));
            if step
                .reads()
                .iter()
                .filter(|value| region(value))
                .any(|value| !written.contains(&place(*value)))
            {
                return Some(*site);
            }
            written.extend(step.writes().filter(region).map(place));
        }
        None
    }
}

/// The name of a space in messages and logs.
pub(crate) fn space_name(space: Space) -> &'static str {
    match space {
        Space::Tcm => "tcm",
        Space::Sram => "sram",
        Space::Hbm => "hbm",
    }
}
