//! Child processes that run this program anew instead of a copy of this process.
//!
//! # Safety
//! Takes ownership of descriptors by their numbers, in a process that [`Child::respawn`] has given them to and in which nothing else has run
//! yet, and removes a variable from the environment while there is one thread.
#![allow(unsafe_code)]

use crate::child::{Child, enter, kill_on_close};
use crate::process_watch::{ProcessWatch, liveness_pipe};
use fault_points::fault_call;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, posix_spawn};
use nix::sys::stat::{SFlag, fstat};
use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

/// The child's first descriptor after standard input, output and error. First come parent_death_pipe and liveness, then what is handed over.
const FIRST: RawFd = 3;
const OWN: usize = 2;
/// More descriptors than anybody hands over.
const MOST: usize = 1024;

/// The environment says that this process was started by [`Child::respawn`], and it was not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{variable} is {value:?}, but the descriptors that come with it are not there; \
     it is set for processes that this program starts itself: unset it"
)]
pub struct NotRespawned {
    /// The variable.
    pub variable: String,
    /// What it holds.
    pub value: String,
}

impl Child {
    /// Starts this program (`/proc/self/exe`) in a new process, which learns from the environment variable `variable` that it is one, and must
    /// call [`respawned`] first thing. It gets standard input, output and error, the environment, and `hand_over`.
    ///
    /// No copy of this process is made, not even for a moment: nothing depends on the locks, threads and handlers that it has. The child is killed
    /// when this process ends, in whatever way: from here on, and by its own word from [`respawned`] on.
    pub fn respawn(variable: &str, hand_over: &[BorrowedFd<'_>]) -> nix::Result<Self> {
        let (parent_death_end, parent_death_pipe) =
            fault_call!("process.pipe").and_then(|()| liveness_pipe())?;
        let (liveness, liveness_end) = fault_call!("process.pipe").and_then(|()| liveness_pipe())?;
        let given: Vec<BorrowedFd<'_>> = [parent_death_end.as_fd(), liveness_end.as_fd()]
            .into_iter()
            .chain(hand_over.iter().copied())
            .collect();
        // Copies above the numbers that the child uses: none is overwritten before it is its turn.
        let above = FIRST + given.len() as RawFd;
        let copies = given.iter().map(|fd| copy_above(*fd, above)).collect::<nix::Result<Vec<OwnedFd>>>()?;
        let mut actions = PosixSpawnFileActions::init()?;
        for (copy, number) in copies.iter().zip(FIRST..) {
            actions.add_dup2(copy.as_raw_fd(), number)?;
        }
        fault_call!("process.spawn")?;
        let name = std::env::args_os().next().unwrap_or_default();
        let pid = posix_spawn(
            c"/proc/self/exe",
            &actions,
            &PosixSpawnAttr::init()?,
            &[c_string(name)],
            &environment(variable, hand_over.len()),
        )?;
        // On the child's behalf, since both share the open pipe: it may never come to do this itself.
        kill_on_close(&parent_death_end, pid.as_raw());
        drop((parent_death_end, liveness_end, copies));
        Ok(Self::watched(pid, ProcessWatch::of_process, parent_death_pipe, liveness))
    }
}

/// In the child of [`Child::respawn`]: the descriptors that were handed over; `None` in any other process.
///
/// Signals and their mask are as in a new program, the process is bound to its parent's life, every other descriptor is closed, and
/// `variable` is gone again (unless there are other threads already), so that programs started from here are not taken for children.
///
/// # Safety
/// To be called first thing in `main`, once: nothing in this process may own the descriptors from 3 on.
pub unsafe fn respawned(variable: &str) -> Result<Option<Vec<OwnedFd>>, NotRespawned> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    let refused =
        || NotRespawned { variable: variable.to_owned(), value: value.to_string_lossy().into_owned() };
    let count = value.to_str().and_then(|text| text.parse::<usize>().ok()).filter(|count| *count <= MOST);
    let end = FIRST + (count.ok_or_else(refused)? + OWN) as RawFd;
    if !is_pipe(FIRST) || !is_pipe(FIRST + 1) || !(FIRST..end).all(close_on_exec) {
        return Err(refused());
    }
    // SAFETY: all of them are open (checked), `Child::respawn` put them there for this process, and the caller promised that nothing
    // else here owns them.
    let mut given: Vec<OwnedFd> = (FIRST..end).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect();
    let handed_over = given.split_off(OWN);
    enter(&given[0], (FIRST..end).collect());
    // Leash and liveness stay open for the life of the process.
    given.into_iter().for_each(|fd| {
        let _ = fd.into_raw_fd();
    });
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1) {
        // SAFETY: this is the only thread, so nobody reads the environment meanwhile.
        unsafe { std::env::remove_var(variable) };
    }
    Ok(Some(handed_over))
}

fn copy_above(fd: BorrowedFd<'_>, above: RawFd) -> nix::Result<OwnedFd> {
    let copy = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(above))?;
    // SAFETY: the kernel just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// This process's environment, and `variable`, which says how many descriptors are handed over.
fn environment(variable: &str, count: usize) -> Vec<CString> {
    let others = std::env::vars_os().filter(|(key, _)| key.as_os_str() != variable);
    let mark = (OsString::from(variable), OsString::from(count.to_string()));
    others
        .chain([mark])
        .map(|(mut entry, value)| {
            entry.push("=");
            entry.push(value);
            c_string(entry)
        })
        .collect()
}

/// Arguments and variables come from C strings, so there is no NUL in them to cut at.
fn c_string(text: OsString) -> CString {
    let bytes = text.into_vec().into_iter().take_while(|byte| *byte != 0).collect::<Vec<u8>>();
    CString::new(bytes).unwrap_or_default()
}

fn is_pipe(fd: RawFd) -> bool {
    // SAFETY: borrowed for the length of this call; a number that is not open is answered with EBADF.
    let found = fstat(unsafe { BorrowedFd::borrow_raw(fd) });
    found.is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFIFO)
}

/// Keeps an open descriptor from programs that this one starts; says whether it is open.
fn close_on_exec(fd: RawFd) -> bool {
    // SAFETY: as in `is_pipe`.
    fcntl(unsafe { BorrowedFd::borrow_raw(fd) }, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_the_variable_is_nobodys_child() {
        // SAFETY: nothing is taken without the variable.
        assert!(unsafe { respawned("CHIPCOMM_NEVER_SET") }.unwrap().is_none());
    }

    #[test]
    fn the_environment_is_handed_on_with_one_more_variable() {
        let found = environment("CHIPCOMM_TEST", 7);
        assert_eq!(found.len(), std::env::vars_os().count() + 1);
        assert_eq!(found.last().unwrap().to_bytes(), b"CHIPCOMM_TEST=7");
    }
}
