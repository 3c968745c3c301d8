//! A thread that kills a child of this process, or a child of one, at a given moment.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long it waits for somebody to kill when nobody is there yet.
const AGAIN: Duration = Duration::from_micros(50);

/// When, and whom of those who are there then.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub(crate) after: Duration,
    pub(crate) pick: usize,
}

/// The thread, as its user sees it. One order at a time.
pub(crate) struct Killer {
    orders: Sender<Order>,
    stop: Sender<()>,
    done: Receiver<Option<i32>>,
}

impl Killer {
    pub(crate) fn start() -> std::io::Result<Self> {
        let (orders, to_do) = channel();
        let (stop, stopped) = channel();
        let (tell, done) = channel();
        std::thread::Builder::new().name("killer".to_owned()).spawn(move || {
            for order in to_do {
                if tell.send(carry_out(order, &stopped)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { orders, stop, done })
    }

    /// Kills while `body` runs. Tells whom, if anybody was there in time.
    pub(crate) fn during<T>(&self, order: Order, body: impl FnOnce() -> T) -> (T, Option<i32>) {
        let _ = self.orders.send(order);
        let result = body();
        let _ = self.stop.send(());
        (result, self.done.recv().ok().flatten())
    }
}

/// Returns when it was told to stop, so that the next order finds no old stop.
fn carry_out(order: Order, stop: &Receiver<()>) -> Option<i32> {
    let mut pause = order.after;
    while stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let there = descendants();
        let victim = there.get(order.pick % there.len().max(1)).copied();
        if let Some(pid) = victim.filter(|pid| kill(Pid::from_raw(*pid), Signal::SIGKILL).is_ok()) {
            let _ = stop.recv();
            return Some(pid);
        }
        pause = AGAIN;
    }
    None
}

/// The children of this process that live.
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
    all.retain(|pid| lives(*pid));
    all
}

/// Every process is started by the first thread of its parent, so that one file has them all.
fn children_of(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rfind(')').is_some_and(|at| !matches!(stat.get(at + 2..at + 3), Some("Z" | "X") | None))
}
