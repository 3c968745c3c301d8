//! Which ranges of memory a rank may touch through `read` and `write`.

use std::ops::Range;

/// The windows and contexts that are allocated now, by their addresses.
#[derive(Debug, Default)]
pub(super) struct Reach {
    windows: Vec<Range<u64>>,
    contexts: Vec<Range<u64>>,
}

impl Reach {
    /// Windows of `size` bytes at `starts` may be read and written.
    pub(super) fn add_windows(&mut self, starts: &[u64], size: usize) {
        self.windows.extend(starts.iter().map(|start| *start..start.saturating_add(size as u64)));
    }

    /// A context may be read.
    pub(super) fn add_context(&mut self, range: Range<u64>) {
        self.contexts.push(range);
    }

    /// What starts there is gone: windows and their context.
    pub(super) fn remove(&mut self, starts: &[u64], context: &Range<u64>) {
        self.windows.retain(|window| !starts.contains(&window.start));
        self.contexts.retain(|range| range != context);
    }

    /// Whether `range` lies in one window.
    pub(super) fn may_write(&self, range: &Range<u64>) -> bool {
        self.windows.iter().any(|window| holds(window, range))
    }

    /// Whether `range` lies in one window or one context.
    pub(super) fn may_read(&self, range: &Range<u64>) -> bool {
        self.may_write(range) || self.contexts.iter().any(|context| holds(context, range))
    }
}

fn holds(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_one_window_is_within_reach() {
        let mut reach = Reach::default();
        reach.add_windows(&[100, 110], 10);
        reach.add_context(200..210);
        assert!(reach.may_write(&(100..110)) && reach.may_read(&(110..120)) && reach.may_read(&(200..210)));
        // Two windows side by side are not one.
        assert!(
            !reach.may_write(&(105..115)) && !reach.may_write(&(200..201)) && !reach.may_read(&(209..211))
        );
        reach.remove(&[100], &(200..210));
        assert!(!reach.may_read(&(100..101)) && !reach.may_read(&(200..201)) && reach.may_write(&(110..111)));
    }
}
