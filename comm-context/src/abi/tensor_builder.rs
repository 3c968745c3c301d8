//! Builds tensor descriptors whose fields agree.

use bytemuck::Zeroable;

use super::{AbiError, DType, DeviceAddr, NO_OWNER, TENSOR_MAX_DIMS, TensorDesc};

/// Builds a [`TensorDesc`]; every sum and product is checked in [`build`](Self::build).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct TensorBuilder<'a> {
    addr: DeviceAddr,
    size: u64,
    dtype: DType,
    shape: &'a [u32],
    strides: Option<&'a [u32]>,
    start_offset: u64,
    owner_task_id: u64,
    version: i32,
    manual_dep: u8,
}

impl<'a> TensorBuilder<'a> {
    pub(super) fn new(addr: DeviceAddr, size: u64, dtype: DType, shape: &'a [u32]) -> Self {
        Self {
            addr,
            size,
            dtype,
            shape,
            strides: None,
            start_offset: 0,
            owner_task_id: NO_OWNER,
            version: 0,
            manual_dep: 0,
        }
    }

    /// Strides in elements, one for each dimension. Row-major without gaps when not called.
    pub fn strides(mut self, strides: &'a [u32]) -> Self {
        self.strides = Some(strides);
        self
    }

    /// Where the view starts, in elements from the start of the buffer.
    pub fn start_offset(mut self, elements: u64) -> Self {
        self.start_offset = elements;
        self
    }

    /// The task that owns the buffer.
    pub fn owner(mut self, task_id: u64) -> Self {
        self.owner_task_id = task_id;
        self
    }

    /// The version of the buffer's contents.
    pub fn version(mut self, version: i32) -> Self {
        self.version = version;
        self
    }

    /// The dependencies on this tensor are declared by the caller, not derived.
    pub fn manual_dependencies(mut self) -> Self {
        self.manual_dep = 1;
        self
    }

    /// Checks everything and builds the descriptor.
    pub fn build(self) -> Result<TensorDesc, AbiError> {
        self.check_place()?;
        let ndims = self.shape.len();
        let mut desc = TensorDesc {
            addr: self.addr.0,
            size: self.size,
            owner_task_id: self.owner_task_id,
            start_offset: self.start_offset,
            version: self.version,
            ndims: ndims as u32,
            dtype: self.dtype.code(),
            manual_dep: self.manual_dep,
            strides: [1; TENSOR_MAX_DIMS],
            ..TensorDesc::zeroed()
        };
        desc.shapes[..ndims].copy_from_slice(self.shape);
        match self.strides {
            Some(strides) => desc.strides[..ndims].copy_from_slice(strides),
            None => fill_row_major(self.shape, &mut desc.strides[..ndims])?,
        }
        let (extent, is_contiguous) = self.measure(&desc.strides[..ndims])?;
        desc.extent = extent;
        desc.is_contiguous = is_contiguous.into();
        Ok(desc)
    }

    /// Checks the number of dimensions and the address.
    #[inline]
    pub(super) fn check_place(&self) -> Result<(), AbiError> {
        let ndims = self.shape.len();
        let given = self.strides.map_or(ndims, <[u32]>::len);
        if ndims > TENSOR_MAX_DIMS || given != ndims {
            return Err(AbiError::Dims { ndims, strides: given });
        }
        if self.addr.is_null() {
            return Err(AbiError::Null { what: "the tensor's buffer" });
        }
        let align = self.dtype.size();
        if !self.addr.0.is_multiple_of(align) {
            return Err(AbiError::Misaligned { addr: self.addr, align });
        }
        Ok(())
    }

    /// The extent with these strides, and whether it is contiguous, if it lies in the buffer.
    #[inline]
    pub(super) fn measure(&self, strides: &[u32]) -> Result<(u64, bool), AbiError> {
        if let Some(dim) = strides.iter().position(|stride| *stride == 0) {
            return Err(AbiError::ZeroStride { dim });
        }
        let extent = extent(self.shape, strides)?;
        let end = self.start_offset.checked_add(extent).and_then(|end| end.checked_mul(self.dtype.size()));
        let need = end.ok_or(AbiError::Overflow { what: "end in bytes" })?;
        if need > self.size {
            return Err(AbiError::BeyondBuffer { need, have: self.size });
        }
        self.addr.checked_add(self.size).ok_or(AbiError::Overflow { what: "end address" })?;
        Ok((extent, is_contiguous(self.shape, strides)))
    }
}

/// An empty dimension counts as one element here, so that strides stay above 0.
fn fill_row_major(shape: &[u32], strides: &mut [u32]) -> Result<(), AbiError> {
    let mut step: u64 = 1;
    for (stride, len) in strides.iter_mut().zip(shape).rev() {
        *stride = u32::try_from(step).map_err(|_| AbiError::Overflow { what: "stride" })?;
        // A stride fits in 32 bits and so does a length: the product fits in 64.
        step *= u64::from(*len).max(1);
    }
    Ok(())
}

/// From the first element to just after the last.
fn extent(shape: &[u32], strides: &[u32]) -> Result<u64, AbiError> {
    if shape.contains(&0) {
        return Ok(0);
    }
    shape.iter().zip(strides).try_fold(1u64, |sum, (len, stride)| {
        // Two 32-bit factors: only the sum can overflow, and five terms below 2^64 - 2^33 can.
        let reach = u64::from(len - 1) * u64::from(*stride);
        sum.checked_add(reach).ok_or(AbiError::Overflow { what: "extent" })
    })
}

/// The stride of a dimension with at most one element does not matter.
fn is_contiguous(shape: &[u32], strides: &[u32]) -> bool {
    let mut step: u64 = 1;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(len, stride)| {
            let fits = *len == 1 || u64::from(*stride) == step;
            step = step.saturating_mul(u64::from(*len));
            fits
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: DeviceAddr = DeviceAddr(0x1000);

    fn build(size: u64, shape: &[u32], strides: &[u32]) -> Result<TensorDesc, AbiError> {
        TensorDesc::builder(AT, size, DType::Float32, shape).strides(strides).build()
    }

    #[test]
    fn row_major_is_the_default_and_contiguous() {
        let desc = TensorDesc::builder(AT, 4 * 24, DType::Float32, &[2, 3, 4]).build().unwrap();
        assert_eq!((&desc.strides[..3], desc.extent, desc.is_contiguous), (&[12, 4, 1][..], 24, 1));
        assert_eq!((desc.owner_task_id, desc.shape().unwrap()), (NO_OWNER, &[2, 3, 4][..]));
        assert_eq!(desc.check(), Ok(()));
    }

    #[test]
    fn a_strided_view_spans_from_its_first_to_its_last_element() {
        let desc = build(4 * 100, &[3, 4], &[10, 2]).unwrap();
        assert_eq!((desc.extent, desc.is_contiguous), (2 * 10 + 3 * 2 + 1, 0));
        assert_eq!(build(4 * 27, &[3, 4], &[10, 2]).map(|d| d.extent), Ok(27));
        assert_eq!(build(4 * 26, &[3, 4], &[10, 2]), Err(AbiError::BeyondBuffer { need: 108, have: 104 }));
    }

    #[test]
    fn f47_a_scalar_has_one_element_and_an_empty_tensor_none() {
        let scalar = build(4, &[], &[]).unwrap();
        assert_eq!((scalar.extent, scalar.is_contiguous), (1, 1));
        let empty = TensorDesc::builder(AT, 0, DType::Int64, &[4, 0, 3]).build().unwrap();
        assert_eq!((empty.extent, &empty.strides[..3]), (0, &[3, 3, 1][..]));
        assert_eq!(empty.check(), Ok(()));
    }

    #[test]
    fn bad_views_are_refused_by_name() {
        assert_eq!(build(64, &[1; 6], &[1; 6]), Err(AbiError::Dims { ndims: 6, strides: 6 }));
        assert_eq!(build(64, &[2, 2], &[1]), Err(AbiError::Dims { ndims: 2, strides: 1 }));
        assert_eq!(build(64, &[2, 2], &[2, 0]), Err(AbiError::ZeroStride { dim: 1 }));
        assert_eq!(
            build(u64::MAX, &[u32::MAX; 5], &[u32::MAX; 5]),
            Err(AbiError::Overflow { what: "extent" })
        );
        let huge = |shape| TensorDesc::builder(AT, u64::MAX, DType::Uint8, shape);
        assert_eq!(huge(&[2, 65536, 65536]).build(), Err(AbiError::Overflow { what: "stride" }));
        assert_eq!(huge(&[1]).build(), Err(AbiError::Overflow { what: "end address" }));
        assert_eq!(
            huge(&[1]).start_offset(u64::MAX).build(),
            Err(AbiError::Overflow { what: "end in bytes" })
        );
        let at = |addr| TensorDesc::builder(DeviceAddr(addr), 64, DType::Float32, &[1]).build();
        assert_eq!(at(0), Err(AbiError::Null { what: "the tensor's buffer" }));
        assert_eq!(at(0x1002), Err(AbiError::Misaligned { addr: DeviceAddr(0x1002), align: 4 }));
    }
}
