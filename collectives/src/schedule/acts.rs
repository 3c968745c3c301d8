//! A rank's list of operations as the lowering reads it: channels and tiles resolved, and for every write what becomes of it.

use super::PlanError;
use ccl_schedule::{Dir, Land, NONE, Op, Program, Tile, Wiring};

/// Where an act takes its data from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Src {
    Tile(u32),
    /// What a channel holds; `true` for the last time.
    Held(usize, bool),
}

/// What an act does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Do {
    Send {
        channel: usize,
        from: Src,
    },
    /// Takes the next message of a channel and keeps it.
    Hold {
        channel: usize,
    },
    /// Takes the next message of a channel to a tile.
    Receive {
        channel: usize,
        tile: u32,
        reduce: bool,
    },
    /// Moves something that is here to a tile.
    Move {
        from: Src,
        tile: u32,
        reduce: bool,
    },
}

/// An act, and what is known of the rest of the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Act {
    pub(super) what: Do,
    /// The tile that is written is sent before it is written again.
    pub(super) lent: bool,
    /// It is not written again.
    pub(super) last: bool,
    /// The tile that is read is not read again before it is overwritten.
    pub(super) dead: bool,
}

/// The acts of a rank, and which of its channels have receives that are posted early.
pub(super) fn acts(
    program: &dyn Program,
    wiring: &Wiring,
    rank: u32,
) -> Result<(Vec<Act>, Vec<usize>), PlanError> {
    let channel =
        |id: u32| if id == NONE { Err(PlanError::Untranslatable { rank }) } else { Ok(id as usize) };
    let tx = |dir: Dir| channel(wiring.tx(rank, dir));
    let rx = |dir: Dir| channel(wiring.rx(rank, dir));
    let from = |tile: Tile| {
        Ok::<_, PlanError>(match tile {
            Tile::Mem(tile) => Src::Tile(tile),
            Tile::Held(dir) => Src::Held(rx(dir)?, false),
            Tile::Take(dir) => Src::Held(rx(dir)?, true),
        })
    };
    let (mut list, mut posted, mut early) = (Vec::new(), Vec::<(usize, u32, Land)>::new(), Vec::new());
    let mut step = 0;
    while let Some(op) = program.op(rank, step) {
        step += 1;
        list.push(match op {
            Op::Send { dir, from: tile, .. } => Do::Send { channel: tx(dir)?, from: from(tile)? },
            Op::Recv { dir, land: Land::Forward, .. } => Do::Hold { channel: rx(dir)? },
            Op::Recv { dir, tile, land } => {
                Do::Receive { channel: rx(dir)?, tile, reduce: land == Land::Reduce }
            }
            Op::RecvAsync { dir, tile, land } => {
                posted.push((rx(dir)?, tile, land));
                early.push(rx(dir)?);
                continue;
            }
            Op::Wait { dir } => {
                let id = rx(dir)?;
                let at =
                    posted.iter().position(|one| one.0 == id).ok_or(PlanError::Untranslatable { rank })?;
                let (channel, tile, land) = posted.remove(at);
                Do::Receive { channel, tile, reduce: land == Land::Reduce }
            }
            Op::Copy { from: tile, to } => Do::Move { from: from(tile)?, tile: to, reduce: false },
            Op::Reduce { from: tile, to } => Do::Move { from: from(tile)?, tile: to, reduce: true },
            Op::Store { from, to } => Do::Move { from: Src::Tile(from), tile: to, reduce: false },
            Op::Math { .. } => return Err(PlanError::Math { rank, step: step - 1 }),
        });
    }
    Ok((look_ahead(list, (program.chunks() + program.scratch()) as usize), early))
}

/// Goes through the list from its end, and notes what comes after each act.
fn look_ahead(list: Vec<Do>, tiles: usize) -> Vec<Act> {
    let (mut sent, mut written, mut read) = (vec![false; tiles], vec![false; tiles], vec![false; tiles]);
    let mut acts: Vec<Act> = list
        .into_iter()
        .rev()
        .map(|what| {
            let mut act = Act { what, lent: false, last: false, dead: false };
            let (source, target) = match what {
                Do::Send { from, .. } => (Some(from), None),
                Do::Hold { .. } => (None, None),
                Do::Receive { tile, reduce, .. } => (None, Some((tile as usize, reduce))),
                Do::Move { from, tile, reduce } => (Some(from), Some((tile as usize, reduce))),
            };
            if let Some((tile, reduce)) = target {
                (act.lent, act.last) = (sent[tile], !written[tile]);
                (sent[tile], written[tile], read[tile]) = (false, true, reduce);
            }
            if let Some(Src::Tile(tile)) = source {
                act.dead = !read[tile as usize];
                read[tile as usize] = true;
                sent[tile as usize] |= matches!(what, Do::Send { .. });
            }
            act
        })
        .collect();
    acts.reverse();
    acts
}
