//! The form in which a failure crosses a process: bounded, self-describing, decoded without trust.
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

use crate::failure::Report;
use crate::{ErrorCode, Failure, MAX_CHAIN, clip};

/// The smallest buffer that takes any failure: two records and enough text to recognise both.
pub const MIN_WIRE_LEN: usize = 192;

/// The longest phase that crosses; a name, not a story.
const MAX_PHASE: usize = 64;
const MAX_MESSAGE: usize = u16::MAX as usize;
/// A further record is only worth its place when it can say this much.
const WORTHWHILE_TEXT: usize = 64;

const MAGIC: [u8; 4] = *b"WERR";
const VERSION: u16 = 1;
const HEADER: usize = 12;
const RECORD: usize = 22;
const RANK: u8 = 1;
const DEVICE: u8 = 2;
const PID: u8 = 4;

/// Why bytes are no failure, or a failure does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The buffer to encode into is too small for any failure.
    #[error("a failure needs a buffer of at least {MIN_WIRE_LEN} bytes, this one has {len}")]
    BufferTooSmall {
        /// Its length.
        len: usize,
    },
    /// The bytes end before the failure does.
    #[error("the bytes end at {len}, the failure goes on to {need}")]
    Truncated {
        /// How many bytes there are.
        len: usize,
        /// How many it takes to get past the field that is cut.
        need: usize,
    },
    /// The bytes do not start like a failure.
    #[error("the bytes start with {found:02x?}; a failure starts with {MAGIC:02x?}")]
    Magic {
        /// How they start.
        found: [u8; 4],
    },
    /// Another version wrote them.
    #[error("the failure is written in version {found}, this program reads version {VERSION}")]
    Version {
        /// That version.
        found: u16,
    },
    /// The number of failures in the chain is impossible.
    #[error("the chain has {count} failures; 1 to {MAX_CHAIN} are possible")]
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
    /// Bits are set that have no meaning.
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
    /// What is too long is cut with [`clip`]; what is too deep is left out between the outermost failures and
    /// the root cause, which always stays. Any `out` of at least [`MIN_WIRE_LEN`] bytes does.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        if out.len() < MIN_WIRE_LEN {
            return Err(WireError::BufferTooSmall { len: out.len() });
        }
        let links = self.kept_links(out.len());
        let budget = out.len() - HEADER - RECORD * links.len();
        let lengths: Vec<usize> = links.iter().map(|(link, _)| text_len(link)).collect();
        let shares = share(budget, &lengths);

        let mut writer = Writer { out, at: HEADER };
        for ((link, left_out), share) in links.iter().zip(shares) {
            writer.record(link, *left_out, share);
        }
        let total = writer.at;
        writer.at = 0;
        writer.put(&MAGIC);
        writer.put(&VERSION.to_le_bytes());
        writer.put(&(links.len() as u16).to_le_bytes());
        // The texts of at most MAX_CHAIN records are bounded by MAX_PHASE and MAX_MESSAGE each.
        writer.put(&(total as u32).to_le_bytes());
        Ok(total)
    }

    /// How many bytes [`encode`](Self::encode) takes when it need not cut anything to fit.
    pub fn encoded_len(&self) -> usize {
        HEADER + self.chain().map(|link| RECORD + text_len(link)).sum::<usize>()
    }

    /// Reads a failure from bytes of any origin. Bytes after the failure are ignored, as in a slot of fixed
    /// size.
    ///
    /// The bytes must not change meanwhile: copy them out of shared memory first.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut header = Reader { bytes, at: 0 };
        let found = header.take()?;
        if found != MAGIC {
            return Err(WireError::Magic { found });
        }
        let version = u16::from_le_bytes(header.take()?);
        if version != VERSION {
            return Err(WireError::Version { found: version });
        }
        let count = u16::from_le_bytes(header.take()?);
        if !(1..=MAX_CHAIN).contains(&usize::from(count)) {
            return Err(WireError::Count { count });
        }
        let stated = u32::from_le_bytes(header.take()?) as usize;
        let within = bytes.get(..stated).ok_or(WireError::Truncated { len: bytes.len(), need: stated })?;

        let mut reader = Reader { bytes: within, at: HEADER };
        let links =
            (0..usize::from(count)).map(|index| reader.record(index)).collect::<Result<Vec<_>, _>>()?;
        if reader.at != stated {
            return Err(WireError::Length { stated, found: reader.at });
        }
        Ok(Self::from_links(links))
    }

    /// The links that a buffer of `room` bytes takes, with what is left out after each. Always the outermost
    /// and the root.
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

/// Shares `budget` bytes among texts of these lengths. The last is the root cause and may take half; the
/// others get alike, but what the short ones do not need goes to the long ones, and what nobody needs to the
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

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    /// The caller has made sure of the room: `encode` shares out exactly what `out` has.
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn record(&mut self, link: &Failure, left_out: u16, text: usize) {
        // Half of a tight share is for the message, whatever the phase is.
        let phase = clip(&link.phase, MAX_PHASE.min(text.saturating_sub(link.message.len()).max(text / 2)));
        let message = clip(&link.message, MAX_MESSAGE.min(text - phase.len()));
        let present = |flag, is: bool| if is { flag } else { 0 };
        let flags = present(RANK, link.rank.is_some())
            | present(DEVICE, link.device.is_some())
            | present(PID, link.pid.is_some());
        self.put(&link.code.as_i32().to_le_bytes());
        self.put(&link.rank.unwrap_or(0).to_le_bytes());
        self.put(&link.device.unwrap_or(0).to_le_bytes());
        self.put(&link.pid.unwrap_or(0).to_le_bytes());
        self.put(&[flags, phase.len() as u8]);
        self.put(&(message.len() as u16).to_le_bytes());
        self.put(&left_out.to_le_bytes());
        self.put(phase.as_bytes());
        self.put(message.as_bytes());
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn slice(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let need = self.at.saturating_add(len);
        let slice =
            self.bytes.get(self.at..need).ok_or(WireError::Truncated { len: self.bytes.len(), need })?;
        self.at = need;
        Ok(slice)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut out = [0; N];
        out.copy_from_slice(self.slice(N)?);
        Ok(out)
    }

    fn record(&mut self, index: usize) -> Result<Failure, WireError> {
        let number = i32::from_le_bytes(self.take()?);
        let code = ErrorCode::from_i32(number).ok_or(WireError::Code { index, code: number })?;
        let rank = u32::from_le_bytes(self.take()?);
        let device = i32::from_le_bytes(self.take()?);
        let pid = u32::from_le_bytes(self.take()?);
        let [flags, phase_len] = self.take()?;
        if flags & !(RANK | DEVICE | PID) != 0 {
            return Err(WireError::Flags { index, flags });
        }
        let message_len = u16::from_le_bytes(self.take()?);
        let left_out = u16::from_le_bytes(self.take()?);
        let mut text = |len| {
            let bytes = self.slice(len)?;
            std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| WireError::Utf8 { index })
        };
        Ok(Failure(Box::new(Report {
            code,
            phase: Cow::Owned(text(phase_len.into())?),
            message: text(message_len.into())?,
            rank: (flags & RANK != 0).then_some(rank),
            device: (flags & DEVICE != 0).then_some(device),
            pid: (flags & PID != 0).then_some(pid),
            left_out,
            cause: None,
        })))
    }
}
