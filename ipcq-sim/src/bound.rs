//! Lower bounds: no schedule with the same goal, channels and chunk size on the same links is faster.

use crate::config::Fabric;
use crate::net::LinkRole;
use crate::plan::Plan;
use crate::units::Ps;
use ccl_schedule::Goal;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The bounds of a plan, each valid alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Every byte that must leave some PE, over all the ports that PEs send with.
    pub port: Ps,
    /// The contribution of the latest rank to the rank farthest from it.
    pub latency: Ps,
    /// What must enter or leave a PE, a cube or a SIP, over its links.
    pub cut: Ps,
    /// The additions, over all PEs.
    pub reduction: Ps,
}

impl Bounds {
    /// The largest, which is the bound.
    pub fn most(&self) -> Ps {
        self.port.max(self.latency).max(self.cut).max(self.reduction)
    }

    /// The name of the largest.
    pub fn reason(&self) -> &'static str {
        match self.most() {
            most if most == self.port => "port",
            most if most == self.latency => "latency",
            most if most == self.cut => "cut",
            _ => "reduction",
        }
    }
}

/// Computes the bounds of a plan.
pub fn bounds(plan: &Plan<'_>) -> Bounds {
    if plan.program.ranks() < 2 {
        return Bounds::default();
    }
    Bounds { port: port(plan), latency: latency(plan), cut: cut(plan), reduction: reduction(plan) }
}

fn bytes(plan: &Plan<'_>) -> u128 {
    u128::from(plan.cut.elems) * u128::from(plan.cut.elem_bytes)
}

/// The time of `bytes` at a bandwidth in micro-GB/s, rounded down: a bound must not be too high.
fn time(bytes: u128, micro: u128) -> Ps {
    (bytes * 1000 * 1_000_000).checked_div(micro).unwrap_or(0) as Ps
}

/// Reducing an element takes n − 1 transfers of it, and bringing the result to all others n − 1 more.
fn port(plan: &Plan<'_>) -> Ps {
    let n = u128::from(plan.program.ranks());
    let total = match plan.program.goal() {
        Goal::AllReduce => 2 * (n - 1) * bytes(plan),
        Goal::ReduceScatter { .. } | Goal::AllGather { .. } => (n - 1) * bytes(plan),
        Goal::Shift => n * bytes(plan),
    };
    let mut counted = vec![false; plan.net.links() as usize];
    let mut capacity = 0;
    for channel in 0..plan.wiring.channels().len() as u32 {
        let Some(hop) = plan.net.path(channel).next() else { continue };
        if !std::mem::replace(&mut counted[hop.link as usize], true) {
            capacity += plan.net.rates()[hop.rate as usize].micro();
        }
    }
    time(total, capacity)
}

/// The shortest way over channels for the smallest message, from the rank that starts last.
fn latency(plan: &Plan<'_>) -> Ps {
    let ranks = plan.program.ranks();
    let costs = if plan.costs[1].bytes > 0 { &plan.costs[1] } else { &plan.costs[0] };
    let weight = |channel: u32| -> Ps {
        let way: Ps = plan.net.path(channel).map(|hop| u64::from(hop.over) + u64::from(hop.prop)).sum();
        let drain = plan.net.path(channel).map(|hop| costs.link[hop.rate as usize]).max().unwrap_or(0);
        way + drain + costs.write + costs.read
    };
    // Channels are numbered by their source, so those of one rank lie together.
    let channels = plan.wiring.channels();
    let mut first = vec![0u32; ranks as usize + 1];
    for channel in channels {
        first[channel.src as usize + 1] += 1;
    }
    for rank in 0..ranks as usize {
        first[rank + 1] += first[rank];
    }
    let source = (0..ranks).max_by_key(|&rank| (plan.start(rank), Reverse(rank))).unwrap_or(0);
    let mut at = vec![Ps::MAX; ranks as usize];
    at[source as usize] = plan.start(source);
    let mut heap = BinaryHeap::from([Reverse((at[source as usize], source))]);
    while let Some(Reverse((time, rank))) = heap.pop() {
        if time > at[rank as usize] {
            continue;
        }
        for channel in first[rank as usize]..first[rank as usize + 1] {
            let to = channels[channel as usize].dst;
            let arrival = time + weight(channel);
            if arrival < at[to as usize] {
                at[to as usize] = arrival;
                heap.push(Reverse((arrival, to)));
            }
        }
    }
    match plan.program.goal() {
        Goal::Shift => at[((source + 1) % ranks) as usize],
        _ => at.into_iter().filter(|&time| time != Ps::MAX).max().unwrap_or(0),
    }
}

/// What must cross the border of a set of `inside` ranks, outwards and inwards.
fn crossing(plan: &Plan<'_>, inside: u32) -> (u128, u128) {
    let (n, inside, size) = (u128::from(plan.program.ranks()), u128::from(inside), bytes(plan));
    if inside == 0 || inside == n {
        return (0, 0);
    }
    // Shares of the tensor can differ by a chunk; the smaller of both roundings keeps the bound valid.
    let share = |ranks: u128| size / n * ranks;
    match plan.program.goal() {
        Goal::AllReduce => (size, size),
        Goal::ReduceScatter { .. } => (share(n - inside), share(inside)),
        Goal::AllGather { .. } => (share(inside), share(n - inside)),
        Goal::Shift => (0, 0),
    }
}

fn cut(plan: &Plan<'_>) -> Ps {
    let (ranks, net, t) = (plan.program.ranks(), &plan.net, plan.net.topology());
    let cubes = t.cubes.len() as usize;
    let (mut pe, mut cube, mut sip) = (vec![[0u128; 2]; ranks as usize], Vec::new(), Vec::new());
    let mut used = vec![false; net.links() as usize];
    if t.fabric == Fabric::Cubes {
        cube = vec![[0u128; 2]; t.sips.len() as usize * cubes];
        sip = vec![[0u128; 2]; t.sips.len() as usize];
    }
    for (id, channel) in plan.wiring.channels().iter().enumerate() {
        for hop in net.path(id as u32) {
            if std::mem::replace(&mut used[hop.link as usize], true) {
                continue;
            }
            let rate = net.rates()[hop.rate as usize].micro();
            match net.role(hop.link) {
                LinkRole::PeOut(rank) => pe[rank as usize][0] += rate,
                LinkRole::PeIn(rank) => pe[rank as usize][1] += rate,
                LinkRole::Wire(_) => {
                    pe[channel.src as usize][0] += rate;
                    pe[channel.dst as usize][1] += rate;
                }
                LinkRole::Ucie(s, c, dir) => {
                    cube[s as usize * cubes + c as usize][0] += rate;
                    cube[s as usize * cubes + neighbour(t.cubes, c, dir) as usize][1] += rate;
                }
                LinkRole::Sip(s, dir) => {
                    let ends = match (t.sip_links, dir) {
                        (crate::config::SipLinks::Switch, 0) => [Some(s), None],
                        (crate::config::SipLinks::Switch, _) => [None, Some(s)],
                        _ => [Some(s), Some(neighbour(t.sips, s, dir))],
                    };
                    // SIP links hang on cube 0.
                    for (way, end) in ends.into_iter().enumerate() {
                        if let Some(end) = end {
                            sip[end as usize][way] += rate;
                            cube[end as usize * cubes][way] += rate;
                        }
                    }
                }
            }
        }
    }
    let members = |group: u32, size: u32| (ranks.saturating_sub(group * size)).min(size);
    let worst = |groups: &[[u128; 2]], size: u32| {
        let bound = |(group, rate): (usize, &[u128; 2])| {
            let (out, into) = crossing(plan, members(group as u32, size));
            time(out, rate[0]).max(time(into, rate[1]))
        };
        groups.iter().enumerate().map(bound).max().unwrap_or(0)
    };
    worst(&pe, 1).max(worst(&cube, t.pes)).max(worst(&sip, t.pes * t.cubes.len()))
}

fn neighbour(grid: crate::config::Grid, at: u32, dir: u32) -> u32 {
    let (x, y) = (at % grid.w, at / grid.w);
    match dir {
        0 => y * grid.w + (x + 1) % grid.w,
        1 => y * grid.w + (x + grid.w - 1) % grid.w,
        2 => (y + grid.h - 1) % grid.h * grid.w + x,
        _ => (y + 1) % grid.h * grid.w + x,
    }
}

fn reduction(plan: &Plan<'_>) -> Ps {
    let n = u128::from(plan.program.ranks());
    match plan.program.goal() {
        Goal::AllReduce | Goal::ReduceScatter { .. } => {
            time((n - 1) * bytes(plan), n * plan.net.topology().math.rate.micro())
        }
        Goal::AllGather { .. } | Goal::Shift => 0,
    }
}
