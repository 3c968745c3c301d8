//! `comm-inspect PATH | PID`: who is at the meeting at a path, or where the ranks are of the groups that a process belongs to.

use comm_context::comm::Timeout;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
comm-inspect PATH   who is at the meeting at PATH, and who is missing
comm-inspect PID    the groups that the process PID is a rank of: every rank, its phase, and for how long

A path that looks like a number is written ./123. Exit status: 0 something was found, 1 nothing was, 2 wrong use.";

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
        None => meeting(Path::new(target)),
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
    let tables = rendezvous::groups_of(pid).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("there is no process {pid}"),
        std::io::ErrorKind::PermissionDenied => {
            format!("process {pid} belongs to another user; run this as that user")
        }
        _ => format!("cannot look into process {pid}: {error}"),
    })?;
    if tables.is_empty() {
        return Err(format!("process {pid} is a rank of no group: it has not joined yet, or has left"));
    }
    let number = |at: usize| if tables.len() == 1 { String::new() } else { format!(" {}", at + 1) };
    let group = |(at, table): (usize, &String)| format!("group{} of process {pid}:\n{table}", number(at));
    Ok(tables.iter().enumerate().map(group).collect())
}

fn meeting(path: &Path) -> Result<String, String> {
    let within = Timeout::new(Duration::from_secs(5)).map_err(|error| error.to_string())?;
    let nobody = || {
        format!(
            "no meeting at {}: nobody has come, or all have and the group is under way (then give a pid)",
            path.display()
        )
    };
    let table =
        rendezvous::who_is_there(path, within).map_err(|error| error.to_string())?.ok_or_else(nobody)?;
    Ok(format!("meeting at {}:\n{table}", path.display()))
}
