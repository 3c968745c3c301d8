//! `ccl.yaml`: which algorithm, how many slots, which memory, how credits flow.

use super::{ConfigError, Leaf, Origin, mapping, nested, parse, read};
use crate::units::{Decimal, Ps};
use ccl_schedule::CreditPoint;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The memory that slots live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferKind {
    /// Tightly coupled memory of the PE.
    Tcm,
    /// The cube's HBM.
    Hbm,
    /// The cube's SRAM.
    Sram,
}

/// How a PE waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WaitWord {
    Poll,
    Sleep,
}

/// When a slot's credit is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CreditAt {
    /// As soon as the receive finds the token: unsafe for forwarded slots, which replay finds.
    Recv,
    /// When the data has been read out of the slot.
    Copy,
    /// When the slot has been used for the last time.
    LastUse,
}

/// How long a credit takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CreditLatency {
    /// Its bytes over the bottleneck bandwidth of the path.
    Drain,
    /// The whole path: overheads, propagation and drain.
    Path,
}

/// Whether a receive waits until its credit has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CreditWait {
    /// It does not.
    Fork,
    /// It does.
    Blocking,
}

/// The number format of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
}

impl DType {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            DType::F16 | DType::Bf16 => 2,
            DType::F32 => 4,
        }
    }

    /// The name in files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
        }
    }
}

/// The wiring that an algorithm expects, as `ccl.yaml` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Wires {
    #[serde(rename = "ring_1d")]
    Ring1d,
    #[serde(rename = "mesh_2d")]
    Mesh2d,
    #[serde(rename = "tree")]
    Tree,
    #[serde(rename = "hypercube")]
    Hypercube,
    #[serde(rename = "levels")]
    Levels,
    #[serde(rename = "full_mesh")]
    FullMesh,
}

impl Wires {
    fn name(self) -> &'static str {
        match self {
            Wires::Ring1d => "ring_1d",
            Wires::Mesh2d => "mesh_2d",
            Wires::Tree => "tree",
            Wires::Hypercube => "hypercube",
            Wires::Levels => "levels",
            Wires::FullMesh => "full_mesh",
        }
    }
}

mapping! {
    /// The keys of `defaults` and of every entry under `algorithms`.
    Entry {
        algorithm: String,
        module: String,
        topology: Wires,
        buffer_kind: BufferKind,
        backpressure: WaitWord,
        poll_interval_ns: Decimal,
        n_slots: u32,
        slot_size: u64,
        ipcq_credit_size_bytes: u64,
        vc_chunk_size: u64,
        credit_at: CreditAt,
        credit_latency: CreditLatency,
        credit_wait: CreditWait,
        n_elem: u64,
        dtype: DType,
        world_size: u32,
        mesh_w: u32,
        mesh_h: u32,
        split: u32,
        skew_ns: Decimal,
        skew_rank: u32,
        skew_seed: u64,
        traffic: Vec<FlowKeys>,
    } groups {}
}

/// One flow of compute traffic.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlowKeys {
    from: u32,
    to: u32,
    bytes: u64,
    every_ns: Decimal,
    #[serde(default)]
    start_ns: Decimal,
    count: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    defaults: Entry,
    algorithms: BTreeMap<String, Entry>,
}

/// A parsed `ccl.yaml`.
#[derive(Clone, Debug)]
pub struct CclFile {
    file: PathBuf,
    document: Document,
    /// What `--set` and other options give; it takes precedence over the file.
    overrides: Entry,
}

/// Options of the command line that replace keys of `ccl.yaml`.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--world-size`.
    pub world_size: Option<u32>,
    /// `--n-elem`.
    pub n_elem: Option<u64>,
    /// `--dtype`.
    pub dtype: Option<DType>,
}

/// How a PE waits for a token or a credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backpressure {
    /// It is woken when there is something.
    Sleep,
    /// It polls at this interval.
    Poll(Ps),
}

/// Which ranks start late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// All start together.
    None,
    /// One rank starts late by this much.
    One(u32, Ps),
    /// Every rank starts late by a random time below this, from a seed.
    Random(u64, Ps),
}

/// Compute traffic beside a collective: messages of one PE to another, over the same links but outside of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The PE that sends.
    pub from: u32,
    /// The PE that receives.
    pub to: u32,
    /// Bytes of a message.
    pub bytes: u64,
    /// From one message to the next.
    pub every: Ps,
    /// When the first is sent.
    pub start: Ps,
    /// How many are sent; as many as fit before the collective ends where `None`.
    pub count: Option<u32>,
}

/// One algorithm with all its settings from `ccl.yaml`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The entry's name, as asked for.
    pub entry: String,
    /// The schedule's name.
    pub algorithm: String,
    /// A schedule of the user's own, in place of a known one.
    pub schedule: Option<PathBuf>,
    /// Where slots live.
    pub buffer_kind: BufferKind,
    /// How a PE waits.
    pub backpressure: Backpressure,
    /// Slots per queue.
    pub n_slots: u32,
    /// Bytes of a slot.
    pub slot_size: u64,
    /// Bytes of a credit.
    pub credit_bytes: u64,
    /// When a credit is returned.
    pub credit_at: CreditAt,
    /// How long it takes.
    pub credit_latency: CreditLatency,
    /// Whether the receive waits for it.
    pub credit_wait: CreditWait,
    /// Elements per rank.
    pub n_elem: u64,
    /// Their format.
    pub dtype: DType,
    /// Ranks; `None` takes all PEs of the topology.
    pub world_size: Option<u32>,
    /// Width and height for a mesh.
    pub mesh: Option<(u32, u32)>,
    /// Parts of a message that overlap.
    pub split: u32,
    /// Stragglers.
    pub skew: Skew,
    /// Compute traffic on the same links.
    pub traffic: Vec<Flow>,
}

impl Settings {
    /// How an untimed proof must treat held slots to match.
    pub fn credit_point(&self) -> CreditPoint {
        match self.credit_at {
            CreditAt::LastUse => CreditPoint::LastUse,
            CreditAt::Copy | CreditAt::Recv => CreditPoint::Recv,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            entry: "ring_allreduce_tcm".to_owned(),
            algorithm: "ring_accumulate".to_owned(),
            schedule: None,
            buffer_kind: BufferKind::Tcm,
            backpressure: Backpressure::Sleep,
            n_slots: 4,
            slot_size: 4096,
            credit_bytes: 16,
            credit_at: CreditAt::LastUse,
            credit_latency: CreditLatency::Drain,
            credit_wait: CreditWait::Fork,
            n_elem: 32,
            dtype: DType::F16,
            world_size: None,
            mesh: None,
            split: 1,
            skew: Skew::None,
            traffic: Vec::new(),
        }
    }
}

impl CclFile {
    /// Reads and checks a file.
    pub fn load(file: &Path) -> Result<CclFile, ConfigError> {
        CclFile::parse(&read(file)?, file)
    }

    /// Parses a text; `file` is what errors name.
    pub fn parse(text: &str, file: &Path) -> Result<CclFile, ConfigError> {
        Ok(CclFile { file: file.to_owned(), document: parse(text, file)?, overrides: Entry::default() })
    }

    /// Overrides a key of the file: a bare key for the algorithm that runs, or a dotted path as in the file.
    pub(crate) fn set(&mut self, path: &str, value: &str) -> Result<(), ConfigError> {
        let text = nested(path, value);
        let file = Path::new("--set");
        if path.contains('.') {
            let overrides: Document = parse(&text, file)?;
            self.document.defaults.merge(without_lines(overrides.defaults));
            for (name, entry) in overrides.algorithms {
                self.document.algorithms.entry(name).or_default().merge(without_lines(entry));
            }
        } else {
            self.overrides.merge(without_lines(parse(&text, file)?));
        }
        Ok(())
    }

    /// Overrides keys of the file.
    pub fn override_with(&mut self, options: &Overrides) {
        fn leaf<T>(value: T) -> Option<Leaf<T>> {
            Some(Leaf { value, line: None })
        }
        self.overrides.merge(Entry {
            world_size: options.world_size.and_then(leaf),
            n_elem: options.n_elem.and_then(leaf),
            dtype: options.dtype.and_then(leaf),
            ..Entry::default()
        });
    }

    /// The names under `algorithms`, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.document.algorithms.keys().map(String::as_str)
    }

    /// The algorithm that runs when none is asked for.
    pub fn default_name(&self) -> &str {
        self.document.defaults.algorithm.as_ref().map_or("ring_allreduce_tcm", |leaf| &leaf.value)
    }

    /// The file that errors name.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The settings of an algorithm: from the command line, its entry, `defaults`, or built in.
    pub fn settings(&self, name: &str) -> Result<Settings, ConfigError> {
        let own = self.document.algorithms.get(name);
        if own.is_none() && ccl_schedule::algo::canonical(name).is_none() {
            let default = self.document.defaults.algorithm.as_ref();
            let line = default.filter(|leaf| leaf.value == name).and_then(|leaf| leaf.line);
            let known: Vec<&str> = self.names().collect();
            return Err(self.bad(
                "algorithm",
                name,
                line,
                format!(
                    "no such entry under algorithms ({}) and no such schedule; name one of these",
                    known.join(", ")
                ),
            ));
        }
        self.resolve(name, self.effective(name))
    }

    /// Where the effective value of an algorithm's key comes from: a line, the command line, or the file as a
    /// whole when the key is unset.
    pub fn origin(&self, name: &str, key: &str) -> Origin {
        let entry = self.effective(name);
        let line = match key {
            "algorithm" => entry.algorithm.map(|leaf| leaf.line),
            "module" => entry.module.map(|leaf| leaf.line),
            "traffic" => entry.traffic.map(|leaf| leaf.line),
            "dtype" => entry.dtype.map(|leaf| leaf.line),
            "mesh_w" => entry.mesh_w.map(|leaf| leaf.line),
            "n_elem" => entry.n_elem.map(|leaf| leaf.line),
            "n_slots" => entry.n_slots.map(|leaf| leaf.line),
            "skew_rank" => entry.skew_rank.map(|leaf| leaf.line),
            "world_size" => entry.world_size.map(|leaf| leaf.line),
            _ => None,
        };
        match line {
            Some(Some(line)) => Origin::Line(self.file.clone(), line),
            Some(None) => Origin::CommandLine,
            None => Origin::File(self.file.clone()),
        }
    }

    /// The effective entry of an algorithm: `defaults`, overridden by its entry, overridden by the command
    /// line.
    fn effective(&self, name: &str) -> Entry {
        // `defaults.algorithm` names the entry that runs, not the schedule of every entry.
        let mut entry = Entry { algorithm: None, ..self.document.defaults.clone() };
        entry.merge(self.document.algorithms.get(name).cloned().unwrap_or_default());
        entry.merge(self.overrides.clone());
        entry
    }

    fn bad(&self, key: &str, value: impl ToString, line: Option<u64>, why: impl Into<String>) -> ConfigError {
        let origin = line.map_or(Origin::CommandLine, |line| Origin::Line(self.file.clone(), line));
        ConfigError::Value { origin, key: key.to_owned(), value: value.to_string(), why: why.into() }
    }

    fn resolve(&self, name: &str, entry: Entry) -> Result<Settings, ConfigError> {
        let base = Settings::default();
        let value =
            |leaf: Option<Leaf<u64>>, default: u64, key: &str, range: std::ops::RangeInclusive<u64>| {
                let Some(leaf) = leaf else { return Ok(default) };
                if range.contains(&leaf.value) {
                    return Ok(leaf.value);
                }
                let why = format!("must be from {} to {}", range.start(), range.end());
                Err(self.bad(key, leaf.value, leaf.line, why))
            };
        let wide = |leaf: Option<Leaf<u32>>| leaf.map(|l| Leaf { value: u64::from(l.value), line: l.line });
        let (canonical, schedule) = self.schedule(name, &entry)?;
        if let Some(wires) = entry.topology
            && schedule.is_none()
            && wires.value != expected(&canonical)
        {
            let why = format!("{canonical} runs on {}; leave topology out", expected(&canonical).name());
            return Err(self.bad("topology", wires.value.name(), wires.line, why));
        }
        let poll = entry.poll_interval_ns.map_or(Decimal::whole(10), |leaf| leaf.value);
        let backpressure = match entry.backpressure.map(|leaf| leaf.value) {
            None | Some(WaitWord::Sleep) => Backpressure::Sleep,
            Some(WaitWord::Poll) if poll.ns() > 0 => Backpressure::Poll(poll.ns()),
            Some(WaitWord::Poll) => {
                let line = entry.poll_interval_ns.and_then(|leaf| leaf.line);
                return Err(self.bad("poll_interval_ns", poll, line, "polling needs an interval above 0"));
            }
        };
        let mesh = match (entry.mesh_w, entry.mesh_h) {
            (Some(w), Some(h)) => Some((w.value, h.value)),
            (None, None) => None,
            (Some(one), None) => return Err(self.bad("mesh_w", one.value, one.line, "mesh_h is missing")),
            (None, Some(one)) => return Err(self.bad("mesh_h", one.value, one.line, "mesh_w is missing")),
        };
        let skew = match (entry.skew_ns.map(|leaf| leaf.value.ns()), entry.skew_rank, entry.skew_seed) {
            (None | Some(0), None, None) => Skew::None,
            (Some(late), Some(rank), None) => Skew::One(rank.value, late),
            (Some(late), None, seed) => Skew::Random(seed.map_or(1, |leaf| leaf.value), late),
            (Some(_), Some(rank), Some(_)) => {
                return Err(self.bad(
                    "skew_rank",
                    rank.value,
                    rank.line,
                    "give skew_rank or skew_seed, not both",
                ));
            }
            (None, rank, _) => {
                let line = rank.and_then(|leaf| leaf.line);
                return Err(self.bad(
                    "skew_ns",
                    "unset",
                    line,
                    "skew_rank and skew_seed need skew_ns; set it",
                ));
            }
        };
        // Reserved by the file format and unused; checked so that a typing error is found.
        value(entry.vc_chunk_size, 256, "vc_chunk_size", 1..=1 << 30)?;
        Ok(Settings {
            entry: name.to_owned(),
            algorithm: canonical,
            schedule,
            buffer_kind: entry.buffer_kind.map_or(base.buffer_kind, |leaf| leaf.value),
            backpressure,
            n_slots: value(wide(entry.n_slots), 4, "n_slots", 1..=65_536)? as u32,
            slot_size: value(entry.slot_size, base.slot_size, "slot_size", 1..=1 << 40)?,
            credit_bytes: value(entry.ipcq_credit_size_bytes, 16, "ipcq_credit_size_bytes", 0..=1 << 20)?,
            credit_at: entry.credit_at.map_or(base.credit_at, |leaf| leaf.value),
            credit_latency: entry.credit_latency.map_or(base.credit_latency, |leaf| leaf.value),
            credit_wait: entry.credit_wait.map_or(base.credit_wait, |leaf| leaf.value),
            n_elem: value(entry.n_elem, base.n_elem, "n_elem", 1..=1 << 36)?,
            dtype: entry.dtype.map_or(base.dtype, |leaf| leaf.value),
            world_size: match entry.world_size {
                None => None,
                some => Some(value(wide(some), 0, "world_size", 1..=1 << 26)? as u32),
            },
            mesh,
            split: value(wide(entry.split), 1, "split", 1..=1 << 16)? as u32,
            skew,
            traffic: self.traffic(entry.traffic)?,
        })
    }

    /// The schedule of an entry: a known one by its name, or a file.
    ///
    /// `module` is how kernbench2 names an algorithm: the last part of a dotted name, or the path of a schedule file, from
    /// the folder of this file on.
    fn schedule(&self, name: &str, entry: &Entry) -> Result<(String, Option<PathBuf>), ConfigError> {
        let known = |text: &str| ccl_schedule::algo::canonical(text).map(str::to_owned);
        match (&entry.algorithm, &entry.module) {
            (Some(_), Some(leaf)) => {
                Err(self.bad("module", &leaf.value, leaf.line, "give algorithm or module, not both"))
            }
            (Some(leaf), None) => known(&leaf.value)
                .map(|name| (name, None))
                .ok_or_else(|| self.bad("algorithm", &leaf.value, leaf.line, "no such schedule")),
            (None, Some(leaf)) if leaf.value.contains('/') || leaf.value.ends_with(".json") => {
                let folder = self.file.parent().unwrap_or(Path::new(""));
                Ok((name.to_owned(), Some(folder.join(&leaf.value))))
            }
            (None, Some(leaf)) => {
                let last = leaf.value.rsplit('.').next().unwrap_or_default();
                let why = || {
                    let why = "no such module; its last name must be a known schedule, or it is the path of a schedule \
                               file (.json)";
                    self.bad("module", &leaf.value, leaf.line, why)
                };
                known(last).map(|name| (name, None)).ok_or_else(why)
            }
            (None, None) => known(name).map(|name| (name, None)).ok_or_else(|| {
                self.bad(
                    "algorithm",
                    name,
                    None,
                    "no such schedule; set `algorithm` or `module` in the entry",
                )
            }),
        }
    }

    fn traffic(&self, flows: Option<Leaf<Vec<FlowKeys>>>) -> Result<Vec<Flow>, ConfigError> {
        let Some(Leaf { value: flows, line }) = flows else { return Ok(Vec::new()) };
        let mut checked = Vec::with_capacity(flows.len());
        for flow in flows {
            let bad = |value: String, why| Err(self.bad("traffic", value, line, why));
            if !(1..=1 << 30).contains(&flow.bytes) {
                return bad(format!("bytes: {}", flow.bytes), "a message has from 1 to 2^30 bytes");
            }
            if flow.every_ns.ns() == 0 {
                return bad(
                    format!("every_ns: {}", flow.every_ns),
                    "messages need a time above 0 between them",
                );
            }
            checked.push(Flow {
                from: flow.from,
                to: flow.to,
                bytes: flow.bytes,
                every: flow.every_ns.ns(),
                start: flow.start_ns.ns(),
                count: flow.count,
            });
        }
        Ok(checked)
    }
}

fn without_lines(mut entry: Entry) -> Entry {
    entry.forget_lines();
    entry
}

fn expected(canonical: &str) -> Wires {
    match canonical {
        "mesh_allreduce" => Wires::Mesh2d,
        "tree_allreduce" => Wires::Tree,
        "recursive_doubling" => Wires::Hypercube,
        "hierarchical" => Wires::Levels,
        name if name.starts_with("direct_") => Wires::FullMesh,
        "broadcast" | "reduce" | "gather" | "scatter" | "all_to_all" => Wires::FullMesh,
        _ => Wires::Ring1d,
    }
}
