//! The address ranges that a rank may touch through `read` and `write`.

use std::ops::Range;

/// The windows and contexts that are allocated now, as address ranges.
#[derive(Debug, Default)]
pub(super) struct ReachableRanges {
    windows: Vec<Range<u64>>,
    contexts: Vec<Range<u64>>,
}

impl ReachableRanges {
    /// Adds windows of `size` bytes at `starts`: they may be read and written.
    pub(super) fn add_windows(&mut self, starts: &[u64], size: usize) {
        self.windows.extend(starts.iter().map(|start| *start..start.saturating_add(size as u64)));
    }

    /// Adds a context: it may be read.
    pub(super) fn add_context(&mut self, range: Range<u64>) {
        self.contexts.push(range);
    }

    /// Removes the windows at `starts` and their context.
    pub(super) fn remove(&mut self, starts: &[u64], context: &Range<u64>) {
        self.windows.retain(|window| !starts.contains(&window.start));
        self.contexts.retain(|range| range != context);
    }

    /// Whether `range` lies in one window.
    pub(super) fn may_write(&self, range: &Range<u64>) -> bool {
        self.windows.iter().any(|window| contains(window, range))
    }

    /// Whether `range` lies in one window or one context.
    pub(super) fn may_read(&self, range: &Range<u64>) -> bool {
        self.may_write(range) || self.contexts.iter().any(|context| contains(context, range))
    }
}

fn contains(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_range_inside_one_window_is_reachable() {
        let mut ranges = ReachableRanges::default();
        ranges.add_windows(&[100, 110], 10);
        ranges.add_context(200..210);
        assert!(
            ranges.may_write(&(100..110)) && ranges.may_read(&(110..120)) && ranges.may_read(&(200..210))
        );
        // Two adjacent windows are not one.
        assert!(
            !ranges.may_write(&(105..115)) && !ranges.may_write(&(200..201)) && !ranges.may_read(&(209..211))
        );
        ranges.remove(&[100], &(200..210));
        assert!(
            !ranges.may_read(&(100..101)) && !ranges.may_read(&(200..201)) && ranges.may_write(&(110..111))
        );
    }
}
