//! Random schedules and cuts: a plan gives byte for byte what a replay of its schedule gives.
#![allow(missing_docs)]

#[path = "support/replay.rs"]
mod replay;
mod support;

use ccl_schedule::{Dir, Goal, Land, ListedProgram, Op, Tile};
use collectives::Passing;
use ipcq_sim::config::DType;
use replay::{Case, all_run};
use support::Random;

/// Sends a chunk from one rank to another: up a tree to be added, or down to be copied.
#[derive(Clone, Copy)]
struct Hop {
    chunk: u32,
    from: u32,
    to: u32,
    up: bool,
}

/// A schedule under construction. Every hop is sent and received at one moment of a common order, which shows that it ends.
struct Draft<'r> {
    random: &'r mut Random,
    ranks: u32,
    chunks: u32,
    lists: Vec<Vec<Op>>,
    /// Receives of every rank that are put off behind what it does for other chunks.
    later: Vec<Vec<(Hop, Vec<Op>)>>,
}

impl Draft<'_> {
    fn dir(&self, from: u32, to: u32) -> Dir {
        Dir::ahead((to + self.ranks - from) % self.ranks)
    }

    /// The trees of all chunks, and the hops along them in a random order that is possible.
    fn hops(&mut self, goal: Goal) -> Vec<Hop> {
        let (mut waiting, mut order) = (Vec::new(), Vec::new());
        for chunk in 0..self.chunks {
            let root = match goal {
                Goal::Broadcast { root } | Goal::Reduce { root } => root,
                Goal::AllReduce => self.random.below(self.ranks as usize) as u32,
                _ => chunk,
            };
            // Ranks join the tree one by one, each below one that is in it.
            let mut tree = vec![root];
            let mut rest: Vec<u32> = (0..self.ranks).filter(|rank| *rank != root).collect();
            while !rest.is_empty() {
                let child = rest.swap_remove(self.random.below(rest.len()));
                let parent = tree[self.random.below(tree.len())];
                tree.push(child);
                let adds = matches!(goal, Goal::AllReduce | Goal::ReduceScatter { .. } | Goal::Reduce { .. });
                let spreads = !matches!(goal, Goal::ReduceScatter { .. } | Goal::Reduce { .. });
                if adds {
                    waiting.push(Hop { chunk, from: child, to: parent, up: true });
                }
                if spreads {
                    waiting.push(Hop { chunk, from: parent, to: child, up: false });
                }
            }
        }
        while !waiting.is_empty() {
            let possible: Vec<usize> = (0..waiting.len())
                .filter(|at| {
                    let hop: Hop = waiting[*at];
                    // Everything that comes to the sender has come: sums of those below it, or the result.
                    !waiting.iter().any(|other: &Hop| {
                        other.chunk == hop.chunk && other.to == hop.from && (other.up || !hop.up)
                    })
                })
                .collect();
            let at = possible[self.random.below(possible.len())];
            order.push(waiting.remove(at));
        }
        order
    }

    fn receive(&mut self, hop: Hop) -> Vec<Op> {
        let (dir, tile, scratch) = (self.dir(hop.to, hop.from), hop.chunk, self.chunks);
        let land = if hop.up { Land::Reduce } else { Land::Copy };
        let last = |from| if hop.up { Op::Reduce { from, to: tile } } else { Op::Copy { from, to: tile } };
        match self.random.below(5) {
            0 => vec![Op::Recv { dir, tile, land: Land::Forward }, last(Tile::Take(dir))],
            1 => vec![Op::RecvAsync { dir, tile, land }, Op::Wait { dir }],
            2 => vec![Op::Recv { dir, tile: scratch, land: Land::Copy }, last(Tile::Mem(scratch))],
            _ => vec![Op::Recv { dir, tile, land }],
        }
    }

    /// Does what was put off and has to do with a hop, or anything at random.
    fn catch_up(&mut self, rank: u32, with: Option<Hop>) {
        let mut put_off = std::mem::take(&mut self.later[rank as usize]);
        let must = |hop: &Hop| {
            with.is_none_or(|with| hop.chunk == with.chunk || (with.to == rank && hop.from == with.from))
        };
        let until = put_off.iter().rposition(|(hop, _)| must(hop)).map_or(0, |at| at + 1);
        let until = until.max(if self.random.below(3) == 0 { put_off.len() } else { 0 });
        for (_, ops) in put_off.drain(..until) {
            self.lists[rank as usize].extend(ops);
        }
        self.later[rank as usize] = put_off;
    }

    fn program(mut self, goal: Goal) -> ListedProgram {
        let (chunks, ranks) = (self.chunks, self.ranks);
        for hop in self.hops(goal) {
            self.catch_up(hop.from, Some(hop));
            let send =
                Op::Send { dir: self.dir(hop.from, hop.to), chunk: hop.chunk, from: Tile::Mem(hop.chunk) };
            self.lists[hop.from as usize].push(send);
            self.catch_up(hop.to, Some(hop));
            let ops = self.receive(hop);
            self.later[hop.to as usize].push((hop, ops));
            if self.random.below(4) > 0 {
                self.catch_up(hop.to, None);
            }
        }
        (0..ranks).for_each(|rank| self.catch_up(rank, None));
        let dirs: Vec<(u32, u32)> = (0..ranks)
            .flat_map(|from| (0..ranks).map(move |to| (from, to)))
            .filter(|(a, b)| a != b)
            .collect();
        let ends: Vec<_> =
            dirs.iter().map(|(a, b)| ((*a, self.dir(*a, *b)), (*b, self.dir(*b, *a)))).collect();
        let mut program = ListedProgram::new("random", goal, chunks, self.lists).with_scratch(1);
        ends.into_iter().for_each(|(from, to)| assert_eq!(program.connect(from, to), None));
        program
    }
}

fn draft(random: &mut Random, ranks: u32) -> ListedProgram {
    let root = random.below(ranks as usize) as u32;
    let goal = match random.below(6) {
        0 => Goal::Broadcast { root },
        1 => Goal::Reduce { root },
        2 => Goal::AllGather { per_rank: 1 },
        3 => Goal::ReduceScatter { per_rank: 1 },
        _ => Goal::AllReduce,
    };
    let chunks = match goal {
        Goal::AllGather { .. } | Goal::ReduceScatter { .. } => ranks,
        _ => 1 + random.below(6) as u32,
    };
    let (lists, later) = (vec![Vec::new(); ranks as usize], vec![Vec::new(); ranks as usize]);
    Draft { random, ranks, chunks, lists, later }.program(goal)
}

fn random_schedules(seed: u64, each: usize) {
    for nranks in 2..=6 {
        let mut random = Random::new(seed + nranks as u64);
        let (mut cases, mut refused) = (Vec::new(), 0);
        while cases.len() < each {
            let program = draft(&mut random, nranks as u32);
            let passing = match random.below(6) {
                slots @ 0..3 => Passing::Value { slots: slots as u32 + 1 },
                _ => Passing::Reference,
            };
            let dtype = [DType::F32, DType::F16, DType::Bf16][random.below(3)];
            let count = if random.below(20) == 0 { random.below(60_000) } else { random.below(200) };
            match Case::new(&program, passing, dtype, count, &mut random) {
                Some(case) => cases.push(case),
                None => refused += 1,
            }
        }
        assert!(refused < each, "{refused} schedules of {nranks} ranks were refused, {each} were not");
        all_run(nranks, &cases);
    }
}

// PL-2
#[test]
fn random_schedules_and_cuts_give_what_their_replay_gives() {
    random_schedules(1, 12);
}

// PL-2
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn a_thousand_random_schedules_and_cuts_give_what_their_replay_gives() {
    random_schedules(1000, 200);
}
