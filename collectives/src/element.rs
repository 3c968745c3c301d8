//! The types of elements that a collective moves and reduces.

use core::fmt;

pub use half::{bf16, f16};

/// The type of an element as it crosses processes and as C names it: the numbers of the tensor descriptor, and two of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// `f32`.
    F32 = 0,
    /// [`f16`].
    F16 = 1,
    /// `i32`.
    I32 = 2,
    /// `i16`.
    I16 = 3,
    /// `i8`.
    I8 = 4,
    /// `u8`.
    U8 = 5,
    /// [`bf16`].
    Bf16 = 6,
    /// `i64`.
    I64 = 7,
    /// `u64`.
    U64 = 8,
    /// `u16`.
    U16 = 9,
    /// `u32`.
    U32 = 10,
    /// `f64`.
    F64 = 32,
    /// `bool`.
    Bool = 33,
}

impl DType {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U8,
        Self::Bf16,
        Self::I64,
        Self::U64,
        Self::U16,
        Self::U32,
        Self::F64,
        Self::Bool,
    ];

    /// The type of a code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| *dtype as u8 == code)
    }

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
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// The name as Rust and errors spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::Bf16 => "bf16",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::F64 => "f64",
            Self::Bool => "bool",
        }
    }

    pub(crate) const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::F64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
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

/// How elements of all ranks are combined, always in the order of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Sum; integers wrap, [`f16`] and [`bf16`] are summed in `f32` and rounded once.
    Sum = 0,
    /// Product; integers wrap, [`f16`] and [`bf16`] as in a sum.
    Prod = 1,
    /// The largest; NaN wins, and of two zeros the first.
    Max = 2,
    /// The smallest; NaN wins, and of two zeros the first.
    Min = 3,
    /// Sum divided by the number of ranks; floating point only.
    Avg = 4,
    /// Bitwise and; integers and `bool`.
    BitAnd = 5,
    /// Bitwise or; integers and `bool`.
    BitOr = 6,
    /// Bitwise exclusive or; integers and `bool`.
    BitXor = 7,
    /// 1 where all are not 0; integers and `bool`.
    LogicalAnd = 8,
    /// 1 where any is not 0; integers and `bool`.
    LogicalOr = 9,
    /// 1 where an odd number of them is not 0; integers and `bool`.
    LogicalXor = 10,
}

impl Op {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 11] = [
        Self::Sum,
        Self::Prod,
        Self::Max,
        Self::Min,
        Self::Avg,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
        Self::LogicalAnd,
        Self::LogicalOr,
        Self::LogicalXor,
    ];

    /// The operation of a code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The name as errors spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::BitAnd => "bitwise and",
            Self::BitOr => "bitwise or",
            Self::BitXor => "bitwise xor",
            Self::LogicalAnd => "logical and",
            Self::LogicalOr => "logical or",
            Self::LogicalXor => "logical xor",
        }
    }

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

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_and_no_other_code_is_one() {
        for (at, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!((DType::from_code(dtype as u8), dtype.index()), (Some(dtype), at));
        }
        for (at, op) in Op::ALL.into_iter().enumerate() {
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
