//! The simulated device: kernels are functions of shared objects, called in place.
//!
//! # Safety
//! Loads and calls foreign code, and lends it memory. By contract a kernel is a function `void (int64_t *)`. That cannot be
//! checked; a kernel that breaks the contract takes its process down, which is why every chip has its own
//! process. One that throws does not: its task fails.
#![allow(unsafe_code)]

use crate::cxx_exception;
use crate::device::{ChipMemory, Device, Entry, Kernel, Launch, check_completion};
use crate::error::{ChipError, KernelError, loader_words};
use crate::kernel_call::{self, KernelEntry};
use comm_context::abi::{CompletionSlab, DeviceAddr, KERNEL_ARGS, KERNEL_LOCAL_CONTEXT_ARG, KernelContexts};
use comm_context::comm::{CommError, Communicator, Membership, Timeout};
use comm_sim::SimComm;
use fault_points::fault_call;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::cell::UnsafeCell;
use std::path::{Path, PathBuf};

/// A loaded function, with the library that it lives in.
struct Loaded {
    path: PathBuf,
    symbol: String,
    entry: KernelEntry,
    library: Library,
}

/// What kernels get beside their arguments, where the vendor's runtime would put it.
#[repr(align(64))]
struct Placed(UnsafeCell<KernelContexts>);

pub(crate) struct SimDevice {
    /// By number; `None` for one that was unloaded.
    kernels: Vec<Option<Loaded>>,
    /// The argument list, kept to avoid an allocation per task.
    args: Vec<i64>,
    /// Kernels write to it through the addresses that they get; no reference to it is ever made.
    contexts: Box<Placed>,
}

impl SimDevice {
    pub(crate) fn new() -> Self {
        let contexts = Box::new(Placed(UnsafeCell::new(KernelContexts::of_block(DeviceAddr(0), 0, 1))));
        Self { kernels: Vec::new(), args: Vec::with_capacity(KERNEL_ARGS), contexts }
    }

    /// Sets up the contexts for the next block and returns where they are. The entries of the slab keep what they
    /// had: with a count of zero they mean nothing.
    fn place_contexts(&self, block: u32, blocks: u32) -> *mut KernelContexts {
        let at = self.contexts.0.get();
        let fresh = KernelContexts::of_block(DeviceAddr(at as u64), block, blocks);
        // SAFETY: `at` is valid for writes while `self` lives, and no kernel runs: this process calls one at a time
        // and none has started yet. No reference to the contents exists.
        unsafe {
            (&raw mut (*at).slab.count).write(0);
            (&raw mut (*at).slab.error).write(0);
            // Where the text of a kernel that failed begins.
            (&raw mut (*at).slab.entries[0].address).write(0);
            (&raw mut (*at).local).write(fresh.local);
            (&raw mut (*at).global).write(fresh.global);
        }
        at
    }

    /// Runs one block of a kernel, with a list and contexts of its own.
    fn run_block(&mut self, launch: &Launch<'_>, block: u32) -> Result<(), ChipError> {
        let &Launch { kernel, blocks, tensors, scalars, .. } = launch;
        let contexts = self.place_contexts(block, blocks);
        let loaded = self
            .kernels
            .get(kernel.0)
            .and_then(Option::as_ref)
            .ok_or(KernelError::NotLoaded { number: kernel.0 })?;
        self.args.clear();
        self.args.extend(tensors.iter().map(|tensor| std::ptr::from_ref(tensor) as i64));
        self.args.extend(scalars.iter().map(|scalar| *scalar as i64));
        self.args.resize(KERNEL_LOCAL_CONTEXT_ARG, 0);
        let last = KernelContexts::arguments(DeviceAddr(contexts as u64));
        self.args.extend(last.map(|address| address as i64));
        // SAFETY: the library is loaded (it is kept beside its entry); `args` holds addresses of live
        // descriptors, then raw values, then the addresses of the contexts, in a buffer that outlives the call, as
        // the kernel contract says.
        let thrown = unsafe { kernel_call::call(loaded.entry, self.args.as_mut_ptr()) };
        if let Some(exception) = thrown {
            // SAFETY: it came out of this library's function just now, and the library is kept.
            let what = unsafe { cxx_exception::take(&loaded.library, exception) };
            return Err(ChipError::Threw { path: loaded.path.clone(), what });
        }
        // SAFETY: valid while `self` lives; the kernel has returned.
        let (count, error) = unsafe {
            ((&raw const (*contexts).slab.count).read(), (&raw const (*contexts).slab.error).read())
        };
        check_completion(count, error).map_err(|failed| match failed {
            ChipError::CompletionError { error, text: None } => {
                // SAFETY: as above.
                let entries = unsafe { (&raw const (*contexts).slab.entries).read() };
                ChipError::CompletionError { error, text: CompletionSlab::failure_text(&entries) }
            }
            other => other,
        })
    }
}

/// Opens a kernel's shared object and finds its function.
pub(crate) fn check_kernel(path: &Path, symbol: &str) -> Result<(), ChipError> {
    open(path, symbol)?;
    Ok(())
}

fn open(path: &Path, symbol: &str) -> Result<(Library, KernelEntry), KernelError> {
    let unopened = |source| KernelError::File { path: path.to_owned(), source };
    // A bare name would be searched for in the system's folders; a kernel is a file.
    let file = std::fs::canonicalize(path).map_err(unopened)?;
    fault_call!("chip.dlopen").map_err(|errno| unopened(std::io::Error::from_raw_os_error(errno)))?;
    // SAFETY: running the initialisers of a kernel's library is what the user asked for by naming it.
    let library = unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| KernelError::Library { path: path.to_owned(), loader: loader_words(&error) })?;
    // SAFETY: by contract a kernel's symbol is a function of this type.
    let entry =
        unsafe { library.get::<KernelEntry>(symbol.as_bytes()) }.map(|found| *found).map_err(|error| {
            KernelError::Symbol {
                path: path.to_owned(),
                symbol: symbol.to_owned(),
                loader: loader_words(&error),
            }
        })?;
    Ok((library, entry))
}

impl Device for SimDevice {
    fn communicator(
        &self,
        entry: &Entry,
        me: Membership,
        within: Timeout,
    ) -> Result<Box<dyn Communicator>, CommError> {
        let comm = match entry {
            Entry::Forked(group) => SimComm::join(&group.prepared, me.rank(), within)?,
            Entry::Path(path) => SimComm::rendezvous(path, me, within)?,
        };
        Ok(Box::new(comm))
    }

    fn load(&mut self, path: &Path, symbol: &str) -> Result<Kernel, ChipError> {
        if let Some(known) = self
            .kernels
            .iter()
            .position(|kernel| kernel.as_ref().is_some_and(|it| it.path == path && it.symbol == symbol))
        {
            return Ok(Kernel(known));
        }
        let (library, entry) = open(path, symbol)?;
        let loaded = Loaded { path: path.to_owned(), symbol: symbol.to_owned(), entry, library };
        self.kernels.push(Some(loaded));
        Ok(Kernel(self.kernels.len() - 1))
    }

    fn unload(&mut self, kernel: Kernel) {
        // Dropping the library closes it; nothing of it runs between two tasks.
        if let Some(slot) = self.kernels.get_mut(kernel.0) {
            *slot = None;
        }
    }

    fn memory(&self) -> Option<&dyn ChipMemory> {
        None
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), ChipError> {
        (0..launch.blocks).try_for_each(|block| self.run_block(launch, block))
    }

    fn close(&mut self) -> Result<(), ChipError> {
        self.kernels.clear();
        Ok(())
    }
}
