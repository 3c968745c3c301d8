//! An orchestration that was compiled to a shared object.
//!
//! # Safety
//! Calls functions of a loaded object by the types that their names stand for, and gives them addresses that live for as
//! long as the call.
#![allow(unsafe_code)]

use super::LoadError;
use super::builder::Builder;
#[cfg(feature = "ascend")]
use super::builder::on_device::DeviceBuilder;
use super::library::Object;
use super::ops::{Context, interned};
use super::shim::{self, Config, Function};
use crate::args::TensorArg;
use crate::error::{ArgumentError, ErrorKind, RuntimeError};
use crate::graph::Graph;
#[cfg(feature = "ascend")]
use crate::on_device::{DeviceGraph, OnDeviceError};
use bytemuck::Zeroable;
use comm_context::abi::TensorDesc;
use comm_context::abi::orchestration::{
    BIND_SYMBOL, CONFIG_SYMBOL, ENTRY_SCALARS, ENTRY_SYMBOL, ENTRY_TENSORS, EntryArgs, TensorTag, VERSION,
};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Mutex;

/// An orchestration in a shared object, ready to be called.
///
/// It stays loaded for as long as the process lives.
#[derive(Debug)]
pub struct Orchestration {
    object: Object,
    entry: Function,
    config: Option<Config>,
    bind: Function,
    /// The file and the entry, for errors.
    name: &'static str,
    context: &'static Slot,
}

/// The context of an object. Loaded twice, an object has one, as it has one word for the runtime's address.
struct Slot {
    bind: usize,
    context: &'static Context,
    busy: Mutex<()>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

/// The slot of the object with this function.
fn slot(bind: usize) -> &'static Slot {
    static SLOTS: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());
    let mut slots = SLOTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(slot) = slots.iter().find(|slot| slot.bind == bind) {
        return slot;
    }
    let slot: &'static Slot =
        Box::leak(Box::new(Slot { bind, context: Context::leaked(), busy: Mutex::new(()) }));
    slots.push(slot);
    slot
}

impl Orchestration {
    /// Loads an object. `entry` is the symbol of its entry, `aicpu_orchestration_entry` for `None`; `version` names the
    /// layouts that it was compiled for, which nothing in it says: `pto2-2026-08`.
    ///
    /// ```no_run
    /// use chip_runtime::{Buffer, FrontEnd, KernelId, KernelObject, Limits, Orchestration, Runtime, TensorArg};
    /// use deadline::Deadline;
    /// use std::{path::Path, time::Duration};
    ///
    /// // The entry submits tasks of kernel 0, with one tensor and one scalar.
    /// let build = Orchestration::load(Path::new("build.so"), None, "pto2-2026-08")?;
    /// let mut runtime = Runtime::new(Limits::default())?;
    /// let kernel = KernelObject::load(Path::new("kernel.so"), None)?;
    /// // SAFETY: it accesses its tensor and nothing else.
    /// unsafe { runtime.set_raw_kernel(KernelId(0), "kernel", move |args| kernel.call(args)) };
    /// let mut x = Buffer::of(&[1.0f32, 2.0]);
    /// runtime.run(FrontEnd::Inferred, Deadline::after(Duration::from_secs(10))?, |graph| {
    ///     let x = *graph.import(&mut x)?.desc();
    ///     build.call(graph, &[TensorArg::InOut(x)], &[10])
    /// })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn load(path: &Path, entry: Option<&str>, version: &str) -> Result<Self, LoadError> {
        if version != VERSION {
            return Err(LoadError::Version { given: version.to_owned() });
        }
        let object = Object::open(path)?;
        let symbol = entry.unwrap_or(ENTRY_SYMBOL);
        let found = object.symbol(symbol, "builds the graph")?;
        let bind = object.symbol(BIND_SYMBOL, "gets the runtime; include orchestration.h, which has it")?;
        let config = match entry {
            None | Some(ENTRY_SYMBOL) => object.find(CONFIG_SYMBOL),
            Some(other) => object.find(&format!("{other}_config")),
        };
        let name = interned(&format!("{} `{symbol}`, call", object.name()));
        // SAFETY: by contract these symbols are functions of these types.
        unsafe {
            Ok(Self {
                entry: std::mem::transmute::<*mut _, Function>(found.as_ptr()),
                config: config.map(|config| std::mem::transmute::<*mut _, Config>(config.as_ptr())),
                bind: std::mem::transmute::<*mut _, Function>(bind.as_ptr()),
                context: slot(bind.as_ptr().addr()),
                name,
                object,
            })
        }
    }

    /// Builds the graph: calls the entry with these tensors, which the graph knows, and scalars.
    ///
    /// An error of a function that the entry calls is kept, and this returns it when the entry has returned: the task
    /// and where it was submitted. Objects that do not say where they are get their calls counted. What the entry
    /// throws is an error with its text.
    pub fn call(
        &self,
        graph: &mut Graph<'_>,
        tensors: &[TensorArg],
        scalars: &[u64],
    ) -> Result<(), RuntimeError> {
        self.build(graph, tensors, scalars)
    }

    /// The same for a graph of a device. The object is code of the host, in the layouts of the prebuilt flavour, and the numbers of
    /// kernels are those of [`GraphDevice::set_kernel`](crate::on_device::GraphDevice::set_kernel). Tensors may lie in host memory that
    /// the graph has [imported](crate::on_device::DeviceGraph::import_host); the entry gets no other address that it could follow.
    #[cfg(feature = "ascend")]
    pub fn call_on_device(
        &self,
        graph: &mut DeviceGraph<'_>,
        tensors: &[TensorArg],
        scalars: &[u64],
    ) -> Result<(), OnDeviceError> {
        let mut builder = DeviceBuilder { graph, error: None };
        let built = self.build(&mut builder, tensors, scalars);
        builder.graph.set_site(None);
        match builder.error {
            Some(error) => Err(error),
            None => Ok(built?),
        }
    }

    fn build(
        &self,
        graph: &mut dyn Builder,
        tensors: &[TensorArg],
        scalars: &[u64],
    ) -> Result<(), RuntimeError> {
        let Ok(_busy) = self.context.busy.try_lock() else {
            let text = format!(
                "{} builds a graph already; build one after the other, or load copies of the object",
                self.object.path.display()
            );
            return Err(ErrorKind::Orchestration(text).into());
        };
        let descs = descriptors(tensors)?;
        // Longer than the list: a caller that knows a later version of it reads zeros.
        let mut memory = vec![EntryArgs::zeroed(); 2];
        fill(&mut memory[0], tensors, &descs, scalars)?;
        let args = memory.as_mut_ptr();
        self.check_count(args, tensors.len() + scalars.len())?;
        let run = |runtime| {
            // SAFETY: `bind` takes the address of a runtime or null, `entry` that of its arguments, which live until
            // it has returned.
            unsafe {
                shim::call(self.bind, runtime)?;
                let returned = shim::call(self.entry, args.cast());
                shim::call(self.bind, null_mut()).and(returned)
            }
        };
        self.context.context.run(graph, self.name, run)
    }

    /// Asks the object how many arguments its entry expects, if it says.
    fn check_count(&self, args: *const EntryArgs, given: usize) -> Result<(), RuntimeError> {
        let Some(config) = self.config else { return Ok(()) };
        // SAFETY: a config function takes the address of the entry's arguments.
        let wanted = unsafe { shim::config(config, args.cast()) }.map_err(ErrorKind::Orchestration)?;
        if usize::try_from(wanted) == Ok(given) {
            return Ok(());
        }
        let text = format!(
            "the entry of {} expects {wanted} arguments, not {given}; pass its tensors and scalars, each once",
            self.object.name()
        );
        Err(ArgumentError::Malformed(text).into())
    }
}

fn descriptors(tensors: &[TensorArg]) -> Result<Vec<TensorDesc>, RuntimeError> {
    let desc = |tensor: &TensorArg| {
        match tensor {
        TensorArg::Input(desc)
        | TensorArg::InOut(desc)
        | TensorArg::OutputExisting(desc)
        | TensorArg::NoDep(desc) => Ok(*desc),
        TensorArg::Output(_) => Err(ArgumentError::Malformed(
            "an entry takes tensors that exist, and one of these is to be made; pass it as input, inout or output".into(),
        )
        .into()),
    }
    };
    tensors.iter().map(desc).collect()
}

fn fill(
    args: &mut EntryArgs,
    tensors: &[TensorArg],
    descs: &[TensorDesc],
    scalars: &[u64],
) -> Result<(), RuntimeError> {
    let room = |what, given, most| {
        let error = ArgumentError::TooMany { what, most, given };
        if given > most { Err(RuntimeError::from(error)) } else { Ok(()) }
    };
    room("tensors", tensors.len(), ENTRY_TENSORS)?;
    room("scalars", scalars.len(), ENTRY_SCALARS)?;
    for (index, (tensor, desc)) in tensors.iter().zip(descs).enumerate() {
        let tag = match tensor {
            TensorArg::Input(_) => TensorTag::Input,
            TensorArg::InOut(_) => TensorTag::InOut,
            TensorArg::OutputExisting(_) => TensorTag::OutputExisting,
            TensorArg::NoDep(_) | TensorArg::Output(_) => TensorTag::NoDependency,
        };
        args.tags[index] = tag as i32;
        args.tensors[index] = std::ptr::from_ref(desc).addr() as u64;
    }
    args.scalars[..scalars.len()].copy_from_slice(scalars);
    args.launch.tensor_count = tensors.len() as i32;
    args.launch.scalar_count = scalars.len() as i32;
    args.launch.block_num = 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f89_another_version_is_refused_before_the_object_is_opened() {
        for version in ["pto2-2026-09", "", "PTO2-2026-08"] {
            let error = Orchestration::load(Path::new("missing.so"), None, version).err();
            assert!(matches!(&error, Some(LoadError::Version { given }) if given == version), "{error:?}");
        }
        let error = Orchestration::load(Path::new("missing.so"), None, VERSION).err();
        assert!(matches!(&error, Some(LoadError::File { .. })), "{error:?}");
    }
}
