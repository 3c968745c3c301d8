//! The error carrier.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::{ErrorCode, escape};

/// The most failures in one chain. A longer chain loses its middle; the outermost failures and the root stay.
pub const MAX_CHAIN: usize = 16;

/// How much of a message is printed. The message itself may be longer.
const SHOWN_MESSAGE: usize = 4096;
const SHOWN_PHASE: usize = 128;

/// A failure as it crosses processes: what, where, and what caused it.
///
/// It prints as one line and one `caused by:` line for each cause, all text escaped; further lines of a
/// message are indented below it. It is one pointer wide, so that a `Result` on the success path stays small;
/// its fields are those of [`Report`].
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(pub(crate) Box<Report>);

/// The contents of a [`Failure`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The kind.
    pub code: ErrorCode,
    /// The step in which it happened; empty when there is none.
    pub phase: Cow<'static, str>,
    /// The rank on which it happened.
    pub rank: Option<u32>,
    /// The device on which it happened.
    pub device: Option<i32>,
    /// The process in which it happened.
    pub pid: Option<u32>,
    /// What happened, and what to do next.
    pub message: String,
    /// How many causes are left out between this failure and `cause`.
    pub(crate) left_out: u16,
    /// Private, so that no chain grows beyond `MAX_CHAIN` and no drop recurses without a bound.
    pub(crate) cause: Option<Failure>,
}

impl Deref for Failure {
    type Target = Report;

    fn deref(&self) -> &Report {
        &self.0
    }
}

impl DerefMut for Failure {
    fn deref_mut(&mut self) -> &mut Report {
        &mut self.0
    }
}

/// The text of the failure, because this is what the runtime prints of an error that `main` returns. `{:#?}`
/// prints the fields.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { self.0.fmt(f) } else { fmt::Display::fmt(self, f) }
    }
}

impl Failure {
    /// A failure of a kind, with a message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self(Box::new(Report {
            code,
            phase: Cow::Borrowed(""),
            rank: None,
            device: None,
            pid: None,
            message: message.into(),
            left_out: 0,
            cause: None,
        }))
    }

    /// An error value as a failure: its text is the message, and its sources are the causes, all with the
    /// same code.
    ///
    /// A source whose text the message above it already includes is left out. A source that is a `Failure`
    /// keeps what it says.
    pub fn from_error(code: ErrorCode, error: &dyn Error) -> Self {
        let mut links = vec![Self::new(code, error.to_string())];
        let mut next = error.source();
        while let Some(source) = next {
            if let Some(failure) = source.downcast_ref::<Self>() {
                links.extend(failure.clone().into_links());
                break;
            }
            let text = source.to_string();
            if !links.last().is_some_and(|above| above.message.contains(&text)) {
                links.push(Self::new(code, text));
            }
            next = source.source();
        }
        Self::from_links(links)
    }

    /// Sets the step in which it happened.
    pub fn in_phase(mut self, phase: impl Into<Cow<'static, str>>) -> Self {
        self.phase = phase.into();
        self
    }

    /// Sets the rank on which it happened.
    pub fn on_rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Sets the device on which it happened.
    pub fn on_device(mut self, device: i32) -> Self {
        self.device = Some(device);
        self
    }

    /// Sets the process in which it happened.
    pub fn in_process(mut self, pid: u32) -> Self {
        self.pid = Some(pid);
        self
    }

    /// Appends a cause at the end of the chain, where it is the new root.
    pub fn caused_by(self, cause: Failure) -> Self {
        let mut links = self.into_links();
        links.extend(cause.into_links());
        Self::from_links(links)
    }

    /// The failure that directly caused this one.
    pub fn direct_cause(&self) -> Option<&Failure> {
        self.cause.as_ref()
    }

    /// This failure and its causes, outermost first.
    pub fn chain(&self) -> impl Iterator<Item = &Failure> {
        std::iter::successors(Some(self), |failure| failure.direct_cause())
    }

    /// The root cause: the last of the chain.
    pub fn root_cause(&self) -> &Failure {
        self.chain().last().unwrap_or(self)
    }

    /// How many causes are missing between this failure and [`direct_cause`](Self::direct_cause), because the
    /// chain was too long.
    pub fn left_out(&self) -> u16 {
        self.left_out
    }

    /// The failure without its causes, as one line: the first line of its message.
    pub fn line(&self) -> impl fmt::Display {
        Line(self)
    }

    /// The further lines of the message, such as a table: escaped and indented, so that none can pass for a
    /// cause.
    fn write_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut room = SHOWN_MESSAGE;
        for line in self.message.lines().skip(1) {
            let shown = escape(line, room);
            room -= shown.len();
            write!(f, "\n    {}", shown.trim_end())?;
        }
        Ok(())
    }

    fn into_links(self) -> Vec<Failure> {
        let mut links = Vec::new();
        let mut next = Some(self);
        while let Some(mut failure) = next {
            next = failure.cause.take();
            links.push(failure);
        }
        links
    }

    /// Joins failures without causes, outermost first. Leaves out what exceeds the limit, just before the
    /// root.
    pub(crate) fn from_links(mut links: Vec<Failure>) -> Self {
        while links.len() > MAX_CHAIN {
            let gone = links.remove(links.len() - 2);
            let at = links.len() - 2;
            let before = &mut links[at];
            before.left_out = before.left_out.saturating_add(gone.left_out).saturating_add(1);
        }
        let joined = links.into_iter().rev().reduce(|cause, mut failure| {
            failure.cause = Some(cause);
            failure
        });
        joined.unwrap_or_else(|| Self::new(ErrorCode::Internal, "an empty chain of failures"))
    }
}

struct Line<'a>(&'a Failure);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { code, phase, rank, device, pid, message, .. } = &*self.0.0;
        let mut separator = "";
        let mut place = |f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>| {
            write!(f, "{separator}{text}")?;
            separator = ", ";
            Ok(())
        };
        if let Some(rank) = rank {
            place(f, format_args!("rank {rank}"))?;
        }
        if let Some(device) = device {
            place(f, format_args!("device {device}"))?;
        }
        if let Some(pid) = pid {
            place(f, format_args!("pid {pid}"))?;
        }
        if !phase.is_empty() {
            place(f, format_args!("in {}", escape(phase, SHOWN_PHASE)))?;
        }
        if !separator.is_empty() {
            f.write_str(": ")?;
        }
        match message.lines().next() {
            None | Some("") => write!(f, "{code}"),
            Some(first) => write!(f, "{code}: {}", escape(first, SHOWN_MESSAGE)),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.line())?;
        self.write_table(f)?;
        let mut above = self;
        while let Some(cause) = above.direct_cause() {
            if above.left_out > 0 {
                write!(f, "\n  caused by: ({} left out)", above.left_out)?;
            }
            write!(f, "\n  caused by: {}", cause.line())?;
            cause.write_table(f)?;
            above = cause;
        }
        Ok(())
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(n: usize) -> Failure {
        Failure::new(ErrorCode::Aborted, format!("failure {n}"))
    }

    // WE-2
    #[test]
    fn each_failure_takes_one_line_and_further_lines_are_indented() {
        let root = Failure::new(ErrorCode::Killed, "SIGSEGV").on_rank(1).on_device(3).in_process(77);
        let failure = Failure::new(ErrorCode::Aborted, "stopped\x1b[2J\n  chip 0 \x07\n")
            .in_phase("alloc_windows")
            .on_rank(0);
        assert_eq!(
            failure.caused_by(root).to_string(),
            "rank 0, in alloc_windows: aborted: stopped\\u{1b}[2J\n      chip 0 \\u{7}\n  \
             caused by: rank 1, device 3, pid 77: killed: SIGSEGV"
        );
        assert_eq!(Failure::new(ErrorCode::Closed, "").to_string(), "closed");
    }

    // WE-2
    #[test]
    fn debug_is_the_text_and_its_long_form_the_fields() {
        let failure = numbered(0).on_rank(1).caused_by(numbered(1));
        assert_eq!(format!("{failure:?}"), failure.to_string());
        let fields = format!("{failure:#?}");
        assert!(fields.contains("rank: Some(") && fields.contains("message: \"failure 1\""), "{fields}");
    }

    #[test]
    fn a_new_cause_goes_to_the_end_and_is_the_root() {
        let failure = numbered(0).caused_by(numbered(1)).caused_by(numbered(2).caused_by(numbered(3)));
        let messages: Vec<_> = failure.chain().map(|f| f.message.as_str()).collect();
        assert_eq!(messages, ["failure 0", "failure 1", "failure 2", "failure 3"]);
        assert_eq!(failure.root_cause().message, "failure 3");
        let sources = std::iter::successors(failure.source(), |e| (*e).source());
        assert_eq!(sources.count(), 3);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<dyn Error>>,
    }

    fn layer(text: &'static str, source: impl Error + 'static) -> Layer {
        Layer { text, source: Some(Box::new(source)) }
    }

    // WE-4
    #[test]
    fn the_sources_of_an_error_are_its_causes() {
        let root = std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = layer("kernel k.so", layer("it cannot be opened", root));
        let failure = Failure::from_error(ErrorCode::Load, &error);
        let messages: Vec<_> = failure.chain().map(|link| (link.code, link.message.as_str())).collect();
        let load = |text| (ErrorCode::Load, text);
        assert_eq!(messages, [load("kernel k.so"), load("it cannot be opened"), load("entity not found")]);
    }

    // WE-4
    #[test]
    fn a_source_is_not_repeated_and_a_failure_stays_what_it_was() {
        let cause = Failure::new(ErrorCode::Killed, "SIGSEGV").on_rank(1).caused_by(numbered(1));
        let error = layer("stopped: rank 1 died", layer("rank 1 died", cause.clone()));
        let failure = Failure::from_error(ErrorCode::Aborted, &error);
        assert_eq!(failure.direct_cause(), Some(&cause));
        assert_eq!(failure.chain().count(), 3);
    }

    // WE-3
    #[test]
    fn a_long_chain_keeps_its_ends_and_says_how_many_are_left_out() {
        let failure = (1..1000).fold(numbered(0), |chain, n| chain.caused_by(numbered(n)));
        assert_eq!(failure.chain().count(), MAX_CHAIN);
        assert_eq!(failure.message, "failure 0");
        assert_eq!(failure.root_cause().message, "failure 999");
        let left_out: usize = failure.chain().map(|f| usize::from(f.left_out())).sum();
        assert_eq!(left_out, 1000 - MAX_CHAIN);
        assert!(failure.to_string().contains("caused by: (984 left out)\n  caused by: aborted: failure 999"));
    }
}
