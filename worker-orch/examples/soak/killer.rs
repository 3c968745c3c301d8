//! A thread that kills a child of this process, or a child of one, at a given moment.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long it waits when there is no process to kill yet.
const AGAIN: Duration = Duration::from_micros(50);

/// When, and which of the processes that exist then.
#[derive(Clone, Copy)]
pub(crate) struct Kill {
    pub(crate) after: Duration,
    pub(crate) pick: usize,
}

/// The handle of the thread. One kill at a time.
pub(crate) struct Killer {
    kills: Sender<Kill>,
    stop: Sender<()>,
    done: Receiver<Option<i32>>,
}

impl Killer {
    pub(crate) fn start() -> std::io::Result<Self> {
        let (kills, to_do) = channel();
        let (stop, stopped) = channel();
        let (report, done) = channel();
        std::thread::Builder::new().name("killer".to_owned()).spawn(move || {
            for kill in to_do {
                if report.send(carry_out(kill, &stopped)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { kills, stop, done })
    }

    /// Kills while `body` runs. Returns the pid, if a process was there in time.
    pub(crate) fn during<T>(&self, kill: Kill, body: impl FnOnce() -> T) -> (T, Option<i32>) {
        let _ = self.kills.send(kill);
        let result = body();
        let _ = self.stop.send(());
        (result, self.done.recv().ok().flatten())
    }
}

/// Returns after the stop, so that the next kill does not find an old one.
fn carry_out(plan: Kill, stop: &Receiver<()>) -> Option<i32> {
    let mut pause = plan.after;
    while stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let there = descendants();
        let victim = there.get(plan.pick % there.len().max(1)).copied();
        if let Some(pid) = victim.filter(|pid| kill(Pid::from_raw(*pid), Signal::SIGKILL).is_ok()) {
            let _ = stop.recv();
            return Some(pid);
        }
        pause = AGAIN;
    }
    None
}

/// The children of this process.
pub(crate) fn children() -> Vec<i32> {
    children_of(std::process::id() as i32)
}

fn descendants() -> Vec<i32> {
    let mut all = children();
    let mut at = 0;
    while let Some(pid) = all.get(at).copied() {
        all.extend(children_of(pid));
        at += 1;
    }
    all.retain(|pid| is_alive(*pid));
    all
}

/// Every process is started by the first thread of its parent, so that one file has them all.
fn children_of(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rfind(')').is_some_and(|at| !matches!(stat.get(at + 2..at + 3), Some("Z" | "X") | None))
}
