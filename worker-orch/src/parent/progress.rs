//! A line on the terminal that says how far bring-up is.

use super::children::Children;
use bootstrap_channel::ChannelSet;
use child_process::is_forked_child;
use chip_bootstrap::BringUpPhase;
use deadline::{Death, Watch};
use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// A bring-up that is shorter than this gets no line.
const PATIENCE: Duration = Duration::from_secs(1);

/// Watches the children while they come up and, on a terminal, shows how many are ready.
pub(super) struct Progress<'a> {
    children: &'a Children,
    channels: &'a ChannelSet,
    started: Instant,
    on_terminal: bool,
    shown: Cell<bool>,
}

impl<'a> Progress<'a> {
    pub(super) fn new(children: &'a Children, channels: &'a ChannelSet) -> Self {
        // In a forked child the lock of the stream may be stuck (F56).
        let on_terminal = !is_forked_child() && std::io::stderr().is_terminal();
        Self { children, channels, started: Instant::now(), on_terminal, shown: Cell::new(false) }
    }

    /// Removes the line.
    pub(super) fn finish(&self) {
        if self.shown.get() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Watch for Progress<'_> {
    fn first_death(&self) -> Option<Death> {
        if self.on_terminal && self.started.elapsed() > PATIENCE {
            let phase = |child| self.channels.reader(child).map_or(0, |reader| reader.phase());
            let all = self.children.len();
            let ready = (0..all).filter(|child| phase(*child) == BringUpPhase::Ready as u32).count();
            let since = self.started.elapsed().as_secs();
            let _ = write!(std::io::stderr(), "\rinit: {ready} of {all} ready after {since} s\x1b[K");
            self.shown.set(true);
        }
        self.children.first_death()
    }
}
