//! Typed tensors.

use crate::error::{ArgumentError, RuntimeError};
use crate::task::Submitted;
use comm_context::abi::{DType, DeviceAddr, TENSOR_MAX_DIMS, TensorDesc};
use std::marker::PhantomData;
use std::ops::Range;

/// A type of elements. Implemented for those of [`DType`] that Rust has.
pub trait Element: bytemuck::Pod + Send + Sync + PartialEq + std::fmt::Debug {
    /// Its number in a descriptor.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}
elements!(f32 => Float32, i32 => Int32, i16 => Int16, i8 => Int8, u8 => Uint8, i64 => Int64, u64 => Uint64,
    u16 => Uint16, u32 => Uint32);

/// A tensor of a graph with elements of type `T`: a view of memory that the graph knows.
#[derive(Debug)]
pub struct Tensor<T> {
    desc: TensorDesc,
    element: PhantomData<T>,
}

impl<T> Clone for Tensor<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Tensor<T> {}

impl<T: Element> Tensor<T> {
    /// The tensor of a descriptor, if its elements are of this type.
    pub fn new(desc: TensorDesc) -> Result<Self, RuntimeError> {
        if desc.dtype != T::DTYPE.code() {
            return Err(ArgumentError::OtherType { found: desc.dtype, wanted: T::DTYPE.code() }.into());
        }
        Ok(Self { desc, element: PhantomData })
    }

    /// The part of it that these ranges name, one for each dimension.
    ///
    /// Tasks on parts that share no element do not wait for each other.
    ///
    /// ```
    /// use chip_runtime::{Buffer, FrontEnd, Kernels, Limits, Runtime, TaskArgs};
    /// # let soon = deadline::Deadline::after(std::time::Duration::from_secs(10))?;
    ///
    /// let mut runtime = Runtime::new(Limits::default())?;
    /// let fill = runtime.kernel("fill", |block| Ok(block.write(0, &[block.scalar(0)? as i32; 2])?));
    /// let mut matrix = Buffer::<i32>::zeroed(&[2, 2]);
    /// runtime.run(FrontEnd::Inferred, soon, |graph| {
    ///     let matrix = graph.import(&mut matrix)?;
    ///     for column in 0..2 {
    ///         let part = matrix.slice(&[0..2, column..column + 1])?;
    ///         let args = TaskArgs::new().output_existing(&part).scalar(u64::from(column) + 1);
    ///         graph.submit(Kernels::aiv(fill), &args)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(matrix.to_vec()?, [1, 2, 1, 2]);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn slice(&self, ranges: &[Range<u32>]) -> Result<Self, RuntimeError> {
        let ndims = self.desc.ndims as usize;
        let shape = &self.desc.shapes[..ndims];
        let inside = |(range, len): (&Range<u32>, &u32)| range.start <= range.end && range.end <= *len;
        if ranges.len() != ndims || !ranges.iter().zip(shape).all(inside) {
            let index = ranges.iter().flat_map(|range| [range.start, range.end]).collect();
            return Err(ArgumentError::Index { index, shape: shape.to_vec() }.into());
        }
        let mut lens = [0; TENSOR_MAX_DIMS];
        let mut offset = self.desc.start_offset;
        for (dim, range) in ranges.iter().enumerate() {
            lens[dim] = range.end - range.start;
            // An offset inside the extent: fits.
            offset += u64::from(range.start) * u64::from(self.desc.strides[dim]);
        }
        let builder =
            TensorDesc::builder(DeviceAddr(self.desc.addr), self.desc.size, T::DTYPE, &lens[..ndims])
                .strides(&self.desc.strides[..ndims])
                .start_offset(offset)
                .owner(self.desc.owner_task_id)
                .version(self.desc.version);
        let builder = if self.desc.manual_dep == 1 { builder.manual_dependencies() } else { builder };
        let desc = builder.build().map_err(|source| ArgumentError::Tensor { index: 0, source })?;
        Ok(Self { desc, element: PhantomData })
    }

    /// The elements of a vector in this range.
    pub fn range(&self, range: Range<u32>) -> Result<Self, RuntimeError> {
        self.slice(std::slice::from_ref(&range))
    }

    /// The same tensor, of which no dependencies are inferred.
    pub fn manual_dependencies(mut self) -> Self {
        self.desc.manual_dep = 1;
        self
    }

    /// The descriptor, as kernels read it.
    pub fn desc(&self) -> &TensorDesc {
        &self.desc
    }
}

impl<T> AsRef<TensorDesc> for Tensor<T> {
    fn as_ref(&self) -> &TensorDesc {
        &self.desc
    }
}

impl Submitted {
    /// Output `index` as a typed tensor.
    pub fn tensor<T: Element>(&self, index: usize) -> Result<Tensor<T>, RuntimeError> {
        let have = self.outputs.len();
        Tensor::new(*self.outputs.get(index).ok_or(ArgumentError::NoSuchArgument { index, have })?)
    }
}

/// A tensor that a task is to make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Create {
    /// The type of its elements.
    pub dtype: DType,
    /// How many dimensions it has.
    pub ndims: usize,
    /// Their lengths.
    pub shape: [u32; TENSOR_MAX_DIMS],
    /// What each element is at first, in the low bytes; without it they are undefined.
    pub initial: Option<u64>,
    /// 1: no dependencies are inferred from it.
    pub manual_dep: u8,
    /// The version in its descriptor.
    pub version: i32,
}

impl Create {
    /// A tensor of this shape.
    ///
    /// # Panics
    /// If it has more than five dimensions.
    pub fn of<T: Element>(shape: &[u32]) -> Self {
        Self::new(T::DTYPE, shape)
    }

    /// The same with the type as a value.
    ///
    /// # Panics
    /// If it has more than five dimensions.
    pub fn new(dtype: DType, shape: &[u32]) -> Self {
        assert!(shape.len() <= TENSOR_MAX_DIMS, "a tensor has at most {TENSOR_MAX_DIMS} dimensions");
        let mut lens = [0; TENSOR_MAX_DIMS];
        lens[..shape.len()].copy_from_slice(shape);
        Self { dtype, ndims: shape.len(), shape: lens, initial: None, manual_dep: 0, version: 0 }
    }

    /// With this value in each element.
    pub fn filled<T: Element>(shape: &[u32], value: T) -> Self {
        let mut bits = [0; 8];
        bits[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        Self { initial: Some(u64::from_le_bytes(bits)), ..Self::of::<T>(shape) }
    }

    /// How many elements; `None` where that overflows.
    pub(crate) fn elements(&self) -> Option<u64> {
        self.shape[..self.ndims].iter().try_fold(1u64, |count, len| count.checked_mul(u64::from(*len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Tensor<f32> {
        Tensor::new(TensorDesc::builder(DeviceAddr(4096), 4 * 24, DType::Float32, &[4, 6]).build().unwrap())
            .unwrap()
    }

    #[test]
    fn a_slice_is_a_view_of_the_same_buffer() {
        let slice = matrix().slice(&[1..3, 2..4]).unwrap();
        let desc = slice.desc();
        assert_eq!((desc.addr, desc.start_offset, &desc.shapes[..2]), (4096, 8, &[2, 2][..]));
        assert_eq!((desc.extent, desc.check()), (8, Ok(())));
        assert_eq!(slice.slice(&[1..2, 1..2]).unwrap().desc().start_offset, 15);
        assert!(matrix().slice(&[0..5, 0..1]).is_err() && matrix().range(0..1).is_err());
    }

    #[test]
    fn a_tensor_of_another_type_is_refused() {
        assert!(Tensor::<i32>::new(*matrix().desc()).is_err());
        assert_eq!(Create::filled(&[2, 3], -1i16).initial, Some(0xffff));
    }
}
