//! Shared objects, which stay loaded.
//!
//! # Safety
//! Loading runs the constructors of an object, which is code of the user's like the kernels themselves. A symbol is used
//! as the type that its name stands for by contract.
#![allow(unsafe_code)]

use super::LoadError;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// A loaded object. It is never unloaded: a core thread may be in it, and its tables of exceptions are needed for as
/// long as one of them may be thrown.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) path: PathBuf,
    library: ManuallyDrop<Library>,
}

impl Object {
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        // With a folder in its name the loader takes this file and searches for no other.
        let path = path.canonicalize().map_err(|source| LoadError::File { path: path.to_owned(), source })?;
        // SAFETY: the constructors are the user's code, which this call is there to run.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
        let library =
            library.map_err(|error| LoadError::Library { path: path.clone(), why: words(&error) })?;
        Ok(Self { path, library: ManuallyDrop::new(library) })
    }

    /// The address of a symbol that need not be there.
    pub(super) fn find(&self, symbol: &str) -> Option<NonNull<c_void>> {
        // SAFETY: an address is taken; what is done with it is the caller's.
        let found = unsafe { self.library.get::<*mut c_void>(symbol.as_bytes()) };
        NonNull::new(found.ok()?.into_raw())
    }

    /// The address of a symbol that must be there.
    pub(super) fn symbol(&self, symbol: &str, purpose: &'static str) -> Result<NonNull<c_void>, LoadError> {
        let missing = || LoadError::Symbol { path: self.path.clone(), symbol: symbol.to_owned(), purpose };
        self.find(symbol).ok_or_else(missing)
    }

    /// The name of the file without its folders.
    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// What the loader said, without the words that libloading puts before it.
fn words(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}
