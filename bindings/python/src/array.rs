//! Arrays of the caller, as the collectives take them.

use crate::error::{Raise, Result};
use collectives::DType;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// The elements of a contiguous buffer, which stays where it is as long as this lives.
pub(crate) struct Array {
    buffer: PyUntypedBuffer,
    pub(crate) dtype: DType,
    pub(crate) count: usize,
}

/// What a call does with an array.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Reads,
    Writes,
}

impl Array {
    /// The array `given` as argument `what`, or why it cannot be used. `dtype` says what the elements are where numpy has no name for it.
    pub(crate) fn new(
        given: &Bound<'_, PyAny>,
        what: &str,
        uses: Use,
        dtype: Option<DType>,
    ) -> PyResult<Self> {
        let buffer = match PyUntypedBuffer::get(given) {
            Ok(buffer) => buffer,
            Err(error) => other_protocol(given, what, error)?,
        };
        if !buffer.is_c_contiguous() {
            let text = format!(
                "{what} is not contiguous; pass np.ascontiguousarray({what}), and copy a result back"
            );
            return Err(Raise::invalid(text).into());
        }
        if uses == Use::Writes && buffer.readonly() {
            let text = format!(
                "{what} is read-only, and the result goes there; pass a writable array such as {what}.copy()"
            );
            return Err(Raise::invalid(text).into());
        }
        let count = buffer.item_count();
        let found = of_format(buffer.format().to_bytes(), buffer.item_size());
        let dtype = match (dtype, found) {
            (None, Some(found)) => found,
            (Some(asked), _) if asked.size() == buffer.item_size() => asked,
            (Some(asked), _) => {
                let text = format!(
                    "{what} has elements of {} bytes, and those of {asked} have {}; leave dtype out, or pass the array's own",
                    buffer.item_size(),
                    asked.size()
                );
                return Err(Raise::invalid(text).into());
            }
            (None, None) => {
                let format = buffer.format().to_string_lossy().into_owned();
                let text = format!("{what} has elements of format {format:?}; {SUPPORTED}");
                return Err(Raise::invalid(text).into());
            }
        };
        Ok(Self { buffer, dtype, count })
    }

    /// The shape, as tensor descriptors have it.
    pub(crate) fn shape(&self) -> Result<Vec<u32>> {
        let each = self.buffer.shape().iter().map(|count| u32::try_from(*count));
        let shape = each.collect::<core::result::Result<Vec<_>, _>>();
        let shape = shape.map_err(|_| {
            Raise::invalid("a dimension of a tensor has at most 2^32 - 1 elements; split it in two")
        })?;
        Ok(if shape.is_empty() { vec![1] } else { shape })
    }

    pub(crate) fn at(&self) -> *mut u8 {
        self.buffer.buf_ptr().cast()
    }
}

const SUPPORTED: &str = "use float16, float32, float64, bool or an integer type in native byte order, \
                         or 16-bit integers with dtype=\"bf16\"";

/// What has no buffer protocol may have DLPack's.
fn other_protocol(given: &Bound<'_, PyAny>, what: &str, error: PyErr) -> PyResult<PyUntypedBuffer> {
    let py = given.py();
    let kind = given.get_type().name()?;
    if given.hasattr("__dlpack__")? && !given.hasattr("__array_interface__")? {
        let array = py.import("numpy")?.call_method1("from_dlpack", (given,))?;
        return PyUntypedBuffer::get(&array);
    }
    let text = if given.hasattr("__array_interface__")? {
        format!("{what} cannot be passed as memory ({error}); {SUPPORTED}")
    } else {
        format!(
            "{what} is a {kind}; pass a numpy array, or another object with the buffer protocol or DLPack"
        )
    };
    Err(PyTypeError::new_err(text))
}

/// The type of a format of the buffer protocol.
#[inline]
fn of_format(format: &[u8], size: usize) -> Option<DType> {
    let code = match format {
        [code] | [b'@' | b'=' | b'<', code] => *code,
        _ => return None,
    };
    Some(match (code, size) {
        (b'f', 4) => DType::F32,
        (b'd', 8) => DType::F64,
        (b'e', 2) => DType::F16,
        (b'?', 1) => DType::Bool,
        (b'b', 1) => DType::I8,
        (b'B', 1) => DType::U8,
        (b'h', 2) => DType::I16,
        (b'H', 2) => DType::U16,
        (b'i' | b'l', 4) => DType::I32,
        (b'I' | b'L', 4) => DType::U32,
        (b'l' | b'q', 8) => DType::I64,
        (b'L' | b'Q', 8) => DType::U64,
        _ => return None,
    })
}

/// The type that a caller names.
pub(crate) fn named(name: &str) -> Result<DType> {
    let known = DType::ALL.iter().copied().find(|dtype| dtype.name() == name);
    known.ok_or_else(|| {
        let names = DType::ALL.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ");
        Raise::invalid(format!("dtype is {name:?}; it is one of {names}"))
    })
}
