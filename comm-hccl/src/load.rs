//! Finds and loads the vendor libraries.
//!
//! Order: an explicit directory (argument, then `CHIPCOMM_CANN_LIB_DIR`), which is then the only one;
//! otherwise `ASCEND_HOME_PATH/lib64`, `ASCEND_TOOLKIT_HOME/lib64`, each directory of `LD_LIBRARY_PATH`, and
//! the system's own search. A library that others could replace is refused. Every required symbol is resolved
//! before the first vendor call, and a loaded library stays for the rest of the process: vendor code leaves
//! threads behind that an unload would pull the ground from under.
//!
//! # Safety
//! Loading runs the library's constructors and trusts that its symbols have the types of `sys`. What can be
//! checked is checked first: the path and who may write to it. The types are what `cargo xtask abi-check`
//! compares.
#![allow(unsafe_code)]

use crate::inside::noting;
use crate::result::{Code, VendorError, tidy_detail};
use crate::sys::{ACL_SUCCESS, AscendCl, HCCL_SUCCESS, Hccl};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, OsString, c_char, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Names the directory that holds both vendor libraries.
pub const ENV_LIB_DIR: &str = "CHIPCOMM_CANN_LIB_DIR";

/// The oldest ACL interface that is accepted: the oldest whose headers the project has seen. What an old
/// library lacks beyond its version shows as missing symbols.
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

/// A place that was looked at, and why it did not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// A path, or a bare file name for the system's own search.
    pub place: PathBuf,
    /// Why not.
    pub why: String,
}

/// Why the vendor libraries are not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
    #[error("{} will not be loaded: {} can be written by everyone; take that right away (chmod o-w)", library.display(), writable.display())]
    WorldWritable {
        /// The library.
        library: PathBuf,
        /// The file or directory at fault.
        writable: PathBuf,
    },
    /// No such library anywhere.
    #[error(
        "{library} was not found; tried {}; install CANN and source its set_env.sh, or set {ENV_LIB_DIR}",
        Tried(tried)
    )]
    NotFound {
        /// The file name.
        library: &'static str,
        /// Every place and why not.
        tried: Vec<Attempt>,
    },
    /// The library is there but lacks what we need.
    #[error("{} lacks {}: it is too old or not the vendor's; install a newer CANN", path.display(), symbols.join(", "))]
    MissingSymbols {
        /// The library.
        path: PathBuf,
        /// Every required function that it lacks.
        symbols: Vec<&'static str>,
    },
    /// The library says that it is too old.
    #[error("{} has ACL interface {found}, at least {MINIMUM_ACL} is needed; install a newer CANN", path.display())]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: AclVersion,
    },
    /// The library cannot even say its version.
    #[error(transparent)]
    Version(#[from] VendorError),
    /// This process has already loaded them from elsewhere.
    #[error("the vendor libraries are already loaded from {}, and cannot be loaded again from {}", loaded.display(), asked.display())]
    LoadedElsewhere {
        /// Where they came from.
        loaded: PathBuf,
        /// What was asked for.
        asked: PathBuf,
    },
}

struct Tried<'a>(&'a [Attempt]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, attempt) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} ({})", attempt.place.display(), attempt.why)?;
        }
        Ok(())
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
    /// Loads the libraries, or gives those that this process has loaded. `dir` overrides the environment.
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

    /// The ACL interface's version; `None` when the library has no way to say.
    pub fn version(&self) -> Option<AclVersion> {
        self.version
    }

    fn query_version(&self) -> Result<Option<AclVersion>, VendorError> {
        let Some(get) = self.acl.aclrtGetVersion else { return Ok(None) };
        let mut version = AclVersion { major: 0, minor: 0, patch: 0 };
        // SAFETY: three valid places for the three numbers; the call needs no prior aclInit.
        let code = noting("aclrtGetVersion", || unsafe {
            get(&mut version.major, &mut version.minor, &mut version.patch)
        });
        self.acl_result("aclrtGetVersion", code)?;
        Ok(Some(version))
    }

    /// Turns an `aclError` into a result, with the vendor's words for this thread's latest error.
    pub fn acl_result(&self, function: &'static str, code: i32) -> Result<(), VendorError> {
        if code == ACL_SUCCESS {
            return Ok(());
        }
        // SAFETY: takes nothing; gives null or a text that is valid until this thread's next vendor call.
        let detail = noting("aclGetRecentErrMsg", || unsafe { vendor_text((self.acl.aclGetRecentErrMsg)()) });
        Err(VendorError { function, code: Code::Acl(code), detail })
    }

    /// Turns an `HcclResult` into a result. HCCL leaves its details with ACL.
    pub fn hccl_result(&self, function: &'static str, code: i32) -> Result<(), VendorError> {
        if code == HCCL_SUCCESS {
            return Ok(());
        }
        // SAFETY: as in `acl_result`.
        let mut detail =
            noting("aclGetRecentErrMsg", || unsafe { vendor_text((self.acl.aclGetRecentErrMsg)()) });
        if detail.is_empty() {
            // SAFETY: takes any code; gives null or a static text.
            detail =
                noting("HcclGetErrorString", || unsafe { vendor_text((self.hccl.HcclGetErrorString)(code)) });
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
    tidy_detail(&unsafe { CStr::from_ptr(text) }.to_string_lossy())
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
    // SAFETY: the symbol is only taken as an address here; `resolve` gives it its type.
    unsafe { library.get::<*mut c_void>(name.as_bytes()) }.map_or(std::ptr::null_mut(), |s| s.into_raw())
}

/// Where to look, in order.
#[derive(Debug, PartialEq, Eq)]
struct Search {
    /// The only directory, if one was named.
    explicit: Option<PathBuf>,
    /// Directories to try one after the other.
    dirs: Vec<PathBuf>,
    /// Directories that the loader would search by itself and that depend on where the process happens to be.
    relative: Vec<PathBuf>,
}

impl Search {
    fn new(argument: Option<&Path>) -> Result<Self, LoadError> {
        let variable = |name: &'static str| std::env::var_os(name).filter(|v| !v.is_empty());
        Self::plan(argument, variable)
    }

    fn plan(
        argument: Option<&Path>,
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Self, LoadError> {
        let absolute = |setting, path: PathBuf| {
            if path.is_absolute() { Ok(path) } else { Err(LoadError::RelativePath { setting, path }) }
        };
        let explicit = match argument {
            Some(path) => Some(absolute("the argument", path.to_owned())?),
            None => variable(ENV_LIB_DIR).map(|v| absolute(ENV_LIB_DIR, v.into())).transpose()?,
        };
        if let Some(dir) = explicit {
            return Ok(Self { dirs: vec![dir.clone()], explicit: Some(dir), relative: Vec::new() });
        }
        let mut dirs = Vec::new();
        for home in ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"] {
            if let Some(value) = variable(home) {
                dirs.push(absolute(home, value.into())?.join("lib64"));
            }
        }
        // The loader would search these itself, but without a look at who can write there.
        let list = variable("LD_LIBRARY_PATH").unwrap_or_default();
        let (listed, relative): (Vec<_>, _) = std::env::split_paths(&list).partition(|dir| dir.is_absolute());
        dirs.extend(listed);
        Ok(Self { explicit: None, dirs, relative: if list.is_empty() { Vec::new() } else { relative } })
    }

    fn open(&self, file: &'static str) -> Result<(Library, PathBuf), LoadError> {
        let mut tried = Vec::new();
        for dir in &self.dirs {
            let path = dir.join(file);
            match path.canonicalize() {
                Err(error) => tried.push(Attempt { place: path, why: error.to_string() }),
                Ok(real) => {
                    refuse_world_writable(&path, &real)?;
                    match dlopen(&path) {
                        Ok(library) => return Ok((library, path)),
                        Err(why) => tried.push(Attempt { place: path, why }),
                    }
                }
            }
        }
        if self.explicit.is_none() {
            if let Some(dir) = self.relative.iter().find(|dir| dir.join(file).exists()) {
                return Err(LoadError::RelativePath { setting: "LD_LIBRARY_PATH", path: dir.clone() });
            }
            // What is left are the system's own directories, which only root can write.
            match dlopen(Path::new(file)) {
                Ok(library) => return Ok((library, PathBuf::from(file))),
                Err(why) => tried.push(Attempt { place: file.into(), why }),
            }
        }
        Err(LoadError::NotFound { library: file, tried })
    }
}

fn dlopen(path: &Path) -> Result<Library, String> {
    // SAFETY: runs the constructors of a library that is the vendor's by its name and place, and that, unless
    // root put it into a system directory, was just found not to be replaceable by everyone.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| {
        let source = std::error::Error::source(&e).map_or_else(|| e.to_string(), |s| s.to_string());
        tidy_detail(&source)
    })
}

/// Refuses a library that anyone could write or swap: the file, its directory, or a directory above that is
/// open to everyone and not sticky, on the way as named and on the way as it really is.
fn refuse_world_writable(named: &Path, real: &Path) -> Result<(), LoadError> {
    let open_to_all = |path: &Path| path.metadata().is_ok_and(|m| m.permissions().mode() & 0o002 != 0);
    let sticky = |path: &Path| path.metadata().is_ok_and(|m| m.permissions().mode() & 0o1000 != 0);
    for path in [named, real] {
        for (distance, place) in path.ancestors().enumerate() {
            // In a sticky directory others can add files but not replace ours: fine above, not around the
            // library.
            if open_to_all(place) && (distance <= 1 || !sticky(place)) {
                return Err(LoadError::WorldWritable {
                    library: named.to_owned(),
                    writable: place.to_owned(),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&'static str) -> Option<OsString> {
        move |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into())
    }

    #[test]
    fn the_explicit_directory_is_the_only_one() {
        let home = env(&[("ASCEND_HOME_PATH", "/opt/cann"), (ENV_LIB_DIR, "/fixed")]);
        assert_eq!(Search::plan(None, &home).unwrap().dirs, [Path::new("/fixed")]);
        assert_eq!(Search::plan(Some(Path::new("/arg")), &home).unwrap().dirs, [Path::new("/arg")]);
    }

    #[test]
    fn homes_come_before_the_library_path() {
        let home = env(&[
            ("LD_LIBRARY_PATH", "/a:relative:/b"),
            ("ASCEND_TOOLKIT_HOME", "/kit"),
            ("ASCEND_HOME_PATH", "/home"),
        ]);
        let dirs = ["/home/lib64", "/kit/lib64", "/a", "/b"].map(PathBuf::from).to_vec();
        let relative = vec![PathBuf::from("relative")];
        assert_eq!(Search::plan(None, home).unwrap(), Search { explicit: None, dirs, relative });
    }

    #[test]
    fn a_library_in_a_relative_directory_of_the_library_path_is_refused() {
        // Tests run in the crate's own directory, where `src/lib.rs` is.
        let search = Search::plan(None, env(&[("LD_LIBRARY_PATH", "src:/nonexistent")])).unwrap();
        let error = search.open("lib.rs").map(drop).expect_err("a relative directory");
        assert_eq!(error, LoadError::RelativePath { setting: "LD_LIBRARY_PATH", path: "src".into() });
    }

    #[test]
    fn a_relative_setting_is_refused_by_name() {
        for setting in [ENV_LIB_DIR, "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"] {
            let error =
                Search::plan(None, |name| (name == setting).then(|| "lib".into())).expect_err(setting);
            assert_eq!(error, LoadError::RelativePath { setting, path: "lib".into() });
        }
    }
}
