//! Why the vendor libraries cannot be loaded.

use super::{AclVersion, ENV_LIB_DIR, MINIMUM_ACL};
use crate::result::{VendorError, one_line};
use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A place that was searched, and why the library is not used from there.
#[derive(Debug, Clone)]
pub struct Attempt {
    place: PathBuf,
    error: Arc<dyn Error + Send + Sync>,
}

impl Attempt {
    pub(super) fn new(place: PathBuf, error: impl Error + Send + Sync + 'static) -> Self {
        Self { place, error: Arc::new(error) }
    }

    /// A path, or a bare file name for the system's own search.
    pub fn place(&self) -> &std::path::Path {
        &self.place
    }

    /// The error of the system or of its loader.
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.error
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The loader's own words are the innermost error.
        let mut innermost: &dyn Error = self.error();
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        write!(f, "{} ({})", self.place.display(), one_line(&innermost.to_string()))
    }
}

/// Why the vendor libraries cannot be loaded.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LoadError {
    /// A setting names a relative path.
    #[error("{setting} names {}, which is not an absolute path; give the full path", path.display())]
    RelativePath {
        /// The variable, or `the argument`.
        setting: &'static str,
        /// What it says.
        path: PathBuf,
    },
    /// Others could replace the library.
    #[error("{} is not loaded because every user can write {}; remove that permission (chmod o-w)", library.display(), writable.display())]
    WorldWritable {
        /// The library.
        library: PathBuf,
        /// The file or directory that every user can write.
        writable: PathBuf,
    },
    /// The library is nowhere.
    #[error(
        "{library} was not found; tried {}; install CANN and source its set_env.sh, or set {ENV_LIB_DIR}",
        Joined(tried)
    )]
    NotFound {
        /// The file name.
        library: &'static str,
        /// Every place that was searched.
        tried: Vec<Attempt>,
    },
    /// The library lacks required functions.
    #[error("{} lacks {}: it is too old, or not the vendor's; install a newer CANN", path.display(), symbols.join(", "))]
    MissingSymbols {
        /// The library.
        path: PathBuf,
        /// All of them.
        symbols: Vec<&'static str>,
    },
    /// The library is too old.
    #[error("{} has ACL interface {found}, at least {MINIMUM_ACL} is needed; install a newer CANN", path.display())]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: AclVersion,
    },
    /// The library cannot report its version.
    #[error(transparent)]
    Version(#[from] VendorError),
    /// This process has loaded the libraries from another directory.
    #[error(
        "the vendor libraries are already loaded from {}, and cannot be loaded again from {}; start a new process",
        loaded.display(),
        asked.display()
    )]
    LoadedElsewhere {
        /// Where they came from.
        loaded: PathBuf,
        /// What was asked for.
        asked: PathBuf,
    },
}

struct Joined<'a>(&'a [Attempt]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, attempt) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{attempt}")?;
        }
        Ok(())
    }
}
