//! What is recorded of a run on a device, with the times of the host.

use super::GraphDevice;
use super::tasks::{DeviceTask, Queue};
use super::windows::DeviceWindows;
use crate::record::{Recording, SignalRecord, Span, TaskRecord, WaitRecord};
use crate::signals::{Signal, SignalOp, Wait};
use crate::task::TaskId;
use deadline::monotonic_ns;

/// A run while it is recorded.
#[derive(Debug)]
pub(super) struct Recorder {
    recording: Recording,
    /// Of each task, when it was queued, and when the host found that it had ended.
    times: Vec<(u64, Option<u64>)>,
    /// The tasks with kernels, in the order in which they were queued.
    queued: Vec<(usize, Queue)>,
}

fn id(index: usize) -> TaskId {
    TaskId::new(0, index as u32)
}

impl Recorder {
    pub(super) fn new(on: &GraphDevice, tasks: &[DeviceTask]) -> Self {
        let mut recording = Recording::of_streams();
        for (index, task) in tasks.iter().enumerate() {
            let kernel = task.launch.and_then(|(_, kernel)| on.kernels.get(&kernel));
            let record = TaskRecord {
                kernels: kernel.map_or_else(String::new, |kernel| kernel.name.clone()),
                blocks: task.blocks,
                site: Some(task.site),
                waits: task.waits.clone(),
                signals: task.signals.clone(),
            };
            recording.task(id(index), record);
            task.after.iter().for_each(|before| recording.edge(id(*before), id(index)));
        }
        Self { recording, times: vec![(0, None); tasks.len()], queued: Vec::new() }
    }

    pub(super) fn armed(&mut self, task: usize, wait: &Wait, windows: &DeviceWindows) {
        let (window, rank) = (windows.name(wait.domain).into(), windows.rank());
        let armed_ns = monotonic_ns();
        self.recording.wait(WaitRecord { task: id(task), wait: *wait, window, rank, armed_ns, met_ns: None });
    }

    pub(super) fn met(&mut self, task: usize, wait: &Wait) {
        self.recording.met_wait(id(task), wait, monotonic_ns());
    }

    pub(super) fn queued(&mut self, task: usize, queue: Queue) {
        self.times[task].0 = monotonic_ns();
        self.queued.push((task, queue));
    }

    pub(super) fn ended(&mut self, task: usize) {
        self.times[task].1 = Some(monotonic_ns());
    }

    /// A signal was sent. What an addition has made of the word is read afterwards, so that one that another chip sent meanwhile may be
    /// part of it.
    pub(super) fn sent(&mut self, task: usize, signal: &Signal, windows: &DeviceWindows) {
        let value = match signal.op {
            SignalOp::Set(value) => Ok(value),
            SignalOp::Add(_) => windows.value(signal),
        };
        let (Ok(value), Ok(to)) = (value, windows.member(signal.domain, signal.rank)) else { return };
        let window = windows.name(signal.domain).into();
        self.recording.signal(SignalRecord { task: id(task), signal: *signal, window, to, value });
    }

    /// The recording, with a span for each kernel that has ended.
    pub(super) fn finish(mut self, tasks: &[DeviceTask]) -> Recording {
        // The host looks at one event after the other: what was found to have ended says so of all before it.
        let mut ended_ns = [u64::MAX; 2];
        for (index, queue) in self.queued.iter().rev() {
            let on_stream = &mut ended_ns[*queue as usize];
            let Some(end_ns) = &mut self.times[*index].1 else { continue };
            *end_ns = (*end_ns).min(*on_stream);
            *on_stream = *end_ns;
            let end_ns = *end_ns;
            for before in &tasks[*index].before {
                self.times[*before].1 = self.times[*before].1.map(|ended_ns| ended_ns.min(end_ns));
            }
        }
        let mut free_ns = [0; 2];
        for (index, queue) in self.queued {
            let (queued_ns, Some(end_ns)) = self.times[index] else { continue };
            let before = tasks[index].before.iter().filter_map(|before| self.times[*before].1);
            let free = &mut free_ns[queue as usize];
            let start_ns = before.chain([*free]).fold(queued_ns, u64::max).min(end_ns);
            *free = end_ns;
            let (task, lane) = (id(index), queue.lane());
            self.recording.span(Span { task, block: 0, cluster: 0, lane, start_ns, end_ns });
        }
        self.recording
    }
}
