//! Child processes that start this program again instead of copying this process.
//!
//! # Safety
//! Takes ownership of descriptors by their numbers, in a process that [`Child::respawn`] has given them
//! to and in which nothing else has run yet, and removes a variable from the environment while there
//! is one thread.
#![allow(unsafe_code)]

use crate::child::{Child, enter};
use crate::forked::report_panic;
use crate::left;
use crate::pidfd;
use crate::pipes::{ChildEnds, pipes};
use fault_points::fault_call;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, posix_spawn};
use nix::sys::stat::{SFlag, fstat};
use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

/// The child's first descriptor after standard input, output and error: its end of the parent-death
/// pipe.
const PARENT_DEATH: RawFd = 3;
/// Its end of the liveness pipe.
const LIVENESS: RawFd = 4;
/// The first descriptor that the caller passes.
const PASSED: RawFd = 5;
/// More descriptors than any caller passes.
const MOST: usize = 1024;

/// The environment says that this process was started by [`Child::respawn`], and it was not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{variable} is {value:?}, but the descriptors that come with it are missing; \
     it is set for processes that this program starts itself: unset it"
)]
pub struct NotRespawned {
    /// The variable.
    pub variable: String,
    /// What it holds.
    pub value: String,
}

impl Child {
    /// Starts this program (`/proc/self/exe`) in a new process, marked as a child by the environment
    /// variable `variable`; it must call [`respawned`] first thing. It gets standard input, output and
    /// error, the environment, and the descriptors in `pass`.
    ///
    /// This process is not copied, not even for a moment: nothing depends on the locks, threads and
    /// handlers that it has. The child is killed when this process ends, in whatever way; should that
    /// happen before this call returns, the child ends itself in [`respawned`].
    pub fn respawn(variable: &str, pass: &[BorrowedFd<'_>]) -> std::io::Result<Self> {
        left::reap_ended();
        let (parent_ends, child_ends) = pipes()?;
        let own = [child_ends.parent_death.as_fd(), child_ends.liveness.as_fd()];
        let given: Vec<BorrowedFd<'_>> = own.into_iter().chain(pass.iter().copied()).collect();
        // Copies above the numbers that the child uses: none is overwritten before it is its turn.
        let above = PARENT_DEATH + given.len() as RawFd;
        let copies = given.iter().map(|fd| copy_above(*fd, above)).collect::<nix::Result<Vec<OwnedFd>>>()?;
        let mut actions = PosixSpawnFileActions::init()?;
        for (copy, number) in copies.iter().zip(PARENT_DEATH..) {
            actions.add_dup2(copy.as_raw_fd(), number)?;
        }
        fault_call!("process.spawn").map_err(Errno::from_raw)?;
        let name = std::env::args_os().next().unwrap_or_default();
        let pid = posix_spawn(
            c"/proc/self/exe",
            &actions,
            &PosixSpawnAttr::init()?,
            &[c_string(name)],
            &environment(variable, pass.len()),
        )?;
        // On the child's behalf, since both share the open pipe: it may never get to do this itself.
        child_ends.kill_at_parent_death(pid.as_raw());
        drop((child_ends, copies));
        Ok(Self::watched(pid, pidfd::open, parent_ends))
    }
}

/// In the child of [`Child::respawn`]: the descriptors that were passed; `None` in any other process.
///
/// Signals and their mask are as in a new program, the process ends with its parent, every other
/// descriptor is closed, and `variable` is removed (unless there are other threads already), so that
/// programs started from here are not taken for children.
///
/// # Safety
/// To be called first thing in `main`, once: nothing in this process may own the descriptors from 3 on.
pub unsafe fn respawned(variable: &str) -> Result<Option<Vec<OwnedFd>>, NotRespawned> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    let refused =
        || NotRespawned { variable: variable.to_owned(), value: value.to_string_lossy().into_owned() };
    let count = value.to_str().and_then(|text| text.parse::<usize>().ok()).filter(|count| *count <= MOST);
    let end = PASSED + count.ok_or_else(refused)? as RawFd;
    if !is_pipe(PARENT_DEATH) || !is_pipe(LIVENESS) || !(PARENT_DEATH..end).all(close_on_exec) {
        return Err(refused());
    }
    // SAFETY: all descriptors below `end` are open (checked), `Child::respawn` put them there for this
    // process, and the caller promised that nothing else here owns them.
    let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
    let ends = ChildEnds { parent_death: own(PARENT_DEATH), liveness: own(LIVENESS) };
    let passed: Vec<OwnedFd> = (PASSED..end).map(own).collect();
    enter(&ends, (PASSED..end).collect());
    std::panic::set_hook(Box::new(report_panic));
    // Both pipes stay open for the life of the process.
    let ChildEnds { parent_death, liveness } = ends;
    let _ = (parent_death.into_raw_fd(), liveness.into_raw_fd());
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1) {
        // SAFETY: this is the only thread, so that no other reads the environment meanwhile.
        unsafe { std::env::remove_var(variable) };
    }
    Ok(Some(passed))
}

fn copy_above(fd: BorrowedFd<'_>, above: RawFd) -> nix::Result<OwnedFd> {
    let copy = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(above))?;
    // SAFETY: the kernel just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// This process's environment, and `variable`, which says how many descriptors are passed.
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

/// Arguments and variables come from C strings, so that they contain no NUL.
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
    fn a_process_without_the_variable_is_not_a_child() {
        // SAFETY: nothing is taken without the variable.
        assert!(unsafe { respawned("CHIPCOMM_NEVER_SET") }.unwrap().is_none());
    }

    /// A variable that somebody else has set.
    #[test]
    fn a_process_that_was_not_respawned_says_so() {
        let Ok(value) = std::env::var("PATH") else { panic!("tests are found by cargo, through PATH") };
        // SAFETY: the value is not a number, so that the call returns before it takes any descriptor.
        let refused = unsafe { respawned("PATH") }.unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "PATH is {value:?}, but the descriptors that come with it are missing; it is set for processes \
                 that this program starts itself: unset it"
            )
        );
    }

    #[test]
    fn the_environment_is_passed_on_with_one_more_variable() {
        let found = environment("CHIPCOMM_TEST", 7);
        assert_eq!(found.len(), std::env::vars_os().count() + 1);
        assert_eq!(found.last().unwrap().to_bytes(), b"CHIPCOMM_TEST=7");
    }
}
