//! Cargo commands as the lanes start them.

use std::path::Path;
use std::process::{Command, Stdio};

/// The cargo that runs this program, at the root of the workspace, with output that can be parsed.
pub(crate) fn cargo<'a>(root: &Path, args: impl IntoIterator<Item = &'a str>) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    prepared(Command::new(program), root, args)
}

/// Rustup's nightly cargo. Only the proxy on the search path understands `+nightly`, `$CARGO` does not.
pub(crate) fn nightly<'a>(root: &Path, args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new("cargo");
    command.arg("+nightly");
    // A check must not change the machine: rustup would install a missing toolchain.
    command.env("RUSTUP_AUTO_INSTALL", "0");
    prepared(command, root, args)
}

/// Whether a command answers with success; its output is of no interest.
pub(crate) fn answers(mut command: Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// `flags` after what the user's own variable of that name already says.
pub(crate) fn appended(variable: &str, flags: &str) -> String {
    match std::env::var(variable) {
        Ok(own) if !own.trim().is_empty() => format!("{own} {flags}"),
        _ => flags.to_owned(),
    }
}

fn prepared<'a>(mut command: Command, root: &Path, args: impl IntoIterator<Item = &'a str>) -> Command {
    command.current_dir(root).args(args).env("CARGO_TERM_COLOR", "never");
    without_identity(command)
}

/// `cargo run` describes xtask itself in variables that no program started by it must take for its own.
pub(crate) fn without_identity(mut command: Command) -> Command {
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&key);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_cannot_start_does_not_answer() {
        assert!(!answers(Command::new("no-such-program")));
        assert!(!answers(Command::new("false")));
        assert!(answers(Command::new("true")));
    }

    #[test]
    fn nested_cargo_does_not_inherit_the_identity_of_xtask() {
        let command = cargo(Path::new("."), ["test"]);
        let removed: Vec<_> =
            command.get_envs().filter(|(_, value)| value.is_none()).map(|(k, _)| k).collect();
        assert!(removed.contains(&std::ffi::OsStr::new("CARGO_PKG_NAME")), "{removed:?}");
    }
}
