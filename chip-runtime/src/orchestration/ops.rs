//! The functions that an orchestration calls, on the graph that it builds.
//!
//! # Safety
//! C++ calls these with the address of a [`Context`], which lives as long as the process. Only the thread that is in
//! [`Context::run`] gets at the graph; a call from any other thread touches atomics and a mutex, and is refused. No
//! function here calls back into C++, so the graph is borrowed once at a time. A panic ends in the function where it
//! happened and becomes the error of the graph.
#![allow(unsafe_code)]

use super::builder::Builder;
use super::decode::{self, Flavour};
use super::outputs::Outputs;
use super::shim;
use crate::args::{TaskArgs, TensorArg};
use crate::error::{ArgumentError, ErrorKind, RuntimeError};
use crate::limits::{FrontEnd, ScopeMode};
use crate::signals::{Domain, Signal, SignalOp, Signaller, Wait};
use crate::task::{Site, Submitted, TaskId};
use bytemuck::Zeroable;
use comm_context::abi::orchestration::{
    EXTENSION_MAGIC, EXTENSION_OPS, KernelIds, OPS, PREBUILT_OPS, RuntimeHandle, SignalSpec, TaskOutputs,
    WaitSpec,
};
use comm_context::abi::{DeviceAddr, TensorDesc};
use std::cell::{Cell, UnsafeCell};
use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A runtime as an orchestration sees it: one for each loaded object, which outlives every thread that knows it.
#[repr(C)]
pub(super) struct Context {
    /// First, and the only part that C++ reads and writes.
    handle: UnsafeCell<RuntimeHandle>,
    /// The thread that runs the entry, by [`this_thread`]; 0: none.
    owner: AtomicUsize,
    /// The first call that came from elsewhere, and where its thread said that it is.
    stranger: Mutex<(Option<&'static str>, Option<Site>)>,
    /// What the owner uses.
    active: UnsafeCell<Option<Active>>,
}

// SAFETY: `handle` is C++'s, `active` is touched by the owner alone, the others are made for several threads.
unsafe impl Sync for Context {}

/// An entry that runs.
struct Active {
    graph: *mut dyn Builder,
    flavour: Flavour,
    /// Kept from task to task with its memory. Has the waits and signals of the next one.
    args: TaskArgs,
    outputs: Outputs,
    error: Option<RuntimeError>,
    done: bool,
    /// The object and the entry, for an orchestration that does not say where it is.
    name: &'static str,
    calls: u32,
    /// Where it said last that it is.
    site: Option<Site>,
}

thread_local! {
    static THREAD: u8 = const { 0 };
    /// The context whose entry this thread runs, for the function that does not get one.
    static CURRENT: Cell<*const Context> = const { Cell::new(null()) };
}

/// A number that no other living thread has.
fn this_thread() -> usize {
    THREAD.with(|at| std::ptr::from_ref(at).addr())
}

/// A text that lives as long as the process, each only once.
pub(super) fn interned(text: &str) -> &'static str {
    static TEXTS: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let texts = texts.get_or_insert_default();
    texts.get(text).copied().unwrap_or_else(|| {
        let kept: &'static str = Box::leak(text.to_owned().into_boxed_str());
        texts.insert(kept);
        kept
    })
}

impl Context {
    /// For one object, for as long as the process lives: a thread of the orchestration's may keep the address.
    pub(super) fn leaked() -> &'static Self {
        Box::leak(Box::new(Self {
            handle: UnsafeCell::new(RuntimeHandle::zeroed()),
            owner: AtomicUsize::new(0),
            stranger: Mutex::new((None, None)),
            active: UnsafeCell::new(None),
        }))
    }

    /// Calls `entry` with the address of this context, on a graph. The first error of a function that it called, or
    /// what it threw.
    ///
    /// The caller sees to it that a context is in one call at a time.
    pub(super) fn run(
        &'static self,
        graph: &mut dyn Builder,
        name: &'static str,
        entry: impl FnOnce(*mut c_void) -> Result<(), String>,
    ) -> Result<(), RuntimeError> {
        let flavour = match graph.front_end() {
            FrontEnd::Prebuilt => Flavour::Prebuilt,
            FrontEnd::Explicit | FrontEnd::Inferred => Flavour::Ring,
        };
        let (ops, extension) = match flavour {
            Flavour::Ring => ((&raw const RING_OPS).addr(), (&raw const RING_EXTENSION).addr()),
            Flavour::Prebuilt => ((&raw const PREBUILT_TABLE).addr(), (&raw const PREBUILT_EXTENSION).addr()),
        };
        let handle = RuntimeHandle {
            ops: ops as u64,
            magic: EXTENSION_MAGIC,
            extension: extension as u64,
            ..RuntimeHandle::zeroed()
        };
        let active = Active {
            // SAFETY: only the lifetime is another; nobody uses it after this function, see `call`.
            graph: unsafe { std::mem::transmute::<*mut (dyn Builder + '_), *mut dyn Builder>(graph) },
            flavour,
            args: TaskArgs::new(),
            outputs: Outputs::default(),
            error: None,
            done: false,
            name,
            calls: 0,
            site: None,
        };
        // SAFETY: no entry of this context runs, so nobody else is at these cells.
        unsafe {
            self.handle.get().write(handle);
            *self.active.get() = Some(active);
        }
        *self.stranger.lock().unwrap_or_else(PoisonError::into_inner) = (None, None);
        let before = CURRENT.replace(self);
        // Relaxed: it is compared by the thread that stored it; others only learn that they are not it.
        self.owner.store(this_thread(), Ordering::Relaxed);
        let returned = entry(std::ptr::from_ref(self).cast_mut().cast());
        self.owner.store(0, Ordering::Relaxed);
        CURRENT.set(before);
        // SAFETY: the entry has returned, and only this thread was let at the cell.
        let active = unsafe { (*self.active.get()).take() };
        let (stranger, place) = *self.stranger.lock().unwrap_or_else(PoisonError::into_inner);
        let site = place.or(active.as_ref().map(Active::here));
        if let Some(error) = active.and_then(|active| active.error) {
            return Err(error);
        }
        let abrupt = stranger.map_or(returned, |call| {
            Err(format!(
                "`{call}` was called by another thread than the one that the entry runs on; a graph is built by one thread"
            ))
        });
        abrupt.map_err(|text| RuntimeError::from(ErrorKind::Orchestration(text)).at_site(site))
    }

    fn is_owner(&self) -> bool {
        // Relaxed: see `run`, which stores it.
        self.owner.load(Ordering::Relaxed) == this_thread()
    }

    /// What the owner's calls work on; `None` for any other thread, which is remembered.
    ///
    /// # Safety
    /// The caller lets the reference go before it returns to C++.
    #[expect(clippy::mut_from_ref, reason = "one thread at a time gets it, once at a time")]
    unsafe fn active(&self, call: &'static str) -> Option<&mut Active> {
        if !self.is_owner() {
            let mut stranger = self.stranger.lock().unwrap_or_else(PoisonError::into_inner);
            stranger.0.get_or_insert(call);
            return None;
        }
        // SAFETY: this thread is in `run`, and no other gets here; it holds no other reference, as no function here
        // calls C++.
        unsafe { (*self.active.get()).as_mut() }
    }
}

impl Active {
    /// Where the call comes from, as far as that is known.
    fn here(&self) -> Site {
        self.site.unwrap_or(Site { file: self.name, line: self.calls })
    }

    fn keep(&mut self, submitted: &Submitted) -> TaskOutputs {
        let mut outputs = TaskOutputs { task_id: submitted.task.0, ..NOTHING };
        for (address, desc) in outputs.tensors.iter_mut().zip(&submitted.outputs) {
            *address = self.outputs.keep(*desc);
            outputs.count += 1;
        }
        outputs
    }
}

/// What a refused call returns.
const NOTHING: TaskOutputs = TaskOutputs { task_id: u64::MAX, count: 0, reserved: 0, tensors: [0; 32] };

/// Runs a call of the orchestration. `refused` when the thread is a stranger, when something failed before, and when
/// this fails, which is kept.
///
/// # Safety
/// `runtime` is null or the address of a context.
unsafe fn call<T>(
    runtime: *const Context,
    name: &'static str,
    refused: T,
    work: impl FnOnce(&mut Active, &mut dyn Builder) -> Result<T, RuntimeError>,
) -> T {
    // SAFETY: null, or a context, which lives as long as the process.
    let Some(context) = (unsafe { runtime.as_ref() }) else { return refused };
    // SAFETY: the reference ends with this function, which returns to C++ after it.
    let Some(active) = (unsafe { context.active(name) }) else { return refused };
    if active.error.is_some() {
        return refused;
    }
    // SAFETY: `Context::run` has the graph borrowed for as long as the entry runs, and only this thread is here.
    let graph = unsafe { &mut *active.graph };
    let done = catch_unwind(AssertUnwindSafe(|| {
        active.calls += 1;
        graph.set_site(Some(active.here()));
        if active.done && !matches!(name, "scope_end" | "orchestration_done") {
            let text = format!("`{name}` after `orchestration_done`");
            return Err(ErrorKind::Orchestration(text).into());
        }
        work(active, graph)
    }));
    let error = match done {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error,
        Err(_) => ErrorKind::Orchestration(format!("`{name}` panicked")).into(),
    };
    active.error = Some(error.at_site(Some(active.here())));
    refused
}

pub(super) unsafe extern "C" fn submit_task(
    rt: *mut Context,
    kernels: *const KernelIds,
    args: *const c_void,
) -> TaskOutputs {
    let work = |active: &mut Active, graph: &mut dyn Builder| {
        // SAFETY: the contract of `submit_task`: kernels, and an argument list of the runtime's flavour.
        let kernels = unsafe {
            decode::task_args(args, active.flavour, &mut active.args).and(decode::kernels(kernels))
        };
        let submitted = kernels.and_then(|kernels| graph.submit(kernels, &active.args));
        active.args.clear();
        Ok(active.keep(&submitted?))
    };
    // SAFETY: `rt` is what `framework_bind_runtime` got, or null.
    unsafe { call(rt, "submit_task", NOTHING, work) }
}

pub(super) unsafe extern "C" fn submit_dummy_task(rt: *mut Context, args: *const c_void) -> TaskOutputs {
    let work = |active: &mut Active, graph: &mut dyn Builder| {
        // SAFETY: the contract of `submit_dummy_task`.
        let decoded = unsafe { decode::task_args(args, active.flavour, &mut active.args) };
        let submitted = decoded.and_then(|()| graph.submit_dummy(&active.args));
        active.args.clear();
        Ok(active.keep(&submitted?))
    };
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "submit_dummy_task", NOTHING, work) }
}

pub(super) unsafe extern "C" fn alloc_tensors(rt: *mut Context, args: *const c_void) -> TaskOutputs {
    let work = |active: &mut Active, graph: &mut dyn Builder| {
        let mut list = TaskArgs::new();
        // SAFETY: the contract of `alloc_tensors`.
        unsafe { decode::task_args(args, active.flavour, &mut list)? };
        let creates = list.tensors.iter().map(|tensor| match tensor {
            TensorArg::Output(create) => Ok(*create),
            _ => Err(ArgumentError::Malformed(
                "only outputs are allocated; pass other tensors to a task".into(),
            )
            .into()),
        });
        let submitted = graph.allocate(&creates.collect::<Result<Vec<_>, RuntimeError>>()?)?;
        Ok(active.keep(&submitted))
    };
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "alloc_tensors", NOTHING, work) }
}

pub(super) unsafe extern "C" fn scope_begin(rt: *mut Context) {
    let work = |active: &mut Active, graph: &mut dyn Builder| {
        // SAFETY: the handle is C++'s, and this thread of C++ is in this call.
        let mode = unsafe {
            let mode = &raw mut (*(*rt).handle.get()).pending_scope_mode;
            std::ptr::replace(mode, 0)
        };
        graph.scope_begin(if mode == 1 { ScopeMode::Manual } else { ScopeMode::Auto })?;
        active.outputs.scope_begin();
        Ok(())
    };
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "scope_begin", (), work) }
}

pub(super) unsafe extern "C" fn scope_end(rt: *mut Context) {
    let work = |active: &mut Active, graph: &mut dyn Builder| {
        active.outputs.scope_end();
        graph.scope_end()
    };
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "scope_end", (), work) }
}

unsafe extern "C" fn orchestration_done(rt: *mut Context) {
    let work = |active: &mut Active, _: &mut dyn Builder| {
        active.done = true;
        Ok(())
    };
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "orchestration_done", (), work) }
}

unsafe extern "C" fn is_fatal(rt: *mut Context) -> bool {
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "is_fatal", true, |_, graph| Ok(graph.is_failed())) }
}

pub(super) unsafe extern "C" fn get_tensor_data(
    rt: *mut Context,
    tensor: *const TensorDesc,
    ndims: u32,
    indices: *const u32,
) -> u64 {
    let work = |_: &mut Active, graph: &mut dyn Builder| {
        // SAFETY: the contract of `get_tensor_data`.
        let (desc, index) = unsafe { (decode::tensor(0, tensor as u64)?, decode::indices(ndims, indices)?) };
        graph.get_element(&desc, &index[..ndims as usize])
    };
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "get_tensor_data", 0, work) }
}

pub(super) unsafe extern "C" fn set_tensor_data(
    rt: *mut Context,
    tensor: *const TensorDesc,
    ndims: u32,
    indices: *const u32,
    value: u64,
) {
    let work = |_: &mut Active, graph: &mut dyn Builder| {
        // SAFETY: the contract of `set_tensor_data`.
        let (desc, index) = unsafe { (decode::tensor(0, tensor as u64)?, decode::indices(ndims, indices)?) };
        graph.set_element(&desc, &index[..ndims as usize], value)
    };
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "set_tensor_data", (), work) }
}

unsafe extern "C" fn available_cluster_count(rt: *mut Context) -> i32 {
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "available_cluster_count", 0, |_, graph| Ok(graph.cluster_count() as i32)) }
}

unsafe extern "C" fn available_aiv_count(rt: *mut Context) -> i32 {
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "available_aiv_count", 0, |_, graph| Ok(2 * graph.cluster_count() as i32)) }
}

/// Where the calls of this thread that follow come from.
///
/// # Safety
/// `runtime` is null or a context, `file` null or NUL-terminated.
unsafe fn set_place(runtime: *const Context, file: *const c_char, line: i32) {
    // SAFETY: null, or a context, which lives as long as the process.
    let Some(context) = (unsafe { runtime.as_ref() }) else { return };
    if file.is_null() {
        return;
    }
    // SAFETY: not null, and a text as the caller promises.
    let given = unsafe { CStr::from_ptr(file) }.to_bytes();
    let site = |file| Some(Site { file, line: line.unsigned_abs() });
    if !context.is_owner() {
        let mut stranger = context.stranger.lock().unwrap_or_else(PoisonError::into_inner);
        if stranger.0.is_none() {
            stranger.1 = site(interned(&String::from_utf8_lossy(given)));
        }
        return;
    }
    // SAFETY: the reference ends with this function, which returns to C++ after it.
    if let Some(active) = unsafe { context.active("set_site") } {
        active.site = match active.site {
            Some(last) if last.file.as_bytes() == given => site(last.file),
            _ => site(interned(&String::from_utf8_lossy(given))),
        };
    }
}

unsafe extern "C" fn scope_set_site(file: *const c_char, line: i32) {
    // SAFETY: the context of the entry that this thread runs, or null; a literal of the orchestration's.
    unsafe { set_place(CURRENT.get(), file, line) }
}

unsafe extern "C" fn set_site(rt: *mut Context, file: *const c_char, line: i32) {
    // SAFETY: as in `submit_task`; a literal of the orchestration's.
    unsafe { set_place(rt, file, line) }
}

pub(super) unsafe extern "C" fn wait(rt: *mut Context, wait: *const WaitSpec) {
    let work = |active: &mut Active, _: &mut dyn Builder| {
        // SAFETY: the contract of `wait`: null or a description of one.
        if let Some(wait) = unsafe { wait.as_ref() } {
            let from = u32::try_from(wait.signaller).map_or(Signaller::Unknown, Signaller::Rank);
            let domain = Domain(wait.domain);
            active.args.waits.push(Wait { domain, offset: wait.offset, at_least: wait.value, from });
        }
        Ok(())
    };
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "wait", (), work) }
}

pub(super) unsafe extern "C" fn signal(rt: *mut Context, signal: *const SignalSpec) {
    let work = |active: &mut Active, _: &mut dyn Builder| {
        // SAFETY: the contract of `signal`: null or a description of one.
        if let Some(signal) = unsafe { signal.as_ref() } {
            let op = if signal.set != 0 { SignalOp::Set(signal.value) } else { SignalOp::Add(signal.value) };
            let domain = Domain(signal.domain);
            active.args.signals.push(Signal { domain, rank: signal.rank, offset: signal.offset, op });
        }
        Ok(())
    };
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "signal", (), work) }
}

pub(super) unsafe extern "C" fn publish_task(rt: *mut Context, task: u64) {
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "publish_task", (), |_, graph| graph.publish(TaskId(task))) }
}

pub(super) unsafe extern "C" fn add_dependency(rt: *mut Context, after: u64, before: u64) {
    let work = |_: &mut Active, graph: &mut dyn Builder| graph.add_dependency(TaskId(after), TaskId(before));
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "add_dependency", (), work) }
}

/// The domain whose context is at this address, which is compared and not followed.
unsafe extern "C" fn domain_of(rt: *mut Context, context: *const c_void) -> u32 {
    let context = DeviceAddr(context.addr() as u64);
    let work = |_: &mut Active, graph: &mut dyn Builder| Ok(graph.domain(context)?.0);
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "domain_of", u32::MAX, work) }
}

/// The code of what went wrong; 0 for nothing.
unsafe extern "C" fn failure_code(rt: *mut Context) -> i32 {
    // SAFETY: null, or a context, which lives as long as the process.
    let Some(context) = (unsafe { rt.as_ref() }) else { return 0 };
    // SAFETY: the reference ends with this function, which returns to C++ after it.
    let Some(active) = (unsafe { context.active("failure_code") }) else { return 0 };
    if let Some(error) = &active.error {
        return error.code();
    }
    // SAFETY: `Context::run` has the graph borrowed for as long as the entry runs, and only this thread is here.
    let graph = unsafe { &*active.graph };
    // A panic must not reach C++.
    catch_unwind(AssertUnwindSafe(|| graph.failure_code())).unwrap_or(100)
}

/// The end of `report_fatal`, with the text that its arguments make.
#[unsafe(no_mangle)]
unsafe extern "C" fn chipcomm_runtime_report_fatal(
    rt: *mut Context,
    code: i32,
    function: *const c_char,
    text: *const c_char,
) {
    // SAFETY: null or texts.
    let text = unsafe { format!("{}: {}", shim::owned(function), shim::owned(text)) };
    // SAFETY: as in `submit_task`.
    unsafe { call(rt, "report_fatal", (), |_, _| Err(ErrorKind::Reported { code, text }.into())) }
}

/// The end of the functions that log.
#[unsafe(no_mangle)]
unsafe extern "C" fn chipcomm_runtime_log(level: i32, function: *const c_char, text: *const c_char) {
    // SAFETY: null or texts.
    let (function, text) = unsafe { (shim::owned(function), shim::owned(text)) };
    match level {
        0 => tracing::error!(target: "chip_runtime::orchestration", "{function}: {text}"),
        1 => tracing::warn!(target: "chip_runtime::orchestration", "{function}: {text}"),
        2 | 3 => tracing::info!(target: "chip_runtime::orchestration", "{function}: {text}"),
        _ => tracing::debug!(target: "chip_runtime::orchestration", "{function}: {text}"),
    }
}

/// A table of functions, as C reads it.
#[repr(transparent)]
struct Table<const N: usize>([*const c_void; N]);

// SAFETY: addresses of functions, which nobody changes.
unsafe impl<const N: usize> Sync for Table<N> {}

/// What both tables begin with.
const COMMON: [*const c_void; 17] = [
    submit_task as *const c_void,
    scope_begin as *const c_void,
    scope_end as *const c_void,
    orchestration_done as *const c_void,
    is_fatal as *const c_void,
    shim::chipcomm_shim_report_fatal as *const c_void,
    shim::chipcomm_shim_log_error as *const c_void,
    shim::chipcomm_shim_log_warn as *const c_void,
    shim::chipcomm_shim_log_timing as *const c_void,
    shim::chipcomm_shim_log_info as *const c_void,
    shim::chipcomm_shim_log_debug as *const c_void,
    get_tensor_data as *const c_void,
    set_tensor_data as *const c_void,
    alloc_tensors as *const c_void,
    submit_dummy_task as *const c_void,
    available_cluster_count as *const c_void,
    available_aiv_count as *const c_void,
];

const fn table<const N: usize>() -> Table<N> {
    let mut table = [null(); N];
    let mut at = 0;
    while at < COMMON.len() {
        table[at] = COMMON[at];
        at += 1;
    }
    table[N - 1] = scope_set_site as *const c_void;
    Table(table)
}

static RING_OPS: Table<OPS> = table();
static PREBUILT_TABLE: Table<PREBUILT_OPS> = table();

/// The functions beyond those of upstream: `OrchExtension`.
#[repr(C)]
struct Extension {
    size: u32,
    prebuilt: u32,
    functions: Table<EXTENSION_OPS>,
}

const fn extension(prebuilt: u32) -> Extension {
    let functions = [
        wait as *const c_void,
        signal as *const c_void,
        publish_task as *const c_void,
        set_site as *const c_void,
        add_dependency as *const c_void,
        domain_of as *const c_void,
        failure_code as *const c_void,
    ];
    Extension { size: size_of::<Extension>() as u32, prebuilt, functions: Table(functions) }
}

static RING_EXTENSION: Extension = extension(0);
static PREBUILT_EXTENSION: Extension = extension(1);
