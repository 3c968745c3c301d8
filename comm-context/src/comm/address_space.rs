//! How many addresses shared memory may take.

use core::fmt;
use core::num::NonZeroUsize;
use core::str::FromStr;
use std::env::{self, VarError};

use super::ArgumentError;

/// Bytes of addresses that are set aside for memory which is reserved later, piece by piece.
///
/// Addresses cost no memory. A process may have few of them all the same: `ulimit -v` limits them, and so does a
/// processor with few bits of address. Without a value from the caller or the environment as many are taken
/// as the simulation likes to have, or a part of what there is where that is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressSpace(NonZeroUsize);

impl AddressSpace {
    /// The environment variable for the windows of each rank in the simulation, base and domains together.
    pub const WINDOWS_ENV: &'static str = "CHIPCOMM_WINDOW_SPACE";

    /// The environment variable for the host buffers of a Worker.
    pub const HEAP_ENV: &'static str = "CHIPCOMM_HEAP_SPACE";

    /// So many bytes. Refused where that is none, or more than any processor has.
    pub fn new(bytes: usize) -> Result<Self, ArgumentError> {
        let space = NonZeroUsize::new(bytes).filter(|bytes| bytes.get() <= 1 << 56);
        space.map(Self).ok_or_else(|| ArgumentError::SizeText { given: bytes.to_string() })
    }

    /// Reads `variable`: `None` when it is not set, an error when it does not hold a size such as `64G`.
    pub fn from_env(variable: &str) -> Result<Option<Self>, ArgumentError> {
        let given = match env::var(variable) {
            Ok(text) => text,
            Err(VarError::NotPresent) => return Ok(None),
            Err(VarError::NotUnicode(text)) => text.to_string_lossy().into_owned(),
        };
        let refused = |_| ArgumentError::SizeVariable { variable: variable.to_owned(), given: given.clone() };
        given.parse().map(Some).map_err(refused)
    }

    /// The bytes.
    pub const fn get(self) -> usize {
        self.0.get()
    }
}

/// Digits, then nothing, `K`, `M`, `G` or `T`, which are powers of 1024.
impl FromStr for AddressSpace {
    type Err = ArgumentError;

    fn from_str(text: &str) -> Result<Self, ArgumentError> {
        let refused = || ArgumentError::SizeText { given: text.to_owned() };
        let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
        let suffixed = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(*unit)?, *shift)));
        let (digits, shift) = suffixed.unwrap_or((text, 0));
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refused());
        }
        let count: usize = digits.parse().map_err(|_| refused())?;
        let bytes = count.checked_mul(1 << shift).ok_or_else(refused)?;
        Self::new(bytes).map_err(|_| refused())
    }
}

impl fmt::Display for AddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // CC-10
    #[test]
    fn f06_only_plain_sizes_are_read() {
        for (text, bytes) in
            [("1", 1), ("4096", 4096), ("512M", 512 << 20), ("64G", 64 << 30), ("2T", 2 << 40)]
        {
            assert_eq!(text.parse().map(AddressSpace::get), Ok(bytes), "{text}");
        }
        for text in
            ["", "0", "0G", "-1", "+1", " 1", "1 ", "G", "1g", "1GB", "1.5G", "0x10", "99999999T", "１"]
        {
            let refused = ArgumentError::SizeText { given: text.to_owned() };
            assert_eq!(text.parse::<AddressSpace>(), Err(refused), "{text:?}");
        }
        assert_eq!(AddressSpace::from_env("CHIPCOMM_NO_SUCH_VARIABLE_IN_TESTS"), Ok(None));
    }
}
