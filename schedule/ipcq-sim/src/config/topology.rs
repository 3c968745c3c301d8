//! `topology.yaml`: SIPs, cubes, PEs, links, overheads and memories.

use super::host::{Host, Level, MOST_LEVELS, Passing};
use super::{ConfigError, Leaf, Origin, mapping, nested, parse, read};
use crate::config::BufferKind;
use crate::units::{Decimal, Ps, Rate};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// What channels run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fabric {
    /// The chip: PE ports, crossbars, UCIe between cubes, PCIe between SIPs. Channels share links.
    Cubes,
    /// A wire of its own for every channel.
    Direct,
    /// The memory of one machine, in which ranks read what others have written where it stands ([`Host`]).
    Memory,
}

/// How SIPs are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SipLinks {
    /// All to one fabric switch.
    Switch,
    /// To their neighbours.
    Mesh,
    /// To their neighbours, the last to the first again.
    Torus,
}

/// A grid of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Columns.
    pub w: u32,
    /// Rows.
    pub h: u32,
    /// Whether rows and columns close.
    pub wraps: bool,
}

impl Grid {
    /// Places.
    pub const fn len(self) -> u32 {
        self.w * self.h
    }

    /// Whether the grid is empty.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

mapping! {
    /// `sips`: how many, and how they are joined.
    SipKeys { count: u32, links: SipLinks, w: u32, h: u32, } groups {}
}
mapping! {
    /// `cubes`: the mesh within a SIP.
    CubeKeys { w: u32, h: u32, wraps: Wraps, } groups {}
}
mapping! {
    /// `pes`: at the corners of a cube.
    PeKeys { pe_per_corner: u32, corners: u32, } groups {}
}
mapping! {
    /// `system`, as kernbench2 has it: `sips.count`.
    SystemKeys {} groups { sips: SystemSipKeys, }
}
mapping! {
    /// `system.sips`.
    SystemSipKeys { count: u32, } groups {}
}
mapping! {
    /// `sip`, as kernbench2 has it: `cube_mesh.w` and `.h`.
    SipShapeKeys {} groups { cube_mesh: CubeMeshKeys, }
}
mapping! {
    /// `sip.cube_mesh`.
    CubeMeshKeys { w: u32, h: u32, } groups {}
}
mapping! {
    /// `cube`, as kernbench2 has it: `pe_layout.pe_per_corner` and `.corners`.
    CubeShapeKeys {} groups { pe_layout: PeLayoutKeys, }
}
mapping! {
    /// `cube.pe_layout`: the corners are a list of names.
    PeLayoutKeys { pe_per_corner: u32, corners: Vec<String>, } groups {}
}
mapping! {
    /// A kind of link; `load` is the share of it that compute traffic takes.
    LinkKeys { gbps: Decimal, mm: Decimal, load: Decimal, } groups {}
}
mapping! {
    /// `links`.
    LinksKeys {} groups { pe: LinkKeys, ucie: LinkKeys, sip: LinkKeys, direct: LinkKeys, }
}
mapping! {
    /// `overheads_ns`.
    OverheadKeys {
        pcie_endpoint: Decimal,
        io_cpu: Decimal,
        m_cpu: Decimal,
        fabric_switch: Decimal,
        crossbar: Decimal,
        crossbar_bridge: Decimal,
        ucie_port: Decimal,
        noc: Decimal,
        pe_cpu: Decimal,
        pe_scheduler: Decimal,
    } groups {}
}
mapping! {
    /// A kind of slot memory.
    MemoryKeys { gbps: Decimal, setup_ns: Decimal, bank_gbps: Decimal, } groups {}
}
mapping! {
    /// `memory`.
    MemoriesKeys {} groups { tcm: MemoryKeys, sram: MemoryKeys, hbm: MemoryKeys, }
}
mapping! {
    /// `math` and `copy`.
    UnitKeys { setup_ns: Decimal, gbps: Decimal, } groups {}
}
mapping! {
    /// `host`.
    HostKeys { cores: u32, signal_ns: Decimal, passing: Passing, levels: Vec<LevelKeys>, } groups {}
}
mapping! {
    /// The whole file.
    Keys {
        fabric: Fabric,
        propagation_ns_per_mm: Decimal,
    } groups {
        system: SystemKeys,
        sip: SipShapeKeys,
        cube: CubeShapeKeys,
        sips: SipKeys,
        cubes: CubeKeys,
        pes: PeKeys,
        links: LinksKeys,
        overheads_ns: OverheadKeys,
        memory: MemoriesKeys,
        math: UnitKeys,
        copy: UnitKeys,
        host: HostKeys,
    }
}

/// The rates of a host for one size.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LevelKeys {
    bytes: u64,
    stage_gbps: Decimal,
    take_gbps: Decimal,
    fold_gbps: Decimal,
}

/// The levels of a file that has none: bytes, and GB/s of staging, taking and folding.
const HOST_LEVELS: [(u64, u64, u64, u64); 3] =
    [(65536, 20, 12, 10), (1 << 20, 20, 12, 10), (32 << 20, 8, 8, 4)];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wraps {
    Yes,
    No,
}

/// A parsed `topology.yaml`.
#[derive(Clone, Debug)]
pub struct TopologyFile {
    file: PathBuf,
    keys: Keys,
}

/// A link's bandwidth and length in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkKind {
    /// Bandwidth.
    pub rate: Rate,
    /// Propagation from end to end.
    pub propagation: Ps,
}

/// A memory that holds slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Before the first byte.
    pub setup: Ps,
    /// Its bandwidth.
    pub rate: Rate,
    /// The hop to its bank, where there is one.
    pub bank: Option<Rate>,
}

impl Memory {
    /// The time of one write or one read.
    pub fn access(self, bytes: u64) -> Ps {
        self.setup + self.rate.time(bytes) + self.bank.map_or(0, |bank| bank.time(bytes))
    }
}

/// A unit with a start-up time and a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Before the first byte.
    pub setup: Ps,
    /// Bytes of one operand per time.
    pub rate: Rate,
}

impl Unit {
    /// The time for `bytes`.
    pub fn time(self, bytes: u64) -> Ps {
        self.setup + self.rate.time(bytes)
    }
}

/// Overheads of the components on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the documentation
pub struct Overheads {
    pub pcie_endpoint: Ps,
    pub io_cpu: Ps,
    pub m_cpu: Ps,
    pub fabric_switch: Ps,
    pub crossbar: Ps,
    pub crossbar_bridge: Ps,
    pub ucie_port: Ps,
    pub noc: Ps,
    pub pe_cpu: Ps,
    pub pe_scheduler: Ps,
}

/// A checked topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// What channels run over.
    pub fabric: Fabric,
    /// SIPs as a grid (a switch joins a row).
    pub sips: Grid,
    /// How they are joined.
    pub sip_links: SipLinks,
    /// Cubes of a SIP.
    pub cubes: Grid,
    /// PEs of a cube.
    pub pes: u32,
    /// PE to crossbar, in either direction.
    pub pe: LinkKind,
    /// Cube to cube.
    pub ucie: LinkKind,
    /// SIP to switch or SIP to SIP.
    pub sip: LinkKind,
    /// A wire of its own.
    pub direct: LinkKind,
    /// Components.
    pub overheads: Overheads,
    /// Tightly coupled memory.
    pub tcm: Memory,
    /// SRAM.
    pub sram: Memory,
    /// HBM.
    pub hbm: Memory,
    /// Additions.
    pub math: Unit,
    /// Copies within a PE.
    pub copy: Unit,
    /// The machine, for [`Fabric::Memory`].
    pub host: Host,
}

impl Default for Topology {
    fn default() -> Self {
        let file = TopologyFile { file: PathBuf::from("built-in"), keys: Keys::default() };
        file.topology().expect("the built-in values are valid")
    }
}

impl Topology {
    /// Whether every channel has a wire of its own.
    pub fn has_wires(&self) -> bool {
        self.fabric != Fabric::Cubes
    }

    /// What the net of a memory is, for calls on `whole` bytes: wires that take as long as a signal, and are never busy.
    pub(crate) fn of_memory(&self, whole: u64) -> Topology {
        let none = Overheads { pe_cpu: self.host.signal, pe_scheduler: 0, noc: 0, ..self.overheads };
        let fast = Unit { setup: 0, rate: Rate::whole(1_000_000) };
        let direct = LinkKind { rate: self.host.reading(whole), propagation: 0 };
        Topology { overheads: none, direct, math: fast, copy: fast, ..*self }
    }
    /// PEs of the whole system.
    pub fn pe_count(&self) -> u32 {
        self.sips.len() * self.cubes.len() * self.pes
    }

    /// PEs per cube, cubes per SIP, SIPs.
    pub fn levels(&self) -> [u32; 3] {
        [self.pes, self.cubes.len(), self.sips.len()]
    }

    /// The memory of a kind.
    pub fn memory(&self, kind: BufferKind) -> Memory {
        match kind {
            BufferKind::Tcm => self.tcm,
            BufferKind::Hbm => self.hbm,
            BufferKind::Sram => self.sram,
        }
    }
}

impl TopologyFile {
    /// Reads and checks a file.
    pub fn load(file: &Path) -> Result<TopologyFile, ConfigError> {
        TopologyFile::parse(&read(file)?, file)
    }

    /// Parses a text; `file` is what errors name.
    pub fn parse(text: &str, file: &Path) -> Result<TopologyFile, ConfigError> {
        Ok(TopologyFile { file: file.to_owned(), keys: parse(text, file)? })
    }

    /// The file that errors name.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether a key of the top level is one of this file.
    pub(crate) fn has(key: &str) -> bool {
        const KEYS: [&str; 14] = [
            "fabric",
            "propagation_ns_per_mm",
            "system",
            "sip",
            "cube",
            "sips",
            "cubes",
            "pes",
            "links",
            "overheads_ns",
            "memory",
            "math",
            "copy",
            "host",
        ];
        KEYS.contains(&key)
    }

    /// Overrides a key of the file.
    pub(crate) fn set(&mut self, path: &str, value: &str) -> Result<(), ConfigError> {
        let mut over: Keys = parse(&nested(path, value), Path::new("--set"))?;
        over.forget_lines();
        self.keys.merge(over);
        Ok(())
    }

    fn bad(&self, key: &str, value: impl ToString, line: Option<u64>, why: impl Into<String>) -> ConfigError {
        let origin = line.map_or(Origin::CommandLine, |line| Origin::Line(self.file.clone(), line));
        ConfigError::Value { origin, key: key.to_owned(), value: value.to_string(), why: why.into() }
    }

    fn count(&self, key: &str, leaf: Option<Leaf<u32>>, default: u32) -> Result<u32, ConfigError> {
        let Some(Leaf { value, line }) = leaf else { return Ok(default) };
        if (1..=1 << 20).contains(&value) {
            Ok(value)
        } else {
            Err(self.bad(key, value, line, "must be from 1 to 1048576"))
        }
    }

    fn rate(&self, key: &str, leaf: Option<Leaf<Decimal>>, default: u64) -> Result<Rate, ConfigError> {
        let Some(Leaf { value, line }) = leaf else { return Ok(Rate::whole(default)) };
        Rate::gbps(value).ok_or_else(|| self.bad(key, value, line, "a bandwidth must be above 0"))
    }

    /// A time that leaves room for sums: at most a millisecond.
    fn time(&self, key: &str, leaf: Option<Leaf<Decimal>>, default: Ps) -> Result<Ps, ConfigError> {
        let Some(Leaf { value, line }) = leaf else { return Ok(default) };
        if value <= Decimal::whole(1_000_000) {
            Ok(value.ns())
        } else {
            Err(self.bad(key, value, line, "must be at most 1000000 ns"))
        }
    }

    fn link(
        &self,
        key: &str,
        keys: Option<&LinkKeys>,
        (gbps, mm): (u64, u64),
        per_mm: Decimal,
    ) -> Result<LinkKind, ConfigError> {
        let keys = keys.cloned().unwrap_or_default();
        let load = keys.load.map_or(Decimal::whole(0), |leaf| leaf.value);
        if load >= Decimal::whole(1) {
            let line = keys.load.and_then(|leaf| leaf.line);
            let why = "compute traffic takes a share of the link from 0 to below 1";
            return Err(self.bad(&format!("{key}.load"), load, line, why));
        }
        let length = keys.mm.map_or(Decimal::whole(mm), |leaf| leaf.value);
        let propagation = (u128::from(length.micro()) * u128::from(per_mm.micro())).div_ceil(1_000_000_000);
        if propagation > 1_000_000_000 {
            let line = keys.mm.and_then(|leaf| leaf.line);
            return Err(self.bad(
                &format!("{key}.mm"),
                length,
                line,
                "propagation exceeds a millisecond; give a shorter wire",
            ));
        }
        Ok(LinkKind {
            rate: self.rate(&format!("{key}.gbps"), keys.gbps, gbps)?.less(load),
            propagation: propagation as Ps,
        })
    }

    fn memory(
        &self,
        key: &str,
        keys: Option<&MemoryKeys>,
        (gbps, setup, bank): (u64, u64, Option<u64>),
    ) -> Result<Memory, ConfigError> {
        let keys = keys.cloned().unwrap_or_default();
        let bank = match (keys.bank_gbps, bank) {
            (None, None) => None,
            (leaf, default) => Some(self.rate(&format!("{key}.bank_gbps"), leaf, default.unwrap_or(1))?),
        };
        Ok(Memory {
            setup: self.time(&format!("{key}.setup_ns"), keys.setup_ns, setup * 1000)?,
            rate: self.rate(&format!("{key}.gbps"), keys.gbps, gbps)?,
            bank,
        })
    }

    fn unit(
        &self,
        key: &str,
        keys: Option<&UnitKeys>,
        (setup, gbps): (u64, u64),
    ) -> Result<Unit, ConfigError> {
        let keys = keys.cloned().unwrap_or_default();
        Ok(Unit {
            setup: self.time(&format!("{key}.setup_ns"), keys.setup_ns, setup * 1000)?,
            rate: self.rate(&format!("{key}.gbps"), keys.gbps, gbps)?,
        })
    }

    fn host(&self, keys: &HostKeys) -> Result<Host, ConfigError> {
        let given = keys.levels.as_ref();
        let line = given.and_then(|leaf| leaf.line);
        let rate = |key: &str, value: Decimal| {
            let bad = || self.bad(&format!("host.levels.{key}"), value, line, "a bandwidth must be above 0");
            Rate::gbps(value).ok_or_else(bad)
        };
        let levels = match given {
            None => HOST_LEVELS
                .map(|(bytes, stage, take, fold)| Level {
                    bytes,
                    stage: Rate::whole(stage),
                    take: Rate::whole(take),
                    fold: Rate::whole(fold),
                })
                .to_vec(),
            Some(leaf) => {
                let level = |keys: &LevelKeys| {
                    Ok(Level {
                        bytes: keys.bytes,
                        stage: rate("stage_gbps", keys.stage_gbps)?,
                        take: rate("take_gbps", keys.take_gbps)?,
                        fold: rate("fold_gbps", keys.fold_gbps)?,
                    })
                };
                leaf.value.iter().map(level).collect::<Result<Vec<_>, ConfigError>>()?
            }
        };
        let cores = self.count("host.cores", keys.cores, 2)?;
        let signal = self.time("host.signal_ns", keys.signal_ns, 100_000)?;
        let passing = keys.passing.map_or(Passing::Staged, |leaf| leaf.value);
        Host::new(cores, signal, passing, &levels).ok_or_else(|| {
            let why = format!("give 1 to {MOST_LEVELS} levels, each with more bytes than the one before");
            self.bad("host.levels", levels.len(), line, why)
        })
    }

    fn sip_grid(&self, keys: &SipKeys) -> Result<(Grid, SipLinks), ConfigError> {
        let links = keys.links.map_or(SipLinks::Switch, |leaf| leaf.value);
        let grid = match (keys.w, keys.h) {
            (None, None) => (self.count("sips.count", keys.count, 2)?, 1),
            _ => (self.count("sips.w", keys.w, 1)?, self.count("sips.h", keys.h, 1)?),
        };
        if let Some(Leaf { value, line }) = keys.count
            && u64::from(grid.0) * u64::from(grid.1) != u64::from(value)
        {
            let why = format!(
                "w x h is {} x {} = {}; leave count out, or let the two agree",
                grid.0,
                grid.1,
                u64::from(grid.0) * u64::from(grid.1)
            );
            return Err(self.bad("sips.count", value, line, why));
        }
        Ok((Grid { w: grid.0, h: grid.1, wraps: links == SipLinks::Torus }, links))
    }

    /// One of two spellings of a key; both may be given only with the same value.
    fn either(
        &self,
        (ours, one): (&str, Option<Leaf<u32>>),
        (theirs, other): (&str, Option<Leaf<u32>>),
    ) -> Result<Option<Leaf<u32>>, ConfigError> {
        match (one, other) {
            (Some(one), Some(other)) if one.value != other.value => {
                let why = format!("{ours} is {}; give one of the two", one.value);
                Err(self.bad(theirs, other.value, other.line, why))
            }
            (one, other) => Ok(one.or(other)),
        }
    }

    /// How many corners a list of names has.
    fn corners(&self, names: Option<Leaf<Vec<String>>>) -> Result<Option<Leaf<u32>>, ConfigError> {
        let Some(Leaf { value: names, line }) = names else { return Ok(None) };
        for (at, name) in names.iter().enumerate() {
            if names[..at].contains(name) {
                return Err(self.bad(
                    "cube.pe_layout.corners",
                    name,
                    line,
                    "this corner is named twice; name each once",
                ));
            }
        }
        Ok(Some(Leaf { value: names.len() as u32, line }))
    }

    /// The keys of kernbench2 put where ours are.
    fn with_their_keys(&self) -> Result<Keys, ConfigError> {
        let mut keys = self.keys.clone();
        let sips = self.keys.system.clone().unwrap_or_default().sips.unwrap_or_default();
        let mesh = self.keys.sip.clone().unwrap_or_default().cube_mesh.unwrap_or_default();
        let layout = self.keys.cube.clone().unwrap_or_default().pe_layout.unwrap_or_default();
        let own = keys.sips.get_or_insert_default();
        own.count = self.either(("sips.count", own.count), ("system.sips.count", sips.count))?;
        let own = keys.cubes.get_or_insert_default();
        own.w = self.either(("cubes.w", own.w), ("sip.cube_mesh.w", mesh.w))?;
        own.h = self.either(("cubes.h", own.h), ("sip.cube_mesh.h", mesh.h))?;
        let own = keys.pes.get_or_insert_default();
        let per_corner = ("cube.pe_layout.pe_per_corner", layout.pe_per_corner);
        own.pe_per_corner = self.either(("pes.pe_per_corner", own.pe_per_corner), per_corner)?;
        let corners = ("cube.pe_layout.corners", self.corners(layout.corners)?);
        own.corners = self.either(("pes.corners", own.corners), corners)?;
        Ok(keys)
    }

    /// Checks everything and fills in what is unset.
    pub fn topology(&self) -> Result<Topology, ConfigError> {
        let keys = &self.with_their_keys()?;
        let (sips, sip_links) = self.sip_grid(&keys.sips.clone().unwrap_or_default())?;
        let cube = keys.cubes.clone().unwrap_or_default();
        let cubes = Grid {
            w: self.count("cubes.w", cube.w, 4)?,
            h: self.count("cubes.h", cube.h, 4)?,
            wraps: cube.wraps.is_some_and(|leaf| leaf.value == Wraps::Yes),
        };
        let pe = keys.pes.clone().unwrap_or_default();
        let per_corner = self.count("pes.pe_per_corner", pe.pe_per_corner, 2)?;
        let corners = self.count("pes.corners", pe.corners, 4)?;
        let (pes, line) = (u64::from(per_corner) * u64::from(corners), pe.pe_per_corner.and_then(|l| l.line));
        let total = u64::from(sips.w) * u64::from(sips.h) * u64::from(cubes.w) * u64::from(cubes.h);
        if total > 1 << 26 || total * pes > 1 << 26 {
            let why = format!(
                "the system would have {} PEs, the limit is {}; make it smaller",
                u128::from(total) * u128::from(pes),
                1 << 26
            );
            return Err(self.bad("pes.pe_per_corner", per_corner, line, why));
        }
        let per_mm = keys.propagation_ns_per_mm.map_or(Decimal::parse("0.01"), |leaf| Ok(leaf.value));
        let per_mm = per_mm.unwrap_or_default();
        let links = keys.links.clone().unwrap_or_default();
        let o = keys.overheads_ns.clone().unwrap_or_default();
        let over =
            |key: &str, leaf, default: u64| self.time(&format!("overheads_ns.{key}"), leaf, default * 1000);
        let m = keys.memory.clone().unwrap_or_default();
        Ok(Topology {
            fabric: keys.fabric.map_or(Fabric::Cubes, |leaf| leaf.value),
            sips,
            sip_links,
            cubes,
            pes: pes as u32,
            pe: self.link("links.pe", links.pe.as_ref(), (256, 2), per_mm)?,
            ucie: self.link("links.ucie", links.ucie.as_ref(), (128, 10), per_mm)?,
            sip: self.link("links.sip", links.sip.as_ref(), (64, 200), per_mm)?,
            direct: self.link("links.direct", links.direct.as_ref(), (128, 10), per_mm)?,
            overheads: Overheads {
                pcie_endpoint: over("pcie_endpoint", o.pcie_endpoint, 5)?,
                io_cpu: over("io_cpu", o.io_cpu, 10)?,
                m_cpu: over("m_cpu", o.m_cpu, 5)?,
                fabric_switch: over("fabric_switch", o.fabric_switch, 5)?,
                crossbar: over("crossbar", o.crossbar, 2)?,
                crossbar_bridge: over("crossbar_bridge", o.crossbar_bridge, 1)?,
                ucie_port: over("ucie_port", o.ucie_port, 8)?,
                noc: over("noc", o.noc, 0)?,
                pe_cpu: over("pe_cpu", o.pe_cpu, 2)?,
                pe_scheduler: over("pe_scheduler", o.pe_scheduler, 1)?,
            },
            tcm: self.memory("memory.tcm", m.tcm.as_ref(), (512, 0, None))?,
            sram: self.memory("memory.sram", m.sram.as_ref(), (512, 2, Some(128)))?,
            hbm: self.memory("memory.hbm", m.hbm.as_ref(), (256, 6, Some(256)))?,
            math: self.unit("math", keys.math.as_ref(), (0, 512))?,
            copy: self.unit("copy", keys.copy.as_ref(), (0, 512))?,
            host: self.host(&keys.host.clone().unwrap_or_default())?,
        })
    }
}
