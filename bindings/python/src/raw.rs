//! Calls on addresses, for the torch backend, which knows that they are valid: codes of `comm_coll.h`.
//!
//! # Safety
//! The Python half of this package passes addresses of tensors that it keeps until the call is over.
#![allow(unsafe_code)]

use crate::calls::length;
use crate::error::Raise;
use crate::group::Group;
use collectives::{DType, Kind, Op, Request as Call, Shared};
use pyo3::prelude::*;

#[pymethods]
impl Group {
    /// A call, run to its end.
    #[pyo3(signature = (kind, input, output, count, dtype, op = -1, root = 0, counts = None, receive_counts = None))]
    #[expect(clippy::too_many_arguments, reason = "a call has that many parts")]
    fn _raw(
        &self,
        py: Python<'_>,
        kind: u8,
        input: usize,
        output: usize,
        count: usize,
        dtype: u8,
        op: i16,
        root: u32,
        counts: Option<Vec<usize>>,
        receive_counts: Option<Vec<usize>>,
    ) -> PyResult<()> {
        let unknown = || Raise::invalid("an unknown kind, type or operation");
        let (kind, dtype) =
            (Kind::from_code(kind).ok_or_else(unknown)?, DType::from_code(dtype).ok_or_else(unknown)?);
        let op = match u8::try_from(op) {
            Ok(code) => Some(Op::from_code(code).ok_or_else(unknown)?),
            Err(_) => None,
        };
        for list in [&counts, &receive_counts].into_iter().flatten() {
            length("counts", list.len(), Some(self.size))?;
        }
        let list =
            |counts: &Option<Vec<usize>>| counts.as_ref().map_or(std::ptr::null(), |counts| counts.as_ptr());
        let call = Call {
            kind,
            dtype,
            op,
            root,
            count,
            counts: list(&counts),
            receive_counts: list(&receive_counts),
            input: std::ptr::with_exposed_provenance(input),
            output: std::ptr::with_exposed_provenance_mut(output),
            shared: Shared::Both,
        };
        // SAFETY: the Python half of this package passes addresses of tensors that it keeps.
        Ok(unsafe { self.run(py, call) }?)
    }

    /// The same for a message: started, with a number for `_wait` and `_test`.
    fn _raw_message(
        &self,
        sends: bool,
        at: usize,
        count: usize,
        dtype: u8,
        peer: usize,
        tag: u32,
    ) -> PyResult<u64> {
        let dtype = DType::from_code(dtype).ok_or_else(|| Raise::invalid("an unknown type"))?;
        let number = self.start([None, None], Default::default(), |coll| {
            if sends {
                // SAFETY: the Python half keeps the tensor until the message is over.
                unsafe { coll.start_send_raw(std::ptr::with_exposed_provenance(at), count, dtype, peer, tag) }
            } else {
                // SAFETY: as above.
                unsafe {
                    coll.start_recv_raw(std::ptr::with_exposed_provenance_mut(at), count, dtype, peer, tag)
                }
            }
        })?;
        Ok(number)
    }

    fn _wait(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        Ok(self.wait(py, number)?)
    }

    fn _test(&self, number: u64) -> PyResult<bool> {
        Ok(self.test(number)?)
    }
}
