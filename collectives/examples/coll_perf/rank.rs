//! One rank of ours: a process that was started the plain way, without a core of its own.
//!
//! # Safety
//! Calls in raw parts on two buffers that are long enough for every size, which nothing else uses meanwhile.
#![allow(unsafe_code)]

use crate::args::{Args, Mode};
use crate::data::{self, Check, Pages};
use crate::out::say;
use crate::schedule;
use collectives::{Collectives, Kind, Op, Options, Plan, Request, Shared};
use comm_context::comm::{Membership, Timeout};
use comm_sim::SimComm;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

pub(crate) const BATCHES: usize = 5;
/// Tries to find out how long a call takes.
const GUESSES: usize = 5;
const MOST_SINGLES: usize = 500;

/// Bytes of room behind the largest size.
const ROOM: usize = 4096;

struct Rank<'a, 'c> {
    args: &'a Args,
    group: &'a Collectives<'c>,
    input: *mut u8,
    output: *mut u8,
    plan: Option<Plan>,
}

/// Measures all sizes as rank `rank`; rank 0 prints them, as `collectives/bench/mpi.c` does.
pub(crate) fn run(args: &Args, rank: u32) -> Outcome<()> {
    let path = args.path.as_deref().ok_or("a rank needs --path")?;
    let comm = SimComm::rendezvous(path, Membership::new(rank, args.ranks)?, Timeout::DEFAULT)?;
    let bytes = args.cold_bytes() + args.to.max(64) + ROOM;
    let pool = if args.window { 2 * bytes + ROOM } else { 0 };
    let group = Collectives::new(&comm, Options::new().pool(pool))?;
    let mut plain = Pages::new(if args.window { ROOM } else { 2 * bytes + ROOM });
    let [input, output] = if args.window {
        [group.alloc_raw(bytes)?.as_ptr(), group.alloc_raw(bytes)?.as_ptr()]
    } else {
        [plain.at(), plain.at().wrapping_add(bytes.next_multiple_of(4096))]
    };
    // SAFETY: both buffers have so many bytes.
    unsafe { [input, output].iter().for_each(|at| std::ptr::write_bytes(*at, 1, bytes - 64)) };
    let plan = if args.run_schedule { schedule::plan(args)? } else { None };
    let rank = Rank { args, group: &group, input, output, plan };
    for size in args.sizes() {
        for in_place in [false, true] {
            rank.measure(size, in_place)?;
        }
    }
    group.close()?;
    Ok(())
}

impl Rank<'_, '_> {
    fn measure(&self, size: usize, in_place: bool) -> Outcome<()> {
        let (args, kind) = (self.args, self.args.kind);
        // Of a plan every rank has the whole tensor.
        let blocks = if self.plan.is_some() { Some(1) } else { self.blocks(in_place) };
        let Some(blocks) = blocks else { return Ok(()) };
        let count = size / args.dtype.size() / blocks;
        if count == 0 && kind != Kind::Barrier {
            return Ok(());
        }
        let wrong = self.check(count, count * blocks, in_place)?;
        let stride = if args.mode == Mode::Cold { size.next_multiple_of(4096) } else { 0 };
        let places = args.cold_bytes().checked_div(stride).unwrap_or(0) + 1;
        let words = size / 4;
        let result = if in_place { self.input } else { self.output };
        let dirty = args.mode == Mode::Dirty;
        let mut turn = 0;
        let mut one = |round: u64| -> Outcome<()> {
            let offset = stride * (turn % places);
            turn += 1;
            if dirty {
                // SAFETY: see the head of the file.
                data::write(unsafe { std::slice::from_raw_parts_mut(self.input.cast(), words) }, round);
            }
            self.call(self.plan.as_ref(), count, in_place, offset)?;
            if dirty {
                // SAFETY: as above.
                data::read(unsafe { std::slice::from_raw_parts(result.cast(), words) });
            }
            Ok(())
        };
        (0..args.warmup).try_for_each(|round| one(u64::from(round)))?;
        // The least of some tries: one that met a change of turns would leave a batch of two calls.
        let mut first = f64::INFINITY;
        for guess in 0..GUESSES {
            if guess == 0 || first < 2e6 {
                let started = Instant::now();
                (0..2).try_for_each(&mut one)?;
                first = first.min(self.slowest(started.elapsed().as_nanos() as f64 / 2.0)?);
            }
        }
        let fitting = (2e6 / (first + 1.0)) as u64;
        let rounds = if args.iterations > 0 { u64::from(args.iterations) } else { fitting.clamp(2, 2000) };
        let mut times = Vec::new();
        let mut alone = 0.0;
        for _ in 0..if first > 2e7 { 3 } else { BATCHES } {
            self.group.barrier()?;
            let started = Instant::now();
            (0..rounds).try_for_each(&mut one)?;
            let took = started.elapsed().as_nanos() as f64 / rounds as f64;
            if dirty {
                let started = Instant::now();
                for round in 0..rounds {
                    // SAFETY: as above; no call is under way.
                    unsafe {
                        data::write(std::slice::from_raw_parts_mut(self.input.cast(), words), round);
                        data::read(std::slice::from_raw_parts(result.cast(), words));
                    }
                }
                alone = started.elapsed().as_nanos() as f64 / rounds as f64;
            }
            times.push(self.slowest(took - alone)?);
        }
        self.group.barrier()?;
        let mut singles = Vec::new();
        for round in 0..rounds.min(MOST_SINGLES as u64) {
            let started = Instant::now();
            one(round)?;
            singles.push(started.elapsed().as_nanos() as f64 - alone);
        }
        let over = self.over_the_call(size, in_place, rounds)?;
        if self.group.rank() == 0 {
            let [times, singles] = [times, singles].map(bench_support::Samples::from_iter);
            let place = if in_place { "in" } else { "out" };
            let [time, p50, p99] = [times.median(), singles.median(), singles.p99()].map(|ns| ns / 1e3);
            let over = over.map_or(String::new(), |ns| format!(" {:.4}", ns / 1e3));
            say(format_args!("{size} {place} {time:.4} {p50:.4} {p99:.4} {wrong}{over}\n"))?;
        }
        Ok(())
    }

    /// How many blocks of a call's count make the size, one for each rank or only one; `None` where the call is not made this way.
    fn blocks(&self, in_place: bool) -> Option<usize> {
        let ranks = self.group.nranks();
        match self.args.kind {
            Kind::AllReduce | Kind::Reduce => Some(1),
            Kind::AllGather | Kind::ReduceScatter => Some(ranks),
            Kind::Broadcast => in_place.then_some(1),
            Kind::AllToAll | Kind::Gather | Kind::Scatter => (!in_place).then_some(ranks),
            _ => (!in_place).then_some(1),
        }
    }

    /// How many nanoseconds the plan takes more than the call that does the same, measured in turns.
    fn over_the_call(&self, size: usize, in_place: bool, rounds: u64) -> Outcome<Option<f64>> {
        let same = |plan: &&Plan| self.args.in_turns && schedule::kind(plan.goal()) == Some(self.args.kind);
        let Some(plan) = self.plan.as_ref().filter(same) else { return Ok(None) };
        let Some(blocks) = self.blocks(in_place) else { return Ok(None) };
        let (whole, words) = (size / self.args.dtype.size(), size / 4);
        let result = if in_place { self.input } else { self.output };
        let batch = |plan: Option<&Plan>, count: usize| -> Outcome<f64> {
            self.group.barrier()?;
            let started = Instant::now();
            for round in 0..rounds {
                if self.args.mode == Mode::Dirty {
                    // SAFETY: see the head of the file.
                    data::write(unsafe { std::slice::from_raw_parts_mut(self.input.cast(), words) }, round);
                }
                self.call(plan, count, in_place, 0)?;
                if self.args.mode == Mode::Dirty {
                    // SAFETY: as above.
                    data::read(unsafe { std::slice::from_raw_parts(result.cast(), words) });
                }
            }
            self.slowest(started.elapsed().as_nanos() as f64 / rounds as f64)
        };
        let mut over = Vec::new();
        for _ in 0..2 * BATCHES {
            over.push(batch(Some(plan), whole)? - batch(None, whole / blocks)?);
        }
        Ok(Some(over.into_iter().collect::<bench_support::Samples>().median()))
    }

    fn call(&self, plan: Option<&Plan>, count: usize, in_place: bool, offset: usize) -> Outcome<()> {
        let args = self.args;
        let (input, output) = (self.input.wrapping_add(offset), self.output.wrapping_add(offset));
        let target = if in_place { input } else { output };
        if let Some(plan) = plan {
            let op = plan.combines().then_some(args.op);
            // SAFETY: see the head of the file.
            return Ok(unsafe { self.group.run_plan_raw(plan, input, target, count, args.dtype, op) }?);
        }
        let [own, result] = self.own_blocks(count, in_place);
        let reduces = matches!(args.kind, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter);
        let request = Request {
            kind: args.kind,
            dtype: args.dtype,
            op: reduces.then_some(args.op),
            count,
            input: input.wrapping_add(own),
            output: target.wrapping_add(result),
            shared: if args.window { Shared::Both } else { Shared::Nothing },
            ..Request::BARRIER
        };
        // SAFETY: see the head of the file.
        Ok(unsafe { self.group.run_raw(request) }?)
    }

    /// In place, where this rank's block begins in the input of a collection, and in the output of a distribution.
    fn own_blocks(&self, count: usize, in_place: bool) -> [usize; 2] {
        let own = if in_place { self.group.rank() * count * self.args.dtype.size() } else { 0 };
        match self.args.kind {
            Kind::AllGather => [own, 0],
            Kind::ReduceScatter => [0, own],
            _ => [0, 0],
        }
    }

    /// How many elements are wrong after one call, on all ranks.
    fn check(&self, count: usize, elements: usize, in_place: bool) -> Outcome<u64> {
        let (args, rank) = (self.args, self.group.rank());
        let check = Check {
            kind: args.kind,
            dtype: args.dtype,
            op: args.op,
            rank,
            ranks: self.group.nranks(),
            count,
        };
        let collects = self.plan.is_none() && matches!(args.kind, Kind::AllGather | Kind::Gather);
        let [own, of_result] = if self.plan.is_none() { self.own_blocks(count, in_place) } else { [0, 0] };
        // SAFETY: see the head of the file.
        let wrong = unsafe {
            check.fill(self.input.wrapping_add(own), if collects { count } else { elements });
            self.call(self.plan.as_ref(), count, in_place, 0)?;
            let result = if in_place { self.input } else { self.output };
            match &self.plan {
                Some(plan) => check.wrong_of_plan(plan, result),
                None => check.wrong(result.wrapping_add(of_result)),
            }
        };
        let mut sum = [wrong];
        self.group.all_reduce(&mut sum, Op::Sum)?;
        Ok(sum[0])
    }

    fn slowest(&self, ns: f64) -> Outcome<f64> {
        let mut all = [ns];
        self.group.all_reduce(&mut all, Op::Max)?;
        Ok(all[0])
    }
}
