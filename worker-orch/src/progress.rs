//! A line that tells a waiting user how far bring-up is.

use crate::hands::Hands;
use bootstrap_channel::ChannelSet;
use chip_bootstrap::BringUpPhase;
use deadline::{Death, Watch};
use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Nobody needs a line for what is over in a moment.
const PATIENCE: Duration = Duration::from_secs(1);

/// Watches the hands while they come up and, on a terminal, says how many are there.
pub(crate) struct Progress<'a> {
    hands: &'a Hands,
    channels: &'a ChannelSet,
    names: &'a [String],
    started: Instant,
    on_terminal: bool,
    shown: Cell<bool>,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(hands: &'a Hands, channels: &'a ChannelSet, names: &'a [String]) -> Self {
        let on_terminal = std::io::stderr().is_terminal();
        Self { hands, channels, names, started: Instant::now(), on_terminal, shown: Cell::new(false) }
    }

    /// Takes the line away.
    pub(crate) fn finish(&self) {
        if self.shown.get() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Watch for Progress<'_> {
    fn first_death(&self) -> Option<Death> {
        if self.on_terminal && self.started.elapsed() > PATIENCE {
            let phase = |number| self.channels.reader(number).map_or(0, |reader| reader.phase());
            let ready =
                (0..self.names.len()).filter(|number| phase(*number) == BringUpPhase::Ready as u32).count();
            let (all, since) = (self.names.len(), self.started.elapsed().as_secs());
            let _ = write!(std::io::stderr(), "\rbringing up: {ready} of {all} ready after {since} s\x1b[K");
            self.shown.set(true);
        }
        self.hands.first_death()
    }
}
