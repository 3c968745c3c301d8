//! What a rank is doing: the word it publishes and the name that errors print.

use core::fmt;

/// The step of a communicator's life in which something happened.
///
/// A backend publishes the code in shared memory, so that a timeout can show where every rank is (F44).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Phase {
    /// Between calls.
    Idle = 0,
    /// Finding the peers and joining them.
    Init = 1,
    /// In `alloc_windows`.
    AllocWindows = 2,
    /// In `derive_context`.
    DeriveContext = 3,
    /// In `alloc_domain`.
    AllocDomain = 4,
    /// In `release_domain`.
    ReleaseDomain = 5,
    /// In `barrier`.
    Barrier = 6,
    /// In `read` or `write`.
    Transfer = 7,
    /// In `destroy`.
    Destroy = 8,
    /// `destroy` has returned.
    Gone = 9,
    /// In a collective on windows.
    Collective = 10,
}

impl Phase {
    /// Every phase, in the order of the codes.
    pub const ALL: [Self; 11] = [
        Self::Idle,
        Self::Init,
        Self::AllocWindows,
        Self::DeriveContext,
        Self::AllocDomain,
        Self::ReleaseDomain,
        Self::Barrier,
        Self::Transfer,
        Self::Destroy,
        Self::Gone,
        Self::Collective,
    ];

    /// The code that crosses processes.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The phase of a code, if there is one: the word comes from another process.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// The name as errors print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Init => "init",
            Self::AllocWindows => "alloc_windows",
            Self::DeriveContext => "derive_context",
            Self::AllocDomain => "alloc_domain",
            Self::ReleaseDomain => "release_domain",
            Self::Barrier => "barrier",
            Self::Transfer => "transfer",
            Self::Destroy => "destroy",
            Self::Gone => "gone",
            Self::Collective => "collective",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Phase;

    // CC-7
    #[test]
    fn every_phase_survives_its_code_and_no_other_code_is_one() {
        for (index, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase.code() as usize, index);
            assert_eq!(Phase::from_code(phase.code()), Some(phase));
        }
        for code in [Phase::ALL.len() as u32, u32::MAX] {
            assert_eq!(Phase::from_code(code), None);
        }
    }
}
