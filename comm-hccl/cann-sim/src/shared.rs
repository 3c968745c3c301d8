//! Anonymous shared memory, the memory of peers, and a futex.
//!
//! # Safety
//! `SharedMemory` owns a file descriptor; the unsafe calls are the system calls that make and map it. No reference to mapped
//! bytes is ever returned.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Anonymous memory that other processes can reach through `/proc/PID/fd/N`.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    size: usize,
}

impl SharedMemory {
    /// New memory of `size` bytes. It is not zero, like new device memory (CN-2).
    pub fn create(size: usize) -> io::Result<Self> {
        // SAFETY: the name is a NUL-terminated literal; the flags are valid.
        let fd = unsafe { libc::memfd_create(c"cann-sim".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a new descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let memory = Self { fd, size };
        File::from(memory.fd.try_clone()?).set_len(size as u64)?;
        memory.fill_with_pattern()?;
        Ok(memory)
    }

    /// The memory that the living process `pid` has as descriptor `fd`.
    pub fn open_peer(pid: i32, fd: i32, size: usize) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}"))?;
        if file.metadata()?.len() != size as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { fd: file.into(), size })
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The descriptor's number, which a peer needs to open it.
    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Maps all of it, readable and writable, at an address that the system chooses.
    pub fn map(&self) -> io::Result<usize> {
        // SAFETY: a new mapping at an address that the system picks touches no existing memory.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                self.size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                self.raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base as usize) }
    }

    fn fill_with_pattern(&self) -> io::Result<()> {
        const ALL_UP_TO: usize = 16 << 20;
        const ENDS: usize = 1 << 20;
        let base = self.map()? as *mut u8;
        // SAFETY: `base` is a new mapping of `size` writable bytes that no other process has yet; both ends lie inside it,
        // because only memory above 16 MiB is not written as a whole.
        unsafe {
            if self.size <= ALL_UP_TO {
                ptr::write_bytes(base, 0xA5, self.size);
            } else {
                ptr::write_bytes(base, 0xA5, ENDS);
                ptr::write_bytes(base.add(self.size - ENDS), 0xA5, ENDS);
            }
            libc::munmap(base.cast(), self.size);
        }
        Ok(())
    }
}

/// Waits until `word` is no longer `value`, for a wake-up, or until the time is over. The caller checks the word again.
pub fn futex_wait(word: &AtomicU32, value: u32, limit: Duration) {
    let time = libc::timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
    // SAFETY: `word` outlives the call, and `time` too; a shared futex (no FUTEX_PRIVATE_FLAG) only reads
    // both.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &time) };
}

/// Wakes all threads that wait on `word`.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: `word` outlives the call, which does not touch its value.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Kills this process with SIGKILL.
pub(crate) fn kill_self() {
    // SAFETY: a signal to one's own pid touches no memory.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// When a process started, in clock ticks since boot; `None` when it does not run any more, also as a zombie. Together with
/// the pid it identifies a process.
pub fn process_start(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may contain blanks and brackets; the fields after the last bracket do not.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // CN-2
    #[test]
    fn fresh_memory_is_not_zero() {
        let memory = SharedMemory::create(4096).unwrap();
        let peer = SharedMemory::open_peer(std::process::id() as i32, memory.raw_fd(), 4096).unwrap();
        let bytes = std::fs::read(format!("/proc/self/fd/{}", peer.raw_fd())).unwrap();
        assert!(bytes.len() == 4096 && bytes.iter().all(|&b| b == 0xA5));
    }

    #[test]
    fn a_peer_of_another_size_is_refused() {
        let memory = SharedMemory::create(4096).unwrap();
        assert!(SharedMemory::open_peer(std::process::id() as i32, memory.raw_fd(), 8192).is_err());
    }

    #[test]
    fn only_a_running_process_has_a_start_time() {
        assert!(process_start(std::process::id() as i32).is_some());
        assert_eq!(process_start(i32::MAX), None);
    }
}
