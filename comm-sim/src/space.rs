//! How many addresses the ranks have for their windows.

use comm_context::comm::{AddressSpace, CommError};
use shared_memory::fitting_addresses;

/// Addresses for the windows of each rank, where there are enough. Memory is reserved for each window when it is
/// allocated.
const PREFERRED: usize = 64 << 30;

/// The addresses of each of `nranks` ranks: as many as `asked` for, or as the environment says, or as there are.
pub(crate) fn for_each_rank(nranks: u32, asked: Option<AddressSpace>) -> Result<Space, CommError> {
    let asked = match asked {
        Some(asked) => Some(asked),
        None => AddressSpace::from_env(AddressSpace::WINDOWS_ENV)?,
    };
    let bytes = asked.map_or_else(|| fitting_addresses(PREFERRED, nranks as usize), AddressSpace::get);
    Ok(Space { bytes, asked: asked.is_some() })
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub(crate) bytes: usize,
    asked: bool,
}

impl Space {
    /// Says what asked for so many addresses when there are too few.
    pub(crate) fn explain(self, error: CommError) -> CommError {
        match error {
            CommError::OutOfMemory { what, need, have } if self.asked => {
                let (variable, bytes) = (AddressSpace::WINDOWS_ENV, self.bytes);
                let what = format!(
                    "{what}; {variable} or the caller asks for {bytes} bytes of addresses for each rank"
                );
                CommError::OutOfMemory { what, need, have }
            }
            other => other,
        }
    }
}
