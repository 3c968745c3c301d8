//! Lower bounds: no schedule with the same goal, channels and chunk size on the same links is faster, if it
//! sends no more messages.

use crate::config::Fabric;
use crate::net::LinkRole;
use crate::plan::Plan;
use crate::units::Ps;
use ccl_schedule::Goal;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

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
    /// On a one-way ring: a chunk that crosses some channel only once has travelled around it nearly twice.
    pub ring: Ps,
}

impl Bounds {
    /// The largest, which is the bound.
    pub fn most(&self) -> Ps {
        self.port.max(self.latency).max(self.cut).max(self.reduction).max(self.ring)
    }

    /// The name of the largest.
    pub fn reason(&self) -> &'static str {
        match self.most() {
            most if most == self.port => "port",
            most if most == self.latency => "latency",
            most if most == self.cut => "cut",
            most if most == self.reduction => "reduction",
            _ => "ring",
        }
    }
}

/// Computes the bounds of a plan.
pub fn bounds(plan: &Plan<'_>) -> Bounds {
    // Without a goal, a schedule may also do nothing.
    if plan.program.ranks() < 2 || plan.program.goal() == Goal::Any {
        return Bounds::default();
    }
    Bounds {
        port: port(plan),
        latency: latency(plan),
        cut: cut(plan),
        reduction: reduction(plan),
        ring: ring(plan).unwrap_or(0),
    }
}

fn bytes(plan: &Plan<'_>) -> u128 {
    u128::from(plan.cut.elems) * u128::from(plan.cut.elem_bytes)
}

/// The time of `bytes` at a bandwidth in micro-GB/s, rounded down: a bound must not be too high.
fn time(bytes: u128, micro: u128) -> Ps {
    (bytes * 1000 * 1_000_000).checked_div(micro).unwrap_or(0) as Ps
}

/// Reducing an element takes n − 1 transfers of it, and sending the result to all others takes n − 1 more.
fn port(plan: &Plan<'_>) -> Ps {
    let n = u128::from(plan.program.ranks());
    let total = match plan.program.goal() {
        Goal::AllReduce => 2 * (n - 1) * bytes(plan),
        Goal::ReduceScatter { .. } | Goal::AllGather { .. } => (n - 1) * bytes(plan),
        Goal::Broadcast { .. } | Goal::Reduce { .. } => (n - 1) * bytes(plan),
        Goal::Gather { root, per_rank } | Goal::Scatter { root, per_rank } => {
            bytes(plan) - owned(plan, per_rank, root..root + 1)
        }
        Goal::AllToAll => exchanged(plan, 0..plan.program.ranks(), |from, to| from != to),
        Goal::Shift => n * bytes(plan),
        Goal::Any => 0,
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

/// The least time that the smallest message takes from the send on a channel until its slot has been read.
fn weight(plan: &Plan<'_>, channel: u32) -> Ps {
    let costs = if plan.costs[1].bytes > 0 { &plan.costs[1] } else { &plan.costs[0] };
    let latency: Ps = plan.net.path(channel).map(|hop| u64::from(hop.over) + u64::from(hop.prop)).sum();
    let drain = plan.net.path(channel).map(|hop| costs.link[hop.rate as usize]).max().unwrap_or(0);
    latency + drain + costs.write + costs.read
}

/// Bytes of the chunks that a range of ranks owns, in a goal in which every rank owns chunks. With fewer
/// elements than chunks some own nothing.
fn owned(plan: &Plan<'_>, per_rank: u32, ranks: Range<u32>) -> u128 {
    let elems = plan.cut.start(ranks.end * per_rank) - plan.cut.start(ranks.start * per_rank);
    u128::from(elems) * u128::from(plan.cut.elem_bytes)
}

/// Bytes that ranks of a range have for the ranks that `counts` accepts, in an exchange of all with all.
fn exchanged(plan: &Plan<'_>, from: Range<u32>, counts: impl Fn(u32, u32) -> bool) -> u128 {
    let n = plan.program.ranks();
    let pairs = from.flat_map(|from| (0..n).map(move |to| (from, to)));
    let chunks = pairs.filter(|&(from, to)| counts(from, to)).map(|(from, to)| plan.cut.len(from * n + to));
    chunks.map(u128::from).sum::<u128>() * u128::from(plan.cut.elem_bytes)
}

/// The shortest path over channels for the smallest message, from the last rank to start that has something
/// to send to the rank farthest from it that must receive something.
fn latency(plan: &Plan<'_>) -> Ps {
    let (ranks, goal) = (plan.program.ranks(), plan.program.goal());
    let owns = |per_rank, rank| owned(plan, per_rank, rank..rank + 1) > 0;
    let sends = |&rank: &u32| match goal {
        Goal::AllGather { per_rank } | Goal::Gather { per_rank, .. } => owns(per_rank, rank),
        Goal::Broadcast { root } | Goal::Scatter { root, .. } => rank == root,
        _ => true,
    };
    let receives = |rank| match goal {
        Goal::ReduceScatter { per_rank } | Goal::Scatter { per_rank, .. } => owns(per_rank, rank),
        Goal::Reduce { root } | Goal::Gather { root, .. } => rank == root,
        // A pair may have nothing to exchange.
        Goal::AllToAll => plan.cut.elems >= u64::from(plan.cut.chunks),
        _ => true,
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
    let last = (0..ranks).filter(sends).max_by_key(|&rank| (plan.start(rank), Reverse(rank)));
    let source = last.unwrap_or(0);
    let mut at = vec![Ps::MAX; ranks as usize];
    at[source as usize] = plan.start(source);
    let mut heap = BinaryHeap::from([Reverse((at[source as usize], source))]);
    while let Some(Reverse((time, rank))) = heap.pop() {
        if time > at[rank as usize] {
            continue;
        }
        for channel in first[rank as usize]..first[rank as usize + 1] {
            let to = channels[channel as usize].dst;
            let arrival = time + weight(plan, channel);
            if arrival < at[to as usize] {
                at[to as usize] = arrival;
                heap.push(Reverse((arrival, to)));
            }
        }
    }
    let reached = |rank: u32| Some(at[rank as usize]).filter(|&time| time != Ps::MAX);
    match goal {
        Goal::Shift => reached((source + 1) % ranks).unwrap_or(0),
        _ => (0..ranks).filter(|&rank| receives(rank)).filter_map(reached).max().unwrap_or(0),
    }
}

/// All-reduce on channels that form one ring, 0 to 1 to … to n − 1 in its order, with fewer than two messages
/// per chunk and channel: then some chunk crosses some channel, from i to i + 1, at most once. Every rank but
/// i + 1 has that channel on its path to some other rank, so this one message holds the contributions of all
/// of them. That of i + 2 has crossed n − 2 channels to get into it; that of i crosses n − 2 more, to i − 1.
/// Since i is unknown, the minimum over all i is the bound.
fn ring(plan: &Plan<'_>) -> Option<Ps> {
    let (program, channels) = (plan.program, plan.wiring.channels());
    let (n, chunks) = (program.ranks() as usize, u64::from(program.chunks()));
    let sparse = program.messages() < 2 * n as u64 * chunks;
    // An empty chunk need not be sent at all, so it would prove nothing.
    if program.goal() != Goal::AllReduce || channels.len() != n || !sparse || plan.cut.elems < chunks {
        return None;
    }
    // One channel per rank, in rank order, and following them visits every rank: one ring.
    let mut order = Vec::with_capacity(n);
    let mut at = 0;
    for _ in 0..n {
        let channel = channels.get(at).filter(|channel| channel.src as usize == at)?;
        order.push(at as u32);
        at = channel.dst as usize;
        if at == 0 {
            break;
        }
    }
    if order.len() != n {
        return None;
    }
    let weights: Vec<Ps> = order.iter().map(|&rank| weight(plan, rank)).collect();
    let twice = 2 * weights.iter().sum::<Ps>();
    let around = |i: usize| {
        let (before, after) = ((i + n - 1) % n, (i + 1) % n);
        let left_out = weights[before] + weights[i] + weights[after];
        plan.start(order[(i + 2) % n]) + twice - left_out
    };
    (0..n).map(around).min()
}

/// What must cross the border of a range of ranks, outwards and inwards.
fn crossing(plan: &Plan<'_>, inside: Range<u32>) -> (u128, u128) {
    let size = bytes(plan);
    if inside.is_empty() || inside.len() == plan.program.ranks() as usize {
        return (0, 0);
    }
    match plan.program.goal() {
        Goal::AllReduce => (size, size),
        Goal::ReduceScatter { per_rank } => {
            let own = owned(plan, per_rank, inside);
            (size - own, own)
        }
        Goal::AllGather { per_rank } => {
            let own = owned(plan, per_rank, inside);
            (own, size - own)
        }
        Goal::Broadcast { root } | Goal::Reduce { root } => {
            let out = inside.contains(&root) == matches!(plan.program.goal(), Goal::Broadcast { .. });
            if out { (size, 0) } else { (0, size) }
        }
        Goal::Gather { root, per_rank } if inside.contains(&root) => {
            (0, size - owned(plan, per_rank, inside))
        }
        Goal::Gather { per_rank, .. } => (owned(plan, per_rank, inside), 0),
        Goal::Scatter { root, per_rank } if inside.contains(&root) => {
            (size - owned(plan, per_rank, inside), 0)
        }
        Goal::Scatter { per_rank, .. } => (0, owned(plan, per_rank, inside)),
        Goal::AllToAll => {
            let out = exchanged(plan, inside.clone(), |_, to| !inside.contains(&to));
            let all = 0..plan.program.ranks();
            (out, exchanged(plan, all, |from, to| !inside.contains(&from) && inside.contains(&to)))
        }
        Goal::Shift | Goal::Any => (0, 0),
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
                    // SIP links are attached to cube 0.
                    for (direction, end) in ends.into_iter().enumerate() {
                        if let Some(end) = end {
                            sip[end as usize][direction] += rate;
                            cube[end as usize * cubes][direction] += rate;
                        }
                    }
                }
            }
        }
    }
    let members = |group: u32, size: u32| (group * size).min(ranks)..((group + 1) * size).min(ranks);
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
        Goal::AllReduce | Goal::ReduceScatter { .. } | Goal::Reduce { .. } => {
            time((n - 1) * bytes(plan), n * plan.net.topology().math.rate.micro())
        }
        _ => 0,
    }
}
