//! Finds and loads the vendor libraries.
//!
//! Order: an explicit directory (argument, then `CHIPCOMM_CANN_LIB_DIR`), which is then the only one;
//! otherwise `ASCEND_HOME_PATH/lib64`, `ASCEND_TOOLKIT_HOME/lib64`, each directory of `LD_LIBRARY_PATH`, and
//! the system's own search. A library that other users could replace is refused. Every required symbol is resolved before
//! the first vendor call. A loaded library stays for the rest of the process, because threads of the vendor's code may
//! still run in it.
//!
//! # Safety
//! Trusts that the symbols of the libraries have the types of `sys`, which `cargo xtask abi-check` compares with the
//! vendor's headers.
#![allow(unsafe_code)]

mod error;
mod search;

pub use error::{Attempt, LoadError};

use crate::result::{Code, VendorError, one_line};
use crate::sys::{ACL_SUCCESS, AscendCl, HCCL_SUCCESS, Hccl};
use crate::vendor_call::recorded;
use libloading::os::unix::Library;
use search::Search;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Names the directory that holds both vendor libraries.
pub const ENV_LIB_DIR: &str = "CHIPCOMM_CANN_LIB_DIR";

/// The oldest ACL interface that is accepted: the oldest whose headers this crate was compared with. What an old library
/// lacks beyond that shows as missing symbols.
pub const MINIMUM_ACL: AclVersion = AclVersion { major: 1, minor: 12, patch: 0 };

/// Version of the ACL interface (not of CANN).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AclVersion {
    /// Incompatible changes.
    pub major: i32,
    /// Additions.
    pub minor: i32,
    /// Fixes.
    pub patch: i32,
}

impl fmt::Display for AclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Both vendor libraries, loaded for the rest of the process.
pub struct Vendor {
    pub(crate) acl: AscendCl,
    pub(crate) hccl: Hccl,
    acl_path: PathBuf,
    hccl_path: PathBuf,
    version: Option<AclVersion>,
}

impl fmt::Debug for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vendor")
            .field("acl_path", &self.acl_path)
            .field("hccl_path", &self.hccl_path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// What was loaded and from where, for a log or a report.
impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            Some(version) => write!(f, "ACL interface {version}")?,
            None => f.write_str("ACL interface of unknown version")?,
        }
        write!(f, " ({}, {})", self.acl_path.display(), self.hccl_path.display())
    }
}

impl Vendor {
    /// Loads the libraries, or returns those that this process has loaded. `dir` overrides the environment.
    pub fn load(dir: Option<&Path>) -> Result<&'static Self, LoadError> {
        static VENDOR: OnceLock<Vendor> = OnceLock::new();
        static LOADING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        let search = Search::new(dir)?;
        if let Some(vendor) = VENDOR.get() {
            return match search.explicit {
                Some(asked) if vendor.acl_path.parent() != Some(&asked) => {
                    Err(LoadError::LoadedElsewhere { loaded: vendor.acl_path.clone(), asked })
                }
                _ => Ok(vendor),
            };
        }
        let vendor = Self::load_from(&search)?;
        Ok(VENDOR.get_or_init(|| vendor))
    }

    fn load_from(search: &Search) -> Result<Self, LoadError> {
        let (acl_library, acl_path) = search.open(AscendCl::FILE)?;
        let (hccl_library, hccl_path) = search.open(Hccl::FILE)?;
        let missing = |path: &Path| {
            let path = path.to_owned();
            move |symbols| LoadError::MissingSymbols { path, symbols }
        };
        // SAFETY: the addresses come from the vendor's library under the vendor's names, whose types `sys`
        // declares and abi-check compares; the libraries are never unloaded (forgotten below).
        let acl =
            unsafe { AscendCl::resolve(|name| symbol(&acl_library, name)) }.map_err(missing(&acl_path))?;
        // SAFETY: as above.
        let hccl =
            unsafe { Hccl::resolve(|name| symbol(&hccl_library, name)) }.map_err(missing(&hccl_path))?;
        std::mem::forget((acl_library, hccl_library));
        let acl_path = found_at(acl.aclInit as *const c_void).unwrap_or(acl_path);
        let hccl_path = found_at(hccl.HcclCommDestroy as *const c_void).unwrap_or(hccl_path);
        let mut vendor = Self { acl, hccl, acl_path, hccl_path, version: None };
        vendor.version = vendor.query_version()?;
        match vendor.version {
            Some(found) if found < MINIMUM_ACL => Err(LoadError::TooOld { path: vendor.acl_path, found }),
            _ => Ok(vendor),
        }
    }

    /// The declared functions of `libascendcl.so`, for callers that need one which this crate does not wrap.
    pub fn acl(&self) -> &AscendCl {
        &self.acl
    }

    /// The declared functions of `libhccl.so`.
    pub fn hccl(&self) -> &Hccl {
        &self.hccl
    }

    /// Where `libascendcl.so` came from.
    pub fn acl_path(&self) -> &Path {
        &self.acl_path
    }

    /// Where `libhccl.so` came from.
    pub fn hccl_path(&self) -> &Path {
        &self.hccl_path
    }

    /// The ACL interface's version; `None` when the library cannot report it.
    pub fn version(&self) -> Option<AclVersion> {
        self.version
    }

    fn query_version(&self) -> Result<Option<AclVersion>, VendorError> {
        let Some(get) = self.acl.aclrtGetVersion else { return Ok(None) };
        let mut version = AclVersion { major: 0, minor: 0, patch: 0 };
        // SAFETY: three valid places for the three numbers; the call needs no prior aclInit.
        let code = recorded("aclrtGetVersion", || unsafe {
            get(&mut version.major, &mut version.minor, &mut version.patch)
        });
        self.acl_result("aclrtGetVersion", code)?;
        Ok(Some(version))
    }

    /// Turns an `aclError` into a result, with the vendor's text for this thread's latest error.
    pub fn acl_result(&self, function: &'static str, code: i32) -> Result<(), VendorError> {
        if code == ACL_SUCCESS {
            return Ok(());
        }
        // SAFETY: takes nothing; returns null or a text that is valid until this thread's next vendor call.
        let detail =
            recorded("aclGetRecentErrMsg", || unsafe { vendor_text((self.acl.aclGetRecentErrMsg)()) });
        Err(VendorError { function, code: Code::Acl(code), detail })
    }

    /// Turns an `HcclResult` into a result. HCCL leaves its details with ACL.
    pub fn hccl_result(&self, function: &'static str, code: i32) -> Result<(), VendorError> {
        if code == HCCL_SUCCESS {
            return Ok(());
        }
        // SAFETY: as in `acl_result`.
        let mut detail =
            recorded("aclGetRecentErrMsg", || unsafe { vendor_text((self.acl.aclGetRecentErrMsg)()) });
        if detail.is_empty() {
            // SAFETY: takes any code; returns null or a static text.
            detail = recorded("HcclGetErrorString", || unsafe {
                vendor_text((self.hccl.HcclGetErrorString)(code))
            });
        }
        Err(VendorError { function, code: Code::Hccl(code), detail })
    }
}

/// # Safety
/// `text` is null or a NUL-terminated string that stays valid during the call.
pub(crate) unsafe fn vendor_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null; the caller vouches for the rest.
    one_line(&unsafe { CStr::from_ptr(text) }.to_string_lossy())
}

/// Where the loader found the library that holds a function.
fn found_at(function: *const c_void) -> Option<PathBuf> {
    // SAFETY: all zero bytes are a valid Dl_info.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about; `info` is a valid place for the answer.
    if unsafe { libc::dladdr(function, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not null; the loader keeps the name as long as the library, which is never unloaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

fn symbol(library: &Library, name: &'static str) -> *mut c_void {
    // SAFETY: the symbol is only used as an address here; `resolve` gives it its type.
    unsafe { library.get::<*mut c_void>(name.as_bytes()) }.map_or(std::ptr::null_mut(), |s| s.into_raw())
}
