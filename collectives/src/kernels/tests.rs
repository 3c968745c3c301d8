//! Every build of every kernel against a plain loop.

use super::*;
use crate::element::{bf16, f16};

/// A small generator of numbers; the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn run(
    kernels: &Kernels,
    dtype: DType,
    op: Op,
    sources: &[Vec<u8>],
    targets: usize,
    count: usize,
) -> Vec<u8> {
    let fold = kernels.fold(dtype, op).unwrap();
    let mut outs = vec![vec![0xa5_u8; count * dtype.size() + 8]; targets];
    let from: Vec<*const u8> = sources.iter().map(|source| source.as_ptr()).collect();
    let to: Vec<*mut u8> = outs.iter_mut().map(|out| out.as_mut_ptr()).collect();
    // SAFETY: sources and targets are live vectors of at least `count` elements, all apart; `all` checked the processor.
    unsafe { fold(&from, &to, count) };
    for out in &outs {
        assert_eq!(out[count * dtype.size()..], [0xa5; 8], "{dtype} {op} wrote beyond its end");
        assert_eq!(out, &outs[0]);
    }
    outs.swap_remove(0)[..count * dtype.size()].to_vec()
}

fn float_op(op: Op, values: &[f64], in_f32: bool) -> f64 {
    // Each step in the precision of the kernel.
    let step = |a: f64, b: f64| -> f64 {
        let narrow = |x: f64| if in_f32 { f64::from(x as f32) } else { x };
        match op {
            Op::Sum | Op::Avg if in_f32 => f64::from(a as f32 + b as f32),
            Op::Sum | Op::Avg => a + b,
            Op::Prod if in_f32 => f64::from(a as f32 * b as f32),
            Op::Prod => a * b,
            _ if a.is_nan() || b.is_nan() => f64::NAN,
            Op::Max => narrow(if b > a { b } else { a }),
            Op::Min => narrow(if b < a { b } else { a }),
            _ => unreachable!(),
        }
    };
    let all = values.iter().copied().reduce(step).unwrap();
    match op {
        Op::Avg if in_f32 => f64::from(all as f32 / values.len() as f32),
        Op::Avg => all / values.len() as f64,
        _ => all,
    }
}

fn int_op(op: Op, values: &[i128], wrap: impl Fn(i128) -> i128) -> i128 {
    let all = values
        .iter()
        .copied()
        .reduce(|a, b| match op {
            Op::Sum => wrap(a + b),
            Op::Prod => wrap(a.wrapping_mul(b)),
            Op::Max => a.max(b),
            Op::Min => a.min(b),
            Op::BitAnd => a & b,
            Op::BitOr => a | b,
            Op::BitXor => wrap(a ^ b),
            Op::LogicalAnd => i128::from(a != 0 && b != 0),
            Op::LogicalOr => i128::from(a != 0 || b != 0),
            Op::LogicalXor => i128::from((a != 0) != (b != 0)),
            Op::Avg => unreachable!(),
        })
        .unwrap();
    if matches!(op, Op::LogicalAnd | Op::LogicalOr | Op::LogicalXor) { i128::from(all != 0) } else { all }
}

/// Element `at` of each source combined by a plain loop, as bytes.
fn expected(dtype: DType, op: Op, sources: &[Vec<u8>], at: usize) -> Vec<u8> {
    let size = dtype.size();
    let bytes = |source: &Vec<u8>| source[at * size..(at + 1) * size].to_vec();
    macro_rules! int {
        ($int:ident) => {{
            let values: Vec<i128> = sources
                .iter()
                .map(|source| i128::from($int::from_le_bytes(bytes(source).try_into().unwrap())))
                .collect();
            (int_op(op, &values, |value| i128::from(value as $int)) as $int).to_le_bytes().to_vec()
        }};
    }
    macro_rules! float {
        ($in_f32:literal, $get:expr, $put:expr) => {{
            let values: Vec<f64> = sources.iter().map(|source| $get(bytes(source))).collect();
            let result = float_op(op, &values, $in_f32);
            $put(if result.is_nan() { f64::NAN } else { result })
        }};
    }
    let u16_of = |bytes: Vec<u8>| u16::from_le_bytes(bytes.try_into().unwrap());
    match dtype {
        DType::I8 => int!(i8),
        DType::I16 => int!(i16),
        DType::I32 => int!(i32),
        DType::I64 => int!(i64),
        DType::U8 => int!(u8),
        DType::U16 => int!(u16),
        DType::U32 => int!(u32),
        DType::U64 => int!(u64),
        DType::Bool => {
            let logical = match op {
                Op::Max | Op::BitOr | Op::LogicalOr => Op::LogicalOr,
                Op::Min | Op::BitAnd | Op::LogicalAnd => Op::LogicalAnd,
                _ => Op::LogicalXor,
            };
            let values: Vec<i128> = sources.iter().map(|source| i128::from(source[at])).collect();
            vec![int_op(logical, &values, |value| value) as u8]
        }
        DType::F32 => float!(
            true,
            |bytes: Vec<u8>| f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
            |value: f64| (value as f32).to_le_bytes().to_vec()
        ),
        DType::F64 => {
            float!(false, |bytes: Vec<u8>| f64::from_le_bytes(bytes.try_into().unwrap()), |value: f64| value
                .to_le_bytes()
                .to_vec())
        }
        DType::F16 => {
            float!(true, |bytes| f64::from(f16::from_bits(u16_of(bytes))), |value: f64| f16::from_f32(
                value as f32
            )
            .to_bits()
            .to_le_bytes()
            .to_vec())
        }
        DType::Bf16 => {
            float!(true, |bytes| f64::from(bf16::from_bits(u16_of(bytes))), |value: f64| bf16::from_f32(
                value as f32
            )
            .to_bits()
            .to_le_bytes()
            .to_vec())
        }
    }
}

/// Bytes of `count` elements: mostly tame numbers, with every special value among them.
fn source(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let raw = random.next();
        let tame = ((raw >> 32) as i32 as f64) / f64::from(1 << 20);
        let wild = raw.is_multiple_of(8);
        match dtype {
            DType::F32 if !wild => bytes.extend((tame as f32).to_le_bytes()),
            DType::F64 if !wild => bytes.extend(tame.to_le_bytes()),
            DType::F16 if !wild => bytes.extend(f16::from_f64(tame / 64.0).to_bits().to_le_bytes()),
            DType::Bf16 if !wild => bytes.extend(bf16::from_f64(tame).to_bits().to_le_bytes()),
            // Any bits: infinities, NaNs with payloads, subnormals, zeros of both signs.
            _ if random.next().is_multiple_of(4) => {
                bytes.extend(&[0, 0, 0, 0, 0, 0, 0, 0x80][8 - dtype.size()..])
            }
            _ => bytes.extend(&random.next().to_le_bytes()[..dtype.size()]),
        }
    }
    bytes
}

#[test]
fn every_build_of_every_kernel_gives_the_bits_of_a_plain_loop() {
    // CO-2
    let mut random = Random(0x1234_5678_9abc_def1);
    let builds = Kernels::all();
    eprintln!("builds: {:?}", builds.iter().map(|kernels| kernels.name).collect::<Vec<_>>());
    for dtype in DType::ALL.iter().copied() {
        for op in Op::ALL.iter().copied() {
            assert_eq!(BASELINE.fold(dtype, op).is_some(), op.applies_to(dtype), "{dtype} {op}");
            if !op.applies_to(dtype) {
                continue;
            }
            for ranks in [1, 2, 3, 4, 5, 9, 64] {
                for count in [0, 1, 3, 31, 64, 257, if ranks < 9 { 2500 } else { 1100 }] {
                    let sources: Vec<_> = (0..ranks).map(|_| source(&mut random, dtype, count)).collect();
                    let wanted: Vec<u8> =
                        (0..count).flat_map(|at| expected(dtype, op, &sources, at)).collect();
                    for kernels in &builds {
                        let got = run(kernels, dtype, op, &sources, 1 + ranks % 3, count);
                        if got != wanted {
                            let at =
                                got.iter().zip(&wanted).position(|(a, b)| a != b).unwrap() / dtype.size();
                            let size = dtype.size();
                            let of = |bytes: &[u8]| bytes[at * size..(at + 1) * size].to_vec();
                            panic!(
                                "{} {dtype} {op}, {ranks} ranks, element {at} of {count}: {:x?}, not {:x?}, of {:x?}",
                                kernels.name,
                                of(&got),
                                of(&wanted),
                                sources.iter().map(|source| of(source)).collect::<Vec<_>>()
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_target_may_be_a_source() {
    for kernels in Kernels::all() {
        let (mut mine, theirs) = (vec![1.5_f32; 777], vec![2.25_f32; 777]);
        let fold = kernels.fold(DType::F32, Op::Sum).unwrap();
        let at = mine.as_mut_ptr().cast::<u8>();
        // SAFETY: both are live vectors of 777 elements; the target is the first source, element for element.
        unsafe { fold(&[at, theirs.as_ptr().cast()], &[at], 777) };
        assert_eq!(mine, vec![3.75; 777]);
    }
}
