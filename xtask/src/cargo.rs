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
    for (key, _) in std::env::vars_os().filter(|(key, _)| is_identity(&key.to_string_lossy())) {
        command.env_remove(&key);
    }
    command
}

fn is_identity(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
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
        assert!(["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"].into_iter().all(is_identity));
        assert!(!["CARGO", "CARGO_HOME", "PATH"].into_iter().any(is_identity));
        // Cargo sets them for a program that it starts, which this one need not be.
        let set = std::env::vars_os().filter(|(key, _)| is_identity(&key.to_string_lossy())).count();
        let command = cargo(Path::new("."), ["test"]);
        assert_eq!(command.get_envs().filter(|(_, value)| value.is_none()).count(), set);
    }
}
