//! How a program ends: its result, its error, its exit code.

use crate::cli::{Arguments, CommandLine};
use crate::log;
use comm_context::comm::CommError;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use worker_orch::{ErrorCode, Failure};

/// Whether the results of a program are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of them. Exit code 0.
    Right,
    /// Some are wrong. Exit code 1.
    Wrong,
}

impl Outcome {
    /// As it stands in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Wrong => "wrong",
        }
    }
}

/// Why a program ended without results.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// The command line asks for something impossible; nothing was started. Exit code 2.
    Usage(String),
    /// Bring-up or a run failed. Exit code 3.
    Failed(String),
    /// Nobody reads standard output any more, as after `| head -1`. Nothing is printed; exit code 0.
    ClosedPipe,
}

impl Error {
    /// For failures before anything is started: bad usage, unless the machine lacks something.
    pub fn before_start(failure: Failure) -> Self {
        match failure.root_cause().code {
            ErrorCode::Invalid | ErrorCode::Load => Self::Usage(failure.line().to_string()),
            _ => failure.into(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.to_string())
    }
}

impl From<CommError> for Error {
    fn from(error: CommError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Prints a line on standard output.
pub fn print_line(line: impl Display) -> Result<(), Error> {
    print(format_args!("{line}\n"))
}

fn print(text: impl Display) -> Result<(), Error> {
    write!(io::stdout(), "{text}").map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Error::ClosedPipe,
        _ => Error::Failed(format!("standard output: {error}")),
    })
}

/// Prints an error. There is nobody to report a failure of this to.
fn print_error(line: impl Display) {
    let _ = writeln!(io::stderr(), "error: {line}");
}

/// The main function of a program: parses the command line, runs `body`, prints its error.
///
/// 0 the result is right, or nobody reads it; 1 it is wrong; 2 bad command line; 3 bring-up or run failed.
pub fn main(line: &CommandLine, body: impl FnOnce(&Arguments) -> Result<Outcome, Error>) -> ExitCode {
    log::start();
    let result = match line.parse(std::env::args_os().skip(1)) {
        Ok(Some(arguments)) => body(&arguments),
        Ok(None) => print(line.help()).map(|()| Outcome::Right),
        Err(error) => Err(error),
    };
    match result {
        Ok(Outcome::Right) | Err(Error::ClosedPipe) => ExitCode::SUCCESS,
        Ok(Outcome::Wrong) => ExitCode::from(1),
        Err(Error::Usage(text)) => {
            print_error(format_args!("{text} (see --help)"));
            ExitCode::from(2)
        }
        Err(Error::Failed(text)) => {
            print_error(text);
            ExitCode::from(3)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_input_is_bad_usage_and_a_lack_of_memory_is_not() {
        let error = |code| Error::before_start(Failure::new(code, "x"));
        assert!(matches!(error(ErrorCode::Invalid), Error::Usage(_)));
        assert!(matches!(error(ErrorCode::Load), Error::Usage(_)));
        assert!(matches!(error(ErrorCode::OutOfMemory), Error::Failed(_)));
    }
}
