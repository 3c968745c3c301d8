//! A progress bar on stderr for work that takes more than a second.

use crate::probe::{Probe, Source};
use crate::units::Ps;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const QUIET_FOR: Duration = Duration::from_secs(1);
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Counts messages while an engine runs, and shows them. Dropping it removes the bar.
pub(super) struct Progress {
    count: u64,
    shared: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts the display; `total` is the final count, 0 when nothing can be counted.
    pub(super) fn start(label: String, total: u64) -> Progress {
        let (shared, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, ended) = (shared.clone(), stop.clone());
        let thread = std::thread::spawn(move || show(&label, total, &count, &ended));
        Progress { count: 0, shared, stop, thread: Some(thread) }
    }

    /// So much is done.
    pub(super) fn set(&mut self, count: u64) {
        self.count = count;
        // Relaxed: a number for display.
        self.shared.store(count, Ordering::Relaxed);
    }
}

fn show(label: &str, total: u64, count: &AtomicU64, ended: &AtomicBool) {
    let start = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    let mut bar: Option<ProgressBar> = None;
    let mut next_line = QUIET_FOR;
    loop {
        std::thread::park_timeout(Duration::from_millis(100));
        // Relaxed: a number for display, and a flag that is polled; neither publishes other data.
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let (elapsed, done) = (start.elapsed(), count.load(Ordering::Relaxed));
        if elapsed < QUIET_FOR {
            continue;
        }
        if terminal {
            bar.get_or_insert_with(|| new_bar(label, total)).set_position(done);
        } else if elapsed >= next_line {
            next_line = elapsed + LINE_EVERY;
            let share = if total > 0 {
                format!(", {:.0} %", 100.0 * done as f64 / total as f64)
            } else {
                String::new()
            };
            super::warn(&format!("{label}: {} s{share}", elapsed.as_secs()));
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

fn new_bar(label: &str, total: u64) -> ProgressBar {
    let template = if total > 0 {
        "{msg} [{bar:40}] {percent} % {elapsed}, {eta} left"
    } else {
        "{spinner} {msg} {elapsed}"
    };
    let bar = ProgressBar::with_draw_target(Some(total.max(1)), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(label.to_owned());
    bar
}

impl Drop for Progress {
    fn drop(&mut self) {
        // Relaxed: publishes nothing; the thread is joined below.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread only draws; it ends within its 100 ms step.
            let _ = thread.join();
        }
    }
}

impl Probe for Progress {
    #[inline]
    fn issued(&mut self, _channel: u32, _seq: u32, _class: usize, _from: Source, _span: (Ps, Ps)) {
        self.count += 1;
        if self.count & 0xfff == 0 {
            // Relaxed: a number for display.
            self.shared.store(self.count, Ordering::Relaxed);
        }
    }
}
