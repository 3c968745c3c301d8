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

/// Asks for so many bytes from an address on.
pub(crate) type Ask = fn(*const u8, usize);

/// Combines `count` elements of `size` bytes. While it reduces `chunk` bytes, it asks for as many that come next of `ahead`: sources or
/// targets that other processors have.
///
/// # Safety
/// As [`Fold`].
pub(crate) unsafe fn fold_ahead(
    fold: Fold,
    sources: &mut UpTo64<*const u8>,
    targets: &mut UpTo64<*mut u8>,
    ahead: &mut UpTo64<*const u8>,
    (chunk, ask): (usize, Ask),
    (count, size): (usize, usize),
) {
    let mut left = count;
    while left > 0 {
        let count = left.min(chunk / size);
        left -= count;
        let (bytes, next) = (count * size, left.min(chunk / size) * size);
        for line in ahead.get_mut() {
            *line = line.wrapping_add(bytes);
            ask(*line, next);
        }
        // SAFETY: the caller's promises, for the elements that come next.
        unsafe { fold(sources.get(), targets.get(), count) };
        sources.get_mut().iter_mut().for_each(|source| *source = source.wrapping_add(bytes));
        targets.get_mut().iter_mut().for_each(|target| *target = target.wrapping_add(bytes));
    }
}
