//! The collective calls, on arrays and, for the torch backend, on addresses.
//!
//! # Safety
//! Arrays are valid for their elements while they are kept: until the call returns or, started, in the group until it is over.
#![allow(unsafe_code)]

use crate::array::{Array, Use, named};
use crate::error::{Raise, Result};
use crate::group::{Group, Request};
use collectives::{DType, Kind, Op, Request as Call, Shared};
use pyo3::prelude::*;

type Given<'a, 'py> = &'a Bound<'py, PyAny>;

/// A call that was checked, with what it uses.
struct Ready {
    call: Call,
    arrays: [Option<Array>; 2],
    counts: [Box<[usize]>; 2],
}

impl Ready {
    fn new(kind: Kind, count: usize, dtype: DType, arrays: [Option<Array>; 2]) -> Self {
        let call = Call { kind, dtype, count, shared: Shared::Both, ..Call::BARRIER };
        Self { call, arrays, counts: Default::default() }
    }

    /// Runs or starts it, with the pointers of its arrays.
    fn make(mut self, group: &Bound<'_, Group>, start: bool) -> PyResult<Option<Request>> {
        let (py, this) = (group.py(), group.get());
        if let Some(input) = &self.arrays[0] {
            self.call.input = input.at();
        }
        // In place where there is no output of its own.
        let in_place = matches!(self.call.kind, Kind::AllReduce | Kind::Broadcast);
        match (&self.arrays[1], &self.arrays[0]) {
            (Some(output), _) => self.call.output = output.at(),
            (None, Some(input)) if in_place => self.call.output = input.at(),
            _ => {}
        }
        let list = |counts: &[usize]| if counts.is_empty() { std::ptr::null() } else { counts.as_ptr() };
        (self.call.counts, self.call.receive_counts) = (list(&self.counts[0]), list(&self.counts[1]));
        if !start {
            // SAFETY: the arrays and the lists live until the end of this function, with the lengths that were checked.
            unsafe { this.run(py, self.call) }?;
            return Ok(None);
        }
        let Self { call, arrays, counts } = self;
        // SAFETY: the group keeps arrays and lists, at the same addresses, until the call is over; the thread is checked there.
        let number = this.start(arrays, counts, |coll| unsafe { coll.start_raw(call) })?;
        Ok(Some(Request { group: group.clone().unbind(), number }))
    }
}

fn op(name: &str) -> Result<Op> {
    Ok(match name {
        "sum" => Op::Sum,
        "prod" => Op::Prod,
        "max" => Op::Max,
        "min" => Op::Min,
        "avg" => Op::Avg,
        "band" => Op::BitAnd,
        "bor" => Op::BitOr,
        "bxor" => Op::BitXor,
        "land" => Op::LogicalAnd,
        "lor" => Op::LogicalOr,
        "lxor" => Op::LogicalXor,
        _ => {
            let text = format!(
                "op is {name:?}; it is one of sum, prod, max, min, avg, band, bor, bxor, land, lor, lxor"
            );
            return Err(Raise::invalid(text));
        }
    })
}

/// Both arrays, of one type.
fn two(input: Given<'_, '_>, output: Given<'_, '_>, dtype: Option<&str>) -> PyResult<(Array, Array)> {
    let dtype = dtype.map(named).transpose()?;
    let (input, output) =
        (Array::new(input, "input", Use::Reads, dtype)?, Array::new(output, "output", Use::Writes, dtype)?);
    if input.dtype != output.dtype {
        let text = format!(
            "input has elements of {} and output of {}; pass arrays of one type",
            input.dtype, output.dtype
        );
        return Err(Raise::invalid(text).into());
    }
    Ok((input, output))
}

fn length(what: &str, have: usize, need: Option<usize>) -> Result<()> {
    match need {
        Some(need) if need == have => Ok(()),
        Some(need) => Err(Raise::invalid(format!("{what} has {have} elements; this call takes {need}"))),
        None => Err(Raise::invalid(format!("{what} would have more elements than memory"))),
    }
}

impl Group {
    fn sum(&self, what: &str, counts: &[usize]) -> Result<Option<usize>> {
        length(what, counts.len(), Some(self.size))?;
        Ok(counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count)))
    }

    fn root(&self, root: usize) -> Result<u32> {
        let valid = u32::try_from(root).ok().filter(|_| root < self.size);
        valid.ok_or_else(|| {
            Raise::invalid(format!("root is {root}; the group has ranks 0 to {}", self.size - 1))
        })
    }
}

#[pymethods]
impl Group {
    /// Returns when every rank has come here.
    #[pyo3(signature = (*, start = false))]
    fn barrier(slf: &Bound<'_, Self>, start: bool) -> PyResult<Option<Request>> {
        let ready = Ready { call: Call::BARRIER, arrays: [None, None], counts: Default::default() };
        ready.make(slf, start)
    }

    /// Combines `array` of all ranks, in place or into `out`, on every rank.
    #[pyo3(signature = (array, op = "sum", *, out = None, dtype = None, start = false))]
    fn all_reduce(
        slf: &Bound<'_, Self>,
        array: Given<'_, '_>,
        op: &str,
        out: Option<Given<'_, '_>>,
        dtype: Option<&str>,
        start: bool,
    ) -> PyResult<Option<Request>> {
        let op = self::op(op)?;
        let (input, output) = match out {
            None => (Array::new(array, "array", Use::Writes, dtype.map(named).transpose()?)?, None),
            Some(out) => {
                let (input, output) = two(array, out, dtype)?;
                length("out", output.count, Some(input.count))?;
                (input, Some(output))
            }
        };
        let mut ready = Ready::new(Kind::AllReduce, input.count, input.dtype, [Some(input), output]);
        ready.call.op = Some(op);
        ready.make(slf, start)
    }

    /// Collects `input` of all ranks, in their order, in `output` of every rank; with `counts`, that many elements of each.
    #[pyo3(signature = (input, output, counts = None, *, dtype = None, start = false))]
    fn all_gather(
        slf: &Bound<'_, Self>,
        input: Given<'_, '_>,
        output: Given<'_, '_>,
        counts: Option<Vec<usize>>,
        dtype: Option<&str>,
        start: bool,
    ) -> PyResult<Option<Request>> {
        let this = slf.get();
        let (input, output) = two(input, output, dtype)?;
        let Some(counts) = counts else {
            length("output", output.count, input.count.checked_mul(this.size))?;
            return Ready::new(Kind::AllGather, input.count, input.dtype, [Some(input), Some(output)])
                .make(slf, start);
        };
        length("output", output.count, this.sum("counts", &counts)?)?;
        length("input", input.count, Some(counts[this.rank]))?;
        let mut ready = Ready::new(Kind::AllGatherV, 0, input.dtype, [Some(input), Some(output)]);
        ready.counts[0] = counts.into();
        ready.make(slf, start)
    }

    /// Combines `input` of all ranks, and leaves block `r` of the result in `output` of rank `r`; with `counts`, of that many elements.
    #[pyo3(signature = (input, output, op = "sum", counts = None, *, dtype = None, start = false))]
    fn reduce_scatter(
        slf: &Bound<'_, Self>,
        input: Given<'_, '_>,
        output: Given<'_, '_>,
        op: &str,
        counts: Option<Vec<usize>>,
        dtype: Option<&str>,
        start: bool,
    ) -> PyResult<Option<Request>> {
        let (this, op) = (slf.get(), self::op(op)?);
        let (input, output) = two(input, output, dtype)?;
        let mut ready = match counts {
            None => {
                length("input", input.count, output.count.checked_mul(this.size))?;
                Ready::new(Kind::ReduceScatter, output.count, input.dtype, [Some(input), Some(output)])
            }
            Some(counts) => {
                length("input", input.count, this.sum("counts", &counts)?)?;
                length("output", output.count, Some(counts[this.rank]))?;
                let mut ready = Ready::new(Kind::ReduceScatterV, 0, input.dtype, [Some(input), Some(output)]);
                ready.counts[0] = counts.into();
                ready
            }
        };
        ready.call.op = Some(op);
        ready.make(slf, start)
    }

    /// Copies `array` of rank `root` to that of every rank.
    #[pyo3(signature = (array, root = 0, *, dtype = None, start = false))]
    fn broadcast(
        slf: &Bound<'_, Self>,
        array: Given<'_, '_>,
        root: usize,
        dtype: Option<&str>,
        start: bool,
    ) -> PyResult<Option<Request>> {
        let this = slf.get();
        let uses = if this.rank == root { Use::Reads } else { Use::Writes };
        let array = Array::new(array, "array", uses, dtype.map(named).transpose()?)?;
        let mut ready = Ready::new(Kind::Broadcast, array.count, array.dtype, [Some(array), None]);
        ready.call.root = this.root(root)?;
        ready.make(slf, start)
    }

    /// Combines `input` of all ranks into `output` of rank `root`, which alone needs one.
    #[pyo3(signature = (input, output = None, op = "sum", root = 0, *, dtype = None, start = false))]
    fn reduce(
        slf: &Bound<'_, Self>,
        input: Given<'_, '_>,
        output: Option<Given<'_, '_>>,
        op: &str,
        root: usize,
        dtype: Option<&str>,
        start: bool,
    ) -> PyResult<Option<Request>> {
        let this = slf.get();
        let (op, root_rank) = (self::op(op)?, this.root(root)?);
        let (input, output) = at_root(this.rank == root, input, output, "output", dtype)?;
        if let Some(output) = &output {
            length("output", output.count, Some(input.count))?;
        }
        let mut ready = Ready::new(Kind::Reduce, input.count, input.dtype, [Some(input), output]);
        (ready.call.op, ready.call.root) = (Some(op), root_rank);
        ready.make(slf, start)
    }

    /// Collects `input` of all ranks, in their order, in `output` of rank `root`, which alone needs one.
    #[pyo3(signature = (input, output = None, root = 0, *, dtype = None, start = false))]
    fn gather(
        slf: &Bound<'_, Self>,
        input: Given<'_, '_>,
        output: Option<Given<'_, '_>>,
        root: usize,
        dtype: Option<&str>,
        start: bool,
    ) -> PyResult<Option<Request>> {
        let this = slf.get();
        let root_rank = this.root(root)?;
        let (input, output) = at_root(this.rank == root, input, output, "output", dtype)?;
        if let Some(output) = &output {
            length("output", output.count, input.count.checked_mul(this.size))?;
        }
        let mut ready = Ready::new(Kind::Gather, input.count, input.dtype, [Some(input), output]);
        ready.call.root = root_rank;
        ready.make(slf, start)
    }

    /// Sends block `r` of `input` of rank `root`, which alone needs one, to `output` of rank `r`.
    #[pyo3(signature = (input, output, root = 0, *, dtype = None, start = false))]
    fn scatter(
        slf: &Bound<'_, Self>,
        input: Option<Given<'_, '_>>,
        output: Given<'_, '_>,
        root: usize,
        dtype: Option<&str>,
        start: bool,
    ) -> PyResult<Option<Request>> {
        let this = slf.get();
        let root_rank = this.root(root)?;
        let (input, output) = match input {
            Some(input) if this.rank == root => {
                let (input, output) = two(input, output, dtype)?;
                length("input", input.count, output.count.checked_mul(this.size))?;
                (Some(input), output)
            }
            None if this.rank == root => return Err(Raise::invalid("scatter needs input on the root").into()),
            _ => (None, Array::new(output, "output", Use::Writes, dtype.map(named).transpose()?)?),
        };
        let mut ready = Ready::new(Kind::Scatter, output.count, output.dtype, [input, Some(output)]);
        ready.call.root = root_rank;
        ready.make(slf, start)
    }

    /// Sends block `r` of `input` to rank `r`, and collects what all send here in `output`; with counts, that many elements to and from
    /// each rank.
    #[pyo3(signature = (input, output, send_counts = None, receive_counts = None, *, dtype = None, start = false))]
    fn all_to_all(
        slf: &Bound<'_, Self>,
        input: Given<'_, '_>,
        output: Given<'_, '_>,
        send_counts: Option<Vec<usize>>,
        receive_counts: Option<Vec<usize>>,
        dtype: Option<&str>,
        start: bool,
    ) -> PyResult<Option<Request>> {
        let this = slf.get();
        let (input, output) = two(input, output, dtype)?;
        match (send_counts, receive_counts) {
            (None, None) => {
                length("output", output.count, Some(input.count))?;
                if !input.count.is_multiple_of(this.size) {
                    let text = format!(
                        "input has {} elements, which {} ranks cannot share evenly",
                        input.count, this.size
                    );
                    return Err(Raise::invalid(text).into());
                }
                let count = input.count / this.size;
                Ready::new(Kind::AllToAll, count, input.dtype, [Some(input), Some(output)]).make(slf, start)
            }
            (Some(send), Some(receive)) => {
                length("input", input.count, this.sum("send_counts", &send)?)?;
                length("output", output.count, this.sum("receive_counts", &receive)?)?;
                let mut ready = Ready::new(Kind::AllToAllV, 0, input.dtype, [Some(input), Some(output)]);
                ready.counts = [send.into(), receive.into()];
                ready.make(slf, start)
            }
            _ => Err(Raise::invalid("give both send_counts and receive_counts, or neither").into()),
        }
    }

    /// Sends `array` to another rank. Returns when it may be written again.
    #[pyo3(signature = (array, to, tag = 0, *, dtype = None, start = false))]
    fn send(
        slf: &Bound<'_, Self>,
        array: Given<'_, '_>,
        to: usize,
        tag: u32,
        dtype: Option<&str>,
        start: bool,
    ) -> PyResult<Option<Request>> {
        let array = Array::new(array, "array", Use::Reads, dtype.map(named).transpose()?)?;
        let (at, count, dtype) = (array.at(), array.count, array.dtype);
        // SAFETY: the group keeps the array until the message is sent.
        let begin =
            |coll: &collectives::Collectives<'_>| unsafe { coll.start_send_raw(at, count, dtype, to, tag) };
        let number = slf.get().start([Some(array), None], Default::default(), begin)?;
        after_start(slf, number, start)
    }

    /// Receives `array` from another rank: the first message with this tag.
    #[pyo3(signature = (array, source, tag = 0, *, dtype = None, start = false))]
    fn recv(
        slf: &Bound<'_, Self>,
        array: Given<'_, '_>,
        source: usize,
        tag: u32,
        dtype: Option<&str>,
        start: bool,
    ) -> PyResult<Option<Request>> {
        let array = Array::new(array, "array", Use::Writes, dtype.map(named).transpose()?)?;
        let (at, count, dtype) = (array.at(), array.count, array.dtype);
        // SAFETY: the group keeps the array until the message is received.
        let begin = |coll: &collectives::Collectives<'_>| unsafe {
            coll.start_recv_raw(at, count, dtype, source, tag)
        };
        let number = slf.get().start([Some(array), None], Default::default(), begin)?;
        after_start(slf, number, start)
    }

    /// A call on addresses, for the torch backend, which knows that they are valid: codes of `comm_coll.h`.
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

fn after_start(group: &Bound<'_, Group>, number: u64, start: bool) -> PyResult<Option<Request>> {
    if start {
        return Ok(Some(Request { group: group.clone().unbind(), number }));
    }
    group.get().wait(group.py(), number)?;
    Ok(None)
}

/// The arrays of a call whose result goes to the root.
fn at_root(
    is_root: bool,
    input: Given<'_, '_>,
    output: Option<Given<'_, '_>>,
    what: &str,
    dtype: Option<&str>,
) -> PyResult<(Array, Option<Array>)> {
    match output {
        Some(output) if is_root => two(input, output, dtype).map(|(input, output)| (input, Some(output))),
        None if is_root => Err(Raise::invalid(format!("the root needs {what}; pass an array for it")).into()),
        _ => Ok((Array::new(input, "input", Use::Reads, dtype.map(named).transpose()?)?, None)),
    }
}
