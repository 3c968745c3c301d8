//! An orchestration whose calls bytes choose: argument lists, descriptors and ids as C++ passes them, right and wrong. What it
//! submits runs, on kernels that touch every element that their task has.
//!
//! # Safety
//! Calls the functions of the table as C++ does: addresses are null or those of values that outlive the call.
#![allow(unsafe_code)]

use super::ops::{self, Context};
use crate::error::{ErrorKind, RuntimeError};
use crate::signals::Signals;
use crate::{Block, Buffer, Element, FrontEnd, Graph, KernelResult, Kernels, Limits, Runtime, TaskArgs};
use bytemuck::Zeroable;
use comm_context::abi::orchestration::{self as abi, KernelIds, SignalSpec, TaskOutputs, WaitSpec};
use comm_context::abi::{DType, TensorDesc};
use deadline::Deadline;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// Calls of one orchestration.
const MOST_CALLS: usize = 32;
/// A kernel copies tensors of up to so many elements: overlapping ones can have more than their memory.
const MOST_ELEMENTS: usize = 1 << 14;

/// Bytes that choose; zeros when there are no more.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (now, later) = self.0.split_at(self.0.len().min(N));
        self.0 = later;
        let mut bytes = [0; N];
        bytes[..now.len()].copy_from_slice(now);
        bytes
    }

    fn byte(&mut self) -> u8 {
        self.bytes::<1>()[0]
    }

    /// Small numbers of either sign.
    fn small(&mut self) -> i32 {
        i32::from(self.byte() as i8)
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}

/// What an orchestration knows: descriptors that it may pass, ids of its tasks, and memory that kernels may touch.
struct Known<'a> {
    descs: Vec<TensorDesc>,
    tasks: Vec<u64>,
    /// What was accepted and should not have been. Judged after the run, which makes an error of a panic.
    outside: &'a Cell<Option<TensorDesc>>,
}

impl Known<'_> {
    /// A descriptor that exists, with some of its words replaced.
    fn desc(&self, from: &mut Choices<'_>) -> Option<TensorDesc> {
        let which = usize::from(from.byte());
        let mut desc = *self.descs.get(which.checked_sub(1)? % self.descs.len())?;
        for _ in 0..from.byte() % 4 {
            let (at, word) = (usize::from(from.byte()) % (size_of::<TensorDesc>() / 4), from.word());
            bytemuck::bytes_of_mut(&mut desc)[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        Some(desc)
    }

    fn task(&self, from: &mut Choices<'_>) -> u64 {
        match usize::from(from.byte()) {
            0 => from.long(),
            which => self.tasks.get((which - 1) % self.tasks.len().max(1)).copied().unwrap_or(u64::MAX),
        }
    }

    /// Whether a tensor lies inside memory that the graph has. By other arithmetic than the engine's.
    fn holds(&self, desc: &TensorDesc) -> bool {
        let (Ok(dtype), Ok(shape)) = (desc.dtype(), desc.shape()) else { return false };
        if shape.contains(&0) {
            return true;
        }
        let reach =
            shape.iter().zip(&desc.strides).map(|(len, step)| u128::from(len - 1) * u128::from(*step));
        let first = u128::from(desc.start_offset);
        let bytes = |element: u128| u128::from(desc.addr) + element * u128::from(dtype.size());
        let (start, end) = (bytes(first), bytes(first + reach.sum::<u128>() + 1));
        let around = |known: &TensorDesc| {
            let from = u128::from(known.addr);
            from <= start && end <= from + u128::from(known.size)
        };
        self.descs.iter().any(around)
    }
}

/// An argument list, and what its addresses lead to.
#[expect(
    clippy::vec_box,
    reason = "the list has the addresses of the elements, which must stay where they are"
)]
struct List {
    ring: abi::TaskArgs,
    prebuilt: abi::PrebuiltTaskArgs,
    _creates: Vec<Box<abi::CreateInfo>>,
    descs: Vec<Box<TensorDesc>>,
    _ids: Vec<u64>,
}

fn list(from: &mut Choices<'_>, known: &Known<'_>) -> List {
    let mut args = abi::TaskArgs::zeroed();
    let (mut creates, mut descs) = (Vec::new(), Vec::new());
    let count = from.small();
    args.launch.tensor_count = count;
    for at in 0..usize::try_from(count).unwrap_or(0).min(abi::TASK_TENSORS) {
        args.tags[at] = from.small();
        if args.tags[at] == 1 {
            let mut info =
                abi::CreateInfo { dtype: from.byte(), ndims: u32::from(from.byte()), ..Zeroable::zeroed() };
            (info.has_initial, info.initial, info.manual_dep) = (from.byte(), from.long(), from.byte());
            info.shapes = std::array::from_fn(|_| u32::from(from.byte()));
            if from.byte() == 0xff {
                info.shapes[0] = from.word();
            }
            let info = Box::new(info);
            args.tensors[at] = std::ptr::from_ref(&*info).addr() as u64;
            creates.push(info);
        } else if let Some(desc) = known.desc(from).map(Box::new) {
            args.tensors[at] = std::ptr::from_ref(&*desc).addr() as u64;
            descs.push(desc);
        }
    }
    args.launch.scalar_count = from.small();
    args.scalars[0] = from.long();
    args.launch.block_num = i16::from_le_bytes(from.bytes());
    args.launch.sync_start = from.byte();
    if from.byte() == 0xff {
        (args.launch.has_error, args.launch.error_text) =
            (1, [0, c"said no".as_ptr().addr() as u64][usize::from(from.byte() % 2)]);
    }
    args.launch.predicate.op = from.byte();
    if args.launch.predicate.op != 0 {
        let predicate = &mut args.launch.predicate;
        (predicate.ndims, predicate.target) = (u32::from(from.byte()), i64::from(from.small()));
        predicate.indices = std::array::from_fn(|_| u32::from(from.byte()));
        if let Some(desc) = known.desc(from).map(Box::new) {
            predicate.tensor = std::ptr::from_ref(&*desc).addr() as u64;
            descs.push(desc);
        }
    }
    let ids: Vec<u64> = (0..from.byte() % 8).map(|_| known.task(from)).collect();
    if !ids.is_empty() {
        (args.dependencies, args.dependency_count) = (ids.as_ptr().addr() as u64, ids.len() as u32);
    } else if from.byte() == 0xff {
        args.dependency_count = from.word();
    }
    let prebuilt = abi::PrebuiltTaskArgs {
        tags: args.tags,
        tensors: args.tensors,
        scalars: args.scalars,
        launch: args.launch,
        dependencies: args.dependencies,
        dependency_count: args.dependency_count,
        ..Zeroable::zeroed()
    };
    List { ring: args, prebuilt, _creates: creates, descs, _ids: ids }
}

impl List {
    fn at(&self, front_end: FrontEnd) -> *const std::ffi::c_void {
        match front_end {
            FrontEnd::Prebuilt => (&raw const self.prebuilt).cast(),
            FrontEnd::Explicit | FrontEnd::Inferred => (&raw const self.ring).cast(),
        }
    }
}

/// Remembers what a call made. `None`: it was refused.
fn made(known: &mut Known<'_>, outputs: &TaskOutputs, list: &List) -> Option<()> {
    if outputs.task_id == u64::MAX {
        return None;
    }
    if let Some(desc) = list.descs.iter().find(|desc| !known.holds(desc)) {
        known.outside.set(Some(**desc));
    }
    known.tasks.push(outputs.task_id);
    for at in &outputs.tensors[..outputs.count as usize] {
        // SAFETY: the runtime keeps what it made until the scope ends, which is after this call.
        known.descs.push(unsafe { *(*at as *const TensorDesc) });
    }
    Some(())
}

/// One call; `None` when the runtime refused one.
fn call(rt: *mut Context, front_end: FrontEnd, from: &mut Choices<'_>, known: &mut Known<'_>) -> Option<()> {
    let what = from.byte() % 12;
    // SAFETY: as the top of the file says.
    unsafe {
        match what {
            0..=2 => {
                let list = list(from, known);
                let kernels =
                    KernelIds { aic: from.small() % 4, aiv0: from.small() % 4, aiv1: from.small() % 4 };
                let outputs = ops::submit_task(rt, &raw const kernels, list.at(front_end));
                made(known, &outputs, &list)
            }
            3 => {
                let list = list(from, known);
                made(known, &ops::submit_dummy_task(rt, list.at(front_end)), &list)
            }
            4 => {
                let mut list = list(from, known);
                let outputs = ops::alloc_tensors(rt, list.at(front_end));
                // It has no predicate: what one leads to is not followed.
                list.descs.clear();
                made(known, &outputs, &list)
            }
            5 => {
                (&raw mut (*rt.cast::<abi::RuntimeHandle>()).pending_scope_mode).write(from.byte());
                ops::scope_begin(rt);
                Some(())
            }
            6 => {
                ops::scope_end(rt);
                Some(())
            }
            7 | 8 => {
                let (ndims, indices) = (u32::from(from.byte()), from.bytes::<8>().map(u32::from));
                let desc = known.desc(from);
                let at = desc.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                if what == 7 {
                    let _ = ops::get_tensor_data(rt, at, ndims, indices.as_ptr());
                } else {
                    ops::set_tensor_data(rt, at, ndims, indices.as_ptr(), from.long());
                }
                Some(())
            }
            9 => {
                ops::publish_task(rt, known.task(from));
                Some(())
            }
            10 => {
                ops::add_dependency(rt, known.task(from), known.task(from));
                Some(())
            }
            _ => {
                let (offset, domain, value) =
                    (u64::from(from.word() as u16), u32::from(from.byte()), from.word());
                let rank = from.small();
                if from.byte().is_multiple_of(2) {
                    let spec = WaitSpec { offset, domain, value, signaller: rank, reserved: 0 };
                    ops::wait(rt, &raw const spec);
                } else {
                    let spec = SignalSpec { offset, domain, rank: rank as u32, value, set: 0 };
                    ops::signal(rt, &raw const spec);
                }
                Some(())
            }
        }
    }
}

/// Touches every element of a tensor, as far as there are not too many.
fn touch<T: Element>(block: &Block<'_>, index: usize) -> KernelResult {
    let elements = block.elements::<T>(index)?;
    if elements.len() <= MOST_ELEMENTS {
        let values = block.read::<T>(index)?;
        // Those that may not be written are refused.
        let _read_only = block.write(index, &values);
    }
    Ok(())
}

fn touch_all(block: &Block<'_>) -> KernelResult {
    for (index, desc) in block.tensors().iter().enumerate() {
        match desc.dtype()? {
            DType::Float32 => touch::<f32>(block, index)?,
            DType::Int32 => touch::<i32>(block, index)?,
            DType::Int16 => touch::<i16>(block, index)?,
            DType::Int8 => touch::<i8>(block, index)?,
            DType::Uint8 => touch::<u8>(block, index)?,
            DType::Int64 => touch::<i64>(block, index)?,
            DType::Uint64 => touch::<u64>(block, index)?,
            DType::Uint16 => touch::<u16>(block, index)?,
            DType::Uint32 => touch::<u32>(block, index)?,
            _ => {}
        }
    }
    Ok(())
}

struct Setup {
    runtime: Runtime,
    context: &'static Context,
    data: Buffer<i32>,
    more: Buffer<u8>,
}

thread_local!(static SETUP: RefCell<Setup> = RefCell::new(setup()));

fn setup() -> Setup {
    let limits = Limits { clusters: 2, slots: 16, heap: 64 << 10, scope_depth: 4, edges: 64 };
    let mut runtime = Runtime::new(limits).unwrap_or_else(|error| panic!("{error}"));
    for name in ["a", "b", "c"] {
        runtime.kernel(name, touch_all);
    }
    let chips = Signals::in_process(2, 4096).unwrap_or_else(|error| panic!("{error}"));
    runtime.connect(chips[0].clone());
    Setup {
        runtime,
        context: Context::leaked(),
        data: Buffer::zeroed(&[8, 16]),
        more: Buffer::zeroed(&[100]),
    }
}

fn until(time: Duration) -> Deadline {
    Deadline::after(time).unwrap_or_else(|error| panic!("{error}"))
}

/// Builds and runs a graph as the bytes say. It ends by itself or with an error that can be shown, and the runtime works after it.
pub(crate) fn calls(bytes: &[u8]) {
    SETUP.with_borrow_mut(|setup| {
        let Setup { runtime, context, data, more } = setup;
        let mut from = Choices(bytes);
        let front_end = FrontEnd::ALL[usize::from(from.byte()) % 3];
        let outside = Cell::new(None);
        let ended = runtime.run(front_end, until(Duration::from_millis(100)), |graph| {
            let descs = vec![*graph.import(data)?.desc(), *graph.import(more)?.desc()];
            let mut known = Known { descs, tasks: Vec::new(), outside: &outside };
            let context: &'static Context = context;
            context.run(graph, "fuzzed", |rt| {
                for _ in 0..MOST_CALLS {
                    if from.0.is_empty() || call(rt.cast(), front_end, &mut from, &mut known).is_none() {
                        break;
                    }
                }
                Ok(())
            })
        });
        assert_eq!(outside.get(), None);
        if let Err(error) = ended {
            judge(&error);
        }
        assert!(runtime.await_kernels(until(Duration::from_secs(60))));
        works(runtime, data);
    });
}

/// Texts are shown on terminals, and only kernels panic.
fn judge(error: &RuntimeError) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.chars().any(|c| c != '\n' && c.is_control()), "{text:?}");
    assert!(!matches!(error.kind, ErrorKind::Panicked(_)) && !text.contains("panicked"), "{text}");
}

fn works(runtime: &mut Runtime, data: &mut Buffer<i32>) {
    let one_task = |graph: &mut Graph<'_>| {
        let data = graph.import(data)?;
        graph.submit(Kernels::aiv(crate::KernelId(0)), &TaskArgs::new().inout(&data)).map(drop)
    };
    let ended = runtime.run(FrontEnd::Inferred, until(Duration::from_secs(60)), one_task);
    assert!(ended.is_ok(), "{ended:?}");
}
