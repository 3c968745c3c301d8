//! `comm-inspect PATH | PID`: which ranks have come to the rendezvous at a path, or the ranks of the groups that a process
//! belongs to and the children of its Workers.

use comm_context::comm::Timeout;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
comm-inspect PATH   which ranks have come to the rendezvous at PATH, and which are missing
comm-inspect PID    the groups that the process PID is a rank of: every rank, its phase, and since when;
                    and its Workers, and the one that it is a child of: what every child does, and since when

Write a path that looks like a number as ./123. Exit status: 0 found, 1 nothing found, 2 wrong use.";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [target] = &arguments[..] else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    if target == "--help" || target == "-h" {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let found = match target.to_str().and_then(|text| text.parse().ok()) {
        Some(pid) => groups(pid),
        None => rendezvous_at(Path::new(target)),
    };
    match found {
        Ok(text) => {
            println!("{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(1)
        }
    }
}

fn groups(pid: u32) -> Result<String, String> {
    let words = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("there is no process {pid}; give the pid of one that runs on this host")
        }
        std::io::ErrorKind::PermissionDenied => {
            format!("process {pid} belongs to another user; run this as that user")
        }
        _ => format!("cannot inspect process {pid}: {error}"),
    };
    let groups = rendezvous::groups_of(pid).map_err(words)?;
    let workers = comm_sim::workers_of(pid).map_err(words)?;
    if groups.is_empty() && workers.is_empty() {
        let text = "belongs to no group and no Worker; it has not joined yet, or has left";
        return Err(format!("process {pid} {text}"));
    }
    let number = |at: usize| if groups.len() == 1 { String::new() } else { format!(" {}", at + 1) };
    let group = |(at, table): (usize, &String)| format!("group{} of process {pid}:\n{table}", number(at));
    Ok(groups.iter().enumerate().map(group).chain(workers.iter().cloned()).collect())
}

fn rendezvous_at(path: &Path) -> Result<String, String> {
    let within = Timeout::new(Duration::from_secs(5)).map_err(|error| error.to_string())?;
    let none = || {
        format!(
            "no rendezvous at {}: no rank has come yet, or all have joined (then give the pid of one)",
            path.display()
        )
    };
    let table = rendezvous::ranks_at(path, within).map_err(|error| error.to_string())?.ok_or_else(none)?;
    Ok(format!("rendezvous at {}:\n{table}", path.display()))
}
