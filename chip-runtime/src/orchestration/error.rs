//! Why an object cannot be used.

use comm_context::abi::orchestration::VERSION;
use std::io;
use std::path::PathBuf;

/// Why a shared object cannot be loaded as an orchestration or a kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The caller names another version of the layouts.
    #[error(
        "objects of version `{given}` are not supported, only `{VERSION}`; compile the orchestration for that version"
    )]
    Version {
        /// What the caller named.
        given: String,
    },
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The system's loader refuses it.
    #[error(
        "{} cannot be loaded: {why}; build it as a shared object for this machine, with -shared -fPIC, and see ldd for \
         the libraries that it needs",
        path.display()
    )]
    Library {
        /// The file.
        path: PathBuf,
        /// What the loader says.
        why: String,
    },
    /// A function is missing.
    #[error("{} does not export `{symbol}`, which {purpose}; declare it extern \"C\", or name another", path.display())]
    Symbol {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: String,
        /// What it is for.
        purpose: &'static str,
    },
}
