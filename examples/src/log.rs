//! `RUST_LOG`: what the libraries report through `tracing`, on standard error.
//!
//! Written here and not taken from a library, because one would lengthen the first build. It has what these
//! programs need: levels by target, events with their fields, and spans with the time that they took.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Prints what `RUST_LOG` asks for, such as `debug` or `worker_orch=trace,info`. Without it, nothing is
/// collected at all.
pub(crate) fn start() {
    let Ok(text) = std::env::var("RUST_LOG") else { return };
    match text.parse() {
        // It fails when there is a subscriber already, and then that one is used.
        Ok(filter) => _ = tracing::subscriber::set_global_default(Log::new(filter)),
        Err(why) => _ = writeln!(std::io::stderr(), "RUST_LOG is ignored: {why}"),
    }
}

/// Which levels are printed: the one of the longest target that is a prefix of the event's.
#[derive(Clone, Debug, Default, PartialEq)]
struct Filter(Vec<(String, LevelFilter)>);

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut targets = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (target, level) = match part.split_once('=') {
                Some((target, level)) => {
                    (target, level.parse().ok().filter(|_| !target.is_empty() && !level.is_empty()))
                }
                // A level alone is for all targets, a target alone has all levels.
                None => match part.parse() {
                    Ok(level) => ("", Some(level)),
                    Err(_) => (part, Some(LevelFilter::TRACE)),
                },
            };
            let plain = target.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte));
            let (Some(level), true) = (level, plain) else {
                return Err(format!(
                    "{part:?}; write a level (error, warn, info, debug, trace, off), or worker_orch=debug"
                ));
            };
            targets.push((target.to_owned(), level));
        }
        targets.sort_by_key(|(target, _)| target.len());
        Ok(Self(targets))
    }
}

impl Filter {
    fn level(&self, target: &str) -> LevelFilter {
        let is_of = |prefix: &str| {
            target
                .strip_prefix(prefix)
                .is_some_and(|rest| prefix.is_empty() || rest.is_empty() || rest.starts_with("::"))
        };
        let found = self.0.iter().rev().find(|(prefix, _)| is_of(prefix));
        found.map_or(LevelFilter::OFF, |(_, level)| *level)
    }
}

/// The subscriber.
struct Log {
    filter: Filter,
    begun: Instant,
    /// The process that logs. A forked child does not: another thread of the parent may have held a lock
    /// that the child would wait for.
    process: u32,
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Span>>,
}

/// A span that has begun.
struct Span {
    text: String,
    begun: Instant,
    metadata: &'static Metadata<'static>,
}

impl Log {
    fn new(filter: Filter) -> Self {
        Self {
            filter,
            begun: Instant::now(),
            process: std::process::id(),
            next: AtomicU64::new(1),
            open: Mutex::default(),
        }
    }

    fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Span>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One line, in one write. There is nobody to report a failure of this to.
    fn print(&self, metadata: &Metadata<'_>, text: &str) {
        let (level, target) = (metadata.level(), metadata.target());
        let at = self.begun.elapsed().as_secs_f64();
        let line = format!("[{at:10.6}s {level:5} {target}] {text}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.filter.level(metadata.target())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter.0.iter().map(|(_, level)| *level).max().unwrap_or(LevelFilter::OFF))
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        // Relaxed: only the number itself counts.
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        if !self.is_forked() {
            let mut text = Text(span.metadata().name().to_owned());
            span.record(&mut text);
            let span = Span { text: text.0, begun: Instant::now(), metadata: span.metadata() };
            self.open().insert(id, span);
        }
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if !self.is_forked() {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.print(event.metadata(), text.0.trim_start());
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn try_close(&self, id: Id) -> bool {
        if self.is_forked() {
            return false;
        }
        let Some(span) = self.open().remove(&id.into_u64()) else { return false };
        let took: Duration = span.begun.elapsed();
        self.print(span.metadata, &format!("{} took {took:.1?}", span.text));
        true
    }
}

/// The fields of a span or an event: `message a=1 b="x"`.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_target_decides() {
        let filter: Filter = "info,worker_orch=debug, worker_orch::tasks=off,rendezvous".parse().unwrap();
        for (target, level) in [
            ("worker_orch", LevelFilter::DEBUG),
            ("worker_orch::parent::run", LevelFilter::DEBUG),
            ("worker_orch::tasks", LevelFilter::OFF),
            ("worker_orchestra", LevelFilter::INFO),
            ("rendezvous", LevelFilter::TRACE),
            ("other", LevelFilter::INFO),
        ] {
            assert_eq!(filter.level(target), level, "{target}");
        }
        assert_eq!(Log::new(filter).max_level_hint(), Some(LevelFilter::TRACE));
        let nothing: Filter = "".parse().unwrap();
        assert_eq!((nothing.level("x"), nothing), (LevelFilter::OFF, Filter::default()));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for text in ["worker_orch=loud", "info,a[b]=debug", "=", "=debug", "a=", "a=b=c"] {
            let error = text.parse::<Filter>().unwrap_err();
            assert!(error.contains("worker_orch=debug"), "{text}: {error}");
        }
    }
}
