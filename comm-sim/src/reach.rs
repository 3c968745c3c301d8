//! Which ranges of the group's memory a rank may touch through `read` and `write`.

use std::ops::Range;

/// Offsets of windows and contexts that are allocated now.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    windows: Vec<Range<usize>>,
    contexts: Vec<Range<usize>>,
}

impl Reach {
    pub(crate) fn add_windows(&mut self, offsets: &[u64], size: usize) {
        self.windows.extend(offsets.iter().map(|offset| *offset as usize..*offset as usize + size));
    }

    pub(crate) fn add_context(&mut self, range: Range<usize>) {
        self.contexts.push(range);
    }

    pub(crate) fn remove(&mut self, offsets: &[u64], context: &Range<usize>) {
        self.windows.retain(|window| !offsets.contains(&(window.start as u64)));
        self.contexts.retain(|range| range != context);
    }

    pub(crate) fn may_write(&self, range: &Range<usize>) -> bool {
        self.windows.iter().any(|window| holds(window, range))
    }

    pub(crate) fn may_read(&self, range: &Range<usize>) -> bool {
        self.may_write(range) || self.contexts.iter().any(|context| holds(context, range))
    }
}

fn holds(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
