//! The token that all ranks of a group on several hosts share.

use super::HostsError;
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

const VARIABLE: &str = "CHIPCOMM_TOKEN";
const FILE_VARIABLE: &str = "CHIPCOMM_TOKEN_FILE";
/// A shorter token could be guessed.
const LEAST_BYTES: usize = 16;
const MOST_BYTES: usize = 1024;

/// A secret. It never crosses the network, and its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(Vec<u8>);

impl Token {
    /// From the environment, or from the file that the environment names.
    pub(super) fn from_env() -> Result<Self, HostsError> {
        Self::from(|name| std::env::var_os(name))
    }

    fn from(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, HostsError> {
        let bytes = match (variable(VARIABLE), variable(FILE_VARIABLE)) {
            (Some(token), None) => Ok(token.into_vec()),
            (None, Some(file)) => read(Path::new(&file)),
            (None, None) => Err("neither CHIPCOMM_TOKEN_FILE nor CHIPCOMM_TOKEN is set".to_owned()),
            (Some(_), Some(_)) => Err("both CHIPCOMM_TOKEN_FILE and CHIPCOMM_TOKEN are set".to_owned()),
        };
        let checked = bytes.and_then(|bytes| match bytes.trim_ascii_end() {
            short if short.len() < LEAST_BYTES => {
                Err(format!("it has {} bytes, fewer than {LEAST_BYTES}", short.len()))
            }
            long if long.len() > MOST_BYTES => Err(format!("it has more than {MOST_BYTES} bytes")),
            token => Ok(Self(token.to_vec())),
        });
        checked.map_err(|problem| HostsError::Token { problem })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn of_test(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

/// The content of a file of this user that nobody else may read or write.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{} cannot be read ({error})", path.display());
    // A link could lead to somebody else's file, and a FIFO would block.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = std::fs::File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let me = nix::unistd::geteuid().as_raw();
    if !found.is_file() {
        return Err(format!("{} is not a file", path.display()));
    }
    if found.uid() != me {
        return Err(format!(
            "{} belongs to uid {}, and this process is uid {me}",
            path.display(),
            found.uid()
        ));
    }
    if found.mode() & 0o077 != 0 {
        return Err(format!("{} is open to others (mode {:03o})", path.display(), found.mode() & 0o777));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES as u64 + 2).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn with(set: &[(&str, &str)]) -> Result<Token, HostsError> {
        Token::from(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()))
    }

    #[test]
    fn f79_a_token_is_required_and_a_short_or_doubtful_one_refused() {
        assert_eq!(with(&[(VARIABLE, "0123456789abcdef")]).unwrap().bytes(), b"0123456789abcdef");
        for (set, word) in [
            (&[][..], "and neither CHIPCOMM_TOKEN_FILE nor CHIPCOMM_TOKEN is set; "),
            (&[(VARIABLE, "short")], "it has 5 bytes, fewer than 16; "),
            (&[(VARIABLE, "")], "0 bytes"),
            (
                &[(VARIABLE, "0123456789abcdef"), (FILE_VARIABLE, "/x")],
                "both CHIPCOMM_TOKEN_FILE and CHIPCOMM_TOKEN are set; ",
            ),
            (&[(FILE_VARIABLE, "/no/such/file")], "/no/such/file cannot be read (No such file"),
            (&[(FILE_VARIABLE, "/")], "and / is not a file; "),
        ] {
            let error = with(set).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("chmod 600"), "{error}");
        }
        let long = "x".repeat(MOST_BYTES + 1);
        let error = with(&[(VARIABLE, &long)]).unwrap_err().to_string();
        assert!(error.contains(&format!("and it has more than {MOST_BYTES} bytes; ")), "{error}");
        assert_eq!(
            with(&[]).unwrap_err().to_string(),
            "ranks on several hosts need a shared token, and neither CHIPCOMM_TOKEN_FILE nor CHIPCOMM_TOKEN is set; set \
             CHIPCOMM_TOKEN_FILE to a file that only you can read (chmod 600) with at least 16 random bytes, the same on \
             every host, or CHIPCOMM_TOKEN to the token itself"
        );
        assert_eq!(format!("{:?}", with(&[(VARIABLE, "0123456789abcdef")]).unwrap()), "Token(..)");
    }

    #[test]
    fn f79_a_token_file_that_others_can_read_or_that_is_a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let set_mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let read = |path: &Path| with(&[(FILE_VARIABLE, path.to_str().unwrap())]);
        for mode in [0o640, 0o604, 0o620, 0o602, 0o644] {
            set_mode(mode);
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(&format!(" is open to others (mode {mode:03o}); ")), "{error}");
        }
        for mode in [0o600, 0o400] {
            set_mode(mode);
            assert_eq!(read(&path).unwrap().bytes(), b"0123456789abcdef");
        }
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(
                error.contains("/token belongs to uid 65534, and this process is uid 0; set "),
                "{error}"
            );
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        } else {
            println!("not run: only root can make a file of another owner");
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(read(&link).is_err());
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(read(&fifo).unwrap_err().to_string().contains("not a file"));
    }
}
