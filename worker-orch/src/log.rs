//! What this crate gives to `tracing`: nothing in a forked child.
//!
//! A nested Worker runs in a forked child, where the lock of a subscriber may be held for ever by a thread that
//! does not exist there (F56). Every span and event of this crate is made here.

use child_process::is_forked_child;

/// A span, which `make` makes; an empty one in a forked child.
pub(crate) fn span(make: impl FnOnce() -> tracing::Span) -> tracing::Span {
    if is_forked_child() { tracing::Span::none() } else { make() }
}

/// An event, with the arguments of `tracing`'s macro of that name.
macro_rules! event {
    ($level:ident, $($fields:tt)+) => {
        if !child_process::is_forked_child() {
            tracing::$level!($($fields)+)
        }
    };
}

pub(crate) use event;
