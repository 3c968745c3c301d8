//! Groups of forked ranks for the tests.
//!
//! # Safety
//! Forks a child for every rank. The children use the communicator, the group and what the test gives them, none of which another
//! thread of the test process can have locked.
#![allow(dead_code, unreachable_pub, unsafe_code)]

use child_process::Child;
use collectives::{Collectives, DType, Element, Options, bf16, f16};
use comm_context::comm::Timeout;
use comm_sim::{Prepared, SimComm};
use deadline::{Deadline, HowDied};
use shared_memory::Region;
use std::time::Duration;

pub fn secs(seconds: u64) -> Timeout {
    Timeout::new(Duration::from_secs(seconds)).unwrap()
}

pub fn millis(millis: u64) -> Timeout {
    Timeout::new(Duration::from_millis(millis)).unwrap()
}

pub fn far() -> Deadline {
    Deadline::after(Duration::from_secs(240)).unwrap()
}

/// Options for tests: waits that end before the test does.
pub fn options() -> Options {
    Options::new().timeout(secs(60)).pool(1 << 20)
}

/// What each rank has to say at its end.
pub struct Texts {
    texts: Region,
    each: usize,
}

impl Texts {
    pub fn new(ranks: usize) -> Self {
        let each = 16 << 10;
        Self { texts: Region::create("texts", ranks * each).unwrap(), each }
    }

    pub fn write(&self, rank: usize, text: &str) {
        let mut end = text.len().min(self.each);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.texts.write(rank * self.each, &text.as_bytes()[..end]).unwrap();
    }

    pub fn read(&self, rank: usize) -> String {
        let mut text = vec![0; self.each];
        self.texts.read(rank * self.each, &mut text).unwrap();
        String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
    }
}

/// The ranks of a group, each a process.
pub struct Ranks {
    pub prepared: Prepared,
    pub texts: Texts,
    pub children: Vec<Child>,
}

impl Ranks {
    /// Starts `nranks` ranks. `body` returns what each has to say.
    pub fn start(nranks: usize, body: impl Fn(SimComm) -> String) -> Self {
        Self::start_in(SimComm::prepare_group(nranks as u32).unwrap(), nranks, body)
    }

    /// The same in a group that was prepared.
    pub fn start_in(prepared: Prepared, nranks: usize, body: impl Fn(SimComm) -> String) -> Self {
        let texts = Texts::new(nranks);
        let mut children = Vec::new();
        for rank in 0..nranks {
            let run = || {
                let comm = SimComm::join(&prepared, rank as u32, secs(60)).unwrap();
                texts.write(rank, &body(comm));
                0
            };
            // SAFETY: see the head of the file.
            children.push(unsafe { Child::fork(&prepared.fds().collect::<Vec<_>>(), run) }.unwrap());
        }
        Self { prepared, texts, children }
    }

    /// Waits for all, and returns how each ended and what it said.
    pub fn end(self) -> Vec<(Option<HowDied>, String)> {
        self.end_by(far())
    }

    pub fn end_by(self, end: Deadline) -> Vec<(Option<HowDied>, String)> {
        let ends: Vec<_> = self.children.iter().map(|child| child.reap(end)).collect();
        ends.into_iter().enumerate().map(|(rank, end)| (end, self.texts.read(rank))).collect()
    }
}

/// Runs `body` as every rank of a communicator, and fails with what they say.
pub fn in_comms(nranks: usize, body: impl Fn(&SimComm) -> Result<(), String>) {
    in_comms_by(far, nranks, body);
}

/// The same with another deadline, which is asked for when all have started.
pub fn in_comms_by(end: impl Fn() -> Deadline, nranks: usize, body: impl Fn(&SimComm) -> Result<(), String>) {
    let ranks = Ranks::start(nranks, |comm| body(&comm).map_or_else(|text| text, |()| "ok".to_owned()));
    let ended = ranks.end_by(end());
    let failed: Vec<String> = ended
        .into_iter()
        .enumerate()
        .filter(|(_, (end, said))| *end != Some(HowDied::Exited(0)) || said != "ok")
        .map(|(rank, (end, said))| format!("rank {rank} {end:?}: {said}"))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Runs `body` as every rank of a group of all.
pub fn in_groups(nranks: usize, options: Options, body: impl Fn(&Collectives<'_>) -> Result<(), String>) {
    in_comms(nranks, |comm| {
        let group = Collectives::new(comm, options).map_err(|error| format!("new: {error}"))?;
        body(&group)?;
        group.close().map_err(|error| format!("close: {error}"))
    });
}

/// A small generator of numbers; the same for the same seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        random.next();
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit
    }
}

/// Element types with numbers of their own, for tests that go through all of them.
pub trait Number: Element {
    /// A number from any bits: tame ones mostly, and sometimes the bits themselves.
    fn from_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! integers {
    ($($int:ident),+) => { $(
        impl Number for $int {
            fn from_bits(bits: u64) -> Self {
                bits as $int
            }
            fn bits(self) -> u64 {
                self as u64
            }
        }
    )+ };
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

fn tame(bits: u64) -> Option<f64> {
    (!bits.is_multiple_of(16)).then(|| ((bits >> 40) as f64 - 8_388_608.0) / 4096.0)
}

impl Number for f32 {
    fn from_bits(bits: u64) -> Self {
        tame(bits).map_or(f32::from_bits((bits >> 8) as u32), |value| value as f32)
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Number for f64 {
    fn from_bits(bits: u64) -> Self {
        tame(bits).unwrap_or(f64::from_bits(bits << 4))
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

impl Number for f16 {
    fn from_bits(bits: u64) -> Self {
        tame(bits).map_or(f16::from_bits((bits >> 8) as u16), |value| f16::from_f64(value / 16.0))
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Number for bf16 {
    fn from_bits(bits: u64) -> Self {
        tame(bits).map_or(bf16::from_bits((bits >> 8) as u16), bf16::from_f64)
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Number for bool {
    fn from_bits(bits: u64) -> Self {
        bits & 1 == 1
    }
    fn bits(self) -> u64 {
        self.into()
    }
}

/// The elements that `rank` gives in the case `seed`.
pub fn elements<T: Number>(seed: u64, rank: usize, count: usize) -> Vec<T> {
    let mut random = Random::new(seed ^ (rank as u64 + 1) << 48);
    (0..count).map(|_| T::from_bits(random.next())).collect()
}

/// Calls `$body` with `$T` as the type of `$dtype`.
#[macro_export]
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            collectives::DType::F32 => {
                type $T = f32;
                $body
            }
            collectives::DType::F64 => {
                type $T = f64;
                $body
            }
            collectives::DType::F16 => {
                type $T = collectives::f16;
                $body
            }
            collectives::DType::Bf16 => {
                type $T = collectives::bf16;
                $body
            }
            collectives::DType::I8 => {
                type $T = i8;
                $body
            }
            collectives::DType::I16 => {
                type $T = i16;
                $body
            }
            collectives::DType::I32 => {
                type $T = i32;
                $body
            }
            collectives::DType::I64 => {
                type $T = i64;
                $body
            }
            collectives::DType::U8 => {
                type $T = u8;
                $body
            }
            collectives::DType::U16 => {
                type $T = u16;
                $body
            }
            collectives::DType::U32 => {
                type $T = u32;
                $body
            }
            collectives::DType::U64 => {
                type $T = u64;
                $body
            }
            collectives::DType::Bool => {
                type $T = bool;
                $body
            }
        }
    };
}

#[allow(unused_imports)]
pub use reference::reduced;

mod reference {
    //! What a reduction in the order of the ranks gives, by a plain loop.

    use super::{DType, Number, bf16, f16};
    use collectives::Op;

    /// Combines element by element, in the order of the ranks.
    pub fn reduced<T: Number>(op: Op, ranks: &[Vec<T>]) -> Vec<T> {
        let count = ranks[0].len();
        let mut bits = Vec::with_capacity(ranks.len());
        let mut at_one = |at: usize| {
            bits.clear();
            bits.extend(ranks.iter().map(|rank| rank[at].bits()));
            one(op, &bits)
        };
        (0..count).map(&mut at_one).collect()
    }

    fn one<T: Number>(op: Op, bits: &[u64]) -> T {
        let size = T::DTYPE.size() * 8;
        let back = |bits: u64| raw::<T>(bits);
        match T::DTYPE {
            DType::F32 => back(f32_op(op, bits.iter().map(|b| f32::from_bits(*b as u32))).to_bits().into()),
            DType::F16 => {
                let value = f32_op(op, bits.iter().map(|b| f16::from_bits(*b as u16).to_f32()));
                back(if value.is_nan() { 0x7e00 } else { f16::from_f32(value).to_bits().into() })
            }
            DType::Bf16 => {
                let value = f32_op(op, bits.iter().map(|b| bf16::from_bits(*b as u16).to_f32()));
                back(if value.is_nan() { 0x7fc0 } else { bf16::from_f32(value).to_bits().into() })
            }
            DType::F64 => back(f64_op(op, bits.iter().map(|b| f64::from_bits(*b))).to_bits()),
            DType::Bool => back(match op {
                Op::Max | Op::BitOr | Op::LogicalOr => u64::from(bits.iter().any(|b| *b != 0)),
                Op::Min | Op::BitAnd | Op::LogicalAnd => u64::from(bits.iter().all(|b| *b != 0)),
                _ => bits.iter().fold(0, |acc, b| acc ^ u64::from(*b != 0)),
            }),
            dtype => {
                let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
                let wide = |b: u64| {
                    let shifted = b << (64 - size);
                    if signed {
                        i128::from((shifted as i64) >> (64 - size))
                    } else {
                        i128::from(shifted >> (64 - size))
                    }
                };
                let mut values = bits.iter().map(|b| wide(*b));
                let first = values.next().unwrap();
                let result = values.fold(first, |a, b| match op {
                    Op::Sum => wide((a + b) as u64),
                    Op::Prod => wide(a.wrapping_mul(b) as u64),
                    Op::Max => a.max(b),
                    Op::Min => a.min(b),
                    Op::BitAnd => a & b,
                    Op::BitOr => a | b,
                    Op::BitXor => a ^ b,
                    Op::LogicalAnd => i128::from(a != 0 && b != 0),
                    Op::LogicalOr => i128::from(a != 0 || b != 0),
                    Op::LogicalXor => i128::from((a != 0) != (b != 0)),
                    Op::Avg => unreachable!(),
                });
                let logical = matches!(op, Op::LogicalAnd | Op::LogicalOr | Op::LogicalXor);
                back(if logical { u64::from(result != 0) } else { result as u64 })
            }
        }
    }

    /// The value with exactly these bits.
    fn raw<T: Number>(bits: u64) -> T {
        let mut value = T::from_bits(0);
        let size = size_of::<T>();
        // SAFETY: plain old data of `size` bytes, and a `bool` gets 0 or 1 only.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bits.to_le_bytes().as_ptr(),
                std::ptr::from_mut(&mut value).cast::<u8>(),
                size,
            );
        }
        value
    }

    macro_rules! float_op {
        ($name:ident, $float:ident) => {
            fn $name(op: Op, values: impl ExactSizeIterator<Item = $float>) -> $float {
                let count = values.len();
                let all = values
                    .reduce(|a, b| match op {
                        Op::Sum | Op::Avg => a + b,
                        Op::Prod => a * b,
                        Op::Max | Op::Min if a.is_nan() || b.is_nan() => $float::NAN,
                        Op::Max => {
                            if b > a {
                                b
                            } else {
                                a
                            }
                        }
                        Op::Min => {
                            if b < a {
                                b
                            } else {
                                a
                            }
                        }
                        _ => unreachable!(),
                    })
                    .unwrap();
                let all = if op == Op::Avg { all / count as $float } else { all };
                if all.is_nan() { $float::NAN } else { all }
            }
        };
    }
    float_op!(f32_op, f32);
    float_op!(f64_op, f64);
}

/// Fails where two lists differ in a bit, and says where.
pub fn same_bits<T: Number>(what: &str, got: &[T], wanted: &[T]) -> Result<(), String> {
    if got.len() != wanted.len() {
        return Err(format!("{what}: {} elements, not {}", got.len(), wanted.len()));
    }
    match got.iter().zip(wanted).position(|(a, b)| a.bits() != b.bits()) {
        None => Ok(()),
        Some(at) => {
            Err(format!("{what}: element {at} of {} is {:?}, not {:?}", got.len(), got[at], wanted[at]))
        }
    }
}
