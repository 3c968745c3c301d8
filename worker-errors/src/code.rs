//! The kinds of failure that processes tell each other.

use core::fmt;

/// What kind of failure it is. The numbers cross processes and never change; 0 is success and no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
pub enum ErrorCode {
    /// A wrong argument or setting, refused before anything was created.
    Invalid = 1,
    /// The deadline passed while everybody was alive.
    TimedOut = 2,
    /// The process of a peer is gone.
    PeerDied = 3,
    /// A peer left in order while it was still needed.
    PeerLeft = 4,
    /// The run was aborted because of another failure.
    Aborted = 5,
    /// Not enough memory.
    OutOfMemory = 6,
    /// The operating system refused a call.
    System = 7,
    /// A vendor library refused a call.
    Vendor = 8,
    /// Two sides disagree on something that must be the same.
    Mismatch = 9,
    /// Bytes from another process do not follow the protocol.
    Protocol = 10,
    /// A panic was caught.
    Panic = 11,
    /// A child exited although nobody asked it to.
    Exited = 12,
    /// A signal ended a child.
    Killed = 13,
    /// A task or a kernel reported failure.
    Task = 14,
    /// A library, kernel or symbol could not be loaded.
    Load = 15,
    /// The object was closed before.
    Closed = 16,
    /// A bug of this program.
    Internal = 17,
}

impl ErrorCode {
    /// Every code, in the order of the numbers.
    pub const ALL: [Self; 17] = [
        Self::Invalid,
        Self::TimedOut,
        Self::PeerDied,
        Self::PeerLeft,
        Self::Aborted,
        Self::OutOfMemory,
        Self::System,
        Self::Vendor,
        Self::Mismatch,
        Self::Protocol,
        Self::Panic,
        Self::Exited,
        Self::Killed,
        Self::Task,
        Self::Load,
        Self::Closed,
        Self::Internal,
    ];

    /// The number.
    pub const fn as_i32(self) -> i32 {
        self as i32
    }

    /// The code of a number, if there is one: it comes from another process.
    pub fn from_i32(number: i32) -> Option<Self> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::ALL.get(index).copied()
    }

    /// The name as errors print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid argument",
            Self::TimedOut => "timed out",
            Self::PeerDied => "peer died",
            Self::PeerLeft => "peer left",
            Self::Aborted => "aborted",
            Self::OutOfMemory => "out of memory",
            Self::System => "system error",
            Self::Vendor => "vendor error",
            Self::Mismatch => "mismatch",
            Self::Protocol => "protocol error",
            Self::Panic => "panic",
            Self::Exited => "exited",
            Self::Killed => "killed",
            Self::Task => "task failed",
            Self::Load => "load failed",
            Self::Closed => "closed",
            Self::Internal => "internal error",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorCode;
    use std::collections::HashSet;

    // WE-1
    #[test]
    fn every_code_survives_its_number_and_no_other_number_is_one() {
        for (index, code) in ErrorCode::ALL.into_iter().enumerate() {
            assert_eq!(code.as_i32(), index as i32 + 1, "{code:?}");
            assert_eq!(ErrorCode::from_i32(code.as_i32()), Some(code));
        }
        let last = ErrorCode::ALL.len() as i32;
        for number in [i32::MIN, -1, 0, last + 1, i32::MAX] {
            assert_eq!(ErrorCode::from_i32(number), None, "{number}");
        }
    }

    #[test]
    fn names_differ() {
        let names: HashSet<_> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), ErrorCode::ALL.len());
    }
}
