//! What callers do with their data, and what the data of a check is.
//!
//! # Safety
//! Elements behind raw pointers; the callers pass buffers that have them.
#![allow(unsafe_code)]

use ccl_schedule::{Cut, Expect};
use collectives::{DType, Kind, Op, Plan, bf16, f16};

/// Memory of this process that begins at a page.
pub(crate) struct Pages(Vec<u8>);

impl Pages {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes + 4096])
    }

    pub(crate) fn at(&mut self) -> *mut u8 {
        let at = self.0.as_mut_ptr();
        at.wrapping_add(at.align_offset(4096))
    }
}

/// Writes all words of a buffer.
#[inline(never)]
pub(crate) fn write(words: &mut [f32], round: u64) {
    words.fill(round as f32);
    std::hint::black_box(words);
}

/// Reads all words of a buffer.
#[inline(never)]
pub(crate) fn read(words: &[f32]) {
    let mut sums = [0.0_f32; 64];
    let mut blocks = words.chunks_exact(64);
    for block in &mut blocks {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum += word;
        }
    }
    let rest: f32 = blocks.remainder().iter().sum();
    std::hint::black_box((sums, rest));
}

/// What a check is about.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    pub(crate) op: Op,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// As in the call.
    pub(crate) count: usize,
}

impl Check {
    /// What rank `of` gives at `index`: small whole numbers, so that every type holds their sum.
    fn given(&self, of: usize, index: usize) -> i64 {
        if self.op == Op::Prod {
            i64::from(index % self.ranks == of) + 1
        } else {
            ((7 * index + 3 * of) % 5 + 1) as i64
        }
    }

    fn combined(&self, index: usize) -> f64 {
        let all = (0..self.ranks).map(|of| self.given(of, index));
        match self.op {
            Op::Prod => all.product::<i64>() as f64,
            Op::Max => all.max().unwrap_or(0) as f64,
            Op::Min => all.min().unwrap_or(0) as f64,
            Op::Avg => all.sum::<i64>() as f64 / self.ranks as f64,
            _ => all.sum::<i64>() as f64,
        }
    }

    /// Fills the input of this rank.
    ///
    /// # Safety
    /// `input` has room for `elements`.
    pub(crate) unsafe fn fill(&self, input: *mut u8, elements: usize) {
        for at in 0..elements {
            // SAFETY: the caller's promise.
            unsafe { put(self.dtype, input, at, self.given(self.rank, at) as f64) };
        }
    }

    /// How many elements of the output are wrong.
    ///
    /// # Safety
    /// `output` has what the call writes.
    pub(crate) unsafe fn wrong(&self, output: *const u8) -> u64 {
        let (count, rank, root) = (self.count, self.rank, self.rank == 0);
        let elements = match self.kind {
            Kind::AllReduce | Kind::Broadcast | Kind::ReduceScatter | Kind::Scatter => count,
            Kind::AllGather | Kind::AllToAll => count * self.ranks,
            Kind::Reduce if root => count,
            Kind::Gather if root => count * self.ranks,
            _ => 0,
        };
        let expected = |at: usize| match self.kind {
            Kind::AllReduce | Kind::Reduce => self.combined(at),
            Kind::ReduceScatter => self.combined(rank * count + at),
            Kind::Broadcast => self.given(0, at) as f64,
            Kind::Scatter => self.given(0, rank * count + at) as f64,
            Kind::AllToAll => self.given(at / count, rank * count + at % count) as f64,
            _ => self.given(at / count, at % count) as f64,
        };
        // SAFETY: the caller's promise.
        (0..elements).filter(|at| unsafe { !holds(self.dtype, output, *at, expected(*at)) }).count() as u64
    }
}

impl Check {
    /// How many elements of a tensor that a plan left are wrong: all of every chunk of which its goal says what it holds.
    ///
    /// # Safety
    /// `output` has the whole tensor.
    pub(crate) unsafe fn wrong_of_plan(&self, plan: &Plan, output: *const u8) -> u64 {
        let (rank, ranks) = (self.rank as u32, self.ranks as u32);
        let cut =
            Cut { elems: self.count as u64, chunks: plan.chunks(), elem_bytes: self.dtype.size() as u64 };
        let mut wrong = 0;
        for chunk in 0..plan.chunks() {
            let start = cut.start(chunk) as usize;
            for at in start..start + cut.len(chunk) as usize {
                let expected = match plan.goal().expect(ranks, rank, chunk) {
                    Expect::All => self.combined(at),
                    Expect::One(of) => self.given(of as usize, at) as f64,
                    Expect::Any => continue,
                };
                // SAFETY: the caller's promise.
                wrong += u64::from(unsafe { !holds(self.dtype, output, at, expected) });
            }
        }
        wrong
    }
}

/// The bytes of a value as an element.
fn encode(dtype: DType, value: f64) -> [u8; 8] {
    // Integers wrap, as they do in the call.
    let whole = value as i64;
    match dtype {
        DType::F32 => u64::from((value as f32).to_bits()),
        DType::F64 => value.to_bits(),
        DType::F16 => u64::from(f16::from_f32(value as f32).to_bits()),
        DType::Bf16 => u64::from(bf16::from_f32(value as f32).to_bits()),
        _ => whole as u64,
    }
    .to_le_bytes()
}

/// # Safety
/// There is an element `at`.
unsafe fn put(dtype: DType, base: *mut u8, at: usize, value: f64) {
    let size = dtype.size();
    // SAFETY: the caller's promise; an element has at most eight bytes.
    unsafe { std::ptr::copy_nonoverlapping(encode(dtype, value).as_ptr(), base.add(at * size), size) };
}

/// # Safety
/// There is an element `at`.
unsafe fn holds(dtype: DType, base: *const u8, at: usize, value: f64) -> bool {
    let size = dtype.size();
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(base.add(at * size), size) == &encode(dtype, value)[..size] }
}
