//! Collectives as graphs on the chips: tasks that wait for signals of peers, and signal them, without the parent in between.

use crate::cli::{Arguments, Flag, usage};
use crate::exit::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use worker_orch::runtime::signals::{Domain, NamedBuffer, Signal, SignalOp, Signaller, Wait};
use worker_orch::runtime::{FrontEnd, KernelId, Kernels, Limits, RuntimeError, TaskArgs};
use worker_orch::{DType, DeviceAddr, ErrorCode, Failure, Graphs, Task, TensorDesc, flat_tensor};

/// The flag of the picture of a graph.
pub const DOT_FLAG: Flag = Flag::with_value(
    "dot",
    "FILE",
    "Write a chip's first graph to this file, for Graphviz; one file for each chip with {rank} in its name",
);

/// How a program runs its graphs.
#[derive(Clone, Debug)]
pub struct GraphOptions {
    /// Who builds them, and when their tasks run.
    pub front_end: FrontEnd,
    /// How large the runtime is: as large as the platform.
    pub limits: Limits,
    /// Where the first graph goes as text for `dot`, if anywhere.
    pub dot: Option<PathBuf>,
}

impl GraphOptions {
    /// Reads `--runtime`, `--dot` and the name of the platform. `None` without `--runtime`.
    pub fn read(arguments: &Arguments) -> Result<Option<Self>, Error> {
        arguments.requires("dot", "runtime")?;
        let front_end = arguments.value_with("runtime", |name| {
            FrontEnd::by_name(name).ok_or_else(|| "write prebuilt, explicit or inferred".to_owned())
        })?;
        front_end.map(|front_end| Self::of(front_end, arguments)).transpose()
    }

    /// The same with this front end.
    pub fn of(front_end: FrontEnd, arguments: &Arguments) -> Result<Self, Error> {
        let platform = arguments.value::<String>("platform")?.unwrap_or_default();
        let dot = arguments.path("dot");
        if let Some(file) = &dot {
            let first = file.to_string_lossy().replace("{rank}", "0");
            let created = std::fs::File::create(&first);
            created.map_err(|error| usage(format!("--dot {first}: {error}")))?;
        }
        Ok(Self { front_end, limits: Limits::of_platform(&platform), dot })
    }
}

/// Where the data and the signals of a chip's window are for graphs.
pub struct Peers {
    /// This chip, and how many there are.
    pub rank: u32,
    /// How many there are.
    pub nranks: u32,
    /// The tensor "data" in the window of each.
    pub data: Vec<TensorDesc>,
    /// Where the signals start in every window.
    words: u64,
    round: u32,
}

impl Peers {
    /// `data` and `signals` are addresses in this chip's window; round is counted from 1.
    pub fn new(
        graphs: &Graphs<'_>,
        data: u64,
        signals: u64,
        count: usize,
        round: u32,
    ) -> Result<Self, Failure> {
        let ends = graphs.signals();
        let failed = |error: &dyn std::fmt::Display| Failure::new(ErrorCode::Invalid, error.to_string());
        let (rank, nranks) = ends.table().place(Domain::BASE).map_err(|error| failed(&error))?;
        let whole = NamedBuffer { name: "window".into(), offset: 0, count: 1, element: 1 };
        ends.name_buffer(Domain::BASE, whole).map_err(|error| failed(&error))?;
        let base =
            |rank| ends.table().address(Domain::BASE, rank, "window", 0).map_err(|error| failed(&error));
        let own = base(rank)?.0;
        let of = |rank| flat_tensor(DeviceAddr(base(rank)?.0 + (data - own)), DType::Float32, count);
        let data = (0..nranks).map(of).collect::<Result<_, _>>()?;
        Ok(Self { rank, nranks, data, words: signals - own, round })
    }

    /// The ranks of the others.
    pub fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let me = self.rank;
        (0..self.nranks).filter(move |rank| *rank != me)
    }

    /// This chip's data.
    pub fn own_data(&self) -> &TensorDesc {
        &self.data[self.rank as usize]
    }

    /// Each rank has two words for each of its peers: what that one has written, and what it has read.
    fn word(&self, of: u32, read: bool) -> u64 {
        self.words + 4 * u64::from(of) + if read { 512 } else { 0 }
    }

    /// Tells `rank` that this chip's data is written.
    pub fn written(&self, rank: u32) -> Signal {
        self.signal(rank, false)
    }

    /// Tells `rank` that this chip has read its data.
    pub fn read(&self, rank: u32) -> Signal {
        self.signal(rank, true)
    }

    fn signal(&self, rank: u32, read: bool) -> Signal {
        Signal { domain: Domain::BASE, rank, offset: self.word(self.rank, read), op: SignalOp::Add(1) }
    }

    /// Waits until the data of `rank` is written in this round.
    pub fn until_written(&self, rank: u32) -> Wait {
        self.wait(rank, false, self.round)
    }

    /// Waits until `rank` has read this chip's data of the last round.
    pub fn until_read(&self, rank: u32) -> Wait {
        self.wait(rank, true, self.round - 1)
    }

    fn wait(&self, rank: u32, read: bool, at_least: u32) -> Wait {
        Wait { domain: Domain::BASE, offset: self.word(rank, read), at_least, from: Signaller::Rank(rank) }
    }
}

const COPY: KernelId = KernelId(0);
const ADD: KernelId = KernelId(1);

/// The sum of all chips' inputs on one of them, as a graph: what [`register_graph`](worker_orch::Worker::register_graph) takes.
///
/// The arguments are those of the kernel `treduce.cpp`. The root copies its input to the output and adds that of each peer as soon as
/// it is there.
pub fn reduce(
    GraphOptions { front_end, limits, dot }: GraphOptions,
) -> impl Fn(&mut Task<'_>) -> Result<(), Failure> + Send + Sync + 'static {
    // Every chip has a copy of its own, and counts alike.
    let rounds = AtomicU32::new(0);
    move |task| {
        let [data, signals, _, root] = [0, 1, 2, 3].map(|index| task.scalar(index));
        let (data, signals, root) = (data?, signals?, root? as u32);
        let mut graphs = task.graphs(&limits)?;
        let (input, output) = (graphs.tensor(0)?, graphs.tensor(1)?);
        // Relaxed: only this thread uses it.
        let round = rounds.fetch_add(1, Ordering::Relaxed) + 1;
        let peers = Peers::new(&graphs, data, signals, input.extent as usize, round)?;
        let runtime = graphs.runtime();
        if round == 1 {
            runtime.set_kernel(COPY, "copy", |block| Ok(block.write(1, &block.read::<f32>(0)?)?));
            runtime.set_kernel(ADD, "add", |block| {
                let (theirs, mut sum) = (block.read::<f32>(0)?, block.read::<f32>(1)?);
                sum.iter_mut().zip(&theirs).for_each(|(sum, theirs)| *sum += theirs);
                Ok(block.write(1, &sum)?)
            });
            if dot.is_some() {
                runtime.record();
            }
        }
        graphs.run(front_end, |graph| -> Result<(), RuntimeError> {
            if peers.rank != root {
                let copy = TaskArgs::new().input(&input).output_existing(peers.own_data());
                let copy = copy.wait(peers.until_read(root)).signal(peers.written(root));
                return graph.submit(Kernels::aiv(COPY), &copy).map(drop);
            }
            let copy = TaskArgs::new().input(&input).output_existing(&output);
            let mut last = graph.submit(Kernels::aiv(COPY), &copy)?.task;
            for peer in peers.others() {
                let add = TaskArgs::new().input(&peers.data[peer as usize]).inout(&output);
                // The edge is named for the front end that infers none.
                let add = add.after(last).wait(peers.until_written(peer)).signal(peers.read(peer));
                last = graph.submit(Kernels::aiv(ADD), &add)?.task;
            }
            Ok(())
        })?;
        dot.as_ref().filter(|_| round == 1).map_or(Ok(()), |file| graphs.write_dot(file, root))
    }
}
