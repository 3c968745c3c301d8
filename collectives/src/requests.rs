//! How the typed calls become requests.

use crate::element::{Element, Op};
use crate::error::{BadArgument, CollError};
use crate::pairs::{Direction, Transfer};
use crate::request::{Kind, Request, Shared};
use crate::tensor::{Buffer, Input};

/// Checks a length.
fn length(what: &'static str, have: usize, need: Option<usize>) -> Result<(), BadArgument> {
    match need {
        Some(need) if have == need => Ok(()),
        need => Err(BadArgument::Length { what, have, need: need.unwrap_or(usize::MAX) }),
    }
}

/// Checks that a list has a count for each rank, and returns their sum.
fn counts(what: &'static str, counts: &[usize], nranks: usize) -> Result<Option<usize>, BadArgument> {
    length(what, counts.len(), Some(nranks))?;
    Ok(counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count)))
}

/// Makes requests, with the lengths of their buffers checked. The calls and their started twins make the same ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests {
    pub(crate) rank: usize,
    pub(crate) nranks: usize,
}

impl Requests {
    pub(crate) fn all_reduce<B: Buffer + ?Sized>(&self, buffer: &mut B, op: Op) -> Request {
        let (at, count) = buffer.view_mut();
        let shared = if B::SHARED { Shared::Both } else { Shared::Nothing };
        Request {
            kind: Kind::AllReduce,
            dtype: B::Item::DTYPE,
            op: Some(op),
            count,
            input: at.cast_const().cast(),
            output: at.cast(),
            shared,
            ..Request::BARRIER
        }
    }

    /// A request with input and output of the types of its elements.
    fn request<I: Input + ?Sized>(kind: Kind, input: &I, count: usize, output: *mut I::Item) -> Request {
        Request {
            kind,
            dtype: I::Item::DTYPE,
            count,
            input: input.view().0.cast(),
            output: output.cast(),
            shared: if I::SHARED { Shared::Input } else { Shared::Nothing },
            ..Request::BARRIER
        }
    }

    pub(crate) fn all_reduce_into<I, B>(
        &self,
        input: &I,
        output: &mut B,
        op: Op,
    ) -> Result<Request, BadArgument>
    where
        I: Input + ?Sized,
        B: Buffer<Item = I::Item> + ?Sized,
    {
        let count = input.view().1;
        let (out, len) = output.view_mut();
        length("output", len, Some(count))?;
        let shared = if I::SHARED && B::SHARED { Shared::Both } else { Shared::Nothing };
        Ok(Request { op: Some(op), shared, ..Self::request(Kind::AllReduce, input, count, out) })
    }

    pub(crate) fn all_gather<I: Input + ?Sized>(
        &self,
        input: &I,
        output: &mut [I::Item],
    ) -> Result<Request, BadArgument> {
        let count = input.view().1;
        length("output", output.len(), count.checked_mul(self.nranks))?;
        Ok(Self::request(Kind::AllGather, input, count, output.as_mut_ptr()))
    }

    pub(crate) fn all_gather_v<I: Input + ?Sized>(
        &self,
        input: &I,
        output: &mut [I::Item],
        list: &[usize],
    ) -> Result<Request, BadArgument> {
        let sum = counts("counts", list, self.nranks)?;
        length("input", input.view().1, Some(list[self.rank]))?;
        length("output", output.len(), sum)?;
        let request = Self::request(Kind::AllGatherV, input, 0, output.as_mut_ptr());
        Ok(Request { counts: list.as_ptr(), ..request })
    }

    pub(crate) fn reduce_scatter<I: Input + ?Sized>(
        &self,
        input: &I,
        output: &mut [I::Item],
        op: Op,
    ) -> Result<Request, BadArgument> {
        length("input", input.view().1, output.len().checked_mul(self.nranks))?;
        let request = Self::request(Kind::ReduceScatter, input, output.len(), output.as_mut_ptr());
        Ok(Request { op: Some(op), ..request })
    }

    pub(crate) fn reduce_scatter_v<I: Input + ?Sized>(
        &self,
        input: &I,
        output: &mut [I::Item],
        list: &[usize],
        op: Op,
    ) -> Result<Request, BadArgument> {
        let sum = counts("counts", list, self.nranks)?;
        length("input", input.view().1, sum)?;
        length("output", output.len(), Some(list[self.rank]))?;
        let request = Self::request(Kind::ReduceScatterV, input, 0, output.as_mut_ptr());
        Ok(Request { counts: list.as_ptr(), op: Some(op), ..request })
    }

    pub(crate) fn broadcast<B: Buffer + ?Sized>(&self, buffer: &mut B, root: usize) -> Request {
        let (at, count) = buffer.view_mut();
        Request { root: rank(root), ..Self::request(Kind::Broadcast, buffer, count, at) }
    }

    pub(crate) fn reduce<I: Input + ?Sized>(
        &self,
        input: &I,
        output: Option<&mut [I::Item]>,
        op: Op,
        root: usize,
    ) -> Result<Request, BadArgument> {
        let count = input.view().1;
        let output = self.of_root(Kind::Reduce, "an output", root, output)?;
        output.iter().try_for_each(|output| length("output", output.len(), Some(count)))?;
        let at = output.map_or(core::ptr::null_mut(), <[_]>::as_mut_ptr);
        Ok(Request { op: Some(op), root: rank(root), ..Self::request(Kind::Reduce, input, count, at) })
    }

    pub(crate) fn all_to_all<I: Input + ?Sized>(
        &self,
        input: &I,
        output: &mut [I::Item],
    ) -> Result<Request, BadArgument> {
        let (len, count) = (input.view().1, input.view().1 / self.nranks);
        length("input", len, Some(count * self.nranks))?;
        length("output", output.len(), Some(len))?;
        Ok(Self::request(Kind::AllToAll, input, count, output.as_mut_ptr()))
    }

    pub(crate) fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send: &[usize],
        output: &mut [T],
        receive: &[usize],
    ) -> Result<Request, BadArgument> {
        length("input", input.len(), counts("send counts", send, self.nranks)?)?;
        length("output", output.len(), counts("receive counts", receive, self.nranks)?)?;
        let request = Self::request(Kind::AllToAllV, input, 0, output.as_mut_ptr());
        Ok(Request { counts: send.as_ptr(), receive_counts: receive.as_ptr(), ..request })
    }

    pub(crate) fn gather<I: Input + ?Sized>(
        &self,
        input: &I,
        output: Option<&mut [I::Item]>,
        root: usize,
    ) -> Result<Request, BadArgument> {
        let count = input.view().1;
        let output = self.of_root(Kind::Gather, "an output", root, output)?;
        output
            .iter()
            .try_for_each(|output| length("output", output.len(), count.checked_mul(self.nranks)))?;
        let at = output.map_or(core::ptr::null_mut(), <[_]>::as_mut_ptr);
        Ok(Request { root: rank(root), ..Self::request(Kind::Gather, input, count, at) })
    }

    pub(crate) fn scatter<I: Input + ?Sized>(
        &self,
        input: Option<&I>,
        output: &mut [I::Item],
        root: usize,
    ) -> Result<Request, BadArgument> {
        let count = output.len();
        let input = self.of_root(Kind::Scatter, "an input", root, input)?;
        input.iter().try_for_each(|input| length("input", input.view().1, count.checked_mul(self.nranks)))?;
        let at = output.as_mut_ptr();
        let request = match input {
            Some(input) => Self::request(Kind::Scatter, input, count, at),
            None => Request {
                input: core::ptr::null(),
                ..Self::request::<[I::Item]>(Kind::Scatter, output, count, at)
            },
        };
        Ok(Request { root: rank(root), ..request })
    }

    /// What only the root has: refused where it is missing there, passed over elsewhere.
    fn of_root<X>(
        &self,
        kind: Kind,
        what: &'static str,
        root: usize,
        part: Option<X>,
    ) -> Result<Option<X>, BadArgument> {
        match part {
            None if root == self.rank => Err(BadArgument::RootBuffer { kind, what }),
            part => Ok(part.filter(|_| root == self.rank)),
        }
    }

    /// A message to or from another rank.
    pub(crate) fn transfer<T: Element>(
        &self,
        direction: Direction,
        peer: usize,
        tag: u32,
        len: usize,
    ) -> Result<Transfer, CollError> {
        if peer >= self.nranks || peer == self.rank {
            return Err(BadArgument::Peer { rank: peer, nranks: self.nranks, me: self.rank }.into());
        }
        Ok(Transfer {
            direction,
            peer,
            tag,
            dtype: T::DTYPE,
            bytes: len * size_of::<T>(),
            sent: 0,
            done: false,
        })
    }
}

/// A rank beyond all others is refused with the rest.
fn rank(root: usize) -> u32 {
    u32::try_from(root).unwrap_or(u32::MAX)
}
