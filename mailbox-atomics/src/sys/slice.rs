//! How long a thread runs before it is another's turn.
//!
//! # Safety
//! Both calls are about the calling thread, and get the address and the size of a live structure.
#![allow(unsafe_code)]

/// The shortest time that the scheduler accepts.
const SHORTEST_NS: u64 = 100_000;
/// The nice value below which only the superuser comes.
const ORDINARY: i32 = 0;

/// See [`wake_promptly`](crate::wake_promptly). False where the system refuses.
pub(crate) fn shorten() -> bool {
    let Some(mut attr) = of_this_thread() else { return false };
    if attr.sched_policy != libc::SCHED_OTHER as u32 {
        return false;
    }
    attr.sched_runtime = SHORTEST_NS;
    // What this thread starts is for others to decide. The flag would also take a higher priority away from it.
    if attr.sched_nice >= ORDINARY {
        attr.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    }
    // SAFETY: the kernel reads as many bytes as the structure says that it has.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) == 0 }
}

/// Policy, nice value and flags. `None` under the interpreter, which has no such call.
fn of_this_thread() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attr = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `size` bytes, all of which are the structure's.
    let read =
        !cfg!(miri) && unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) == 0 };
    read.then_some(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing but the slice changes, for this thread, and nothing for one that it starts.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such call")]
    fn a_short_slice_is_the_threads_own() {
        std::thread::spawn(|| {
            let before = of_this_thread().unwrap();
            assert!(shorten());
            let after = of_this_thread().unwrap();
            assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
            // Older kernels know no slices, and say 0.
            assert!([0, SHORTEST_NS].contains(&after.sched_runtime), "{}", after.sched_runtime);
            let started = std::thread::spawn(|| of_this_thread().unwrap()).join().unwrap();
            assert_eq!(started.sched_runtime, before.sched_runtime);
            assert_eq!(started.sched_nice, before.sched_nice);
            // Once more is the same.
            assert!(shorten());
        })
        .join()
        .unwrap();
    }
}
