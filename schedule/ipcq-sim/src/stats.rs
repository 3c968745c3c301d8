//! Statistics of a run: slots in use, link use, and use over time.

use crate::net::{LinkRole, Net};
use crate::plan::Plan;
use crate::probe::{Probe, Source};
use crate::units::Ps;

/// Bins of the use over time.
pub const BINS: usize = 256;

/// Groups of links whose use over time is kept: PE ports, UCIe, SIP links, wires.
pub const GROUPS: usize = 4;

/// The names of the groups.
pub const GROUP_NAMES: [&str; GROUPS] = ["PE ports", "UCIe", "SIP links", "wires"];

/// Counts slots, links and time bins while an engine runs.
pub struct Stats {
    /// Times kept per channel: a power of two, so that a mask maps a number to its place.
    stride: usize,
    issues: Vec<Ps>,
    credits: Vec<Ps>,
    merges: Vec<Merge>,
    most_slots: u32,
    /// All slots of a queue: once `most_slots` is this many, counting stops.
    slots: u32,
    /// Busy time per link.
    pub busy: Vec<Ps>,
    /// Tokens per link.
    pub tokens: Vec<u32>,
    group: Vec<u8>,
    bins: [[u64; BINS]; GROUPS],
    /// A bin is 2^shift picoseconds wide.
    shift: u32,
}

/// Issues and credits of a channel are reported separately; this merges them by time.
#[derive(Clone, Copy, Default)]
struct Merge {
    issued: u32,
    issues_done: u32,
    credited: u32,
    credits_done: u32,
}

impl Stats {
    /// For one run of a plan.
    pub fn new(plan: &Plan<'_>) -> Stats {
        let channels = plan.wiring.channels().len();
        let slots = plan.slots.min(plan.program.messages().clamp(1, 1 << 16) as u32);
        let stride = slots.next_power_of_two() as usize;
        let links = plan.net.links();
        Stats {
            stride,
            issues: vec![0; channels * stride],
            credits: vec![0; channels * stride],
            merges: vec![Merge::default(); channels],
            most_slots: 0,
            slots,
            busy: vec![0; links as usize],
            tokens: vec![0; links as usize],
            group: (0..links).map(|link| group(&plan.net, link) as u8).collect(),
            bins: [[0; BINS]; GROUPS],
            shift: 0,
        }
    }

    fn merge(&mut self, channel: usize, last: Last) {
        let merge = &mut self.merges[channel];
        let (base, mask) = (channel * self.stride, self.stride - 1);
        loop {
            let issue = (merge.issues_done < merge.issued)
                .then(|| self.issues[base + (merge.issues_done as usize & mask)]);
            let credit = (merge.credits_done < merge.credited)
                .then(|| self.credits[base + (merge.credits_done as usize & mask)]);
            match (issue, credit, last) {
                // A send that waits for a credit is issued at the time of the credit: the credit counts
                // first.
                (Some(issue), Some(credit), _) if credit <= issue => merge.credits_done += 1,
                (Some(_), Some(_), _) | (Some(_), None, Last::Yes) => {
                    merge.issues_done += 1;
                    self.most_slots = self.most_slots.max(merge.issues_done - merge.credits_done);
                }
                _ => return,
            }
        }
    }

    /// The most slots of one queue that were in use at one time.
    pub fn most_slots(&mut self) -> u32 {
        if self.most_slots == self.slots {
            return self.slots;
        }
        for channel in 0..self.merges.len() {
            self.merge(channel, Last::Yes);
        }
        self.most_slots
    }

    /// Busy picoseconds per bin and group, and the width of a bin.
    pub fn bins(&self) -> (&[[u64; BINS]; GROUPS], Ps) {
        (&self.bins, 1 << self.shift)
    }

    /// Joins bins until `to` fits in.
    #[cold]
    fn widen(&mut self, to: Ps) {
        while to > (BINS as Ps) << self.shift {
            for bins in &mut self.bins {
                for i in 0..BINS / 2 {
                    bins[i] = bins[2 * i] + bins[2 * i + 1];
                }
                bins[BINS / 2..].fill(0);
            }
            self.shift += 1;
        }
    }

    #[inline]
    fn spread(&mut self, group: usize, mut from: Ps, to: Ps) {
        if to > (BINS as Ps) << self.shift {
            self.widen(to);
        }
        while from < to {
            let bin = from >> self.shift;
            let end = to.min((bin + 1) << self.shift);
            self.bins[group][bin as usize] += end - from;
            from = end;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Yes,
    No,
}

/// The group of a link.
pub fn group(net: &Net, link: u32) -> usize {
    match net.role(link) {
        LinkRole::PeOut(_) | LinkRole::PeIn(_) => 0,
        LinkRole::Ucie(..) => 1,
        LinkRole::Sip(..) => 2,
        LinkRole::Wire(_) => 3,
    }
}

impl Probe for Stats {
    #[inline]
    fn issued(&mut self, channel: u32, _seq: u32, _class: usize, _from: Source, (at, _): (Ps, Ps)) {
        if self.most_slots == self.slots {
            return;
        }
        let merge = &mut self.merges[channel as usize];
        self.issues[channel as usize * self.stride + (merge.issued as usize & (self.stride - 1))] = at;
        merge.issued += 1;
        self.merge(channel as usize, Last::No);
    }

    #[inline]
    fn credit(&mut self, channel: u32, _seq: u32, at: Ps) {
        if self.most_slots == self.slots {
            return;
        }
        let merge = &mut self.merges[channel as usize];
        self.credits[channel as usize * self.stride + (merge.credited as usize & (self.stride - 1))] = at;
        merge.credited += 1;
        self.merge(channel as usize, Last::No);
    }

    #[inline]
    fn link(&mut self, link: u32, _channel: u32, from: Ps, to: Ps) {
        self.busy[link as usize] += to - from;
        self.tokens[link as usize] += 1;
        self.spread(self.group[link as usize] as usize, from, to);
    }
}
