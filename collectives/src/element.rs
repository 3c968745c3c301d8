//! The types of elements that a collective moves and reduces.

pub use half::{bf16, f16};
use std::fmt;
use worker_errors::code_table;

code_table! {
    /// The type of an element as it crosses processes and as C names it: the numbers of the tensor descriptor, and two of our own.
    pub enum DType: u8, code, from_code {
        /// `f32`.
        F32 = 0, "f32";
        /// [`f16`].
        F16 = 1, "f16";
        /// `i32`.
        I32 = 2, "i32";
        /// `i16`.
        I16 = 3, "i16";
        /// `i8`.
        I8 = 4, "i8";
        /// `u8`.
        U8 = 5, "u8";
        /// [`bf16`].
        Bf16 = 6, "bf16";
        /// `i64`.
        I64 = 7, "i64";
        /// `u64`.
        U64 = 8, "u64";
        /// `u16`.
        U16 = 9, "u16";
        /// `u32`.
        U32 = 10, "u32";
        /// `f64`.
        F64 = 32, "f64";
        /// `bool`.
        Bool = 33, "bool";
    }
}

impl DType {
    /// The place in [`ALL`](Self::ALL).
    pub(crate) fn index(self) -> usize {
        match self {
            Self::F64 => 11,
            Self::Bool => 12,
            other => other as usize,
        }
    }

    /// Bytes of one element.
    #[inline]
    pub const fn size(self) -> usize {
        // A look into a table: every call asks several times, and a jump for each costs more than the rest of its checks.
        const SIZES: [u8; 64] = {
            let (mut sizes, mut at) = ([0; 64], 0);
            while at < DType::ALL.len() {
                sizes[DType::ALL[at] as usize] = match DType::ALL[at] {
                    DType::I8 | DType::U8 | DType::Bool => 1,
                    DType::F16 | DType::Bf16 | DType::I16 | DType::U16 => 2,
                    DType::F32 | DType::I32 | DType::U32 => 4,
                    DType::F64 | DType::I64 | DType::U64 => 8,
                };
                at += 1;
            }
            sizes
        };
        SIZES[self as usize % 64] as usize
    }

    pub(crate) const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::F64)
    }
}

/// A type of elements. Implemented for the types of [`DType`], and for no others.
pub trait Element: Copy + Send + Sync + fmt::Debug + PartialEq + private::Sealed + 'static {
    /// The type by its code.
    const DTYPE: DType;
}

mod private {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($name:ty: $dtype:ident),+ $(,)?) => { $(
        impl private::Sealed for $name {}
        impl Element for $name {
            const DTYPE: DType = DType::$dtype;
        }
        const _: () = assert!(size_of::<$name>() == DType::$dtype.size());
    )+ };
}

elements! {
    f32: F32, f16: F16, i32: I32, i16: I16, i8: I8, u8: U8, bf16: Bf16, i64: I64, u64: U64, u16: U16, u32: U32,
    f64: F64, bool: Bool,
}

code_table! {
    /// How elements of all ranks are combined, always in the order of the ranks.
    pub enum Op: u8, code, from_code {
        /// Sum; integers wrap, [`f16`] and [`bf16`] are summed in `f32` and rounded once.
        Sum = 0, "sum";
        /// Product; integers wrap, [`f16`] and [`bf16`] as in a sum.
        Prod = 1, "prod";
        /// The largest; NaN wins, and of two zeros the first.
        Max = 2, "max";
        /// The smallest; NaN wins, and of two zeros the first.
        Min = 3, "min";
        /// Sum divided by the number of ranks; floating point only.
        Avg = 4, "avg";
        /// Bitwise and; integers and `bool`.
        BitAnd = 5, "bitwise and";
        /// Bitwise or; integers and `bool`.
        BitOr = 6, "bitwise or";
        /// Bitwise exclusive or; integers and `bool`.
        BitXor = 7, "bitwise xor";
        /// 1 where all are not 0; integers and `bool`.
        LogicalAnd = 8, "logical and";
        /// 1 where any is not 0; integers and `bool`.
        LogicalOr = 9, "logical or";
        /// 1 where an odd number of them is not 0; integers and `bool`.
        LogicalXor = 10, "logical xor";
    }
}

impl Op {
    /// Whether elements of that type can be combined so.
    pub const fn applies_to(self, dtype: DType) -> bool {
        match self {
            Self::Sum | Self::Prod => !matches!(dtype, DType::Bool),
            Self::Max | Self::Min => true,
            Self::Avg => dtype.is_float(),
            _ => !dtype.is_float(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_and_no_other_code_is_one() {
        for (at, dtype) in DType::ALL.iter().copied().enumerate() {
            assert_eq!((DType::from_code(dtype as u8), dtype.index()), (Some(dtype), at));
        }
        for (at, op) in Op::ALL.iter().copied().enumerate() {
            assert_eq!((Op::from_code(op as u8), op as usize), (Some(op), at));
        }
        assert_eq!(DType::ALL.len() + Op::ALL.len(), 24);
        assert!((11..32).chain(34..=255).all(|code| DType::from_code(code).is_none()));
        assert!((11..=255).all(|code| Op::from_code(code).is_none()));
    }

    #[test]
    fn codes_are_those_of_the_tensor_descriptor() {
        use DType::*;
        let codes = [F32, F16, I32, I16, I8, U8, Bf16, I64, U64, U16, U32].map(|dtype| dtype as u8);
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!((F64 as u8, Bool as u8), (32, 33));
    }
}
