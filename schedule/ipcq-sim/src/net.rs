//! The links of a system and the path of every channel over them.
//!
//! A wire has two ends and two directions; every direction is a link of its own, with its own time at which
//! it is free.

use crate::config::{Fabric, Flow, Grid, SipLinks, Topology};
use crate::units::{Ps, Rate};
use ccl_schedule::Wiring;

/// One hop of a path: wait `over`, then take the link for bytes / rate; the head moves on after `prop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The link.
    pub link: u32,
    /// Overhead of the components before it.
    pub over: u32,
    /// Propagation along it.
    pub prop: u32,
    /// Index of its bandwidth in [`Net::rates`].
    pub rate: u32,
}

/// A hop as it is stored: eight bytes, so that the paths of large systems fit the caches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) link: u32,
    /// Index of its overhead, propagation and bandwidth in [`Net::kinds`].
    pub(crate) kind: u16,
    /// 1 at the end of a path.
    pub(crate) last: u16,
}

/// Overhead, propagation and bandwidth, which many hops share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) over: u32,
    pub(crate) prop: u32,
    pub(crate) rate: u32,
}

/// Where a PE is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// SIP number.
    pub sip: u32,
    /// Cube number within the SIP, row by row.
    pub cube: u32,
    /// PE number within the cube.
    pub pe: u32,
}

/// What a link is, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRole {
    /// A PE's outgoing link.
    PeOut(u32),
    /// A PE's incoming link.
    PeIn(u32),
    /// From a cube to its neighbour: SIP, cube, direction (0 E, 1 W, 2 N, 3 S).
    Ucie(u32, u32, u32),
    /// From a SIP to the switch, or back (direction 0 up, 1 down), or to a neighbour (0 E, 1 W, 2 N, 3 S).
    Sip(u32, u32),
    /// The wire of a channel.
    Wire(u32),
}

const PE: u32 = 0;
const UCIE: u32 = 1;
const SIP: u32 = 2;
const DIRECT: u32 = 3;
const E: u32 = 0;
const W: u32 = 1;
const N: u32 = 2;
const S: u32 = 3;

/// All links and paths.
#[derive(Clone, Debug)]
pub struct Net {
    topology: Topology,
    starts: Vec<u32>,
    steps: Vec<Step>,
    kinds: Vec<Kind>,
    links: u32,
    exclusive: Exclusive,
    wire: Option<Hop>,
}

/// Whether links are shared, which decides the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// No link serves two channels, except the outgoing link of a PE: engine A is exact.
    Yes,
    /// This link serves several channels.
    No(u32),
}

impl Net {
    /// Routes every channel of a wiring, then the flows of compute traffic; rank r is PE r.
    pub fn new(topology: &Topology, wiring: &Wiring, flows: &[Flow]) -> Net {
        let channels = wiring.channels();
        let mut net = Net {
            topology: *topology,
            starts: Vec::with_capacity(channels.len() + 1),
            steps: Vec::new(),
            kinds: Vec::new(),
            links: 0,
            exclusive: Exclusive::Yes,
            wire: None,
        };
        net.links = match topology.fabric {
            Fabric::Direct | Fabric::Memory => channels.len() as u32,
            Fabric::Cubes => {
                2 * topology.pe_count()
                    + 4 * topology.sips.len() * topology.cubes.len()
                    + 4 * topology.sips.len()
            }
        };
        for (id, channel) in channels.iter().enumerate() {
            net.starts.push(net.steps.len() as u32);
            match topology.fabric {
                Fabric::Direct | Fabric::Memory => {
                    let over = net.send_over() + topology.overheads.noc as u32;
                    let prop = topology.direct.propagation as u32;
                    let hop = Hop { link: id as u32, over, prop, rate: DIRECT };
                    net.wire = Some(hop);
                    net.store(hop);
                }
                Fabric::Cubes => net.route(channel.src, channel.dst),
            }
            if let Some(step) = net.steps.last_mut() {
                step.last = 1;
            }
        }
        for flow in flows {
            net.starts.push(net.steps.len() as u32);
            net.route(flow.from, flow.to);
            if let Some(step) = net.steps.last_mut() {
                step.last = 1;
            }
        }
        net.starts.push(net.steps.len() as u32);
        let sources: Vec<u32> =
            channels.iter().map(|channel| channel.src).chain(flows.iter().map(|flow| flow.from)).collect();
        net.exclusive = net.find_shared(&sources);
        // Traffic comes when it comes, and not in the order of a PE's program.
        if let (Exclusive::Yes, Some(flow)) = (net.exclusive, flows.first()) {
            net.exclusive = Exclusive::No(2 * flow.from);
        }
        net
    }

    /// The bandwidths that hops index.
    pub fn rates(&self) -> [Rate; 4] {
        let t = &self.topology;
        [t.pe.rate, t.ucie.rate, t.sip.rate, t.direct.rate]
    }

    /// The hops of a channel.
    #[inline]
    pub fn path(&self, channel: u32) -> impl Iterator<Item = Hop> + '_ {
        let range = self.starts[channel as usize] as usize..self.starts[channel as usize + 1] as usize;
        self.steps[range].iter().map(|step| {
            let kind = self.kinds[step.kind as usize];
            Hop { link: step.link, over: kind.over, prop: kind.prop, rate: kind.rate }
        })
    }

    /// Where the path of a channel starts in [`Net::steps`].
    #[inline]
    pub(crate) fn start(&self, channel: u32) -> u32 {
        self.starts[channel as usize]
    }

    /// All paths, one after the other.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// What hops have in common.
    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    fn store(&mut self, hop: Hop) {
        let kind = Kind { over: hop.over, prop: hop.prop, rate: hop.rate };
        let index = self.kinds.iter().position(|&known| known == kind).unwrap_or_else(|| {
            self.kinds.push(kind);
            self.kinds.len() - 1
        });
        self.steps.push(Step { link: hop.link, kind: index as u16, last: 0 });
    }

    /// With a wire per channel: the one hop of every path, except for the link, which is the channel's
    /// number.
    #[inline]
    pub(crate) fn wire(&self) -> Option<Hop> {
        self.wire
    }

    /// How many links there are.
    pub fn links(&self) -> u32 {
        self.links
    }

    /// The shortest time that a head spends on any hop.
    pub(crate) fn shortest_hop(&self) -> u32 {
        self.kinds.iter().map(|kind| kind.over + kind.prop).min().unwrap_or(0)
    }

    /// Whether links are shared.
    pub fn exclusive(&self) -> Exclusive {
        self.exclusive
    }

    /// The topology that was routed.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    fn send_over(&self) -> u32 {
        (self.topology.overheads.pe_cpu + self.topology.overheads.pe_scheduler) as u32
    }

    /// The place of a rank.
    pub fn place(&self, rank: u32) -> Place {
        let t = &self.topology;
        let (cube, pe) = (rank / t.pes, rank % t.pes);
        Place { sip: cube / t.cubes.len(), cube: cube % t.cubes.len(), pe }
    }

    fn ucie(&self, sip: u32, cube: u32, dir: u32) -> u32 {
        2 * self.topology.pe_count() + 4 * (sip * self.topology.cubes.len() + cube) + dir
    }

    fn sip(&self, sip: u32, dir: u32) -> u32 {
        2 * self.topology.pe_count()
            + 4 * self.topology.sips.len() * self.topology.cubes.len()
            + 4 * sip
            + dir
    }

    fn push(&mut self, link: u32, over: Ps, rate: u32) {
        let t = &self.topology;
        let prop = [t.pe, t.ucie, t.sip, t.direct][rate as usize].propagation as u32;
        self.store(Hop { link, over: over as u32, prop, rate });
    }

    /// PE out, UCIe along x then y, over the SIP's cube 0 to another SIP, UCIe again, PE in.
    fn route(&mut self, src: u32, dst: u32) {
        let (from, to) = (self.place(src), self.place(dst));
        let o = self.topology.overheads;
        let over = Ps::from(self.send_over());
        self.push(2 * src, over, PE);
        let mut first = true;
        if from.sip == to.sip {
            self.cross_cubes(from.sip, from.cube, to.cube, &mut first);
        } else {
            self.cross_cubes(from.sip, from.cube, 0, &mut first);
            self.cross_sips(from.sip, to.sip);
            self.cross_cubes(to.sip, 0, to.cube, &mut first);
        }
        self.push(2 * dst + 1, o.crossbar + o.noc, PE);
    }

    fn cross_cubes(&mut self, sip: u32, from: u32, to: u32, first: &mut bool) {
        let (grid, o) = (self.topology.cubes, self.topology.overheads);
        walk(grid, from, to, |cube, dir| {
            let enter = if std::mem::take(first) { o.crossbar } else { o.crossbar_bridge };
            let link = self.ucie(sip, cube, dir);
            self.push(link, enter + o.noc + 2 * o.ucie_port, UCIE);
        });
    }

    fn cross_sips(&mut self, from: u32, to: u32) {
        let (grid, o) = (self.topology.sips, self.topology.overheads);
        if self.topology.sip_links == SipLinks::Switch {
            self.push(self.sip(from, 0), o.io_cpu + o.pcie_endpoint, SIP);
            self.push(self.sip(to, 1), o.fabric_switch + o.pcie_endpoint + o.m_cpu, SIP);
            return;
        }
        let mut links = Vec::new();
        walk(grid, from, to, |sip, dir| links.push(self.sip(sip, dir)));
        for (i, &link) in links.iter().enumerate() {
            let enter = if i == 0 { o.io_cpu } else { 0 };
            let leave = if i + 1 == links.len() { o.m_cpu } else { 0 };
            self.push(link, enter + 2 * o.pcie_endpoint + leave, SIP);
        }
    }

    /// Engine A is not exact for a link with two channels, unless all of them start there at one PE: then
    /// they use the link in that PE's order.
    fn find_shared(&self, sources: &[u32]) -> Exclusive {
        const UNUSED: u32 = u32::MAX;
        if self.topology.has_wires() {
            return Exclusive::Yes;
        }
        let mut user = vec![UNUSED; self.links as usize];
        for (id, source) in sources.iter().enumerate() {
            for (i, hop) in self.path(id as u32).enumerate() {
                let own_port = i == 0 && hop.link == 2 * source;
                if user[hop.link as usize] != UNUSED && !own_port {
                    return Exclusive::No(hop.link);
                }
                user[hop.link as usize] = id as u32;
            }
        }
        Exclusive::Yes
    }

    /// What a link is.
    pub fn role(&self, link: u32) -> LinkRole {
        let t = &self.topology;
        if t.has_wires() {
            return LinkRole::Wire(link);
        }
        let (pes, cubes) = (2 * t.pe_count(), 4 * t.sips.len() * t.cubes.len());
        if link < pes {
            if link.is_multiple_of(2) { LinkRole::PeOut(link / 2) } else { LinkRole::PeIn(link / 2) }
        } else if link < pes + cubes {
            let at = link - pes;
            LinkRole::Ucie(at / 4 / t.cubes.len(), at / 4 % t.cubes.len(), at % 4)
        } else {
            let at = link - pes - cubes;
            LinkRole::Sip(at / 4, at % 4)
        }
    }

    /// The bandwidth of a link.
    pub fn rate_of(&self, link: u32) -> Rate {
        self.rates()[match self.role(link) {
            LinkRole::PeOut(_) | LinkRole::PeIn(_) => PE,
            LinkRole::Ucie(..) => UCIE,
            LinkRole::Sip(..) => SIP,
            LinkRole::Wire(_) => DIRECT,
        } as usize]
    }

    /// A link's name in reports.
    pub fn name(&self, link: u32, wiring: &Wiring) -> String {
        const NAMES: [char; 4] = ['E', 'W', 'N', 'S'];
        match self.role(link) {
            LinkRole::PeOut(pe) => format!("pe{pe}.out"),
            LinkRole::PeIn(pe) => format!("pe{pe}.in"),
            LinkRole::Ucie(sip, cube, dir) => {
                let w = self.topology.cubes.w;
                format!("sip{sip}.cube{}_{}.{}", cube % w, cube / w, NAMES[dir as usize])
            }
            LinkRole::Sip(sip, dir) if self.topology.sip_links == SipLinks::Switch => {
                format!("sip{sip}.{}", if dir == 0 { "up" } else { "down" })
            }
            LinkRole::Sip(sip, dir) => format!("sip{sip}.{}", NAMES[dir as usize]),
            LinkRole::Wire(channel) => {
                let c = wiring.channels()[channel as usize];
                format!("pe{}.{}-pe{}.{}", c.src, c.src_dir, c.dst, c.dst_dir)
            }
        }
    }
}

/// Walks through a grid, first along x, then along y, in the shorter direction where it wraps; `step` gets
/// the place that is left and the direction.
pub(crate) fn walk(grid: Grid, from: u32, to: u32, mut step: impl FnMut(u32, u32)) {
    let (mut x, mut y) = (from % grid.w, from / grid.w);
    let (tx, ty) = (to % grid.w, to / grid.w);
    let forward = |at: u32, to: u32, size: u32| {
        let ahead = (to + size - at) % size;
        if grid.wraps { ahead <= size - ahead } else { to > at }
    };
    while x != tx {
        let east = forward(x, tx, grid.w);
        step(y * grid.w + x, if east { E } else { W });
        x = if east { (x + 1) % grid.w } else { (x + grid.w - 1) % grid.w };
    }
    while y != ty {
        let south = forward(y, ty, grid.h);
        step(y * grid.w + x, if south { S } else { N });
        y = if south { (y + 1) % grid.h } else { (y + grid.h - 1) % grid.h };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(grid: Grid, from: u32, to: u32) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        walk(grid, from, to, |at, dir| out.push((at, dir)));
        out
    }

    #[test]
    fn routes_go_along_x_then_y() {
        let grid = Grid { w: 4, h: 4, wraps: false };
        assert_eq!(steps(grid, 0, 6), [(0, E), (1, E), (2, S)]);
        assert_eq!(steps(grid, 6, 0), [(6, W), (5, W), (4, N)]);
        assert_eq!(steps(grid, 5, 5), []);
    }

    #[test]
    fn a_torus_is_walked_in_the_shorter_direction() {
        let grid = Grid { w: 5, h: 3, wraps: true };
        assert_eq!(steps(grid, 0, 4), [(0, W)]);
        assert_eq!(steps(grid, 0, 2), [(0, E), (1, E)]);
        assert_eq!(steps(grid, 0, 10), [(0, N)]);
    }
}
