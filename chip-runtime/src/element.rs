//! Single elements of tensors, by index.
//!
//! # Safety
//! Reads and writes memory that the engine has checked: the descriptors come from tasks that were accepted.
#![allow(unsafe_code)]

use crate::args::{Compare, Predicate};
use crate::error::{ArgumentError, RuntimeError};
use comm_context::abi::{DType, TensorDesc};
use shared_memory::{copy_from_shared, copy_to_shared};

/// Where an element is, and how many bytes it has.
pub(crate) fn place(desc: &TensorDesc, index: &[u32]) -> Result<(u64, usize), RuntimeError> {
    let ndims = (desc.ndims as usize).min(desc.shapes.len());
    let shape = &desc.shapes[..ndims];
    if index.len() != ndims || index.iter().zip(shape).any(|(at, len)| at >= len) {
        return Err(ArgumentError::Index { index: index.to_vec(), shape: shape.to_vec() }.into());
    }
    let size = desc.dtype().map_err(|_| ArgumentError::ElementType(desc.dtype))?.size();
    let steps = index.iter().zip(&desc.strides).map(|(at, stride)| u64::from(*at) * u64::from(*stride));
    let addr = desc.addr + (desc.start_offset + steps.sum::<u64>()) * size;
    Ok((addr, size as usize))
}

/// The bits of the element at `addr`, in the low bytes.
///
/// # Safety
/// The bytes are mapped and initialized, and nobody has a reference to them.
pub(crate) unsafe fn load(addr: u64, size: usize) -> u64 {
    let mut bits = [0; 8];
    // SAFETY: the caller's promise.
    unsafe { copy_from_shared(addr as *const u8, &mut bits[..size]) };
    u64::from_le_bytes(bits)
}

/// Stores the low bytes of `bits`.
///
/// # Safety
/// As [`load`], and the bytes are mapped for writing.
pub(crate) unsafe fn store(addr: u64, size: usize, bits: u64) {
    // SAFETY: the caller's promise.
    unsafe { copy_to_shared(&bits.to_le_bytes()[..size], addr as *mut u8) };
}

/// Whether elements of this type can be compared with a number.
pub(crate) fn is_comparable(dtype: DType) -> bool {
    number(dtype, 0).is_some()
}

/// An element as a number: integers as they are, single floats as doubles.
fn number(dtype: DType, bits: u64) -> Option<Number> {
    Some(match dtype {
        DType::Float32 => Number::Float(f64::from(f32::from_bits(bits as u32))),
        DType::Int32 => Number::Int(i128::from(bits as u32 as i32)),
        DType::Int16 => Number::Int(i128::from(bits as u16 as i16)),
        DType::Int8 => Number::Int(i128::from(bits as u8 as i8)),
        DType::Int64 => Number::Int(i128::from(bits as i64)),
        DType::Uint8 | DType::Uint16 | DType::Uint32 | DType::Uint64 => Number::Int(i128::from(bits)),
        _ => return None,
    })
}

enum Number {
    Int(i128),
    Float(f64),
}

/// Whether the predicate holds now.
///
/// # Safety
/// Its tensor lies in memory that is mapped and initialized, and to which nobody has a reference.
pub(crate) unsafe fn holds(predicate: &Predicate) -> bool {
    let Ok((addr, size)) = place(&predicate.tensor, &predicate.index[..predicate.ndims]) else {
        return false;
    };
    // SAFETY: the caller's promise; the index was checked just now.
    let bits = unsafe { load(addr, size) };
    compares(predicate, bits)
}

/// Whether the predicate holds for an element of these bits.
pub(crate) fn compares(predicate: &Predicate, bits: u64) -> bool {
    let Some(number) = predicate.tensor.dtype().ok().and_then(|dtype| number(dtype, bits)) else {
        return false;
    };
    let order = match number {
        Number::Int(value) => Some(value.cmp(&i128::from(predicate.target))),
        Number::Float(value) => value.partial_cmp(&(predicate.target as f64)),
    };
    match predicate.compare {
        Compare::Eq => order.is_some_and(|order| order.is_eq()),
        Compare::Ne => order.is_none_or(|order| order.is_ne()),
        Compare::Gt => order.is_some_and(|order| order.is_gt()),
        Compare::Lt => order.is_some_and(|order| order.is_lt()),
        Compare::Ge => order.is_some_and(|order| order.is_ge()),
        Compare::Le => order.is_some_and(|order| order.is_le()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_context::abi::DeviceAddr;

    #[test]
    fn an_element_is_compared_by_its_type() {
        let values = [-1i16, 5, 7, -8];
        let addr = DeviceAddr(values.as_ptr() as u64);
        let desc = TensorDesc::builder(addr, 8, DType::Int16, &[2, 2]).build().unwrap();
        assert_eq!(place(&desc, &[1, 1]).unwrap(), (addr.0 + 6, 2));
        assert!(place(&desc, &[2, 0]).is_err() && place(&desc, &[0]).is_err());
        let holds = |index: &[u32], compare, target| {
            let tensor = crate::Tensor::<i16>::new(desc).unwrap();
            // SAFETY: a local array.
            unsafe { holds(&Predicate::new(&tensor, index, compare, target)) }
        };
        assert!(
            holds(&[0, 0], Compare::Eq, -1)
                && holds(&[1, 1], Compare::Lt, -7)
                && holds(&[0, 1], Compare::Ge, 5)
        );
        assert!(
            !holds(&[0, 0], Compare::Gt, -1)
                && holds(&[1, 0], Compare::Ne, 8)
                && holds(&[1, 0], Compare::Le, 7)
        );
        let mut word = 0u32;
        // SAFETY: a local word.
        unsafe { store((&raw mut word) as u64, 4, 0x1_0000_0007) };
        assert_eq!(word, 7);
    }
}
