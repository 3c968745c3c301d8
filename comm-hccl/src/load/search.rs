//! Where the vendor libraries are searched, and which files are refused.
//!
//! # Safety
//! Loading a library runs its constructors. The path is checked first, and who may write to it.
#![allow(unsafe_code)]

use super::ENV_LIB_DIR;
use super::error::{Attempt, LoadError};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The directories to search, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Search {
    /// The only directory, if one was named.
    pub(super) explicit: Option<PathBuf>,
    /// Directories to try one after the other.
    dirs: Vec<PathBuf>,
    /// Directories of the loader's own search that depend on the working directory of the process.
    relative: Vec<PathBuf>,
}

impl Search {
    pub(super) fn new(argument: Option<&Path>) -> Result<Self, LoadError> {
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
        // The loader would search these itself, but without checking who can write there.
        let list = variable("LD_LIBRARY_PATH").unwrap_or_default();
        let (listed, relative): (Vec<_>, _) = std::env::split_paths(&list).partition(|dir| dir.is_absolute());
        dirs.extend(listed);
        Ok(Self { explicit: None, dirs, relative: if list.is_empty() { Vec::new() } else { relative } })
    }

    pub(super) fn open(&self, file: &'static str) -> Result<(Library, PathBuf), LoadError> {
        let mut tried = Vec::new();
        for dir in &self.dirs {
            let path = dir.join(file);
            match path.canonicalize() {
                Err(error) => tried.push(Attempt::new(path, error)),
                Ok(real) => {
                    refuse_world_writable(&path, &real)?;
                    match dlopen(&path) {
                        Ok(library) => return Ok((library, path)),
                        Err(error) => tried.push(Attempt::new(path, error)),
                    }
                }
            }
        }
        if self.explicit.is_none() {
            if let Some(dir) = self.relative.iter().find(|dir| dir.join(file).exists()) {
                return Err(LoadError::RelativePath { setting: "LD_LIBRARY_PATH", path: dir.clone() });
            }
            // The system's own directories remain, which only root can write.
            match dlopen(Path::new(file)) {
                Ok(library) => return Ok((library, PathBuf::from(file))),
                Err(error) => tried.push(Attempt::new(file.into(), error)),
            }
        }
        Err(LoadError::NotFound { library: file, tried })
    }
}

fn dlopen(path: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: runs the constructors of a library that is the vendor's by name and place. Unless root put it into a system
    // directory, other users cannot replace it: that was just checked.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
}

/// Refuses a library that every user could write or replace: the file, its directory, or a directory above it is writable
/// for everyone and not sticky. Checks the path as named and the path that it resolves to.
fn refuse_world_writable(named: &Path, real: &Path) -> Result<(), LoadError> {
    let open_to_all = |path: &Path| path.metadata().is_ok_and(|m| m.permissions().mode() & 0o002 != 0);
    let sticky = |path: &Path| path.metadata().is_ok_and(|m| m.permissions().mode() & 0o1000 != 0);
    for path in [named, real] {
        for (distance, place) in path.ancestors().enumerate() {
            // In a sticky directory others can add files but not replace ours. That is enough for a directory above, not
            // for the one that holds the library.
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
        assert!(
            matches!(&error, LoadError::RelativePath { setting: "LD_LIBRARY_PATH", path } if path == Path::new("src")),
            "{error}"
        );
    }

    #[test]
    fn a_relative_setting_is_refused_by_name() {
        for setting in [ENV_LIB_DIR, "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"] {
            let error =
                Search::plan(None, |name| (name == setting).then(|| "lib".into())).expect_err(setting);
            let text = format!("{setting} names lib, which is not an absolute path; give the full path");
            assert_eq!(error.to_string(), text);
        }
    }
}
