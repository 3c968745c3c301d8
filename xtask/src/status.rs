//! The last line of a terminal, rewritten while something runs. Where standard error is not a terminal it
//! shows nothing.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// One line of status, with the time since it was started.
pub(crate) struct StatusLine {
    state: Option<RefCell<State>>,
}

struct State {
    started: Instant,
    drawn: Option<Instant>,
}

/// Back to the first column, and erase the line.
const ERASE: &str = "\r\x1b[K";
/// Faster than this nobody reads.
const REDRAW: Duration = Duration::from_millis(100);

impl StatusLine {
    /// A line on standard error, if that is a terminal.
    pub(crate) fn new() -> Self {
        Self::on(std::io::stderr().is_terminal())
    }

    /// A line that is never drawn.
    pub(crate) fn hidden() -> Self {
        Self::on(false)
    }

    fn on(shown: bool) -> Self {
        Self { state: shown.then(|| RefCell::new(State { started: Instant::now(), drawn: None })) }
    }

    /// Starts the time anew.
    pub(crate) fn restart(&self) {
        if let Some(state) = &self.state {
            *state.borrow_mut() = State { started: Instant::now(), drawn: None };
        }
    }

    /// Replaces the line, unless that was done a moment ago.
    pub(crate) fn set(&self, text: &str) {
        let Some(state) = &self.state else { return };
        let mut state = state.borrow_mut();
        if state.drawn.is_some_and(|at| at.elapsed() < REDRAW) {
            return;
        }
        state.drawn = Some(Instant::now());
        write(&line(state.started.elapsed(), text));
    }

    /// Erases the line; the next text is shown at once.
    pub(crate) fn clear(&self) {
        if let Some(state) = &self.state
            && state.borrow_mut().drawn.take().is_some()
        {
            write(ERASE);
        }
    }
}

/// What is sent to the terminal. It does not wrap meanwhile, so that a long text stays one line.
fn line(elapsed: Duration, text: &str) -> String {
    let seconds = elapsed.as_secs();
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{ERASE}\x1b[?7l{}:{:02}  {text}\x1b[?7h", seconds / 60, seconds % 60)
}

fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    // A terminal that is gone must not end a run of hours.
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line_and_shows_the_time() {
        let drawn = line(Duration::from_secs(125), "case 7\nof 9\x1b[2J");
        assert!(drawn.starts_with(ERASE) && drawn.contains("2:05  case 7 of 9 [2J"), "{drawn:?}");
        assert!(!drawn[ERASE.len()..].contains(['\n', '\r']));
    }

    #[test]
    fn nothing_is_drawn_where_nobody_sees_it() {
        let hidden = StatusLine::hidden();
        hidden.set("text");
        hidden.clear();
        assert!(hidden.state.is_none());
    }
}
