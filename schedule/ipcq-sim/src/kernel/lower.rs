//! From recorded values to tiles: what a rank's steps are as operations of a schedule.

use super::error::{Form, KernelError, KernelFault, Site};
use super::program::TileInfo;
use super::recorder::{Arg, Place, Recorder, Step};
use super::{Kernel, Space};
use ccl_schedule::{Dir, Land, Math, Op, Operand, Tile};
use std::collections::BTreeMap;

/// One rank of a kernel as operations.
#[derive(Clone, Debug, Default)]
pub(super) struct Lowered {
    pub(super) ops: Vec<Op>,
    pub(super) sites: Vec<Site>,
    pub(super) math: Vec<Math>,
    pub(super) tiles: Vec<TileInfo>,
}

/// Where sends go: from rank and direction to rank and direction.
pub(super) type Peers = BTreeMap<(u32, Dir), (u32, Dir)>;

/// A message as one side sees it.
pub(super) struct End {
    form: Form,
    /// Whether only the number of elements counts, not their shape.
    any_shape: bool,
    site: Site,
}

/// What a rank sends and receives, by direction and in order.
#[derive(Default)]
pub(super) struct Traffic {
    pub(super) sent: BTreeMap<Dir, Vec<End>>,
    pub(super) received: BTreeMap<Dir, Vec<End>>,
}

/// The operations of one rank.
pub(super) fn lower(recorder: &Recorder, chunks: u32) -> Result<(Lowered, Traffic), KernelError> {
    let mut lowering = Lowering {
        recorder,
        chunks,
        tile_of: vec![None; recorder.values.len()],
        last_use: vec![None; recorder.values.len()],
        sink: recorder.scratch.end(),
        out: Lowered::default(),
        traffic: Traffic::default(),
    };
    for (at, (step, _)) in recorder.steps.iter().enumerate() {
        step.reads().into_iter().for_each(|value| lowering.last_use[value as usize] = Some(at));
    }
    let mut held: BTreeMap<Dir, u32> = BTreeMap::new();
    for (at, &(step, site)) in recorder.steps.iter().enumerate() {
        lowering.check_slot_free(at, step, site, &held)?;
        if let Step::Recv(dir, value) = step {
            held.insert(dir, value);
        }
        lowering.step(at, step, site)?;
    }
    Ok((lowering.out, lowering.traffic))
}

struct Lowering<'a> {
    recorder: &'a Recorder,
    chunks: u32,
    tile_of: Vec<Option<u32>>,
    /// The last step that reads a value.
    last_use: Vec<Option<usize>>,
    /// Where messages go that nobody reads: behind the scratch memory.
    sink: u64,
    out: Lowered,
    traffic: Traffic,
}

impl Lowering<'_> {
    fn fail(&self, site: Site, what: KernelFault) -> KernelError {
        KernelError::new(&self.recorder.kernel, Some(site), Some(self.recorder.rank), what)
    }

    /// A queue gives out one slot at a time.
    fn check_slot_free(
        &self,
        at: usize,
        step: Step,
        site: Site,
        held: &BTreeMap<Dir, u32>,
    ) -> Result<(), KernelError> {
        let (Step::Recv(dir, _) | Step::RecvInto(dir, _) | Step::RecvAdd(dir, _) | Step::Post(dir, _)) = step
        else {
            return Ok(());
        };
        let Some(&slot) = held.get(&dir) else { return Ok(()) };
        match self.last_use[slot as usize] {
            Some(used) if used >= at => {
                let (held, used) = (self.recorder.values[slot as usize].site, self.recorder.steps[used].1);
                Err(self.fail(site, KernelFault::SlotInUse { dir, held, used }))
            }
            _ => Ok(()),
        }
    }

    /// The tile of a value, made at its first use.
    fn tile(&mut self, value: u32, site: Site) -> Result<u32, KernelError> {
        if let Some(tile) = self.tile_of[value as usize] {
            return Ok(tile);
        }
        let known = &self.recorder.values[value as usize];
        let tile = match known.place {
            Place::Whole if self.chunks > 1 => {
                return Err(self.fail(site, KernelFault::WholeOfChunks(self.chunks)));
            }
            Place::Whole => 0,
            Place::Chunk(chunk) => chunk,
            Place::Scratch(address) => self.new_tile(Some((Space::Tcm, address)), &known.form),
            Place::Region(space, address) => self.new_tile(Some((space, address)), &known.form),
            Place::Slot(_) => self.new_tile(None, &known.form),
        };
        self.tile_of[value as usize] = Some(tile);
        Ok(tile)
    }

    fn new_tile(&mut self, home: Option<(Space, u64)>, form: &Form) -> u32 {
        self.out.tiles.push(TileInfo { home, bytes: form.bytes(), dtype: form.dtype });
        self.chunks + self.out.tiles.len() as u32 - 1
    }

    /// A value as the source of the step `at`; a slot is taken at its last use, which `more` reads of the same step postpone.
    fn source(&mut self, value: u32, at: usize, more: bool, site: Site) -> Result<Tile, KernelError> {
        Ok(match self.recorder.values[value as usize].place {
            Place::Slot(dir) if self.last_use[value as usize] == Some(at) && !more => Tile::Take(dir),
            Place::Slot(dir) => Tile::Held(dir),
            _ => Tile::Mem(self.tile(value, site)?),
        })
    }

    fn end(&self, value: u32, any_shape: bool, site: Site) -> End {
        End { form: self.recorder.values[value as usize].form.clone(), any_shape, site }
    }

    fn receives(&mut self, dir: Dir, value: u32, any_shape: bool, site: Site) {
        let end = self.end(value, any_shape, site);
        self.traffic.received.entry(dir).or_default().push(end);
    }

    fn step(&mut self, at: usize, step: Step, site: Site) -> Result<(), KernelError> {
        let op = match step {
            Step::Send(dir, value) => {
                let end = self.end(value, false, site);
                self.traffic.sent.entry(dir).or_default().push(end);
                let chunk = self.tile(value, site)?;
                Op::Send { dir, chunk, from: self.source(value, at, false, site)? }
            }
            Step::Recv(dir, value) => {
                self.receives(dir, value, false, site);
                if self.last_use[value as usize].is_some() {
                    Op::Recv { dir, tile: self.tile(value, site)?, land: Land::Forward }
                } else {
                    let form = self.recorder.values[value as usize].form.clone();
                    let tile = self.new_tile(Some((Space::Tcm, self.sink)), &form);
                    Op::Recv { dir, tile, land: Land::Copy }
                }
            }
            Step::RecvInto(dir, value) => {
                self.receives(dir, value, true, site);
                Op::Recv { dir, tile: self.tile(value, site)?, land: Land::Copy }
            }
            Step::RecvAdd(dir, value) => {
                self.receives(dir, value, true, site);
                Op::Recv { dir, tile: self.tile(value, site)?, land: Land::Reduce }
            }
            Step::Post(dir, value) => {
                self.receives(dir, value, false, site);
                Op::RecvAsync { dir, tile: self.tile(value, site)?, land: Land::Copy }
            }
            Step::Wait(dir) => Op::Wait { dir },
            Step::Copy { from, to } => {
                Op::Copy { from: self.source(from, at, false, site)?, to: self.tile(to, site)? }
            }
            Step::AddTo { from, to } => {
                Op::Reduce { from: self.source(from, at, false, site)?, to: self.tile(to, site)? }
            }
            Step::Math { function, args, to } => {
                let mut operands = [Operand::None; 3];
                for (i, arg) in args.into_iter().enumerate() {
                    operands[i] = match arg {
                        Arg::None => Operand::None,
                        Arg::Scalar(number) => Operand::Scalar(number),
                        Arg::Value(value) => {
                            let again = |arg: &Arg| matches!(arg, Arg::Value(other) if *other == value);
                            let more = args[i + 1..].iter().any(again);
                            Operand::Tile(self.source(value, at, more, site)?)
                        }
                    };
                }
                self.out.math.push(Math { function, args: operands });
                Op::Math { number: self.out.math.len() as u32 - 1, to: self.tile(to, site)? }
            }
        };
        self.out.ops.push(op);
        self.out.sites.push(site);
        Ok(())
    }
}

/// Pairs every send with its receive: channels are first in, first out, so the n-th belongs to the n-th. Returns the channels
/// in use.
pub(super) fn connect(kernel: &Kernel, traffic: &[Traffic]) -> Result<Peers, KernelError> {
    let fail = |rank: u32, site: Site, what| KernelError::new(&kernel.name, Some(site), Some(rank), what);
    let none = Vec::new();
    let mut senders = Peers::new();
    let mut peers = Peers::new();
    for rank in 0..traffic.len() as u32 {
        for dir in Dir::all() {
            if let Some((peer, peer_dir)) = (kernel.wires)(rank, dir) {
                senders.insert((peer, peer_dir), (rank, dir));
            }
        }
        for (&dir, sent) in &traffic[rank as usize].sent {
            let Some((peer, peer_dir)) = (kernel.wires)(rank, dir) else {
                return Err(fail(rank, sent[0].site, KernelFault::NoPeer(dir)));
            };
            peers.insert((rank, dir), (peer, peer_dir));
            let received = traffic.get(peer as usize).and_then(|peer| peer.received.get(&peer_dir));
            let received = received.unwrap_or(&none).len();
            if let Some(extra) = sent.get(received) {
                let what = KernelFault::NobodyReceives { dir, nth: received + 1, peer, received };
                return Err(fail(rank, extra.site, what));
            }
        }
    }
    for (rank, own) in (0..).zip(traffic) {
        for (&dir, received) in &own.received {
            let Some(&(peer, peer_dir)) = senders.get(&(rank, dir)) else {
                return Err(fail(rank, received[0].site, KernelFault::NoPeer(dir)));
            };
            let sent = traffic[peer as usize].sent.get(&peer_dir).unwrap_or(&none);
            if let Some(extra) = received.get(sent.len()) {
                let what = KernelFault::NobodySends { dir, nth: sent.len() + 1, peer, sent: sent.len() };
                return Err(fail(rank, extra.site, what));
            }
            for (wants, has) in received.iter().zip(sent) {
                let alike = if wants.any_shape {
                    wants.form.len() == has.form.len() && wants.form.dtype == has.form.dtype
                } else {
                    wants.form == has.form
                };
                if !alike {
                    let (wanted, sent) = (wants.form.clone(), has.form.clone());
                    let what = KernelFault::OtherForm { dir, wanted, peer, sent, peer_site: has.site };
                    return Err(fail(rank, wants.site, what));
                }
            }
        }
    }
    Ok(peers)
}
