//! The collective calls on arrays; `raw` has those on addresses.
//!
//! # Safety
//! Arrays are valid for their elements while they are kept: until the call returns or, started, in the group until it is over.
#![allow(unsafe_code)]

use crate::array::{Array, Use, named};
use crate::error::{Raise, Result};
use crate::group::{Group, Request};
use collectives::{CollError, Collectives, DType, Kind, Op, Request as Call, Shared, Ticket};
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

    fn op(mut self, op: Op) -> Self {
        self.call.op = Some(op);
        self
    }

    fn root(mut self, root: u32) -> Self {
        self.call.root = root;
        self
    }

    /// How many elements to or of each rank, and from each.
    fn counts(mut self, send: Vec<usize>, receive: Vec<usize>) -> Self {
        self.counts = [send.into(), receive.into()];
        self
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

fn one(array: Given<'_, '_>, what: &'static str, uses: Use, dtype: Option<&str>) -> PyResult<Array> {
    Array::new(array, what, uses, dtype.map(named).transpose()?)
}

/// Both arrays, of one type.
fn two(input: Given<'_, '_>, output: Given<'_, '_>, dtype: Option<&str>) -> PyResult<(Array, Array)> {
    let (input, output) =
        (one(input, "input", Use::Reads, dtype)?, one(output, "output", Use::Writes, dtype)?);
    if input.dtype != output.dtype {
        let text = format!(
            "input has elements of {} and output of {}; pass arrays of one type",
            input.dtype, output.dtype
        );
        return Err(Raise::invalid(text).into());
    }
    Ok((input, output))
}

pub(crate) fn length(what: &str, have: usize, need: Option<usize>) -> Result<()> {
    match need {
        Some(need) if need == have => Ok(()),
        Some(need) => Err(Raise::invalid(format!("{what} has {have} elements; this call takes {need}"))),
        None => Err(Raise::invalid(format!(
            "{what} would have more elements than memory holds; pass smaller counts"
        ))),
    }
}

impl Group {
    fn sum(&self, what: &str, counts: &[usize]) -> Result<Option<usize>> {
        length(what, counts.len(), Some(self.size))?;
        Ok(counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count)))
    }

    /// The elements of each rank's part, where all have as many; otherwise the counts. The array that has all parts is as long as all.
    fn shares(
        &self,
        (whole, have): (&str, usize),
        (part, own): (&str, usize),
        counts: Option<Vec<usize>>,
    ) -> Result<(usize, Vec<usize>)> {
        let Some(counts) = counts else {
            length(whole, have, own.checked_mul(self.size))?;
            return Ok((own, Vec::new()));
        };
        length(whole, have, self.sum("counts", &counts)?)?;
        length(part, own, Some(counts[self.rank]))?;
        Ok((0, counts))
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
            None => (one(array, "array", Use::Writes, dtype)?, None),
            Some(out) => {
                let (input, output) = two(array, out, dtype)?;
                length("out", output.count, Some(input.count))?;
                (input, Some(output))
            }
        };
        Ready::new(Kind::AllReduce, input.count, input.dtype, [Some(input), output]).op(op).make(slf, start)
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
        let (whole, part) = (("output", output.count), ("input", input.count));
        let (count, counts) = this.shares(whole, part, counts)?;
        let kind = if counts.is_empty() { Kind::AllGather } else { Kind::AllGatherV };
        let ready = Ready::new(kind, count, input.dtype, [Some(input), Some(output)]);
        ready.counts(counts, Vec::new()).make(slf, start)
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
        let (whole, part) = (("input", input.count), ("output", output.count));
        let (count, counts) = this.shares(whole, part, counts)?;
        let kind = if counts.is_empty() { Kind::ReduceScatter } else { Kind::ReduceScatterV };
        let ready = Ready::new(kind, count, input.dtype, [Some(input), Some(output)]);
        ready.counts(counts, Vec::new()).op(op).make(slf, start)
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
        let array = one(array, "array", uses, dtype)?;
        let ready = Ready::new(Kind::Broadcast, array.count, array.dtype, [Some(array), None]);
        ready.root(this.root(root)?).make(slf, start)
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
        let ready = Ready::new(Kind::Reduce, input.count, input.dtype, [Some(input), output]);
        ready.op(op).root(root_rank).make(slf, start)
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
        let ready = Ready::new(Kind::Gather, input.count, input.dtype, [Some(input), output]);
        ready.root(root_rank).make(slf, start)
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
            None if this.rank == root => return Err(root_needs("input").into()),
            _ => (None, one(output, "output", Use::Writes, dtype)?),
        };
        let ready = Ready::new(Kind::Scatter, output.count, output.dtype, [input, Some(output)]);
        ready.root(root_rank).make(slf, start)
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
                        "input has {} elements, which {} ranks cannot share evenly; pass send_counts and receive_counts",
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
                let ready = Ready::new(Kind::AllToAllV, 0, input.dtype, [Some(input), Some(output)]);
                ready.counts(send, receive).make(slf, start)
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
        let array = one(array, "array", Use::Reads, dtype)?;
        let (at, count, dtype) = (array.at(), array.count, array.dtype);
        // SAFETY: the group keeps the array until the message is sent.
        message(slf, array, start, |coll| unsafe { coll.start_send_raw(at, count, dtype, to, tag) })
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
        let array = one(array, "array", Use::Writes, dtype)?;
        let (at, count, dtype) = (array.at(), array.count, array.dtype);
        // SAFETY: the group keeps the array until the message is received.
        message(slf, array, start, |coll| unsafe { coll.start_recv_raw(at, count, dtype, source, tag) })
    }
}

/// Starts a message, and waits for it unless it is only to be started.
fn message(
    group: &Bound<'_, Group>,
    array: Array,
    start: bool,
    begin: impl FnOnce(&Collectives<'static>) -> core::result::Result<Ticket, CollError>,
) -> PyResult<Option<Request>> {
    let number = group.get().start([Some(array), None], Default::default(), begin)?;
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
        None if is_root => Err(root_needs(what).into()),
        _ => Ok((one(input, "input", Use::Reads, dtype)?, None)),
    }
}

fn root_needs(what: &str) -> Raise {
    Raise::invalid(format!("the root needs {what}; pass an array for it"))
}
