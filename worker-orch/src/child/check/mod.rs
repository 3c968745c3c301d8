//! The checks of a task's memory in a Worker that is [checked](crate::WorkerBuilder::checked).
//!
//! Before each task a frame says what memory its arguments have. While the task runs, the pages beside these buffers and beside those of the
//! chip's windows are inaccessible, inputs are read-only, and outputs in host buffers, filled with a pattern, are closed until their
//! first write. An access that must not be is recorded and happens; the task fails with it when it is over. Then the bytes between a
//! buffer and its guard pages are compared.
//!
//! Outputs in windows are left alone: peers write there before and while the task runs.

mod faults;

use super::heaps::in_heap;
use super::serve::malformed;
use crate::args::Access;
use crate::shared::{Argument, CANARY, ReceivedFrame, Span, UNWRITTEN, decode_spans};
use chip_bootstrap::{Chip, region_failure};
use comm_context::abi::DeviceAddr;
use fault_points::fault_point;
use faults::{Hit, Kind};
use shared_memory::{PAGE, Region};
use std::ops::Range;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// The checks of one child.
#[derive(Default)]
pub(super) struct Checks {
    /// Of the next task.
    spans: Vec<Span>,
    /// The buffers of this chip's windows.
    windows: Vec<WindowBuffer>,
}

/// A buffer in a window of this chip, on pages of its own.
struct WindowBuffer {
    /// As errors name it.
    name: String,
    bytes: Range<u64>,
    /// Its domain; `None` for the chip's own window.
    domain: Option<u64>,
}

/// Memory that a watched page belongs to.
enum Of {
    Span(usize),
    Window(usize),
}

/// What is watched while a task runs. Dropped in a panic, it opens all pages again.
pub(super) struct Armed {
    spans: Vec<Span>,
    ranges: Vec<(Range<u64>, Kind)>,
    of: Vec<Of>,
    /// Inputs that share a page with something that may be written, as they were.
    copies: Vec<(usize, Vec<u8>)>,
}

impl Drop for Armed {
    fn drop(&mut self) {
        if !self.ranges.is_empty() {
            faults::release(&self.ranges);
        }
    }
}

impl Checks {
    /// A frame with the memory of the next task.
    pub(super) fn expect(&mut self, frame: &ReceivedFrame) -> Result<(), Failure> {
        self.spans = decode_spans(&frame.blob).ok_or_else(malformed)?;
        fault_point!("worker.check.spans");
        Ok(())
    }

    /// Buffers of a window that this chip has from now on. Their canaries are set.
    pub(super) fn add_window(
        &mut self,
        chip: &Chip,
        domain: Option<u64>,
        buffers: impl Iterator<Item = (String, Range<u64>)>,
    ) -> Result<(), Failure> {
        for (name, bytes) in buffers {
            for side in canaries(&bytes) {
                chip.write(DeviceAddr(side.start), &vec![CANARY; (side.end - side.start) as usize])?;
            }
            self.windows.push(WindowBuffer { name, bytes, domain });
        }
        Ok(())
    }

    /// The domain is about to be released.
    pub(super) fn remove_domain(&mut self, domain: u64) {
        self.windows.retain(|buffer| buffer.domain != Some(domain));
    }

    /// Before a task: fills its outputs and watches its pages. `None`, at the cost of two comparisons, in a Worker that is not
    /// checked.
    #[inline]
    pub(super) fn arm(&mut self, heaps: &[Arc<Region>]) -> Result<Option<Armed>, Failure> {
        if self.spans.is_empty() && self.windows.is_empty() {
            return Ok(None);
        }
        self.watch_task(heaps).map(Some)
    }

    #[inline(never)]
    fn watch_task(&mut self, heaps: &[Arc<Region>]) -> Result<Armed, Failure> {
        let spans = std::mem::take(&mut self.spans);
        let mut armed = Armed { spans, ranges: Vec::new(), of: Vec::new(), copies: Vec::new() };
        faults::install().map_err(|errno| {
            Failure::new(ErrorCode::System, format!("the handler of SIGSEGV could not be installed: {errno}"))
        })?;
        self.guard(&mut armed);
        for index in 0..armed.spans.len() {
            self.watch_span(&mut armed, index, heaps)?;
        }
        fault_point!("worker.check.armed");
        faults::watch(&armed.ranges);
        Ok(armed)
    }

    /// The pages beside all buffers, each once.
    fn guard(&self, armed: &mut Armed) {
        let of_spans = armed
            .spans
            .iter()
            .enumerate()
            .filter_map(|(index, span)| Some((span.buffer.clone()?, Of::Span(index))));
        let of_windows =
            self.windows.iter().enumerate().map(|(index, buffer)| (buffer.bytes.clone(), Of::Window(index)));
        let mut guards: Vec<(u64, Of)> = Vec::new();
        for (bytes, of) in of_spans.chain(of_windows).collect::<Vec<_>>() {
            let pages = pages_of(&bytes);
            let behind = match &of {
                Of::Span(index) => Of::Span(*index),
                Of::Window(index) => Of::Window(*index),
            };
            guards.push((pages.start.wrapping_sub(PAGE as u64), of));
            guards.push((pages.end, behind));
        }
        // A page between two buffers counts as the first one's: most overruns go upwards.
        guards.sort_by_key(|(at, of)| (*at, matches!(of, Of::Window(_))));
        guards.dedup_by_key(|(at, _)| *at);
        for (at, of) in guards {
            armed.ranges.push((at..at + PAGE as u64, Kind::Guard));
            armed.of.push(of);
        }
    }

    fn watch_span(&self, armed: &mut Armed, index: usize, heaps: &[Arc<Region>]) -> Result<(), Failure> {
        let span = &armed.spans[index];
        let kind = match (span.access, span.argument, &span.buffer) {
            (_, Argument::Scalar(_), _) => return Ok(()),
            (Access::Input, ..) => Kind::ReadOnly,
            (Access::Output, _, Some(_)) => Kind::Unwritten,
            _ => return Ok(()),
        };
        let others =
            || armed.spans.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, span)| span);
        let pages = self.own_pages(span);
        let alone =
            others().all(|other| other.access == span.access || !overlap(&pages_of(&other.bytes), &pages));
        if kind == Kind::Unwritten {
            let unshared = others().all(|other| !overlap(&other.bytes, &span.bytes));
            if let (true, Some((heap, at))) = (unshared, heap_bytes(heaps, &span.bytes)) {
                let len = (span.bytes.end - span.bytes.start) as usize;
                heap.write(at, &vec![UNWRITTEN; len]).map_err(|error| region_failure(&error))?;
            } else {
                return Ok(());
            }
        } else if !(alone && contains(&pages, &span.bytes))
            && let Some((heap, at)) = heap_bytes(heaps, &span.bytes)
        {
            let mut copy = vec![0; (span.bytes.end - span.bytes.start) as usize];
            heap.read(at, &mut copy).map_err(|error| region_failure(&error))?;
            armed.copies.push((index, copy));
        }
        if alone && !pages.is_empty() && !armed.ranges.iter().any(|(known, _)| overlap(known, &pages)) {
            armed.ranges.push((pages, kind));
            armed.of.push(Of::Span(index));
        }
        Ok(())
    }

    /// The pages on which nothing lies but this tensor: where it begins and ends with its buffer, what is beside it are canaries.
    fn own_pages(&self, span: &Span) -> Range<u64> {
        let window =
            self.windows.iter().map(|buffer| &buffer.bytes).find(|bytes| contains(bytes, &span.bytes));
        let buffer = span.buffer.as_ref().or(window);
        let whole = pages_of(&span.bytes);
        let page = PAGE as u64;
        let start = match buffer {
            Some(buffer) if buffer.start == span.bytes.start => whole.start,
            _ => span.bytes.start.next_multiple_of(page),
        };
        let end = match buffer {
            Some(buffer) if buffer.end == span.bytes.end => whole.end,
            _ => span.bytes.end / page * page,
        };
        start..end.max(start)
    }

    /// After a task: whether it kept to its memory. What it did wrong comes before what it returned.
    pub(super) fn finish(
        &self,
        mut armed: Armed,
        heaps: &[Arc<Region>],
        chip: Option<&Chip>,
        task: u64,
        returned: Result<(), Failure>,
    ) -> Result<(), Failure> {
        if armed.ranges.is_empty() && armed.copies.is_empty() {
            return returned;
        }
        let ranges = std::mem::take(&mut armed.ranges);
        let hit = faults::release(&ranges);
        fault_point!("worker.check.released");
        let found = match hit {
            Some(hit) => {
                // What was written beside a buffer stays nowhere.
                for (guard, _) in ranges.iter().filter(|(_, kind)| *kind == Kind::Guard) {
                    if let Some((heap, at)) = heap_bytes(heaps, guard) {
                        let _ = heap.release(at..at + PAGE);
                    }
                }
                Some(self.describe(&armed, &ranges, hit, task))
            }
            None => self.compare(&armed, heaps, chip, task)?,
        };
        match found {
            None => returned,
            Some(text) => {
                let failure = Failure::new(ErrorCode::Task, text).in_phase("memory check");
                Err(returned.err().into_iter().fold(failure, Failure::caused_by))
            }
        }
    }

    fn describe(&self, armed: &Armed, ranges: &[(Range<u64>, Kind)], hit: Hit, task: u64) -> String {
        let did = match hit.write {
            Some(true) => "wrote to",
            Some(false) => "read",
            None => "accessed",
        };
        let (name, start, len) = match armed.of.get(hit.range) {
            Some(Of::Span(index)) => {
                let span = &armed.spans[*index];
                let end = span.buffer.as_ref().map_or(span.bytes.end, |buffer| buffer.end);
                (span.argument.to_string(), span.bytes.start, end - span.bytes.start)
            }
            Some(Of::Window(index)) => {
                let buffer = &self.windows[*index];
                let len = buffer.bytes.end - buffer.bytes.start;
                (buffer.name.clone(), buffer.bytes.start, len)
            }
            None => ("an argument".to_owned(), hit.addr, 0),
        };
        let at = hit.addr as i64 - start as i64;
        let inside = (0..len as i64).contains(&at);
        match ranges.get(hit.range).map(|(_, kind)| *kind).filter(|_| inside) {
            Some(Kind::ReadOnly) => format!(
                "task {task} wrote to offset {at} of {name}, which is an input; \
                 if the program is to write it, say Access::InOut"
            ),
            Some(Kind::Unwritten) => format!(
                "task {task} read offset {at} of {name} before it wrote it, and the tensor is an output that holds nothing yet; \
                 write it first, or say Access::InOut"
            ),
            _ => format!(
                "task {task} {did} offset {at} of {name}, which ends at {len}; see the bounds of its loop"
            ),
        }
    }

    /// What pages do not show: canaries that changed, and inputs that shared a page.
    fn compare(
        &self,
        armed: &Armed,
        heaps: &[Arc<Region>],
        chip: Option<&Chip>,
        task: u64,
    ) -> Result<Option<String>, Failure> {
        for (index, before) in &armed.copies {
            let span = &armed.spans[*index];
            let Some((heap, at)) = heap_bytes(heaps, &span.bytes) else { continue };
            let mut now = vec![0; before.len()];
            heap.read(at, &mut now).map_err(|error| region_failure(&error))?;
            if let Some(at) = now.iter().zip(before).position(|(now, before)| now != before) {
                return Ok(Some(format!(
                    "offset {at} of {}, which is an input, changed while task {task} ran; \
                     if the program is to write it, say Access::InOut",
                    span.argument
                )));
            }
        }
        for span in &armed.spans {
            let Some(buffer) = &span.buffer else { continue };
            for side in canaries(buffer) {
                let Some((heap, at)) = heap_bytes(heaps, &side) else { continue };
                let mut bytes = vec![0; (side.end - side.start) as usize];
                heap.read(at, &mut bytes).map_err(|error| region_failure(&error))?;
                if let Some(wrong) = bytes.iter().position(|byte| *byte != CANARY) {
                    bytes.fill(CANARY);
                    heap.write(at, &bytes).map_err(|error| region_failure(&error))?;
                    let at = (side.start + wrong as u64) as i64 - span.bytes.start as i64;
                    let len = buffer.end - span.bytes.start;
                    return Ok(Some(overwritten(&span.argument.to_string(), at, len, task)));
                }
            }
        }
        for buffer in &self.windows {
            let Some(chip) = chip else { break };
            for side in canaries(&buffer.bytes) {
                let mut bytes = vec![0; (side.end - side.start) as usize];
                chip.read(DeviceAddr(side.start), &mut bytes)?;
                if let Some(wrong) = bytes.iter().position(|byte| *byte != CANARY) {
                    bytes.fill(CANARY);
                    chip.write(DeviceAddr(side.start), &bytes)?;
                    let at = (side.start + wrong as u64) as i64 - buffer.bytes.start as i64;
                    let len = buffer.bytes.end - buffer.bytes.start;
                    return Ok(Some(overwritten(&buffer.name, at, len, task)));
                }
            }
        }
        Ok(None)
    }
}

fn overwritten(name: &str, at: i64, len: u64, task: u64) -> String {
    format!(
        "offset {at} of {name}, which ends at {len}, was overwritten, by task {task} or by what ran beside it on another chip; \
         see the bounds of its loop"
    )
}

/// The bytes beside a buffer on its own pages.
fn canaries(buffer: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let pages = pages_of(buffer);
    [pages.start..buffer.start, buffer.end..pages.end].into_iter().filter(|side| !side.is_empty())
}

fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    let page = PAGE as u64;
    bytes.start / page * page..bytes.end.next_multiple_of(page)
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn contains(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn heap_bytes<'a>(heaps: &'a [Arc<Region>], bytes: &Range<u64>) -> Option<(&'a Region, usize)> {
    in_heap(heaps, bytes.start, (bytes.end - bytes.start) as usize)
}
