//! A reduction that asks for the lines of other processors before it comes to them.
//!
//! A line that another processor has written comes when it is read. If it is written too, or if its owner writes it next, it has to come or go a
//! second time; asked for as one to be written, it comes once, and while the lines before it are reduced.
//!
//! # Safety
//! The kernels go through raw pointers; [`Fold`] says what a caller promises.
#![allow(unsafe_code)]

use crate::kernels::Fold;
use crate::moves::UpTo64;

/// So many bytes at a time are reduced, while as many are asked for that come next.
const AHEAD: usize = 1024;

/// Combines `count` elements of `size` bytes, and asks for those of `ahead` on the way: sources or targets that other processors have.
///
/// # Safety
/// As [`Fold`].
pub(crate) unsafe fn fold_ahead(
    fold: Fold,
    sources: &mut UpTo64<*const u8>,
    targets: &mut UpTo64<*mut u8>,
    ahead: &mut UpTo64<*const u8>,
    count: usize,
    size: usize,
) {
    let mut left = count;
    while left > 0 {
        let count = left.min(AHEAD / size);
        left -= count;
        let (bytes, next) = (count * size, left.min(AHEAD / size) * size);
        for line in ahead.get_mut() {
            *line = line.wrapping_add(bytes);
            mailbox_atomics::prefetch_to_write(*line, next);
        }
        // SAFETY: the caller's promises, for the elements that come next.
        unsafe { fold(sources.get(), targets.get(), count) };
        sources.get_mut().iter_mut().for_each(|source| *source = source.wrapping_add(bytes));
        targets.get_mut().iter_mut().for_each(|target| *target = target.wrapping_add(bytes));
    }
}
