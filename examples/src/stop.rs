//! How a program ends: its exit code and its last words.

use comm_context::comm::CommError;
use std::process::ExitCode;
use worker_orch::{ErrorCode, Failure};

/// What a program found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All results are right. Exit code 0.
    Right,
    /// Some are not. Exit code 1.
    Wrong,
}

impl Verdict {
    /// As it stands in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Wrong => "wrong",
        }
    }
}

/// Why a program ended without a verdict.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// What was asked for cannot be; nothing was started. Exit code 2.
    Usage(String),
    /// Bring-up or a run failed. Exit code 3.
    Failed(String),
}

impl Stop {
    /// For failures before anything is started: what was asked for is wrong, unless the machine is at its end.
    pub fn before_start(failure: Failure) -> Self {
        match failure.root_cause().code {
            ErrorCode::Invalid | ErrorCode::Load => Self::Usage(failure.line().to_string()),
            _ => failure.into(),
        }
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.to_string())
    }
}

impl From<CommError> for Stop {
    fn from(error: CommError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The main function of a program: reads the command line, runs `body`, prints the outcome, gives the exit code.
///
/// 0 the result is right, 1 it is wrong, 2 bad usage, 3 bring-up or run failed.
pub fn main<C: clap::Parser>(body: impl FnOnce(&C) -> Result<Verdict, Stop>) -> ExitCode {
    let cli = match C::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => return refuse(&one_line(&error.to_string())),
        // --help and --version.
        Err(help) => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    match body(&cli) {
        Ok(Verdict::Right) => ExitCode::SUCCESS,
        Ok(Verdict::Wrong) => ExitCode::from(1),
        Err(Stop::Usage(text)) => refuse(&text),
        Err(Stop::Failed(text)) => {
            eprintln!("error: {text}");
            ExitCode::from(3)
        }
    }
}

fn refuse(text: &str) -> ExitCode {
    eprintln!("error: {text} (--help tells more)");
    ExitCode::from(2)
}

/// What clap says before it repeats the usage, as one line.
fn one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let text = text.replace("\n\n  tip: ", "; ");
    let said = text.split("\n\nUsage:").next().and_then(|text| text.split("\n\nFor more information").next());
    said.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claps_errors_become_one_line() {
        let told = "error: unexpected argument '--cuont' found\n\n  tip: a similar argument exists: '--count'\n\nUsage: x\n";
        assert_eq!(
            one_line(told),
            "unexpected argument '--cuont' found; a similar argument exists: '--count'"
        );
    }

    #[test]
    fn a_wrong_wish_is_bad_usage_and_a_machine_at_its_end_is_not() {
        let stop = |code| Stop::before_start(Failure::new(code, "x"));
        assert!(matches!(stop(ErrorCode::Invalid), Stop::Usage(_)));
        assert!(matches!(stop(ErrorCode::Load), Stop::Usage(_)));
        assert!(matches!(stop(ErrorCode::OutOfMemory), Stop::Failed(_)));
    }
}
