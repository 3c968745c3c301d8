//! The kinds of objects that are counted.

/// An object that a vendor call creates and another destroys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Kind {
    /// `aclInit` without `aclFinalize`.
    Runtime,
    /// `aclrtSetDevice` without `aclrtResetDevice`.
    Device,
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// Memory of `aclrtMalloc`.
    Memory,
    /// Own physical memory.
    Physical,
    /// Physical memory of a peer.
    Imported,
    /// A reserved range of addresses.
    Reservation,
    /// Physical memory behind a reserved range.
    Mapping,
    /// An own IPC key.
    IpcKey,
    /// A peer's IPC key that is open here.
    IpcImport,
    /// A kernel binary.
    Binary,
    /// A communicator.
    Communicator,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::Runtime,
        Self::Device,
        Self::Stream,
        Self::Event,
        Self::Memory,
        Self::Physical,
        Self::Imported,
        Self::Reservation,
        Self::Mapping,
        Self::IpcKey,
        Self::IpcImport,
        Self::Binary,
        Self::Communicator,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Device => "device",
            Self::Stream => "stream",
            Self::Event => "event",
            Self::Memory => "memory",
            Self::Physical => "physical",
            Self::Imported => "imported",
            Self::Reservation => "reservation",
            Self::Mapping => "mapping",
            Self::IpcKey => "ipc-key",
            Self::IpcImport => "ipc-import",
            Self::Binary => "binary",
            Self::Communicator => "communicator",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn numbers_are_positions() {
        for (position, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, position);
        }
    }
}
