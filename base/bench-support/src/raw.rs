//! Shared words, parking, forking and pinning through bare system calls.
//!
//! # Safety
//! Memory is mapped here and stays mapped as long as its [`SharedLines`]; references into it are to
//! atomics only. The calls of this file take integers, live locals or addresses of such atomics.
//! After a fork the child runs the caller's closures, in programs that have one thread.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use std::io;
use std::time::Duration;

/// Far enough apart that no two words share a cache line or a pair of lines that the processor
/// fetches together.
const LINE: usize = 128;

/// Words that forked processes share, each on a cache line of its own.
#[derive(Debug)]
pub(crate) struct SharedLines {
    base: NonNull<u8>,
    lines: usize,
}

impl SharedLines {
    pub(crate) fn new(lines: usize) -> io::Result<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: asks for new memory at an address that the kernel chooses.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), lines * LINE, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, lines })
    }

    pub(crate) fn word(&self, line: usize) -> &AtomicU32 {
        assert!(line < self.lines);
        // SAFETY: inside the mapping (checked), aligned to LINE, mapped as long as `self`; any
        // bytes are a valid atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(line * LINE).cast()) }
    }
}

impl Drop for SharedLines {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.lines * LINE) };
    }
}

/// Sleeps while `word` holds `value`; may return early.
pub fn futex_wait(word: &AtomicU32, value: u32) {
    // SAFETY: the word is borrowed for the whole call; a null time-out means none.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            core::ptr::null::<libc::timespec>(),
        )
    };
}

/// Wakes up to `count` sleepers.
pub fn futex_wake(word: &AtomicU32, count: i32) {
    // SAFETY: the word is borrowed for the whole call; the kernel uses its address as a key only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
}

/// A child that runs `body` and ends with the code that it returns; 101 after a panic. It is killed
/// when the thread that forked it ends.
pub(crate) fn fork(body: impl FnOnce() -> i32) -> io::Result<Forked> {
    // SAFETY: reads a number.
    let parent = unsafe { libc::getpid() };
    // SAFETY: see the top of the file: programs with one thread, whose child may do what the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: plain calls with integers. The parent may have ended before the first of them.
            let orphan = unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::getppid() != parent
            };
            let code = if orphan {
                1
            } else {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101)
            };
            // SAFETY: ends the process at once; nothing of the parent's copy is cleaned up twice.
            unsafe { libc::_exit(code) }
        }
        pid => Ok(Forked { pid, reaped: false }),
    }
}

/// A child; killed and reaped when dropped.
#[derive(Debug)]
pub(crate) struct Forked {
    pid: i32,
    reaped: bool,
}

impl Forked {
    /// Waits for its end. Says whether it ended with 0.
    pub(crate) fn wait(mut self) -> bool {
        self.reap() == 0
    }

    fn reap(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: `status` is a live local that the call fills.
        while unsafe { libc::waitpid(self.pid, &mut status, 0) } == -1
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
        self.reaped = true;
        status
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if !self.reaped {
            // SAFETY: the child is not reaped, so the pid is still its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            self.reap();
        }
    }
}

/// The processor time that this process has used.
pub fn processor_time() -> Duration {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `used` is a live local of the type that the call fills; if it fails, it stays zero.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut used) };
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// A set of cores.
#[derive(Clone)]
pub(crate) struct Cores(libc::cpu_set_t);

impl Cores {
    /// Those that this process may use.
    pub(crate) fn allowed() -> io::Result<Self> {
        // SAFETY: all bits clear is a valid set.
        let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
        // SAFETY: `set` is a live local of the size that is given.
        match unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } {
            0 => Ok(Self(set)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn only(core: usize) -> Self {
        // SAFETY: all bits clear is a valid set; `core` comes from `iter` and is below the size of the set.
        unsafe {
            let mut set = core::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            Self(set)
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        // SAFETY: the index is below the size of the set.
        (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &self.0) })
    }

    /// Confines this process to the set.
    pub(crate) fn confine(&self) -> io::Result<()> {
        // SAFETY: the set is a live value of the size that is given.
        match unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &self.0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
