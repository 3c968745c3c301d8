//! The builder's side: submits, scopes, edges, and single elements.
//!
//! # Safety
//! Fills and accesses memory of tensors, which lies in the heap of a ring or in memory that the graph was given; both are
//! checked first.
#![allow(unsafe_code)]

use super::slots::{Shape, Stage};
use super::state::{Goal, Scope, State, has_ended};
use super::{Engine, MutexGuard};
use crate::args::{TaskArgs, TensorArg};
use crate::buffer::Memory;
use crate::element;
use crate::error::{ArgumentError, ErrorKind, RuntimeError};
use crate::heap::fill;
use crate::kernel::Kernel;
use crate::limits::{FrontEnd, MAX_SCALARS, MAX_TENSORS, OUTPUT_ALIGN, RINGS, ScopeMode};
use crate::record::TaskRecord;
use crate::signals::SignalError;
use crate::task::{Kernels, Site, Submitted, TaskId};
use crate::tensor::Create;
use crate::tensor_map::{Extent, Use};
use comm_context::abi::{AbiError, DType, DeviceAddr, NO_OWNER, TensorDesc};
use deadline::{Deadline, coarse_monotonic_ns};
use fault_points::fault_point;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// The most blocks of a task.
const MAX_BLOCKS: u32 = u16::MAX as u32;

/// Why elements of a prebuilt graph's own tensors cannot be accessed.
pub(crate) const NOTHING_YET: &str = "a prebuilt graph starts when it is complete: while it is built, tensors that its tasks make hold nothing yet";

/// What a task is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Runs kernels.
    Run(Kernels),
    /// Orders others.
    Order,
    /// Makes tensors, at once.
    Allocate,
}

impl Engine {
    /// Submits a task; waits for room where the front end does.
    pub(crate) fn submit(
        self: &Arc<Self>,
        work: Work,
        args: &TaskArgs,
        site: Site,
        deadline: Deadline,
    ) -> Result<Submitted, RuntimeError> {
        let here = |error: RuntimeError| error.at_site(Some(site));
        let bytes = check(args).map_err(here)?;
        fault_point!("graph.submit");
        let mut state = self.lock_unfailed(deadline)?;
        let ring = (state.scopes.len() - 1).min(RINGS - 1);
        let kernels = state.kernels_of(work, args).map_err(here)?;
        state.take_ended();
        state = self.make_room(state, ring, bytes, site, deadline).map_err(here)?;
        let (task, outputs) = match state.enter(ring, bytes, kernels, args, site) {
            Ok(entered) => entered,
            Err(error) => {
                // What ended may have made others ready.
                let wakes = state.leave();
                drop(state);
                self.wake(wakes);
                return Err(here(error));
            }
        };
        fault_point!("graph.entered");
        let fills = outputs.iter().zip(creates(args)).any(|(_, create)| create.initial.is_some());
        if fills {
            drop(state);
            for (desc, create) in outputs.iter().zip(creates(args)) {
                let (Some(value), Some(elements)) = (create.initial, create.elements()) else { continue };
                // SAFETY: the task was given this part of its ring's heap just now, and it has not started.
                unsafe { fill(desc.addr, elements, create.dtype.size() as usize, value) };
            }
            state = self.lock();
        }
        if state.front_end.publishes_at_submit() || matches!(work, Work::Allocate) {
            state.publish(task);
        }
        let wakes = state.leave();
        drop(state);
        self.wake(wakes);
        Ok(Submitted { task, outputs })
    }

    /// The state, if the graph has not failed and its time is not over.
    fn lock_unfailed(&self, deadline: Deadline) -> Result<MutexGuard<'_, State>, RuntimeError> {
        let mut state = self.lock();
        if state.error.is_none() && coarse_monotonic_ns() >= deadline.monotonic_ns() {
            let kind = ErrorKind::TimedOut { limit: deadline.limit(), table: state.table() };
            state.fail(kind.into());
        }
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(state),
        }
    }

    fn make_room<'e>(
        self: &'e Arc<Self>,
        mut state: MutexGuard<'e, State>,
        ring: usize,
        bytes: u64,
        site: Site,
        deadline: Deadline,
    ) -> Result<MutexGuard<'e, State>, RuntimeError> {
        while !state.has_room(ring, bytes) {
            if let Some(proof) = state.never_has_room(ring, bytes) {
                let proof = proof.at_site(Some(site));
                state.fail(proof.clone());
                return Err(proof);
            }
            state = self.wait_for(state, Goal::Room { ring, bytes }, deadline)?;
        }
        Ok(state)
    }

    pub(crate) fn scope_begin(
        &self,
        mode: ScopeMode,
        site: Site,
        deadline: Deadline,
    ) -> Result<(), RuntimeError> {
        let mut state = self.lock_unfailed(deadline)?;
        // The outer scope, which a run has anyway, does not count.
        if state.scopes.len() > state.limits.scope_depth {
            let kind = ErrorKind::ScopeDepth { limit: state.limits.scope_depth };
            return Err(RuntimeError::from(kind).at_site(Some(site)));
        }
        let tasks = state.spare.pop().unwrap_or_default();
        state.scopes.push(Scope { mode, site: Some(site), tasks });
        Ok(())
    }

    /// Closes the scope that was opened last.
    pub(crate) fn scope_end(self: &Arc<Self>, deadline: Deadline) -> Result<(), RuntimeError> {
        let mut state = self.lock_unfailed(deadline)?;
        if state.scopes.len() <= 1 {
            return Err(ErrorKind::NoScope.into());
        }
        fault_point!("graph.scope.end");
        state.take_ended();
        state.close_scope();
        let wakes = state.leave();
        drop(state);
        self.wake(wakes);
        Ok(())
    }

    /// Lets a task of the explicit front end start.
    pub(crate) fn publish(self: &Arc<Self>, task: TaskId, deadline: Deadline) -> Result<(), RuntimeError> {
        let mut state = self.lock_unfailed(deadline)?;
        if !state.exists(task) {
            return Err(ArgumentError::UnknownTask(task).into());
        }
        fault_point!("graph.publish");
        if state.rings[task.ring()].holds(task.local()) {
            state.publish(task);
        }
        let wakes = state.leave();
        drop(state);
        self.wake(wakes);
        Ok(())
    }

    /// Adds an edge to a task that is not published.
    pub(crate) fn add_edge(
        &self,
        before: TaskId,
        after: TaskId,
        deadline: Deadline,
    ) -> Result<(), RuntimeError> {
        let mut state = self.lock_unfailed(deadline)?;
        for task in [before, after] {
            if !state.exists(task) {
                return Err(ArgumentError::UnknownTask(task).into());
            }
        }
        if !state.rings[after.ring()].holds(after.local()) || state.slot(after).stage != Stage::Unpublished {
            return Err(ArgumentError::Published(after).into());
        }
        if state.would_close_cycle(before, after) {
            let at = state.at(after);
            return Err(RuntimeError { kind: ErrorKind::Cycle { before, after }, at });
        }
        state.add_edge(before, after);
        Ok(())
    }

    /// Lets tasks use this memory.
    pub(crate) fn give(&self, range: Range<u64>, import: Option<Arc<Memory>>) {
        let mut state = self.lock();
        if let Some(memory) = import {
            memory.begin_use();
            state.imports.push(memory);
        }
        state.give(range);
    }

    /// The bits of an element, once those that write it have ended.
    pub(crate) fn get_element(
        self: &Arc<Self>,
        desc: &TensorDesc,
        index: &[u32],
        deadline: Deadline,
    ) -> Result<u64, RuntimeError> {
        let (addr, size) = self.reach_element(desc, index, Use::Read, deadline)?;
        // SAFETY: the tensor lies in memory of the graph, and the index in the tensor.
        Ok(unsafe { element::load(addr, size) })
    }

    /// Replaces an element, once those that use it have ended.
    pub(crate) fn set_element(
        self: &Arc<Self>,
        desc: &TensorDesc,
        index: &[u32],
        bits: u64,
        deadline: Deadline,
    ) -> Result<(), RuntimeError> {
        let (addr, size) = self.reach_element(desc, index, Use::Write, deadline)?;
        // SAFETY: as in `get_element`.
        unsafe { element::store(addr, size, bits) };
        Ok(())
    }

    fn reach_element(
        self: &Arc<Self>,
        desc: &TensorDesc,
        index: &[u32],
        kind: Use,
        deadline: Deadline,
    ) -> Result<(u64, usize), RuntimeError> {
        check_tensor(0, desc)?;
        let place = element::place(desc, index)?;
        let mut state = self.lock_unfailed(deadline)?;
        let owner = state.check_memory(0, desc)?;
        match state.front_end {
            FrontEnd::Explicit => {
                return Err(ErrorKind::NotHere {
                    call: "get or set of an element",
                    front_end: FrontEnd::Explicit.name(),
                    instead: "read it in a kernel, or use a predicate",
                }
                .into());
            }
            FrontEnd::Prebuilt if owner.is_some() => {
                return Err(ErrorKind::DataAccess(NOTHING_YET).into());
            }
            FrontEnd::Prebuilt => return Ok(place),
            FrontEnd::Inferred => {}
        }
        let tasks = state.users(desc, owner, kind);
        if !tasks.is_empty() {
            state = self.wait_for(state, Goal::Done(tasks.clone()), deadline)?;
            if !tasks.iter().all(|task| state.has_ended(*task)) {
                let (left, cycle) = (state.live, state.cycle());
                return Err(ErrorKind::NothingCompletes { left, cycle }.into());
            }
        }
        Ok(place)
    }
}

impl State {
    /// The kernels of a task, which exist, in a shape that can start.
    fn kernels_of(&self, work: Work, args: &TaskArgs) -> Result<[Option<NonNull<Kernel>>; 3], RuntimeError> {
        let Work::Run(kernels) = work else { return Ok([None; 3]) };
        let mut found = [None; 3];
        for (place, id) in found.iter_mut().zip(kernels.lanes()) {
            let Some(id) = id else { continue };
            let kernel = self.kernels.get(id).ok_or(ArgumentError::UnknownKernel(id))?;
            *place = Some(NonNull::from(kernel));
        }
        let clusters = self.limits.clusters as u32;
        let (per_block, have, cores) = match shape(&found) {
            Shape::Dummy => return Err(ArgumentError::NoKernel.into()),
            Shape::Aic => (1, clusters, "AIC"),
            Shape::Aiv => (1, 2 * clusters, "AIV"),
            Shape::Mix => (1, clusters, "clusters of"),
        };
        let need = args.blocks * per_block;
        if args.sync_start && need > have {
            return Err(ErrorKind::SyncStart { blocks: args.blocks, need, cores, have }.into());
        }
        Ok(found)
    }

    /// Why waiting for room can never end, if so.
    fn never_has_room(&self, ring: usize, bytes: u64) -> Option<RuntimeError> {
        let slots = &self.rings[ring];
        let heap_full = !slots.heap.has_room(bytes);
        let scope = self
            .scopes
            .iter()
            .rev()
            .find(|scope| scope.tasks.first().is_some_and(|task| task.ring() == ring));
        let scope = scope.or(self.scopes.last()).and_then(|scope| scope.site);
        let full = || -> RuntimeError {
            if slots.is_full() {
                return ErrorKind::SlotsFull { ring, slots: self.limits.slots, scope }.into();
            }
            if heap_full {
                return ErrorKind::HeapFull { ring, bytes: slots.heap.size(), need: bytes, scope }.into();
            }
            ErrorKind::EdgesFull { limit: self.limits.edges }.into()
        };
        if self.front_end == FrontEnd::Prebuilt || bytes > slots.heap.size() {
            return Some(full());
        }
        if !slots.is_full() && !heap_full {
            return self.is_still().then(full);
        }
        let oldest = slots.oldest()?;
        if slots.slot(oldest).scope_open {
            // Only the builder closes the scope, and it is here.
            return Some(full());
        }
        self.is_still().then(|| {
            let kind = ErrorKind::NothingCompletes { left: self.live, cycle: self.cycle() };
            RuntimeError { kind, at: self.at(TaskId::new(ring, oldest)) }
        })
    }

    /// Enters a task for which there is room. It is not published.
    fn enter(
        &mut self,
        ring: usize,
        bytes: u64,
        kernels: [Option<NonNull<Kernel>>; 3],
        args: &TaskArgs,
        site: Site,
    ) -> Result<(TaskId, Vec<TensorDesc>), RuntimeError> {
        // Everything that can be refused comes first.
        let mut owners = std::mem::take(&mut self.owners);
        owners.clear();
        let predicate = args.predicate.as_ref().map(|predicate| (args.tensors.len(), &predicate.tensor));
        let tensors =
            args.tensors.iter().enumerate().filter_map(|(index, arg)| Some((index, existing(arg)?)));
        for (index, desc) in tensors.chain(predicate) {
            owners.extend(self.check_memory(index, desc)?);
        }
        let signals = self.poller.signals();
        args.waits.iter().try_for_each(|wait| signals.check_wait(wait))?;
        let targets = args.signals.iter().map(|signal| Ok((*signal, signals.resolve(signal)?)));
        let targets = targets.collect::<Result<Vec<_>, SignalError>>()?;
        if let Some(unknown) = args.after.iter().chain(&args.retained).find(|task| !self.exists(**task)) {
            return Err(ArgumentError::UnknownTask(*unknown).into());
        }
        // One that has no slot any more has no tensors either.
        let has_slot = |task: &&TaskId| self.rings[task.ring()].holds(task.local());
        owners.extend(args.retained.iter().filter(has_slot));
        let heap = &mut self.rings[ring].heap;
        let start = if bytes > 0 { heap.take(bytes)? } else { 0 };
        let heap_end = (bytes > 0).then(|| heap.head());

        self.seq += 1;
        self.live += 1;
        let seq = self.seq;
        let (local, slot) = self.rings[ring].take();
        let task = TaskId::new(ring, local);
        slot.seq = seq;
        slot.shape = shape(&kernels);
        slot.kernels = kernels;
        slot.sync_start = args.sync_start;
        slot.blocks = args.blocks;
        slot.unfinished = args.blocks * slot.lanes() as u32;
        slot.unmet = 1;
        slot.holds = 1;
        slot.scope_open = true;
        slot.site = Some(site);
        self.last = Some((task, site));
        slot.heap_end = heap_end;
        slot.memory = start..start + bytes;
        slot.predicate = args.predicate.map(Box::new);
        slot.scalars.extend_from_slice(&args.scalars);
        slot.waits.extend_from_slice(&args.waits);
        slot.signals.extend(targets);
        let mut outputs = Vec::new();
        let mut at = start;
        for (index, arg) in args.tensors.iter().enumerate() {
            slot.writable |= u32::from(arg.writes() || matches!(arg, TensorArg::NoDep(_))) << index;
            match arg {
                TensorArg::Output(create) => {
                    let desc =
                        output(create, at, task).map_err(|source| ArgumentError::Tensor { index, source })?;
                    at += room_of(create).unwrap_or(0);
                    outputs.push(desc);
                    slot.tensors.push(desc);
                }
                TensorArg::Input(desc)
                | TensorArg::InOut(desc)
                | TensorArg::OutputExisting(desc)
                // As a slice: copied once, and not by way of the stack.
                | TensorArg::NoDep(desc) => slot.tensors.extend_from_slice(std::slice::from_ref(desc)),
            }
        }
        slot.owners.extend_from_slice(&owners);
        for owner in &owners {
            self.slot_mut(*owner).holds += 1;
        }
        self.owners = owners;
        if let Some(scope) = self.scopes.last_mut() {
            scope.tasks.push(task);
        }
        if self.recording.is_some() {
            let names: Vec<_> =
                kernels.iter().flatten().map(|kernel| super::state::kernel_names(*kernel).1).collect();
            let record = TaskRecord {
                kernels: names.join(" + "),
                blocks: args.blocks,
                site: Some(site),
                waits: args.waits.to_vec(),
                signals: args.signals.to_vec(),
            };
            self.recording.iter_mut().for_each(|recording| recording.task(task, record.clone()));
        }
        for before in &args.after {
            self.add_edge(*before, task);
        }
        let infers = self.scopes.last().is_some_and(|scope| scope.mode == ScopeMode::Auto);
        if self.front_end.infers() && infers {
            self.infer(task, args);
        }
        Ok((task, outputs))
    }

    /// Adds the edges that follow from the task's tensors.
    fn infer(&mut self, task: TaskId, args: &TaskArgs) {
        let Self { rings, map, recording, found, entries, .. } = self;
        // A recording has the edges to tasks that have ended, too.
        let keeps = recording.is_some();
        let ended = |task| !keeps && has_ended(rings, task);
        let (mut found, mut entries) = (std::mem::take(found), std::mem::take(entries));
        let tensors = &rings[task.ring()].slot(task.local()).tensors;
        for (desc, arg) in tensors.iter().zip(&args.tensors) {
            if desc.manual_dep == 1 || matches!(arg, TensorArg::NoDep(_)) {
                continue;
            }
            let Some(extent) = extent_of(desc) else { continue };
            let kind = if arg.writes() { Use::Write } else { Use::Read };
            // Nobody else knows the memory of a new tensor.
            if existing(arg).is_some() {
                map.conflicts(&extent, kind, ended, |task| found.push(task));
            }
            entries.push((extent, kind));
        }
        if let Some(predicate) = args.predicate.as_ref().filter(|predicate| predicate.tensor.manual_dep == 0)
            && let Some(extent) = extent_of(&predicate.tensor)
        {
            map.conflicts(&extent, Use::Read, ended, |task| found.push(task));
            entries.push((extent, Use::Read));
        }
        for (extent, kind) in entries.drain(..) {
            map.enter(&extent, kind, task, ended);
        }
        for before in found.drain(..) {
            self.add_edge(before, task);
        }
        (self.found, self.entries) = (found, entries);
    }

    /// Whether a tensor lies in memory that this graph knows, and who made it.
    fn check_memory(&self, index: usize, desc: &TensorDesc) -> Result<Option<TaskId>, RuntimeError> {
        let range = desc.addr..desc.addr + desc.size;
        if desc.owner_task_id == NO_OWNER {
            if !range.is_empty() && !self.given_contains(&range) {
                return Err(ArgumentError::UnknownMemory { index, addr: desc.addr, bytes: desc.size }.into());
            }
            return Ok(None);
        }
        let owner = TaskId(desc.owner_task_id);
        if !self.exists(owner) {
            return Err(ArgumentError::NotOwner { index, owner }.into());
        }
        if !self.rings[owner.ring()].holds(owner.local()) || !self.slot(owner).scope_open {
            return Err(ArgumentError::ScopeEnded { index, owner }.into());
        }
        let memory = &self.slot(owner).memory;
        if range.start < memory.start || range.end > memory.end {
            return Err(ArgumentError::NotOwner { index, owner }.into());
        }
        Ok(Some(owner))
    }

    /// Unfinished tasks that write, or for a write use, any of the tensor.
    fn users(&mut self, desc: &TensorDesc, owner: Option<TaskId>, kind: Use) -> Vec<TaskId> {
        let mut tasks: Vec<TaskId> = owner.into_iter().filter(|task| !self.has_ended(*task)).collect();
        if let Some(extent) = extent_of(desc) {
            let Self { rings, map, recording, .. } = self;
            let keeps = recording.is_some();
            map.conflicts(
                &extent,
                kind,
                |task| !keeps && has_ended(rings, task),
                |task| {
                    if !has_ended(rings, task) {
                        tasks.push(task);
                    }
                },
            );
        }
        tasks
    }

    /// Closes the outer scope. Scopes that are still open are an error.
    pub(super) fn close_outer(&mut self) -> Result<(), RuntimeError> {
        let open = self.scopes.len().saturating_sub(1);
        if open > 0 {
            let scope = self.scopes.last().and_then(|scope| scope.site);
            return Err(ErrorKind::OpenScopes { open, scope }.into());
        }
        self.close_scope();
        Ok(())
    }

    fn close_scope(&mut self) {
        let Some(Scope { mut tasks, .. }) = self.scopes.pop() else { return };
        if self.front_end == FrontEnd::Explicit {
            for task in &tasks {
                self.publish(*task);
            }
        }
        for task in &tasks {
            self.close_for(*task);
        }
        tasks.clear();
        self.spare.push(tasks);
    }

    /// Publishes what is not, in the order of the submits.
    pub(super) fn publish_all(&mut self) {
        let mut tasks = Vec::new();
        for (ring, slots) in self.rings.iter().enumerate() {
            let unpublished = |local: &u32| slots.slot(*local).stage == Stage::Unpublished;
            let left = slots.locals().filter(unpublished);
            tasks.extend(left.map(|local| (slots.slot(local).seq, TaskId::new(ring, local))));
        }
        tasks.sort_unstable();
        tasks.into_iter().for_each(|(_, task)| self.publish(task));
    }

    /// Whether `after` comes before `before` already.
    fn would_close_cycle(&self, before: TaskId, after: TaskId) -> bool {
        if before == after {
            return true;
        }
        if self.has_ended(before) || (!self.backward && self.slot(before).seq < self.slot(after).seq) {
            return false;
        }
        let (mut seen, mut open) = (std::collections::BTreeSet::new(), vec![after]);
        while let Some(task) = open.pop() {
            if task == before {
                return true;
            }
            if seen.insert(task) {
                open.extend_from_slice(&self.slot(task).fanout);
            }
        }
        false
    }

    fn give(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        // What overlaps becomes one range.
        while let Some((&low, &high)) = self.given.range(..end).next_back().filter(|(_, high)| **high > start)
        {
            self.given.remove(&low);
            (start, end) = (start.min(low), end.max(high));
        }
        self.given.insert(start, end);
    }
}

fn shape(kernels: &[Option<NonNull<Kernel>>; 3]) -> Shape {
    match kernels.map(|kernel| kernel.is_some()) {
        [false, false, false] => Shape::Dummy,
        [true, false, false] => Shape::Aic,
        [false, true, false] | [false, false, true] => Shape::Aiv,
        _ => Shape::Mix,
    }
}

/// The descriptor of a tensor that exists.
pub(crate) fn existing(arg: &TensorArg) -> Option<&TensorDesc> {
    match arg {
        TensorArg::Output(_) => None,
        TensorArg::Input(desc)
        | TensorArg::InOut(desc)
        | TensorArg::OutputExisting(desc)
        | TensorArg::NoDep(desc) => Some(desc),
    }
}

pub(crate) fn creates(args: &TaskArgs) -> impl Iterator<Item = &Create> {
    args.tensors
        .iter()
        .filter_map(|arg| if let TensorArg::Output(create) = arg { Some(create) } else { None })
}

/// Checks what can be checked without the graph, and returns how many bytes the outputs need.
pub(crate) fn check(args: &TaskArgs) -> Result<u64, RuntimeError> {
    let counts = [("tensors", MAX_TENSORS, args.tensors.len()), ("scalars", MAX_SCALARS, args.scalars.len())];
    for (what, most, given) in counts {
        if given > most {
            return Err(ArgumentError::TooMany { what, most, given }.into());
        }
    }
    if args.blocks == 0 || args.blocks > MAX_BLOCKS {
        return Err(ArgumentError::Blocks(args.blocks).into());
    }
    let mut bytes = 0u64;
    for (index, arg) in args.tensors.iter().enumerate() {
        match arg {
            TensorArg::Output(create) => {
                let too_large =
                    ArgumentError::Tensor { index, source: AbiError::Overflow { what: "size in bytes" } };
                let sum = room_of(create).and_then(|room| bytes.checked_add(room));
                bytes = sum.filter(|sum| *sum < 1 << 48).ok_or(too_large)?;
            }
            TensorArg::Input(desc)
            | TensorArg::InOut(desc)
            | TensorArg::OutputExisting(desc)
            | TensorArg::NoDep(desc) => check_tensor(index, desc)?,
        }
    }
    if let Some(predicate) = &args.predicate {
        check_tensor(args.tensors.len(), &predicate.tensor)?;
        element::place(&predicate.tensor, &predicate.index[..predicate.ndims])?;
        if !predicate.tensor.dtype().is_ok_and(element::is_comparable) {
            return Err(ArgumentError::ElementType(predicate.tensor.dtype).into());
        }
    }
    Ok(bytes)
}

pub(crate) fn check_tensor(index: usize, desc: &TensorDesc) -> Result<(), RuntimeError> {
    desc.check().map_err(|source| ArgumentError::Tensor { index, source }.into())
}

/// The bytes that a new tensor takes; `None` where that overflows.
pub(crate) fn room_of(create: &Create) -> Option<u64> {
    let bytes = create.elements()?.checked_mul(create.dtype.size())?;
    bytes.max(1).checked_next_multiple_of(OUTPUT_ALIGN)
}

pub(crate) fn output(create: &Create, addr: u64, owner: TaskId) -> Result<TensorDesc, AbiError> {
    let size = create.elements().unwrap_or(0) * create.dtype.size();
    let shape = &create.shape[..create.ndims];
    let builder = TensorDesc::builder(DeviceAddr(addr), size, create.dtype, shape);
    let builder = builder.owner(owner.0).version(create.version);
    if create.manual_dep == 1 { builder.manual_dependencies().build() } else { builder.build() }
}

pub(crate) fn extent_of(desc: &TensorDesc) -> Option<Extent> {
    Extent::of(desc, desc.dtype().map_or(1, DType::size))
}
