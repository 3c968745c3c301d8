//! What is printed. A pipe that nobody reads any more, or a full disk, is an error like others, and no panic.

use crate::Outcome;
use std::fmt::Display;
use std::io::{self, Write};

/// Nobody reads standard output any more, as after `| head -1`.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
pub(crate) struct Closed;

/// Prints on standard output.
pub(crate) fn say(text: impl Display) -> Outcome<()> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
        Err(error) => Err(format!("standard output: {error}").into()),
    }
}

/// Prints a line about progress or a problem. There is nobody to report a failure of this to.
pub(crate) fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes a file whole.
pub(crate) fn write(path: &std::path::Path, text: &str) -> Outcome<()> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}
