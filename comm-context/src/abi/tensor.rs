//! `TensorDesc`: one tensor as a kernel sees it.

use core::mem::{align_of, offset_of, size_of};

use bytemuck::{Pod, Zeroable};
use static_assertions::const_assert_eq;

use super::{AbiError, DeviceAddr, TensorBuilder};

/// The most dimensions of a tensor.
pub const TENSOR_MAX_DIMS: usize = 5;

/// The owner of a tensor that no task owns.
pub const NO_OWNER: u64 = u64::MAX;

/// The element type of a tensor. The numbers are those of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// IEEE single precision.
    Float32 = 0,
    /// IEEE half precision.
    Float16 = 1,
    /// Signed, 32 bits.
    Int32 = 2,
    /// Signed, 16 bits.
    Int16 = 3,
    /// Signed, 8 bits.
    Int8 = 4,
    /// Unsigned, 8 bits.
    Uint8 = 5,
    /// bfloat16: the upper half of an IEEE single.
    Bfloat16 = 6,
    /// Signed, 64 bits.
    Int64 = 7,
    /// Unsigned, 64 bits.
    Uint64 = 8,
    /// Unsigned, 16 bits.
    Uint16 = 9,
    /// Unsigned, 32 bits.
    Uint32 = 10,
    /// A byte that is 0 or 1.
    Bool = 11,
    /// Eight bits: four of exponent, three of fraction, no infinities.
    Fp8E4m3fn = 12,
    /// Eight bits: an exponent alone, the scale of a block.
    Fp8E8m0 = 13,
    /// A byte that holds two numbers of four bits.
    Fp4E2m1 = 14,
}

impl DType {
    /// Every type, in the order of the numbers.
    pub const ALL: [Self; 15] = [
        Self::Float32,
        Self::Float16,
        Self::Int32,
        Self::Int16,
        Self::Int8,
        Self::Uint8,
        Self::Bfloat16,
        Self::Int64,
        Self::Uint64,
        Self::Uint16,
        Self::Uint32,
        Self::Bool,
        Self::Fp8E4m3fn,
        Self::Fp8E8m0,
        Self::Fp4E2m1,
    ];

    /// The number.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type of a number, if there is one.
    pub fn from_code(code: u8) -> Result<Self, AbiError> {
        Self::ALL.get(usize::from(code)).copied().ok_or(AbiError::DType { code })
    }

    /// How many bytes an element has, which is also its alignment.
    pub const fn size(self) -> u64 {
        match self {
            Self::Int8 | Self::Uint8 | Self::Bool | Self::Fp8E4m3fn | Self::Fp8E8m0 | Self::Fp4E2m1 => 1,
            Self::Float16 | Self::Bfloat16 | Self::Int16 | Self::Uint16 => 2,
            Self::Float32 | Self::Int32 | Self::Uint32 => 4,
            Self::Int64 | Self::Uint64 => 8,
        }
    }
}

/// A strided view of a buffer, as kernels read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct TensorDesc {
    /// Where the underlying buffer starts.
    pub addr: u64,
    /// How many bytes it has.
    pub size: u64,
    /// The task that owns the buffer; [`NO_OWNER`] for none.
    pub owner_task_id: u64,
    /// The first element of the view, in elements from the start of the buffer.
    pub start_offset: u64,
    /// The version of the buffer's contents.
    pub version: i32,
    /// How many dimensions are used.
    pub ndims: u32,
    /// The number of the [`DType`].
    pub dtype: u8,
    /// 1 when the dependencies are declared by the caller, not derived.
    pub manual_dep: u8,
    /// 1 when the elements lie without gaps in row-major order.
    pub is_contiguous: u8,
    /// Where the buffer is: 0 in memory of the host, 1 in memory of a device. Kernels do not read it.
    pub address_space: u8,
    /// How many elements each dimension has.
    pub shapes: [u32; TENSOR_MAX_DIMS],
    /// From the first element to just after the last, in elements; 0 for an empty tensor.
    pub extent: u64,
    /// The stride of each dimension in elements; more than 0.
    pub strides: [u32; TENSOR_MAX_DIMS],
    /// 0.
    pub reserved: [u8; 36],
}

const_assert_eq!(size_of::<TensorDesc>(), 128);
const_assert_eq!(align_of::<TensorDesc>(), 64);
const_assert_eq!(offset_of!(TensorDesc, addr), 0);
const_assert_eq!(offset_of!(TensorDesc, size), 8);
const_assert_eq!(offset_of!(TensorDesc, owner_task_id), 16);
const_assert_eq!(offset_of!(TensorDesc, start_offset), 24);
const_assert_eq!(offset_of!(TensorDesc, version), 32);
const_assert_eq!(offset_of!(TensorDesc, ndims), 36);
const_assert_eq!(offset_of!(TensorDesc, dtype), 40);
const_assert_eq!(offset_of!(TensorDesc, manual_dep), 41);
const_assert_eq!(offset_of!(TensorDesc, is_contiguous), 42);
const_assert_eq!(offset_of!(TensorDesc, address_space), 43);
const_assert_eq!(offset_of!(TensorDesc, shapes), 44);
const_assert_eq!(offset_of!(TensorDesc, extent), 64);
const_assert_eq!(offset_of!(TensorDesc, strides), 72);
const_assert_eq!(offset_of!(TensorDesc, reserved), 92);

/// Breaks the build when a field is added without a line above.
const _: fn(TensorDesc) = |desc| {
    let TensorDesc {
        addr: _,
        size: _,
        owner_task_id: _,
        start_offset: _,
        version: _,
        ndims: _,
        dtype: _,
        manual_dep: _,
        is_contiguous: _,
        address_space: _,
        shapes: _,
        extent: _,
        strides: _,
        reserved: _,
    } = desc;
};

impl TensorDesc {
    /// Starts a descriptor of `shape` elements in the buffer of `size` bytes at `addr`.
    pub fn builder<'a>(addr: DeviceAddr, size: u64, dtype: DType, shape: &'a [u32]) -> TensorBuilder<'a> {
        TensorBuilder::new(addr, size, dtype, shape)
    }

    /// Reads a descriptor from bytes of any origin and alignment and checks all of it. Bytes after it are
    /// ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, AbiError> {
        let need = size_of::<Self>();
        let bytes =
            bytes.get(..need).ok_or(AbiError::Length { what: "TensorDesc", need, have: bytes.len() })?;
        let desc: Self = bytemuck::pod_read_unaligned(bytes);
        desc.check()?;
        Ok(desc)
    }

    /// Checks that the fields are valid and agree with each other. Shapes and strides beyond `ndims` are
    /// ignored.
    pub fn check(&self) -> Result<(), AbiError> {
        let shape = self.shape()?;
        let strides = &self.strides[..shape.len()];
        let flags = [
            ("manual_dep", self.manual_dep),
            ("is_contiguous", self.is_contiguous),
            ("address_space", self.address_space),
        ];
        for (what, value) in flags {
            if value > 1 {
                return Err(AbiError::Flag { what, value });
            }
        }
        if self.reserved != [0; 36] {
            return Err(AbiError::Reserved { what: "TensorDesc" });
        }
        let view = TensorBuilder::new(DeviceAddr(self.addr), self.size, self.dtype()?, shape)
            .strides(strides)
            .start_offset(self.start_offset);
        view.check_place()?;
        let (extent, is_contiguous) = view.measure(strides)?;
        let agree = |what, found: u64, expected: u64| {
            if found == expected { Ok(()) } else { Err(AbiError::Contradiction { what, found, expected }) }
        };
        agree("extent", self.extent, extent)?;
        agree("is_contiguous", self.is_contiguous.into(), is_contiguous.into())
    }

    /// The bytes as kernels read them.
    pub fn as_bytes(&self) -> &[u8] {
        bytemuck::bytes_of(self)
    }

    /// The element type.
    pub fn dtype(&self) -> Result<DType, AbiError> {
        DType::from_code(self.dtype)
    }

    /// The shape: one length for each dimension in use.
    pub fn shape(&self) -> Result<&[u32], AbiError> {
        let ndims = self.ndims as usize;
        self.shapes.get(..ndims).ok_or(AbiError::Dims { ndims, strides: ndims })
    }
}

impl AsRef<Self> for TensorDesc {
    fn as_ref(&self) -> &Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // CC-7
    #[test]
    fn every_data_type_survives_its_number_and_every_other_number_is_refused() {
        for code in 0..=u8::MAX {
            match DType::from_code(code) {
                Ok(dtype) => assert_eq!(dtype.code(), code),
                Err(error) => {
                    assert!(usize::from(code) >= DType::ALL.len());
                    assert_eq!(error, AbiError::DType { code });
                }
            }
        }
        assert_eq!((DType::Uint32.code(), DType::Fp4E2m1.code()), (10, 14));
    }
}
