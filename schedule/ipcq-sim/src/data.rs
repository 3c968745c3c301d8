//! Real numbers in the formats that chips use, as bytes in memory.

use crate::config::DType;
use ccl_schedule::{Function, Math, Operand};
use half::{bf16, f16};

/// A computation on bytes of a format, rounded once at the end; `args` holds the data of the arguments that are tiles.
pub(crate) fn compute(math: &Math, dtype: DType, args: [&[u8]; 3]) -> Vec<u8> {
    let values = args.map(|bytes| decode(dtype, bytes));
    let len = values.iter().map(Vec::len).max().unwrap_or(0);
    let arg = |which: usize, element: usize| match math.args[which] {
        Operand::Scalar(number) => number,
        Operand::Tile(_) => values[which].get(element).copied().unwrap_or(0.0),
        Operand::None => 0.0,
    };
    if let Function::Softmax(row) = math.function {
        return encode(dtype, &softmax(&values[0], row as usize));
    }
    let each = |element| {
        let [a, b, c] = [0, 1, 2].map(|which| arg(which, element));
        match math.function {
            Function::Add => a + b,
            Function::Sub => a - b,
            Function::Mul => a * b,
            Function::Div => a / b,
            Function::Maximum if a.is_nan() || b.is_nan() => f32::NAN,
            Function::Minimum if a.is_nan() || b.is_nan() => f32::NAN,
            Function::Maximum => a.max(b),
            Function::Minimum => a.min(b),
            Function::Fma => a.mul_add(b, c),
            // Not `f32::clamp`, which panics when the limits are the wrong way round.
            Function::Clamp => a.max(b).min(c),
            Function::CeilDiv => (a / b).ceil(),
            Function::Softmax(_) => a,
        }
    };
    encode(dtype, &(0..len).map(each).collect::<Vec<f32>>())
}

/// In every row, exp(x - largest) over the sum of these.
fn softmax(values: &[f32], row: usize) -> Vec<f32> {
    let rows = values.chunks(row.max(1));
    let one = |row: &[f32]| {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = row.iter().map(|x| (x - largest).exp()).collect();
        let sum: f32 = powers.iter().sum();
        powers.into_iter().map(move |power| power / sum).collect::<Vec<f32>>()
    };
    rows.flat_map(one).collect()
}

/// Whether any number is infinite or no number.
pub(crate) fn exceeds(dtype: DType, bytes: &[u8]) -> bool {
    decode(dtype, bytes).iter().any(|value| !value.is_finite())
}

/// Adds `from` to `to`, element by element, rounding every sum to the format.
///
/// # Panics
/// If the lengths differ.
pub fn add(dtype: DType, to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "tiles of one chunk have one size");
    fn each<const N: usize>(to: &mut [u8], from: &[u8], sum: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
        let (to, _) = to.as_chunks_mut::<N>();
        let (from, _) = from.as_chunks::<N>();
        for (a, b) in to.iter_mut().zip(from) {
            *a = sum(*a, *b);
        }
    }
    match dtype {
        DType::F16 => {
            // Eight at a time, without branches: the compiler turns them into vector instructions.
            let whole = to.len() / 16 * 16;
            each::<16>(&mut to[..whole], &from[..whole], add_eight);
            let (to, from) = (&mut to[whole..], &from[whole..]);
            each(to, from, |a, b| (f16::from_le_bytes(a) + f16::from_le_bytes(b)).to_le_bytes());
        }
        DType::Bf16 => each(to, from, |a, b| (bf16::from_le_bytes(a) + bf16::from_le_bytes(b)).to_le_bytes()),
        DType::F32 => each(to, from, |a, b| (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes()),
    }
}

fn add_eight(a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
    let wide = |bytes: [u8; 16]| -> [f32; 8] {
        std::array::from_fn(|i| widen(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])))
    };
    let (a, b) = (wide(a), wide(b));
    let sums: [u16; 8] = std::array::from_fn(|i| narrow(a[i] + b[i]));
    std::array::from_fn(|i| sums[i / 2].to_le_bytes()[i % 2])
}

/// An f16 as f32, exactly: a shift moves the bits, and a product the exponent from bias 15 to 127.
#[inline]
fn widen(half: u16) -> f32 {
    const MOVE: f32 = f32::from_bits((127 + 112) << 23);
    const INFINITE: u32 = 0x7c00 << 13;
    let size = u32::from(half & 0x7fff) << 13;
    let sign = u32::from(half & 0x8000) << 16;
    let special = if size >= INFINITE { f32::INFINITY.to_bits() } else { 0 };
    f32::from_bits((f32::from_bits(size) * MOVE).to_bits() | special | sign)
}

/// The nearest f16, of two equally near ones the even.
#[inline]
fn narrow(value: f32) -> u16 {
    const INFINITE: u32 = (127 + 16) << 23;
    const NORMAL: u32 = (127 - 14) << 23;
    let bits = value.to_bits();
    let (sign, size) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    let nan = 0x7e00 | (size >> 13 & 0x3ff);
    let special = if size > f32::INFINITY.to_bits() { nan } else { 0x7c00 };
    // Next to one half, the last bit of an f32 is worth as much as the last bit of a subnormal f16.
    let subnormal = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let normal = size.wrapping_sub(112 << 23).wrapping_add(0xfff + (size >> 13 & 1)) >> 13;
    let finite = if size < NORMAL { subnormal } else { normal };
    (sign | if size >= INFINITE { special } else { finite }) as u16
}

/// Numbers as bytes of a format, each rounded to the nearest.
pub fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        DType::F32 => values.iter().flat_map(|&v| v.to_le_bytes()).collect(),
    }
}

/// Bytes of a format as numbers.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F16 => bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
        DType::Bf16 => bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
        DType::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
    }
}

/// The largest finite number of a format.
pub fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::MAX.to_f64(),
        DType::Bf16 => bf16::MAX.to_f64(),
        DType::F32 => f64::from(f32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_round_to_the_format() {
        for (dtype, want) in [(DType::F16, 2048.0), (DType::Bf16, 2048.0), (DType::F32, 2049.0)] {
            let mut to = encode(dtype, &[2048.0, 1.5]);
            add(dtype, &mut to, &encode(dtype, &[1.0, 0.25]));
            assert_eq!(decode(dtype, &to), [want, 1.75]);
            assert_eq!(to.len() as u64, 2 * dtype.bytes());
        }
    }

    #[test]
    fn eight_sums_at_a_time_are_the_same_as_one() {
        let a: Vec<f32> = (0..19).map(|i| i as f32 * 113.7 - 900.0).collect();
        let b: Vec<f32> = (0..19).map(|i| i as f32 * -7.3 + 4000.0).collect();
        let mut sums = encode(DType::F16, &a);
        add(DType::F16, &mut sums, &encode(DType::F16, &b));
        let want: Vec<f32> =
            a.iter().zip(&b).map(|(&a, &b)| (f16::from_f32(a) + f16::from_f32(b)).to_f32()).collect();
        assert_eq!(decode(DType::F16, &sums), want);
    }

    #[test]
    fn every_f16_widens_and_every_kind_of_f32_narrows_as_in_the_reference() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            let wide = widen(bits);
            assert_eq!(wide.is_nan(), half.is_nan(), "{bits:#x}");
            assert!(half.is_nan() || wide.to_bits() == half.to_f32().to_bits(), "{bits:#x}");
            // The number itself, its neighbours, and the middle to the next f16 with its neighbours.
            for near in [0u32, 1, 0xfff, 0x1000, 0x1001, 0x1fff] {
                let value = f32::from_bits(wide.to_bits().wrapping_add(near));
                let (got, want) = (f16::from_bits(narrow(value)), f16::from_f32(value));
                assert_eq!(got.is_nan(), want.is_nan(), "{value:e}");
                assert!(want.is_nan() || got.to_bits() == want.to_bits(), "{value:e}: {got} and not {want}");
            }
        }
    }

    #[test]
    fn half_overflows_to_infinity_and_the_limit_is_known() {
        let mut to = encode(DType::F16, &[65504.0]);
        add(DType::F16, &mut to, &encode(DType::F16, &[65504.0]));
        assert!(decode(DType::F16, &to)[0].is_infinite());
        assert_eq!(largest(DType::F16), 65504.0);
    }
}
