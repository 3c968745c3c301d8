//! The memory of a task's arguments, for the checks of its child (`child/check`): a frame before the task's own.

use crate::args::Access;
use std::ops::Range;
use worker_errors::cursor::{Reader, Writer};

/// What stands in front of and behind a buffer, up to its guard pages.
pub(crate) const CANARY: u8 = 0xC5;
/// What an output holds before its task has written it: not a number in every float type, and -1 or the greatest integer.
pub(crate) const UNWRITTEN: u8 = 0xFF;

/// The memory of one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) argument: Argument,
    /// `NoDependency` when nothing is known of it.
    pub(crate) access: Access,
    /// What the tensor covers; where a scalar points to, a byte.
    pub(crate) bytes: Range<u64>,
    /// The host buffer that it lies in; `None` for other memory.
    pub(crate) buffer: Option<Range<u64>>,
}

/// An argument, as the user counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    Tensor(u8),
    Scalar(u8),
}

impl std::fmt::Display for Argument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tensor(index) => write!(f, "tensor {index}"),
            Self::Scalar(index) => write!(f, "the buffer that scalar {index} points to"),
        }
    }
}

const ACCESSES: [Access; 5] =
    [Access::Input, Access::Output, Access::InOut, Access::OutputExisting, Access::NoDependency];

/// The blob of a `Spans` frame.
pub(crate) fn encode(spans: &[Span]) -> Vec<u8> {
    let mut to = Writer::default();
    to.list(spans, |to, span| {
        let (kind, index) = match span.argument {
            Argument::Tensor(index) => (0, index),
            Argument::Scalar(index) => (1, index),
        };
        let access = ACCESSES.iter().position(|access| *access == span.access).unwrap_or(0);
        to.u8(kind).u8(index).u8(access as u8).number(span.bytes.start).number(span.bytes.end);
        to.option(span.buffer.as_ref(), |to, buffer| {
            to.number(buffer.start).number(buffer.end);
        });
    });
    to.into_bytes()
}

/// `None` unless the bytes are spans from the first to the last.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<Span>> {
    let mut from = Reader::new(bytes);
    let range = |from: &mut Reader<'_>| {
        let (start, end) = (from.number()?, from.number()?);
        (start <= end).then_some(start..end)
    };
    let spans = from.list(|from| {
        let argument = match (from.u8()?, from.u8()?) {
            (0, index) => Argument::Tensor(index),
            (1, index) => Argument::Scalar(index),
            _ => return None,
        };
        let access = *ACCESSES.get(usize::from(from.u8()?))?;
        Some(Span { argument, access, bytes: range(from)?, buffer: from.option(range)? })
    })?;
    from.end(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_survive_the_frame_and_malformed_ones_are_refused() {
        let spans = [
            Span { argument: Argument::Tensor(3), access: Access::Output, bytes: 8..16, buffer: Some(0..64) },
            Span { argument: Argument::Scalar(15), access: Access::NoDependency, bytes: 9..10, buffer: None },
        ];
        let bytes = encode(&spans);
        assert_eq!(decode(&bytes).as_deref(), Some(&spans[..]));
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None);
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
        let backwards = Span { bytes: 9..9, ..spans[0].clone() };
        let mut bytes = encode(&[backwards]);
        let start = bytes.iter().position(|byte| *byte == 9).unwrap();
        bytes[start] = 10;
        assert_eq!(decode(&bytes), None);
    }
}
