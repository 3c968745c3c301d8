//! One launch: the argument list of a block, and the call of its kernel.
//!
//! # Safety
//! The pointers of a launch are to its task's slot and to a kernel. The engine keeps both until the launch has
//! returned.
#![allow(unsafe_code)]

use super::ready::Launch;
use crate::kernel::{Block, Code, Lane};
use crate::orchestration::lane::{self, ClusterStates};
use comm_context::abi::{
    CompletionEntry, CompletionSlab, DeviceAddr, KERNEL_ARGS, KERNEL_COMPLETIONS, KERNEL_LOCAL_CONTEXT_ARG,
    KernelContexts,
};
use fault_points::fault_point;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How a launch ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) result: Result<(), String>,
    /// Words that the completion of the task is to wait for.
    pub(super) completions: Vec<CompletionEntry>,
}

impl Outcome {
    /// That of a kernel that returned and asked for nothing.
    pub(super) fn plain() -> Self {
        Self { result: Ok(()), completions: Vec::new() }
    }

    pub(super) fn is_plain(&self) -> bool {
        self.result.is_ok() && self.completions.is_empty()
    }
}

/// What a thread gives to kernels behind the C entry.
pub(crate) struct Scratch {
    contexts: Box<Aligned>,
    args: [i64; KERNEL_ARGS],
}

#[repr(C, align(64))]
struct Aligned(KernelContexts);

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scratch")
    }
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let mut contexts = Box::new(Aligned(KernelContexts::of_block(DeviceAddr(64), 0, 1)));
        let at = DeviceAddr((&raw const contexts.0) as u64);
        contexts.0 = KernelContexts::of_block(at, 0, 1);
        let mut args = [0; KERNEL_ARGS];
        args[KERNEL_LOCAL_CONTEXT_ARG..]
            .copy_from_slice(&KernelContexts::arguments(at).map(|arg| arg as i64));
        Self { contexts, args }
    }

    /// Runs the kernel of a launch. A panic is an error.
    pub(super) fn run(&mut self, launch: &Launch, cluster: &Arc<ClusterStates>) -> Outcome {
        // SAFETY: the launch has not returned, so the engine keeps its task's lists and its kernel, and changes none.
        let (kernel, tensors, scalars) =
            unsafe { (launch.kernel.as_ref(), launch.tensors().as_ref(), launch.scalars().as_ref()) };
        let ended = match &kernel.code {
            Code::Function(function) => {
                let block = Block {
                    task: launch.task,
                    index: launch.block,
                    count: launch.blocks,
                    lane: launch.core.lane,
                    tensors,
                    scalars,
                    writable: launch.writable,
                };
                catch_unwind(AssertUnwindSafe(|| {
                    called(|| function(&block).map_err(|error| error.to_string()))
                }))
            }
            Code::Entry(entry) => {
                let addresses = tensors.iter().map(|tensor| std::ptr::from_ref(tensor) as i64);
                let values = addresses.chain(scalars.iter().map(|scalar| *scalar as i64));
                self.args.iter_mut().zip(values).for_each(|(arg, value)| *arg = value);
                let contexts = &mut self.contexts.0;
                (contexts.slab.count, contexts.slab.error) = (0, 0);
                // Where the text of a kernel that failed begins.
                contexts.slab.entries[0].address = 0;
                (contexts.local.block_idx, contexts.local.block_num) =
                    (launch.block as i32, launch.blocks as i32);
                contexts.local.task = launch.task.0;
                contexts.global.sub_block_id = i32::from(launch.core.lane == Lane::Aiv1);
                lane::enter(cluster, u32::from(launch.core.lane == Lane::Aiv1));
                let args = self.args.as_mut_ptr();
                catch_unwind(AssertUnwindSafe(|| called(|| entry(args))))
            }
        };
        let mut result = ended.unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_text(&*panic))));
        let mut completions = Vec::new();
        if matches!(kernel.code, Code::Entry(_)) {
            let at = &raw const self.contexts.0.slab;
            // SAFETY: our own memory, which the kernel may have written through the address in its arguments.
            let (count, error) =
                unsafe { ((&raw const (*at).count).read(), (&raw const (*at).error).read()) };
            if count as usize > KERNEL_COMPLETIONS {
                result = result
                    .and(Err(format!("it asked for {count} completions; there are {KERNEL_COMPLETIONS}")));
            } else if count > 0 {
                // SAFETY: as above.
                completions
                    .extend_from_slice(&unsafe { (&raw const (*at).entries).read() }[..count as usize]);
            }
            if error != 0 {
                // SAFETY: as above.
                let text = CompletionSlab::failure_text(&unsafe { (&raw const (*at).entries).read() });
                let said = text.map_or(String::new(), |text| format!(": {text}"));
                result = result.and(Err(format!("it set the error {error}{said}")));
            }
        }
        Outcome { result, completions }
    }
}

/// Calls a kernel.
fn called(kernel: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    fault_point!("graph.kernel.begin");
    let returned = kernel();
    fault_point!("graph.kernel.returned");
    returned
}

/// What a panic says.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a text".to_owned())
}
