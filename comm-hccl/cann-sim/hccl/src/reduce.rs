//! Element-wise reductions over the data types of HCCL.

use crate::gate::{Refusal, refuse};
use comm_hccl::sys::*;

/// Bytes of one element.
pub(crate) fn element_size(data_type: HcclDataType) -> Result<usize, Refusal> {
    match data_type {
        HCCL_DATA_TYPE_INT8 | HCCL_DATA_TYPE_UINT8 => Ok(1),
        HCCL_DATA_TYPE_INT16 | HCCL_DATA_TYPE_UINT16 | HCCL_DATA_TYPE_FP16 | HCCL_DATA_TYPE_BFP16 => Ok(2),
        HCCL_DATA_TYPE_INT32 | HCCL_DATA_TYPE_UINT32 | HCCL_DATA_TYPE_FP32 => Ok(4),
        HCCL_DATA_TYPE_INT64 | HCCL_DATA_TYPE_UINT64 | HCCL_DATA_TYPE_FP64 => Ok(8),
        _ => refuse(HCCL_E_NOT_SUPPORT, "unknown data type"),
    }
}

/// `into[i] = into[i] op from[i]` for elements stored as bytes.
pub(crate) fn reduce(
    into: &mut [u8],
    from: &[u8],
    data_type: HcclDataType,
    op: HcclReduceOp,
) -> Result<(), Refusal> {
    macro_rules! fold {
        ($ty:ty, $add:expr, $mul:expr) => {
            fold(into, from, op, <$ty>::from_le_bytes, <$ty>::to_le_bytes, $add, $mul)
        };
    }
    match data_type {
        HCCL_DATA_TYPE_INT8 => fold!(i8, i8::wrapping_add, i8::wrapping_mul),
        HCCL_DATA_TYPE_INT16 => fold!(i16, i16::wrapping_add, i16::wrapping_mul),
        HCCL_DATA_TYPE_INT32 => fold!(i32, i32::wrapping_add, i32::wrapping_mul),
        HCCL_DATA_TYPE_INT64 => fold!(i64, i64::wrapping_add, i64::wrapping_mul),
        HCCL_DATA_TYPE_FP32 => fold!(f32, |a, b| a + b, |a, b| a * b),
        HCCL_DATA_TYPE_FP64 => fold!(f64, |a, b| a + b, |a, b| a * b),
        HCCL_DATA_TYPE_FP16 => fold(
            into,
            from,
            op,
            |bytes: [u8; 2]| half::f16::from_le_bytes(bytes).to_f32(),
            |value| half::f16::from_f32(value).to_le_bytes(),
            |a, b| a + b,
            |a, b| a * b,
        ),
        HCCL_DATA_TYPE_BFP16 => fold(
            into,
            from,
            op,
            |bytes: [u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16),
            |value| bfloat16(value).to_le_bytes(),
            |a, b| a + b,
            |a, b| a * b,
        ),
        _ => refuse(HCCL_E_NOT_SUPPORT, "the double does not reduce this data type"),
    }
}

fn fold<const N: usize, T: PartialOrd + Copy>(
    into: &mut [u8],
    from: &[u8],
    op: HcclReduceOp,
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
    add: impl Fn(T, T) -> T,
    mul: impl Fn(T, T) -> T,
) -> Result<(), Refusal> {
    let apply = |a: T, b: T| match op {
        HCCL_REDUCE_SUM => Some(add(a, b)),
        HCCL_REDUCE_PROD => Some(mul(a, b)),
        HCCL_REDUCE_MAX => Some(if b > a { b } else { a }),
        HCCL_REDUCE_MIN => Some(if b < a { b } else { a }),
        _ => None,
    };
    let element = |bytes: &[u8]| read(std::array::from_fn(|i| bytes[i]));
    for (a, b) in into.chunks_exact_mut(N).zip(from.chunks_exact(N)) {
        match apply(element(a), element(b)) {
            Some(value) => a.copy_from_slice(&write(value)),
            None => return refuse(HCCL_E_PARA, "unknown reduction"),
        }
    }
    Ok(())
}

/// Rounds to the nearest bfloat16, ties to even.
fn bfloat16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7FC0;
    }
    let bits = value.to_bits();
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced<const N: usize>(a: [u8; N], b: [u8; N], data_type: i32, op: i32) -> [u8; N] {
        let mut into = a;
        assert!(reduce(&mut into, &b, data_type, op).is_ok());
        into
    }

    #[test]
    fn each_reduction_does_what_it_says() {
        let (a, b) = ((-7_i32).to_le_bytes(), 3_i32.to_le_bytes());
        for (op, value) in
            [(HCCL_REDUCE_SUM, -4), (HCCL_REDUCE_PROD, -21), (HCCL_REDUCE_MAX, 3), (HCCL_REDUCE_MIN, -7)]
        {
            assert_eq!(reduced(a, b, HCCL_DATA_TYPE_INT32, op), i32::to_le_bytes(value));
        }
        assert_eq!(
            reduced(1.5_f32.to_le_bytes(), 2.25_f32.to_le_bytes(), HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM),
            3.75_f32.to_le_bytes()
        );
        // 1.0 + 2.0 in half precision, and in bfloat16.
        assert_eq!(reduced([0x00, 0x3C], [0x00, 0x40], HCCL_DATA_TYPE_FP16, HCCL_REDUCE_SUM), [0x00, 0x42]);
        assert_eq!(reduced([0x80, 0x3F], [0x00, 0x40], HCCL_DATA_TYPE_BFP16, HCCL_REDUCE_SUM), [0x40, 0x40]);
    }

    #[test]
    fn unknown_types_and_reductions_are_refused() {
        assert!(element_size(99).is_err());
        assert!(reduce(&mut [0; 4], &[0; 4], HCCL_DATA_TYPE_INT32, 9).is_err());
        assert!(reduce(&mut [0; 2], &[0; 2], HCCL_DATA_TYPE_UINT16, HCCL_REDUCE_SUM).is_err());
    }
}
