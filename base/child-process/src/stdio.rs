//! Standard output of C code across a fork.
//!
//! A child is a copy of its parent with what `printf` has buffered there, and it ends with `_exit`, which
//! writes out nothing. So the child starts with an empty buffer, and writes it out before it ends.
//!
//! Only `stdout` is treated so. `fflush(NULL)` would write out every stream: also those whose descriptors
//! are closed in the child and may have become something else since, and it waits for the lock of every
//! stream, such as that of `stdin` while another thread reads a line. Kernels close what they open.
//! `std::cout` writes through to `stdout` unless `sync_with_stdio(false)` was called.
//!
//! No lock of another thread is waited for: the parent only tries, and in the child, where that thread
//! does not exist, the C library's `fork` has released the locks of all streams.
//!
//! # Safety
//! Calls into the C library on its own stream.
#![allow(unsafe_code)]

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    fn ftrylockfile(stream: *mut libc::FILE) -> libc::c_int;
    fn funlockfile(stream: *mut libc::FILE);
    fn __fpurge(stream: *mut libc::FILE);
}

/// In the parent: writes out what is buffered, so that it precedes what the child prints. If another
/// thread is printing at this moment, it stays with the parent.
pub(crate) fn flush_before_fork() {
    // SAFETY: `stdout` is open for the life of the process; its lock is released by the one that took it.
    // It is recursive, so that `fflush` may take it again.
    unsafe {
        if ftrylockfile(stdout) == 0 {
            libc::fflush(stdout);
            funlockfile(stdout);
        }
    }
}

/// In a forked child: forgets what is buffered, which is the parent's and will be written there.
pub(crate) fn discard_inherited() {
    // SAFETY: `stdout` is open, and there is no other thread. The call takes no lock.
    unsafe { __fpurge(stdout) };
}

/// In a child that ends with `_exit`: writes out what it has printed.
pub(crate) fn flush_before_exit() {
    // SAFETY: `stdout` is open for the life of the process.
    unsafe { libc::fflush(stdout) };
}

#[cfg(test)]
mod tests {
    use crate::Child;
    use serial_test::serial;
    use std::io::Read;
    use std::os::fd::{AsFd, AsRawFd};

    /// CP-7
    #[test]
    #[serial]
    fn f65_what_c_code_prints_in_a_child_arrives_once() {
        let (mut read, write) = std::io::pipe().unwrap();
        let body = || {
            // SAFETY: standard output of the child becomes the pipe; a literal without directives.
            unsafe {
                libc::dup2(write.as_raw_fd(), 1);
                libc::printf(c"printed".as_ptr());
            }
            0
        };
        // SAFETY: the body prints through the C library, whose locks are free after a fork.
        let child = unsafe { Child::fork(&[write.as_fd()], body) }.unwrap();
        drop(write);
        let mut printed = String::new();
        read.read_to_string(&mut printed).unwrap();
        drop(child);
        assert_eq!(printed, "printed");
    }
}
