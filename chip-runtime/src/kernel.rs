//! Kernels: code that runs on a core, in Rust or behind the C entry.
//!
//! # Safety
//! A kernel gets the argument list of one block. What it points to is kept by the engine until the block has returned:
//! the descriptors in the task's slot, the tensors in memory that the graph was given or that it made.
#![allow(unsafe_code)]

use crate::element;
use crate::error::{ArgumentError, RuntimeError};
use crate::limits::{MAX_SCALARS, MAX_TENSORS};
use crate::task::{KernelId, TaskId};
use crate::tensor::Element;
use comm_context::abi::{KERNEL_LOCAL_CONTEXT_ARG, TensorDesc};
use shared_memory::{copy_from_shared, copy_to_shared};
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

const _: () = assert!(MAX_TENSORS + MAX_SCALARS == KERNEL_LOCAL_CONTEXT_ARG);

/// What a kernel in Rust returns.
pub type KernelResult = Result<(), Box<dyn Error + Send + Sync>>;

type Function = dyn Fn(&Block<'_>) -> KernelResult + Send + Sync;
type Entry = dyn Fn(*mut i64) -> Result<(), String> + Send + Sync;

pub(crate) enum Code {
    Function(Box<Function>),
    /// Takes the argument list, as the C entry does.
    Entry(Box<Entry>),
}

/// A kernel with its names.
pub(crate) struct Kernel {
    pub(crate) id: KernelId,
    pub(crate) name: Arc<str>,
    pub(crate) code: Code,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {} `{}`", self.id, self.name)
    }
}

/// The core of a cluster that a block runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The cube core.
    Aic,
    /// The first vector core.
    Aiv0,
    /// The second vector core.
    Aiv1,
}

impl Lane {
    pub(crate) const ALL: [Self; 3] = [Self::Aic, Self::Aiv0, Self::Aiv1];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Aic => "AIC",
            Self::Aiv0 => "AIV0",
            Self::Aiv1 => "AIV1",
        }
    }
}

/// One block of a task, as a kernel in Rust sees it.
#[derive(Debug)]
pub struct Block<'a> {
    pub(crate) task: TaskId,
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) lane: Lane,
    pub(crate) tensors: &'a [TensorDesc],
    pub(crate) scalars: &'a [u64],
    /// One bit for each tensor that the task may write.
    pub(crate) writable: u32,
}

impl<'a> Block<'a> {
    /// The task.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// This block, from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How many blocks the task has.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The core that it runs on.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// The descriptors of the tensors.
    pub fn tensors(&self) -> &'a [TensorDesc] {
        self.tensors
    }

    /// Scalar `index`.
    pub fn scalar(&self, index: usize) -> Result<u64, RuntimeError> {
        let have = self.scalars.len();
        Ok(*self.scalars.get(index).ok_or(ArgumentError::NoSuchArgument { index, have })?)
    }

    /// The elements of tensor `index`.
    pub fn elements<T: Element>(&self, index: usize) -> Result<Elements<'a, T>, RuntimeError> {
        let have = self.tensors.len();
        let desc = self.tensors.get(index).ok_or(ArgumentError::NoSuchArgument { index, have })?;
        if desc.dtype != T::DTYPE.code() {
            return Err(ArgumentError::OtherType { found: desc.dtype, wanted: T::DTYPE.code() }.into());
        }
        let len = desc.shapes[..desc.ndims as usize].iter().map(|len| *len as usize).product();
        Ok(Elements { desc, len, writable: self.writable & 1 << index != 0, element: PhantomData })
    }

    /// A copy of tensor `index`, in row-major order.
    pub fn read<T: Element>(&self, index: usize) -> Result<Vec<T>, RuntimeError> {
        let elements = self.elements::<T>(index)?;
        let mut values = vec![T::zeroed(); elements.len()];
        elements.read(0, &mut values)?;
        Ok(values)
    }

    /// Writes all of tensor `index`, in row-major order.
    pub fn write<T: Element>(&self, index: usize, values: &[T]) -> Result<(), RuntimeError> {
        self.elements::<T>(index)?.write(0, values)
    }
}

/// The elements of a tensor, in row-major order whatever its strides.
///
/// Accesses are relaxed atomics: other blocks of the task may access the same elements.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a, T> {
    desc: &'a TensorDesc,
    len: usize,
    writable: bool,
    element: PhantomData<T>,
}

impl<T: Element> Elements<'_, T> {
    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies those from `from` on.
    pub fn read(&self, from: usize, into: &mut [T]) -> Result<(), RuntimeError> {
        self.pieces(from, into.len(), |addr, piece| {
            let into = bytemuck::cast_slice_mut(&mut into[piece]);
            // SAFETY: the elements lie in the tensor, whose memory is mapped and initialized while the block runs, and
            // which nobody has a reference to.
            unsafe { copy_from_shared(addr as *const u8, into) };
        })
    }

    /// Replaces those from `to` on.
    pub fn write(&self, to: usize, values: &[T]) -> Result<(), RuntimeError> {
        if !self.writable {
            return Err(ArgumentError::ReadOnly.into());
        }
        self.pieces(to, values.len(), |addr, piece| {
            // SAFETY: as in `read`; the task may write it.
            unsafe { copy_to_shared(bytemuck::cast_slice(&values[piece]), addr as *mut u8) };
        })
    }

    /// Calls `piece` with the address and the range of each run of elements without gaps.
    fn pieces(
        &self,
        from: usize,
        count: usize,
        mut piece: impl FnMut(u64, std::ops::Range<usize>),
    ) -> Result<(), RuntimeError> {
        if from.checked_add(count).is_none_or(|end| end > self.len) {
            return Err(ArgumentError::TooLong { end: from.saturating_add(count), have: self.len }.into());
        }
        let start = self.desc.addr + self.desc.start_offset * size_of::<T>() as u64;
        if self.desc.is_contiguous == 1 {
            piece(start + (from * size_of::<T>()) as u64, 0..count);
            return Ok(());
        }
        let ndims = self.desc.ndims as usize;
        for at in 0..count {
            let (mut rest, mut index) = (from + at, [0; 5]);
            for dim in (0..ndims).rev() {
                let len = self.desc.shapes[dim] as usize;
                index[dim] = (rest % len) as u32;
                rest /= len;
            }
            piece(element::place(self.desc, &index[..ndims])?.0, at..at + 1);
        }
        Ok(())
    }
}
