//! A Chrome trace (open it in Perfetto or chrome://tracing), streamed while the engine runs: one track per PE
//! and per link.
//!
//! A viewer's finest unit is the nanosecond, and operations of a PE are often shorter. The trace is therefore
//! stretched: one nanosecond in it is one simulated picosecond, and the names of the processes say so.

use crate::plan::Plan;
use crate::probe::{Doing, Probe, Source};
use crate::units::Ps;
use std::io::{self, Write};

/// What a trace may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLimits {
    /// Ranks from 0 on; links that only others use are left out.
    pub ranks: u32,
    /// From when.
    pub from: Ps,
    /// Until when.
    pub until: Ps,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Default for TraceLimits {
    fn default() -> Self {
        TraceLimits { ranks: 64, from: 0, until: Ps::MAX, bytes: 64 << 20 }
    }
}

const PES: u32 = 1;
const LINKS: u32 = 2;

/// Writes events as they happen. [`Trace::finish`] returns the first error.
pub struct Trace<'a, W: Write> {
    out: W,
    plan: &'a Plan<'a>,
    limits: TraceLimits,
    written: u64,
    named: Vec<bool>,
    left_out: u64,
    error: Option<io::Error>,
}

impl<'a, W: Write> Trace<'a, W> {
    /// Starts a trace.
    pub fn new(plan: &'a Plan<'a>, limits: TraceLimits, out: W) -> Trace<'a, W> {
        let mut trace = Trace {
            out,
            plan,
            limits,
            written: 0,
            named: vec![false; plan.net.links() as usize],
            left_out: 0,
            error: None,
        };
        trace.raw("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
        trace.raw(&name("process_name", PES, 0, "PEs, 1 ns shown = 1 ps"));
        trace.raw(",\n");
        trace.raw(&name("process_name", LINKS, 0, "links, 1 ns shown = 1 ps"));
        for rank in 0..plan.program.ranks().min(limits.ranks) {
            let place = plan.net.place(rank);
            let label = format!("pe {rank} (sip {} cube {} pe {})", place.sip, place.cube, place.pe);
            trace.raw(",\n");
            trace.raw(&track(PES, rank, &label));
        }
        trace
    }

    fn raw(&mut self, text: &str) {
        if self.error.is_none() {
            self.written += text.len() as u64;
            self.error = self.out.write_all(text.as_bytes()).err();
        }
    }

    fn event(&mut self, text: &str) {
        if self.written + text.len() as u64 > self.limits.bytes {
            self.left_out += 1;
        } else {
            self.raw(",\n");
            self.raw(text);
        }
    }

    fn in_window(&self, from: Ps, to: Ps) -> bool {
        to > self.limits.from && from < self.limits.until
    }

    fn slice(&mut self, process: u32, track: u32, label: &str, category: &str, (from, to): (Ps, Ps)) {
        if to > from && self.in_window(from, to) {
            self.event(&format!(
                "{{\"ph\":\"X\",\"pid\":{process},\"tid\":{track},\"name\":\"{label}\",\"cat\":\"{category}\",\
                 \"ts\":{},\"dur\":{}}}",
                micro(from),
                micro(to - from)
            ));
        }
    }

    /// Ends the file; returns how many events were left out because of the size limit.
    pub fn finish(mut self) -> io::Result<u64> {
        let left_out = self.left_out;
        self.raw(&format!("\n],\"otherData\":{{\"events_left_out\":{left_out}}}}}\n"));
        match self.error {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| left_out),
        }
    }
}

fn name(kind: &str, process: u32, track: u32, label: &str) -> String {
    format!(
        "{{\"ph\":\"M\",\"pid\":{process},\"tid\":{track},\"name\":\"{kind}\",\"args\":{{\"name\":\"{label}\"}}}}"
    )
}

/// The name of a track, and its number as its place: viewers would put pe 10 before pe 2.
fn track(process: u32, track: u32, label: &str) -> String {
    let name = name("thread_name", process, track, label);
    format!(
        "{name},\n{{\"ph\":\"M\",\"pid\":{process},\"tid\":{track},\"name\":\"thread_sort_index\",\"args\":\
         {{\"sort_index\":{track}}}}}"
    )
}

/// Trace times are microseconds; a picosecond is stretched to a nanosecond.
fn micro(ps: Ps) -> String {
    format!("{}.{:03}", ps / 1000, ps % 1000)
}

impl<W: Write> Probe for Trace<'_, W> {
    fn issued(&mut self, channel: u32, seq: u32, class: usize, _from: Source, (at, _): (Ps, Ps)) {
        let ends = self.plan.wiring.channels()[channel as usize];
        if ends.src < self.limits.ranks && self.in_window(at, at + 1) {
            self.event(&format!(
                "{{\"ph\":\"i\",\"s\":\"t\",\"pid\":{PES},\"tid\":{},\"name\":\"send {}\",\"ts\":{},\
                 \"args\":{{\"to\":{},\"seq\":{seq},\"bytes\":{}}}}}",
                ends.src,
                ends.src_dir,
                micro(at),
                ends.dst,
                self.plan.costs[class].bytes
            ));
        }
    }

    fn link(&mut self, link: u32, channel: u32, from: Ps, to: Ps) {
        let (src, dst, what) = match self.plan.wiring.channels().get(channel as usize) {
            Some(ends) => (ends.src, ends.dst, "token"),
            None => {
                let flow = &self.plan.flows[channel as usize - self.plan.wiring.channels().len()];
                (flow.from, flow.to, "compute traffic")
            }
        };
        if src >= self.limits.ranks && dst >= self.limits.ranks {
            return;
        }
        if !std::mem::replace(&mut self.named[link as usize], true) {
            let label = track(LINKS, link, &self.plan.net.name(link, &self.plan.wiring));
            self.event(&label);
        }
        self.slice(LINKS, link, &format!("{src} to {dst}"), what, (from, to));
    }

    fn span(&mut self, rank: u32, doing: Doing, from: Ps, to: Ps) {
        if rank < self.limits.ranks {
            let (label, category) = match doing {
                Doing::BlockedSend => ("wait for a slot", "blocked"),
                Doing::BlockedRecv => ("wait for a token", "blocked"),
                Doing::Read => ("read slot", "busy"),
                Doing::Math => ("add", "busy"),
                Doing::Copy => ("copy", "busy"),
            };
            self.slice(PES, rank, label, category, (from, to));
        }
    }
}
