//! Prints what the processes of a session of the test double hold: `cann-sim DIR`. Exit code 1 when something leaked.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [dir] = args.as_slice() else {
        eprintln!("usage: cann-sim DIR\n\nPrints what every process of a session of the test double holds.");
        return ExitCode::from(2);
    };
    match cann_sim::Session::create(dir.as_ref()).and_then(|session| session.report()) {
        Ok(report) => {
            print!("{report}");
            if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("cann-sim: {error}");
            ExitCode::from(2)
        }
    }
}
