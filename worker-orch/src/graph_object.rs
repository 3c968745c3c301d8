//! Graphs whose orchestration and kernels are shared objects.
//!
//! # Safety
//! Registers kernels that come from files. As with [`register_kernel`](crate::Worker::register_kernel), who names a file answers for
//! what its code does with its arguments.
#![allow(unsafe_code)]

use crate::{Task, Worker};
use chip_runtime::{FrontEnd, KernelId, KernelObject, Limits, LoadError, Orchestration, TensorArg};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use worker_errors::{ErrorCode, Failure};

/// A graph whose orchestration is a C++ function in a shared object, with the kernels that it names by number.
///
/// The entry gets the tensors and scalars of the task. On a chip with a device, the kernels are binaries for it, and the front end is
/// the prebuilt one; there the limits are the device's.
#[derive(Clone, Debug)]
pub struct GraphObject {
    /// The object of the orchestration, and its entry: `aicpu_orchestration_entry` for `None`.
    pub orchestration: (PathBuf, Option<String>),
    /// The layouts that it was compiled for, which nothing in it says: `pto2-2026-08`.
    pub abi: String,
    /// The kernels: number, object, and symbol, `kernel_entry` for `None`.
    pub kernels: Vec<(u32, PathBuf, Option<String>)>,
    /// Who builds the graph, and when its tasks run.
    pub front_end: FrontEnd,
    /// How large the runtime is.
    pub limits: Limits,
    /// Where the graph of the first task goes, for Graphviz: see [`Graphs::write_dot`](crate::Graphs::write_dot). Without `{rank}` in
    /// its name it is that of rank 0.
    pub dot: Option<PathBuf>,
}

/// What a chip has loaded.
struct Loaded {
    orchestration: Orchestration,
    kernels: Vec<(KernelId, String, Arc<KernelObject>)>,
}

impl GraphObject {
    /// Registers it with a Worker, before `init`. Its files are loaded by each chip at its first task.
    pub fn register(self, worker: &mut Worker, name: &str) -> Result<crate::Program, Failure> {
        let loaded = OnceLock::new();
        worker.register_graph(name, move |task| self.run(task, &loaded))
    }

    fn run(&self, task: &mut Task<'_>, loaded: &OnceLock<Result<Loaded, Failure>>) -> Result<(), Failure> {
        let tensors: Vec<TensorArg> = task.tensors().iter().map(|tensor| TensorArg::InOut(*tensor)).collect();
        let scalars = task.scalars().to_vec();
        #[cfg(feature = "ascend")]
        if task.has_device() {
            return self.run_on_device(task, loaded, &tensors, &scalars);
        }
        let dot = self.dot.as_ref().filter(|_| loaded.get().is_none());
        let loaded = loaded.get_or_init(|| self.load()).as_ref().map_err(Failure::clone)?;
        let mut graphs = task.graphs(&self.limits)?;
        // A task of this program registers all of them before it can fail.
        let unregistered = if graphs.is_as_left() { &[][..] } else { &loaded.kernels };
        for (id, name, kernel) in unregistered {
            let kernel = kernel.clone();
            // SAFETY: see the top of the file.
            unsafe { graphs.runtime().set_raw_kernel(*id, name, move |args| kernel.call(args)) };
        }
        if dot.is_some() {
            graphs.runtime().record();
        }
        let ran = graphs.run(self.front_end, |graph| loaded.orchestration.call(graph, &tensors, &scalars));
        // Also of a graph that failed, as far as it was built.
        let drawn = dot.map_or(Ok(()), |file| graphs.write_dot(file, 0));
        ran.and(drawn)
    }

    #[cfg(feature = "ascend")]
    fn run_on_device(
        &self,
        task: &mut Task<'_>,
        loaded: &OnceLock<Result<Loaded, Failure>>,
        tensors: &[TensorArg],
        scalars: &[u64],
    ) -> Result<(), Failure> {
        let dot = self.dot.as_ref().filter(|_| loaded.get().is_none());
        let loaded = loaded.get_or_init(|| self.load_orchestration()).as_ref().map_err(Failure::clone)?;
        let mut graphs = task.device_graphs()?;
        if dot.is_some() {
            graphs.record();
        }
        for (id, path, symbol) in &self.kernels {
            graphs.set_kernel(KernelId(*id), path, symbol.as_deref().unwrap_or("kernel_entry"))?;
        }
        let ran = graphs
            .run_in(self.front_end, |graph| loaded.orchestration.call_on_device(graph, tensors, scalars));
        // Also of a graph that failed, but not of one that was not built to its end.
        let dot = dot.filter(|_| graphs.is_recorded());
        let drawn = dot.map_or(Ok(()), |file| graphs.write_dot(file, 0));
        ran.and(drawn)
    }

    fn load(&self) -> Result<Loaded, Failure> {
        let kernel = |(id, path, symbol): &(u32, PathBuf, Option<String>)| {
            let object = KernelObject::load(path, symbol.as_deref())?;
            let file = path.file_stem().unwrap_or_default().to_string_lossy();
            let name = symbol
                .as_ref()
                .map_or_else(|| file.clone().into_owned(), |symbol| format!("{file}:{symbol}"));
            Ok((KernelId(*id), name, Arc::new(object)))
        };
        let mut loaded = self.load_orchestration()?;
        loaded.kernels = self.kernels.iter().map(kernel).collect::<Result<_, _>>().map_err(failed)?;
        Ok(loaded)
    }

    /// Without kernels: those of a device are not code of this process.
    fn load_orchestration(&self) -> Result<Loaded, Failure> {
        let (path, entry) = &self.orchestration;
        let orchestration = Orchestration::load(path, entry.as_deref(), &self.abi).map_err(failed)?;
        Ok(Loaded { orchestration, kernels: Vec::new() })
    }
}

fn failed(error: LoadError) -> Failure {
    Failure::new(ErrorCode::Load, error.to_string()).in_phase("graph")
}
