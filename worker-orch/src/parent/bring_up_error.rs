//! Why bring-up failed: the first cause, with the phase of every child.

use super::children::{ChildHandle, Children, death_code};
use super::first_cause::{Event, Problems};
use crate::Start;
use crate::shared::{EXEC_ADVICE, NOT_UP};
use bootstrap_channel::{ChannelSet, GatherError};
use chip_bootstrap::BringUpPhase;
use deadline::HowDied;
use mailbox_atomics::WaitError;
use nix::errno::Errno;
use std::fmt::Write;
use worker_errors::{ErrorCode, Failure};

/// The failure to report for `error`. A process that died explains what the others then reported.
pub(super) fn explain(
    error: GatherError,
    start: Start,
    children: &Children,
    channels: &ChannelSet,
) -> Failure {
    let handles = children.handles();
    let table = table(handles, channels);
    let failure = |code, text: String| Failure::new(code, format!("{text}\n{table}")).in_phase("init");
    let mut problems = Problems::default();
    if let Some((child, how)) = first_dead(handles) {
        let text = format!(
            "{} bootstrap failed: its process {} died ({how}) in phase {}{}",
            handles[child].name(),
            handles[child].pid(),
            phase(channels, child).map_or("?", BringUpPhase::name),
            advice(start, channels, child)
        );
        let event = Event::Died { noticed_ns: 0, because_of_peer: false };
        problems.add(event, failure(death_code(how), text));
    }
    let (event, code, text) = match error {
        GatherError::Failed { chip, failed } => {
            let code = failed.error_code().unwrap_or(ErrorCode::Internal);
            let text = format!("{} bootstrap failed: {}", handles[chip].name(), failed.message);
            (Event::NotBroughtUp, code, text)
        }
        GatherError::Malformed { chip, cause } => {
            let text = format!("{} bootstrap failed: {cause}", handles[chip].name());
            (Event::NotBroughtUp, ErrorCode::Protocol, text)
        }
        GatherError::NoReply { silent, cause: WaitError::TimedOut { waited, limit } } => {
            let names: Vec<&str> = silent.iter().map(|silent| handles[silent.chip].name()).collect();
            let text = format!(
                "bootstrap timed out after {waited:.1?} of {limit:?}; not ready: {}{}",
                names.join(", "),
                silent.first().map_or_else(String::new, |silent| advice(start, channels, silent.chip))
            );
            (Event::TimedOut { noticed_ns: 0 }, ErrorCode::TimedOut, text)
        }
        GatherError::NoReply { cause, .. } => {
            (Event::NotBroughtUp, ErrorCode::PeerDied, format!("bootstrap failed: {cause}"))
        }
    };
    let reported = failure(code, text);
    problems.add(event, reported.clone());
    problems.into_result().err().unwrap_or(reported)
}

/// Which limit a process that could not be started ran into.
pub(super) fn limit_hint(error: &std::io::Error) -> &'static str {
    match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
        Errno::EMFILE => "this process has too many open files: raise `ulimit -n`",
        Errno::ENFILE => "the machine has too many open files: raise fs.file-max",
        Errno::EAGAIN => "too many processes: raise `ulimit -u`, or pids.max of the container",
        Errno::ENOMEM => "the machine has too little memory, or the container's limit is reached",
        _ => "see the system's log",
    }
}

/// The first child that is gone without having reported why.
fn first_dead(handles: &[ChildHandle]) -> Option<(usize, HowDied)> {
    handles.iter().enumerate().find_map(|(child, handle)| {
        let how = handle.process().watch().death()?;
        let how = handle.process().try_reap().unwrap_or(how);
        (how != HowDied::Exited(NOT_UP)).then_some((child, how))
    })
}

fn phase(channels: &ChannelSet, child: usize) -> Option<BringUpPhase> {
    BringUpPhase::from_code(channels.reader(child).map_or(0, |reader| reader.phase()))
}

/// A child that was started by exec and has reported nothing has most likely not called `serve_if_child`.
fn advice(start: Start, channels: &ChannelSet, child: usize) -> String {
    match (start, phase(channels, child)) {
        (Start::Exec, Some(BringUpPhase::NotStarted)) => format!("; {EXEC_ADVICE}"),
        _ => String::new(),
    }
}

/// One line for each child with its phase.
fn table(handles: &[ChildHandle], channels: &ChannelSet) -> String {
    let mut table = String::new();
    for (child, handle) in handles.iter().enumerate() {
        let phase = phase(channels, child).map_or("?", BringUpPhase::name);
        let _ = writeln!(table, "  {:<12} {phase}", handle.name());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f75_the_hint_names_the_limit_that_was_hit() {
        for (errno, limit) in [
            (Errno::EMFILE, "this process has too many open files: raise `ulimit -n`"),
            (Errno::ENFILE, "the machine has too many open files: raise fs.file-max"),
            (Errno::EAGAIN, "too many processes: raise `ulimit -u`, or pids.max of the container"),
            (Errno::ENOMEM, "the machine has too little memory, or the container's limit is reached"),
            (Errno::EIO, "see the system's log"),
        ] {
            assert_eq!(limit_hint(&errno.into()), limit);
        }
    }
}
