//! A path as a name that independent processes agree on.
//!
//! Nothing is ever created at the path. It is turned into the name of an abstract Unix socket, which lives in
//! the kernel and is gone with the process that holds it, so there is no file to go stale, to be corrupted,
//! to be removed too early or to be left behind. What exists at the path is never read. It is refused by
//! name and not ignored, since the user who put it there expects it to matter.

use crate::error::RendezvousError;
use comm_context::comm::{CommError, validate};
use nix::errno::Errno;
use nix::sys::stat::{FileStat, Mode, SFlag, lstat, stat};
use shared_memory::{FNV_OFFSET, fnv1a};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The name of the socket for `path`: the same for every spelling of the path, and different for every user.
pub(crate) fn socket_name(path: &Path) -> Result<String, CommError> {
    validate::rootinfo_path(path)?;
    Ok(check(path)?)
}

/// Why ranks that come now look for another name than `name`, which `path` stood for: its folder was removed, or
/// another one is in its place. Errors that may pass, such as those of a network, do not count.
pub(crate) fn folder_gone(path: &Path, name: &str) -> Option<&'static str> {
    match stat(folder_of(path)) {
        Ok(found) if name_in(&found, path) == name => None,
        Ok(_) => Some("another one is in its place"),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Some("it was removed"),
        Err(_) => None,
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The name for a path in this folder.
fn name_in(folder: &FileStat, path: &Path) -> String {
    let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
    let me = nix::unistd::geteuid().as_raw();
    // A hash, because an abstract name is short. Nobody gains anything by a collision: credentials are
    // checked.
    let hash = fnv1a(FNV_OFFSET, name);
    format!("chipcomm/{me}/{:x}.{:x}/{hash:016x}", folder.st_dev, folder.st_ino)
}

fn check(path: &Path) -> Result<String, RendezvousError> {
    let folder = folder_of(path);
    let no_folder = |reason: String| RendezvousError::NoFolder { path: path.to_owned(), reason };
    let found = stat(folder).map_err(|errno| no_folder(errno.desc().to_owned()))?;
    if SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT != SFlag::S_IFDIR {
        return Err(no_folder("it is not a folder".to_owned()));
    }
    if let Ok(found) = lstat(path) {
        return Err(RendezvousError::PathTaken { path: path.to_owned(), what: describe(&found) });
    }
    Ok(name_in(&found, path))
}

/// What a user needs to know of what exists at the path.
fn describe(found: &FileStat) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    #[test]
    fn f17_anything_that_exists_at_the_path_is_refused_by_name() {
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
            (
                "file",
                "nothing may exist at the rendezvous path, and there is a file (perhaps left by an earlier run or another program)",
            ),
            ("open", "that anybody may write"),
            ("link", "symbolic link"),
            ("folder", "a folder"),
            ("fifo", "a FIFO"),
        ] {
            let error = check(&at(name)).unwrap_err().to_string();
            assert!(
                error.contains(word) && error.ends_with("; remove it, or choose another path"),
                "{name}: {error}"
            );
        }
        let foreign = Path::new("/proc/1/stat");
        let error = check(foreign).unwrap_err().to_string();
        assert!(error.contains("a file"), "{error}");
    }

    #[test]
    fn a_missing_folder_is_refused() {
        for (path, reason) in
            [("/no/such/folder/x", "No such file or directory"), ("/etc/passwd/x", "it is not a folder")]
        {
            let error = check(Path::new(path)).unwrap_err().to_string();
            let start = format!("{path}: the folder of the rendezvous path cannot be used ({reason}");
            assert!(error.starts_with(&start), "{error}");
            assert!(error.ends_with("); create it, or choose another path"), "{error}");
        }
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
