//! The wire form of a failure: bounded, self-describing, decoded without trust.
//!
//! Little endian, no alignment, no padding:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | magic `"WERR"` |
//! | 2 | version, 1 |
//! | 2 | number of failures, 1 to [`MAX_CHAIN`], outermost first |
//! | 4 | length of the whole in bytes, this header included |
//!
//! then for each failure
//!
//! | bytes | field |
//! |---|---|
//! | 4 | code |
//! | 4, 4, 4 | rank, device, pid; 0 when absent |
//! | 1 | which of them are present: bits 0, 1, 2 |
//! | 1 | length of the phase |
//! | 2 | length of the message |
//! | 2 | how many causes are left out after this failure |
//! | – | phase, message, in UTF-8 |

use std::borrow::Cow;

use crate::cursor::{Reader, Writer};
use crate::failure::Report;
use crate::{ErrorCode, Failure, MAX_CHAIN, clip};

/// The smallest buffer that takes any failure: two records and enough text to recognise both.
pub const MIN_WIRE_LEN: usize = 192;

/// The longest phase that crosses, in bytes.
const MAX_PHASE: usize = 64;
const MAX_MESSAGE: usize = u16::MAX as usize;
/// A further record is kept only when it has room for this much text.
const WORTHWHILE_TEXT: usize = 64;

const MAGIC: [u8; 4] = *b"WERR";
const VERSION: u16 = 1;
const HEADER: usize = 12;
const RECORD: usize = 22;
const RANK: u8 = 1;
const DEVICE: u8 = 2;
const PID: u8 = 4;

/// Why bytes are not a failure, or why a failure cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The buffer to encode into is too small for any failure.
    #[error("a failure needs a buffer of at least {MIN_WIRE_LEN} bytes, this one has {len}; give it more")]
    BufferTooSmall {
        /// Its length.
        len: usize,
    },
    /// The bytes end before the failure does.
    #[error("the bytes end at {len}, the failure needs {need}; pass all of it")]
    Truncated {
        /// How many bytes there are.
        len: usize,
        /// How many it takes to get past the part that is cut.
        need: usize,
    },
    /// The bytes do not start like a failure.
    #[error(
        "the bytes start with {found:02x?}; a failure starts with {MAGIC:02x?}: read what `encode` wrote"
    )]
    Magic {
        /// How they start.
        found: [u8; 4],
    },
    /// They are of another version.
    #[error(
        "the failure is written in version {found}, this program reads version {VERSION}; run one build in all processes"
    )]
    Version {
        /// The version found.
        found: u16,
    },
    /// The number of failures in the chain is out of range.
    #[error("the chain has {count} failures; the limit is 1 to {MAX_CHAIN}")]
    Count {
        /// The number.
        count: u16,
    },
    /// The code is not known.
    #[error("failure {index} of the chain has the unknown code {code}")]
    Code {
        /// Which failure.
        index: usize,
        /// Its code.
        code: i32,
    },
    /// Unknown flags are set.
    #[error("failure {index} of the chain has the unknown flags {flags:#04x}")]
    Flags {
        /// Which failure.
        index: usize,
        /// Its flags.
        flags: u8,
    },
    /// The text is not UTF-8.
    #[error("failure {index} of the chain has text that is not UTF-8")]
    Utf8 {
        /// Which failure.
        index: usize,
    },
    /// The length in the header is not where the last failure ends.
    #[error("the header says {stated} bytes, the failures take {found}")]
    Length {
        /// What the header says.
        stated: usize,
        /// What it is.
        found: usize,
    },
}

impl Failure {
    /// Writes the failure into `out` and returns how many bytes it took.
    ///
    /// Text that is too long is cut with [`clip`]. Of a chain that is too deep the failures before the root
    /// cause are left out. Any `out` of at least [`MIN_WIRE_LEN`] bytes is enough.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        if out.len() < MIN_WIRE_LEN {
            return Err(WireError::BufferTooSmall { len: out.len() });
        }
        let links = self.kept_links(out.len());
        let budget = out.len() - HEADER - RECORD * links.len();
        let lengths: Vec<usize> = links.iter().map(|(link, _)| text_len(link)).collect();
        let shares = share(budget, &lengths);

        let mut records = Writer::default();
        for ((link, left_out), share) in links.iter().zip(shares) {
            write_record(&mut records, link, *left_out, share);
        }
        let records = records.into_bytes();
        let total = HEADER + records.len();
        let mut to = Writer::default();
        // The total fits: the texts of at most MAX_CHAIN records are bounded by MAX_PHASE and MAX_MESSAGE
        // each.
        to.raw(&MAGIC).u16(VERSION).u16(links.len() as u16).u32(total as u32).raw(&records);
        // It fits `out` too: `share` divides exactly the room that `out` has.
        out[..total].copy_from_slice(&to.into_bytes());
        Ok(total)
    }

    /// The number of bytes that [`encode`](Self::encode) takes when nothing has to be cut.
    pub fn encoded_len(&self) -> usize {
        HEADER + self.chain().map(|link| RECORD + text_len(link)).sum::<usize>()
    }

    /// Reads a failure from untrusted bytes. Bytes after the failure are ignored, as in a slot of fixed size.
    ///
    /// The bytes must not change meanwhile: copy them out of shared memory first.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(bytes);
        let (found, version, count, stated) = part(&mut from, bytes.len(), HEADER, |from| {
            Some((from.array()?, from.u16()?, from.u16()?, from.u32()? as usize))
        })?;
        if found != MAGIC {
            return Err(WireError::Magic { found });
        }
        if version != VERSION {
            return Err(WireError::Version { found: version });
        }
        if !(1..=MAX_CHAIN).contains(&usize::from(count)) {
            return Err(WireError::Count { count });
        }
        let within = bytes.get(..stated).ok_or(WireError::Truncated { len: bytes.len(), need: stated })?;

        let mut from = Reader::new(within);
        part(&mut from, stated, HEADER, |_| Some(()))?;
        let links = (0..usize::from(count))
            .map(|index| read_record(&mut from, stated, index))
            .collect::<Result<Vec<_>, _>>()?;
        if from.position() != stated {
            return Err(WireError::Length { stated, found: from.position() });
        }
        Ok(Self::from_links(links))
    }

    /// The links that fit a buffer of `room` bytes, with the number left out after each. Always includes the
    /// outermost and the root.
    fn kept_links(&self, room: usize) -> Vec<(&Failure, u16)> {
        let mut links: Vec<(&Failure, u16)> = self.chain().map(|link| (link, link.left_out)).collect();
        let needed = |links: &[(&Failure, u16)]| {
            links.iter().map(|(link, _)| RECORD + text_len(link).min(WORTHWHILE_TEXT)).sum::<usize>()
        };
        while links.len() > 2 && HEADER + needed(&links) > room {
            let at = links.len() - 2;
            let (_, gone) = links.remove(at);
            let before = &mut links[at - 1].1;
            *before = before.saturating_add(gone).saturating_add(1);
        }
        links
    }
}

fn text_len(link: &Failure) -> usize {
    link.phase.len().min(MAX_PHASE) + link.message.len().min(MAX_MESSAGE)
}

/// Divides `budget` bytes among texts of these lengths. The last is the root cause and may take half. The
/// others get equal shares; what the short ones do not need goes to the long ones, and what is left to the
/// root.
fn share(budget: usize, lengths: &[usize]) -> Vec<usize> {
    let Some((&root, others)) = lengths.split_last() else { return Vec::new() };
    let mut shares = vec![0; lengths.len()];
    let root_share = if others.is_empty() { root.min(budget) } else { root.min(budget / 2) };
    let mut left = budget - root_share;
    let mut shortest_first: Vec<usize> = (0..others.len()).collect();
    shortest_first.sort_by_key(|&i| others[i]);
    for (done, &i) in shortest_first.iter().enumerate() {
        shares[i] = others[i].min(left / (others.len() - done));
        left -= shares[i];
    }
    shares[others.len()] = root.min(root_share + left);
    shares
}

fn write_record(to: &mut Writer, link: &Failure, left_out: u16, text: usize) {
    // Half of a tight share is for the message, whatever the phase is.
    let phase = clip(&link.phase, MAX_PHASE.min(text.saturating_sub(link.message.len()).max(text / 2)));
    let message = clip(&link.message, MAX_MESSAGE.min(text - phase.len()));
    let present = |flag, is: bool| if is { flag } else { 0 };
    let flags = present(RANK, link.rank.is_some())
        | present(DEVICE, link.device.is_some())
        | present(PID, link.pid.is_some());
    to.i32(link.code.as_i32())
        .u32(link.rank.unwrap_or(0))
        .i32(link.device.unwrap_or(0))
        .u32(link.pid.unwrap_or(0))
        .u8(flags)
        .u8(phase.len() as u8)
        .u16(message.len() as u16)
        .u16(left_out)
        .raw(phase.as_bytes())
        .raw(message.as_bytes());
}

/// What `read` makes of the next `size` of `len` bytes, or how many bytes are missing.
fn part<'a, T>(
    from: &mut Reader<'a>,
    len: usize,
    size: usize,
    read: impl FnOnce(&mut Reader<'a>) -> Option<T>,
) -> Result<T, WireError> {
    let need = from.position().saturating_add(size);
    let value = from.raw(size).and_then(|bytes| read(&mut Reader::new(bytes)));
    value.ok_or(WireError::Truncated { len, need })
}

fn read_record(from: &mut Reader<'_>, len: usize, index: usize) -> Result<Failure, WireError> {
    let ((number, rank, device, pid), (flags, phase, message, left_out)) = part(from, len, RECORD, |from| {
        let place = (from.i32()?, from.u32()?, from.i32()?, from.u32()?);
        Some((place, (from.u8()?, from.u8()?, from.u16()?, from.u16()?)))
    })?;
    let code = ErrorCode::from_i32(number).ok_or(WireError::Code { index, code: number })?;
    if flags & !(RANK | DEVICE | PID) != 0 {
        return Err(WireError::Flags { index, flags });
    }
    let mut text = |size| {
        let bytes = part(from, len, size, |from| from.raw(size))?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| WireError::Utf8 { index })
    };
    Ok(Failure(Box::new(Report {
        code,
        phase: Cow::Owned(text(phase.into())?),
        message: text(message.into())?,
        rank: (flags & RANK != 0).then_some(rank),
        device: (flags & DEVICE != 0).then_some(device),
        pid: (flags & PID != 0).then_some(pid),
        left_out,
        cause: None,
    })))
}
