//! What a forked child must know of itself: that it is one, and how it reports a panic.
//!
//! A thread of the parent may be inside a panic hook, or replacing it, at the moment of a fork. In the
//! child the hook's lock then stays as it was for ever, so that a child must not replace the hook. It is
//! installed in the parent, before the fork, around the hook that is there.
//!
//! # Safety
//! Borrows standard error by its number.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::panic::{PanicHookInfo, set_hook, take_hook};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether this process is a forked child.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The address of the hook that was installed last.
static INSTALLED: AtomicUsize = AtomicUsize::new(0);
/// Held around a fork: while another thread installs the hook, none is forked.
static FORKING: Mutex<()> = Mutex::new(());

/// Whether this process was forked by [`Child::fork`](crate::Child::fork). A thread that does not exist
/// here may have held any lock of the parent: a forked child writes to no logger and to no standard stream.
///
/// A process that was started anew ([`Child::respawn`](crate::Child::respawn)) has no such restriction.
pub fn is_forked_child() -> bool {
    // Relaxed: set by the only thread of the child before it makes any other.
    FORKED.load(Ordering::Relaxed)
}

/// In a fresh child.
pub(crate) fn set_forked() {
    // Relaxed: as in `is_forked_child`.
    FORKED.store(true, Ordering::Relaxed);
}

/// In the parent, before it forks: makes sure that a child reports its panics without locks. The guard is
/// to be held until the fork is over.
///
/// In a process that is a forked child itself the hook is there already, and its lock may be stuck.
pub(crate) fn before_fork() -> Option<MutexGuard<'static, ()>> {
    if is_forked_child() {
        return None;
    }
    let forking = FORKING.lock().unwrap_or_else(PoisonError::into_inner);
    // A thread that unwinds may not change the hook.
    if !std::thread::panicking() {
        install();
    }
    Some(forking)
}

/// Puts the hook in front of the one that is there, unless that is ours.
fn install() {
    type Hook = dyn Fn(&PanicHookInfo<'_>) + Send + Sync;
    let address = |hook: &Hook| std::ptr::from_ref(hook).addr();
    let there = take_hook();
    // Relaxed: only read and written under `FORKING`.
    if address(&*there) == INSTALLED.load(Ordering::Relaxed) {
        set_hook(there);
        return;
    }
    let ours: Box<Hook> =
        Box::new(move |panic| if is_forked_child() { report_panic(panic) } else { there(panic) });
    // Relaxed: as above.
    INSTALLED.store(address(&*ours), Ordering::Relaxed);
    set_hook(ours);
}

/// Reports a panic straight to the descriptor: a thread that does not exist here may have held the lock
/// around `std::io::stderr`.
pub(crate) fn report_panic(panic: &PanicHookInfo<'_>) {
    let text = format!("[pid {}] {panic}\n", std::process::id());
    // SAFETY: standard error is open for the process's life; nothing here owns or closes it.
    let _ = nix::unistd::write(unsafe { BorrowedFd::borrow_raw(2) }, text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Child, PANIC_EXIT_CODE};
    use deadline::{Deadline, HowDied};
    use serial_test::serial;
    use std::io::{Read, pipe};
    use std::os::fd::AsFd;
    use std::sync::Barrier;
    use std::time::Duration;

    /// CP-8: a thread of the parent holds what the parent's hook and its standard error are locked by.
    #[test]
    #[serial]
    fn f56_a_child_reports_a_panic_although_its_parents_locks_are_held() {
        static HOOK: Mutex<()> = Mutex::new(());
        let before = take_hook();
        set_hook(Box::new(|_| drop(HOOK.lock())));
        let ([held, let_go], (mut read, write)) = ([(); 2].map(|()| Barrier::new(2)), pipe().unwrap());
        let end = std::thread::scope(|scope| {
            scope.spawn(|| {
                let locks = (HOOK.lock().unwrap(), std::io::stderr().lock());
                held.wait();
                let_go.wait();
                drop(locks);
            });
            held.wait();
            let body = || {
                nix::unistd::dup2_stderr(&write).unwrap();
                if is_forked_child() { panic!("on purpose") } else { 3 }
            };
            // SAFETY: the body makes system calls and panics.
            let child = unsafe { Child::fork(&[write.as_fd()], body) }.unwrap();
            let end = child.reap(Deadline::after(Duration::from_secs(20)).unwrap());
            let_go.wait();
            end.map(|end| (child.pid(), end))
        });
        set_hook(before);
        drop(write);
        let (pid, end) = end.expect("the child waits for a lock that nobody will release");
        assert_eq!(end, HowDied::Exited(PANIC_EXIT_CODE));
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert!(text.starts_with(&format!("[pid {pid}] ")) && text.contains("on purpose"), "{text}");
        assert!(!is_forked_child());
    }

    #[test]
    #[serial]
    fn f56_the_hook_of_the_parent_stays_and_is_wrapped_once() {
        static CALLED: AtomicUsize = AtomicUsize::new(0);
        let before = take_hook();
        set_hook(Box::new(|_| _ = CALLED.fetch_add(1, Ordering::Relaxed)));
        drop(before_fork());
        let once = INSTALLED.load(Ordering::Relaxed);
        let hook = take_hook();
        assert_eq!(std::ptr::from_ref(&*hook).addr(), once, "not installed");
        set_hook(hook);
        drop(before_fork());
        assert_eq!(INSTALLED.load(Ordering::Relaxed), once, "installed a second time");
        let _ = std::panic::catch_unwind(|| panic!("on purpose"));
        assert_eq!(CALLED.load(Ordering::Relaxed), 1);
        set_hook(before);
    }
}
