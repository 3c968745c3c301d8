//! The host's part of a run: what it launches when, and what it watches meanwhile.
//!
//! A task whose WAIT is not met holds back those that come after it, and no others. Order among kernels is the device's; the host
//! waits for a kernel's end only where it has something to do then: a signal to send, or a predicate to look at.
//!
//! # Safety
//! Launches kernels, which the user vouches for by naming their file; what they are given stays until their streams have ended.
#![allow(unsafe_code)]

use super::error::{Missing, at_task};
use super::recorder::Recorder;
use super::tasks::{DeviceTask, Queue};
use super::windows::DeviceWindows;
use super::{GraphDevice, OnDeviceError};
use crate::element;
use crate::engine::Session;
use crate::record::Recording;
use crate::signals::{SignalError, Wait};
use crate::task::KernelId;
use comm_context::abi::DeviceAddr;
use comm_hccl::{Arguments, Event, LaunchSpec};
use deadline::{Deadline, monotonic_ns};
use mailbox_atomics::{POLL_INTERVAL, WordU32};
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two looks at words and events: the first pause, and the longest.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// Waits that a text names.
const IN_A_TEXT: usize = 4;

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Something that it comes after is not launched, or a wait of it is not met.
    Held,
    /// Its kernel is launched, as the so many-th; or it has none and holds nothing back.
    Launched(usize),
    /// Its kernel has ended, or its predicate did not hold.
    Ended,
}

/// A wait that is not met.
#[derive(Debug)]
struct Armed {
    task: usize,
    wait: Wait,
    word: DeviceAddr,
    /// A rank of the communicator.
    from: Option<u32>,
    have: u32,
}

/// A graph that is run.
pub(super) struct Drive<'g> {
    on: &'g GraphDevice,
    tasks: &'g [DeviceTask],
    session: &'g Session,
    deadline: Deadline,
    stages: Vec<Stage>,
    armed: Vec<Armed>,
    launches: usize,
    /// What stays until the streams have ended.
    arguments: BTreeMap<usize, Arguments>,
    events: BTreeMap<usize, Event>,
    next_check_ns: u64,
    recorder: Option<Recorder>,
}

impl<'g> Drive<'g> {
    pub(super) fn new(
        on: &'g GraphDevice,
        tasks: &'g [DeviceTask],
        session: &'g Session,
        deadline: Deadline,
    ) -> Result<Self, OnDeviceError> {
        let mut armed = Vec::new();
        let mut recorder = on.records.then(|| Recorder::new(on, tasks));
        if let Some(windows) = &on.windows {
            for (task, of) in tasks.iter().enumerate() {
                for wait in &of.waits {
                    let (word, from) = windows.awaited(wait).map_err(|error| on.refuse(of.site, error))?;
                    recorder.iter_mut().for_each(|recorder| recorder.armed(task, wait, windows));
                    armed.push(Armed { task, wait: *wait, word, from, have: 0 });
                }
            }
        }
        Ok(Self {
            on,
            tasks,
            session,
            deadline,
            stages: vec![Stage::Held; tasks.len()],
            armed,
            launches: 0,
            arguments: BTreeMap::new(),
            events: BTreeMap::new(),
            next_check_ns: 0,
            recorder,
        })
    }

    /// Launches everything, and does what the host has to do after kernels. Kernels may still run when it returns.
    pub(super) fn run(&mut self) -> Result<(), OnDeviceError> {
        let mut open: Vec<usize> = (0..self.tasks.len()).collect();
        let mut pause = SHORTEST_PAUSE;
        loop {
            let mut moved = self.look()?;
            let mut left = Vec::with_capacity(open.len());
            for index in open {
                let before = self.stages[index];
                if !self.advance(index)? {
                    left.push(index);
                }
                moved |= self.stages[index] != before;
            }
            open = left;
            if open.is_empty() {
                return Ok(());
            }
            if moved {
                pause = SHORTEST_PAUSE;
            } else if !self.check(&open)? {
                rest(pause);
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
        }
    }

    /// Looks at the words of all waits, each once. Returns whether one is met.
    fn look(&mut self) -> Result<bool, OnDeviceError> {
        let Some(windows) = &self.on.windows else { return Ok(false) };
        let (tasks, before) = (self.tasks, self.armed.len());
        let mut seen = BTreeMap::new();
        for armed in &mut self.armed {
            let word = armed.word;
            let have = match seen.get(&word.0) {
                Some(have) => *have,
                None => windows.load(word).map_err(|error| self.on.refuse(tasks[armed.task].site, error))?,
            };
            seen.insert(word.0, have);
            armed.have = have;
        }
        let recorder = &mut self.recorder;
        self.armed.retain(|armed| {
            let is_short = (armed.have.wrapping_sub(armed.wait.at_least) as i32) < 0;
            if let Some(recorder) = recorder.as_mut().filter(|_| !is_short) {
                recorder.met(armed.task, &armed.wait);
            }
            is_short
        });
        Ok(self.armed.len() < before)
    }

    /// Takes a task as far as it goes now. Returns whether the host has nothing more to do for it.
    fn advance(&mut self, index: usize) -> Result<bool, OnDeviceError> {
        let task = &self.tasks[index];
        if self.stages[index] == Stage::Held && !self.release(index)? {
            return Ok(false);
        }
        let Stage::Launched(_) = self.stages[index] else {
            self.send(index)?;
            return Ok(true);
        };
        if !task.is_watched {
            return Ok(true);
        }
        let has_ended = match self.events.get(&index) {
            Some(event) => event.is_complete().map_err(at_task(index, task.site))?,
            // It has no kernel.
            None => self.have_ended(task),
        };
        if has_ended {
            self.recorder.iter_mut().for_each(|recorder| recorder.ended(index));
            self.check_kernel(index)?;
            self.stages[index] = Stage::Ended;
            self.send(index)?;
        }
        Ok(has_ended)
    }

    /// Launches a task if nothing holds it back. Returns whether it did, or has found that its kernel is not to run.
    fn release(&mut self, index: usize) -> Result<bool, OnDeviceError> {
        let task = &self.tasks[index];
        let is_held = |before: &usize| self.stages[*before] == Stage::Held;
        if task.after.iter().any(is_held) || self.armed.iter().any(|armed| armed.task == index) {
            return Ok(false);
        }
        let Some((queue, kernel)) = task.launch else {
            self.stages[index] = Stage::Launched(self.launches);
            return Ok(true);
        };
        if task.predicate.is_some() {
            if !self.have_ended(task) {
                return Ok(false);
            }
            if !self.holds(index)? {
                self.stages[index] = Stage::Ended;
                return Ok(true);
            }
        }
        self.launch(index, queue, kernel)?;
        Ok(true)
    }

    /// Whether all kernels have ended that a task comes after.
    fn have_ended(&self, task: &DeviceTask) -> bool {
        task.before.iter().all(|before| self.stages[*before] == Stage::Ended)
    }

    /// Whether the predicate of a task holds now.
    fn holds(&self, index: usize) -> Result<bool, OnDeviceError> {
        let task = &self.tasks[index];
        let Some(predicate) = &task.predicate else { return Ok(true) };
        let (addr, size) = element::place(&predicate.tensor, &predicate.index[..predicate.ndims])?;
        let mut bits = [0; 8];
        self.on.read(DeviceAddr(addr), &mut bits[..size], task.site, at_task(index, task.site))?;
        Ok(element::compares(predicate, u64::from_le_bytes(bits)))
    }

    fn launch(&mut self, index: usize, queue: Queue, kernel: KernelId) -> Result<(), OnDeviceError> {
        let task = &self.tasks[index];
        let here = at_task(index, task.site);
        if self.deadline.has_passed() {
            return Err(self.too_late(index));
        }
        let stream = &self.on.streams[queue as usize];
        // A stream keeps its order, so that the last task of the other one stands for those before it.
        let elsewhere = |before: &&usize| self.tasks[**before].is_elsewhere(queue);
        let launched = |before: &usize| match self.stages[*before] {
            Stage::Launched(order) => Some((order, *before)),
            Stage::Held | Stage::Ended => None,
        };
        if let Some((_, last)) = task.before.iter().filter(elsewhere).filter_map(launched).max() {
            self.events[&last].block(stream).map_err(here)?;
        }
        let args =
            Arguments::place(&self.on.device, &task.tensors, &task.scalars, task.blocks).map_err(here)?;
        let spec = LaunchSpec { blocks: task.blocks, limit: Some(self.deadline.left()) };
        let kernel = &self.on.kernels[&kernel];
        let function = kernel.binary.kernel(&kernel.symbol).map_err(here)?;
        // SAFETY: the user vouches for the kernel; arguments, tensors and binary stay until both streams are synchronised, also when
        // this function fails.
        unsafe { function.launch(stream, &spec, args.list()) }.map_err(here)?;
        self.arguments.insert(index, args);
        if task.is_awaited_elsewhere || task.is_watched {
            let event = Event::create(&self.on.device).map_err(here)?;
            event.record(stream).map_err(here)?;
            self.events.insert(index, event);
        }
        self.recorder.iter_mut().for_each(|recorder| recorder.queued(index, queue));
        self.launches += 1;
        self.stages[index] = Stage::Launched(self.launches);
        Ok(())
    }

    /// Sends the signals of a task that has ended.
    fn send(&mut self, index: usize) -> Result<(), OnDeviceError> {
        let (task, Some(windows)) = (&self.tasks[index], &self.on.windows) else { return Ok(()) };
        if !task.signals.is_empty() && self.deadline.has_passed() {
            return Err(self.too_late(index));
        }
        for signal in &task.signals {
            windows.send(signal, self.deadline).map_err(|error| self.on.refuse(task.site, error))?;
            self.recorder.iter_mut().for_each(|recorder| recorder.sent(index, signal, windows));
        }
        Ok(())
    }

    /// What ends the run though nothing moves. Returns whether a signal has come meanwhile after all.
    fn check(&mut self, open: &[usize]) -> Result<bool, OnDeviceError> {
        let now_ns = monotonic_ns();
        if now_ns < self.next_check_ns && !self.deadline.has_passed() {
            return Ok(false);
        }
        self.next_check_ns = now_ns + POLL_INTERVAL.as_nanos() as u64;
        let Err(error) = self.find_end(open) else { return Ok(false) };
        // What was delivered before the end of a peer counts.
        if self.look()? { Ok(true) } else { Err(error) }
    }

    fn find_end(&self, open: &[usize]) -> Result<(), OnDeviceError> {
        if let Some(windows) = &self.on.windows {
            let needed: Option<Vec<u32>> = self.armed.iter().map(|armed| armed.from).collect();
            let needed = needed.unwrap_or_else(|| windows.everybody());
            windows.check_ranks(&needed, self.deadline).map_err(|error| match error {
                SignalError::Comm { cause, .. } => {
                    self.ends_with(SignalError::Comm { cause, waits: self.table(windows) })
                }
                other => self.ends_with(other),
            })?;
            if let Some(rank) = self.awaited_in_vain(windows) {
                return Err(self.ends_with(SignalError::EndedWithout { rank, waits: self.table(windows) }));
            }
            if self.deadline.has_passed() && !self.armed.is_empty() {
                let (limit, waits) = (self.deadline.limit(), self.table(windows));
                return Err(self.ends_with(SignalError::TimedOut { limit, waits }));
            }
        }
        match open.first() {
            Some(first) if self.deadline.has_passed() => Err(self.too_late(*first)),
            _ => Ok(()),
        }
    }

    /// A rank that is waited for, and whose graph of this session is over.
    fn awaited_in_vain(&self, windows: &DeviceWindows) -> Option<u32> {
        let declarations = windows.declarations()?;
        let awaited = self.armed.iter().filter_map(|armed| armed.from);
        let mut awaited =
            awaited.filter(|rank| self.session.members.contains(rank) && *rank != windows.rank());
        awaited.find(|rank| declarations.is_over(*rank, self.session.number))
    }

    /// An error of the run, at the first task that waits, or that waits for the rank that has ended.
    fn ends_with(&self, error: SignalError) -> OnDeviceError {
        let ended = error.ended_rank();
        let waits = self.armed.iter().find(|armed| ended.is_some() && armed.from == ended);
        let first = waits.or(self.armed.first()).map_or(0, |armed| armed.task);
        self.on.refuse(self.tasks[first].site, error)
    }

    fn too_late(&self, index: usize) -> OnDeviceError {
        let (limit, site) = (self.deadline.limit(), self.tasks[index].site);
        let what = match self.stages[index] {
            Stage::Held => "was not queued",
            Stage::Launched(_) => "has not ended",
            Stage::Ended => "has not signalled",
        };
        OnDeviceError::TimedOut { what, limit, task: index, site }
    }

    /// What is waited for, for the text of an error.
    fn table(&self, windows: &DeviceWindows) -> String {
        let line = |armed: &Armed| {
            let Armed { task, wait, from, have, .. } = armed;
            let from = from.map_or_else(|| "somebody".to_owned(), |rank| format!("rank {rank}"));
            format!(
                "rank {}, task {task}, waits for {from} (word {:#x} of window `{}` is {have}, not {})",
                windows.rank(),
                wait.offset,
                windows.name(wait.domain),
                wait.at_least
            )
        };
        let mut lines: Vec<String> = self.armed.iter().take(IN_A_TEXT).map(line).collect();
        if self.armed.len() > IN_A_TEXT {
            lines.push(format!("{} more waits", self.armed.len() - IN_A_TEXT));
        }
        lines.join("; ")
    }

    /// Fails if the kernel of a task says so in its slab.
    fn check_kernel(&self, index: usize) -> Result<(), OnDeviceError> {
        let (Some(arguments), task) = (self.arguments.get(&index), &self.tasks[index]) else { return Ok(()) };
        for (count, error) in arguments.completions().map_err(at_task(index, task.site))? {
            if error != 0 {
                return Err(OnDeviceError::Kernel { task: index, site: task.site, error });
            }
            if count != 0 {
                let what = Missing::Completion;
                return Err(OnDeviceError::NotOnDevice { what, site: task.site });
            }
        }
        Ok(())
    }

    /// What was recorded, if it was asked for.
    pub(super) fn take_recording(&mut self) -> Option<Recording> {
        Some(self.recorder.take()?.finish(self.tasks))
    }

    /// The streams have ended: fails with the first task whose kernel says so, and releases the events.
    pub(super) fn finish(self) -> Result<(), OnDeviceError> {
        let unchecked = |index: &&usize| self.stages[**index] != Stage::Ended;
        self.arguments.keys().filter(unchecked).try_for_each(|index| self.check_kernel(*index))?;
        Ok(self.events.into_values().try_for_each(Event::release)?)
    }
}

/// Lets some time pass. Nobody wakes who looks at words of a device.
fn rest(pause: Duration) {
    let until = Deadline::since(monotonic_ns(), pause);
    let _ = mailbox_atomics::Wait::until(until).on(&WordU32::new(0), None, |_| None::<()>);
}
