//! A path as a name that independent processes agree on.
//!
//! Nothing is ever created at the path. It is turned into the name of an abstract Unix socket, which lives in the kernel and is
//! gone with the process that holds it, so there is no file to go stale, to be corrupted, to be removed too early or to be left behind. What
//! happens to lie at the path is therefore never read; but somebody who put something there expects it to matter, so
//! it is refused by name instead of ignored.

use comm_context::comm::{CommError, validate};
use nix::sys::stat::{Mode, SFlag, lstat};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why a path is no place to meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Its folder does not exist, or is none.
    #[error("{}: the folder of the meeting path cannot be used ({reason}); create it, or choose another path", .path.display())]
    NoFolder {
        /// The path.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// Something is there already.
    #[error("{}: the meeting path is taken by {what}, which is never read or waited for; remove it, or choose a path where nothing exists", .path.display())]
    Occupied {
        /// The path.
        path: PathBuf,
        /// What it is, whose, and what is odd about it.
        what: String,
    },
}

/// The name of the socket at which ranks meet for `path`. The same for every spelling of the path, and different for every user.
pub(crate) fn socket_name(path: &Path) -> Result<String, CommError> {
    validate::rootinfo_path(path)?;
    check(path).map_err(|error| CommError::Backend {
        what: "cannot meet there".to_owned(),
        source: std::sync::Arc::new(error),
    })
}

fn check(path: &Path) -> Result<String, PathError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let no_folder = |reason: String| PathError::NoFolder { path: path.to_owned(), reason };
    let place = nix::sys::stat::stat(folder).map_err(|errno| no_folder(errno.desc().to_owned()))?;
    if SFlag::from_bits_truncate(place.st_mode) & SFlag::S_IFMT != SFlag::S_IFDIR {
        return Err(no_folder("it is not a folder".to_owned()));
    }
    if let Ok(found) = lstat(path) {
        return Err(PathError::Occupied { path: path.to_owned(), what: describe(&found) });
    }
    let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
    let me = nix::unistd::geteuid().as_raw();
    Ok(format!("chipcomm/{me}/{:x}.{:x}/{:032x}", place.st_dev, place.st_ino, fnv(name)))
}

/// What a user needs to know of a file that is in the way.
fn describe(found: &nix::sys::stat::FileStat) -> String {
    let kind = match SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => "a file (perhaps left by an earlier run or another program)",
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFDIR => "a folder",
        SFlag::S_IFIFO => "a FIFO",
        SFlag::S_IFSOCK => "a socket",
        _ => "a device",
    };
    let mut text = kind.to_owned();
    if found.st_uid != nix::unistd::geteuid().as_raw() {
        text += &format!(" of another owner (uid {})", found.st_uid);
    }
    let anyone = Mode::from_bits_truncate(found.st_mode).contains(Mode::S_IWOTH);
    if anyone && SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT != SFlag::S_IFLNK {
        text += " that anybody may write";
    }
    text
}

/// FNV-1a of 128 bits: spreads names; nobody gains anything by a collision, since credentials are checked.
fn fnv(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn f17_whatever_lies_at_the_path_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), [0; 4108]).unwrap();
        std::fs::set_permissions(at("file"), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(at("open"), "x").unwrap();
        std::fs::set_permissions(at("open"), std::fs::Permissions::from_mode(0o666)).unwrap();
        std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRUSR).unwrap();
        for (name, word) in [
            ("file", "a file"),
            ("open", "anybody may write"),
            ("link", "symbolic link"),
            ("folder", "a folder"),
            ("fifo", "a FIFO"),
        ] {
            let told = check(&at(name)).unwrap_err().to_string();
            assert!(told.contains(word) && told.contains("choose a path"), "{name}: {told}");
        }
        let foreign = Path::new("/proc/1/stat");
        let told = check(foreign).unwrap_err().to_string();
        assert!(told.contains("a file"), "{told}");
    }

    #[test]
    fn a_folder_that_is_none_is_refused() {
        assert!(matches!(check(Path::new("/no/such/folder/x")), Err(PathError::NoFolder { .. })));
        assert!(matches!(check(Path::new("/etc/passwd/x")), Err(PathError::NoFolder { .. })));
    }

    #[test]
    fn every_spelling_of_a_path_has_one_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        let name = |path: PathBuf| check(&path).unwrap();
        let plain = name(folder.path().join("x"));
        assert_eq!(plain, name(folder.path().join("sub/../x")));
        assert_eq!(plain, name(folder.path().join("./x")));
        assert_ne!(plain, name(folder.path().join("y")));
        assert_ne!(plain, name(folder.path().join("sub/x")));
        assert!(plain.len() < 100, "an abstract name has at most 107 bytes: {plain}");
    }
}
