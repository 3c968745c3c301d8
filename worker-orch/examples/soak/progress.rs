//! How far the soak is: a line on the terminal that is rewritten, or a line a minute in a log.

use std::io::{IsTerminal, Write};
use std::time::Instant;

pub(crate) struct Progress {
    minutes: f64,
    started: Instant,
    on_terminal: bool,
    /// The last minute that a log has a line for.
    logged: u64,
}

impl Progress {
    pub(crate) fn new(minutes: f64) -> Self {
        Self { minutes, started: Instant::now(), on_terminal: std::io::stderr().is_terminal(), logged: 0 }
    }

    pub(crate) fn show(&mut self, cycle: u64, kills: u64, violations: usize) {
        let elapsed = self.started.elapsed().as_secs();
        let state = format!("cycle {cycle}, {kills} kills, {violations} violations");
        if self.on_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{elapsed} s of {} min: {state}", self.minutes);
        } else if elapsed / 60 > self.logged {
            self.logged = elapsed / 60;
            eprintln!("{} of {} min: {state}", self.logged, self.minutes);
        }
    }

    pub(crate) fn violation(&self, cycle: u64, seed: u64, text: &str) {
        self.clear();
        eprintln!("violation in cycle {cycle}: {text}");
        eprintln!(
            "  the same choices again: cargo run --release -p worker-orch --example soak -- --seed {seed} --only {cycle}"
        );
    }

    pub(crate) fn clear(&self) {
        if self.on_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
