//! What goes wrong before a group exists: ranks that disagree or cannot join, names that others hold, sockets
//! that outlive their process, and other pid namespaces.
//!
//! # Safety
//! Forks; the children use shared memory, sockets and system calls, and no lock of the test harness.
#![allow(unsafe_code, missing_docs)]

mod support;

use child_process::Child;
use comm_context::comm::{CommError, Membership, Timeout};
use deadline::{Deadline, HowDied};
use nix::sys::signal::Signal;
use rendezvous::{Group, ranks_at};
use serial_test::serial;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;
use support::{EXTENT, all_fine, await_table, far, fork, join, names_death, path, rank, secs, socket_name};

/// Expects a failure whose text holds all of `words`.
fn says(result: Result<Group, CommError>, words: &[&str]) -> Result<(), String> {
    match result.map(drop) {
        Err(CommError::TimedOut { missing, .. }) => Err(format!("timed out, missing {missing:?}")),
        Err(error) if words.iter().all(|word| error.to_string().contains(word)) => Ok(()),
        other => Err(format!("expected {words:?}, got {other:?}")),
    }
}

#[test]
#[serial]
fn f77_all_ranks_learn_at_once_that_they_disagree_on_the_size() {
    // RV-9
    let (_folder, path) = path();
    let path = &path;
    let words =
        ["the rendezvous failed: ", "rank 2 says 4 ranks, rank 0 says 3; give all ranks the same size"];
    let leader = rank(move || says(join(path, 0, 3, secs(20)), &words));
    await_table(path, |table| table.contains("leader"));
    let joiner = rank(move || says(join(path, 1, 3, secs(20)), &words));
    await_table(path, |table| table.matches("pid").count() == 2);
    let other = rank(move || says(join(path, 2, 4, secs(20)), &words));
    all_fine(vec![leader, joiner, other]);
}

#[test]
#[serial]
fn f77_all_ranks_learn_at_once_that_the_folder_of_their_path_is_gone() {
    // RV-9
    for replaced in [false, true] {
        let (folder, path) = path();
        let path = &path;
        let what = if replaced { "another one is in its place" } else { "it was removed" };
        let words = [
            ": the folder of the rendezvous path was replaced while ranks joined (",
            what,
            "), so that ranks which come now cannot find those that have joined; keep the folder until all ranks have joined, \
             and start them again",
        ];
        let leader = rank(move || says(join(path, 0, 3, secs(20)), &words));
        await_table(path, |table| table.contains("leader"));
        let joiner = rank(move || says(join(path, 1, 3, secs(20)), &words));
        await_table(path, |table| table.matches("pid").count() == 2);
        // Moved, not removed: a new folder could get the inode of one that is gone.
        let elsewhere = folder.path().with_extension("moved");
        std::fs::rename(folder.path(), &elsewhere).unwrap();
        if replaced {
            std::fs::create_dir(folder.path()).unwrap();
        }
        all_fine(vec![leader, joiner]);
        std::fs::remove_dir(&elsewhere).unwrap();
    }
}

/// Limits a resource of this process.
fn limit(resource: libc::__rlimit_resource_t, soft: u64) {
    let limits = libc::rlimit { rlim_cur: soft, rlim_max: soft };
    // SAFETY: `limits` is a live local.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limits) }, 0);
}

/// Three ranks of which rank 1 runs `handicap` and then cannot attach the group's memory.
fn one_cannot_attach(handicap: impl Fn() + Copy, extent: usize, words: &'static [&'static str]) {
    let (_folder, path) = path();
    let path = &path;
    let join = move |me| Group::rendezvous(path, Membership::new(me, 3).unwrap(), extent, secs(20));
    let others = [0, 2].map(|me| {
        rank(move || match join(me).map(drop) {
            Err(CommError::PeerLeft { rank: 1, reason, .. })
                if words.iter().all(|word| reason.contains(word)) =>
            {
                Ok(())
            }
            other => Err(format!("rank {me}: {other:?}")),
        })
    });
    await_table(path, |table| table.matches("pid").count() == 2);
    let limited = rank(move || {
        handicap();
        says(join(1), words)
    });
    all_fine(others.into_iter().chain([limited]).collect());
}

#[test]
#[serial]
fn f77_all_ranks_learn_at_once_that_one_cannot_map_the_memory() {
    one_cannot_attach(|| limit(libc::RLIMIT_AS, 16 << 30), 64 << 30, &["chipcomm-group"]);
}

#[test]
#[serial]
fn f77_a_joiner_out_of_descriptors_names_its_own_limit_and_all_others_learn_it() {
    for left in [1, 2] {
        let handicap = move || {
            let free = nix::unistd::dup(std::io::stdin().as_fd()).unwrap();
            limit(libc::RLIMIT_NOFILE, std::os::fd::AsRawFd::as_raw_fd(&free) as u64 + left);
        };
        one_cannot_attach(
            handicap,
            EXTENT,
            &["the group's memory: all ", " descriptors of this process are in use", "ulimit -n"],
        );
    }
}

/// Forks a helper from a thread once `ready`, which keeps all descriptors for `seconds`, and then kills this
/// process.
fn leaves_a_helper(seconds: u32, ready: impl Fn() -> bool + Send + 'static) {
    std::thread::spawn(move || {
        while !ready() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: the child makes plain system calls only.
        unsafe {
            if libc::fork() == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, 0);
                libc::sleep(seconds);
                libc::_exit(0);
            }
        }
        nix::sys::signal::raise(Signal::SIGKILL).unwrap();
    });
}

#[test]
#[serial]
#[ignore = "slow: cargo xtask ci slow"]
fn f55_a_rank_that_died_is_named_although_a_helper_keeps_its_sockets() {
    // RV-3: first a joiner, then the leader.
    let (_folder, path) = path();
    for victim in [1, 0] {
        let path = &path;
        let complete = move |ranks: usize| {
            let table = ranks_at(path, secs(5)).unwrap();
            table.is_some_and(|table| table.matches("pid").count() == ranks)
        };
        let mut survivors = Vec::new();
        let mut doomed = Vec::new();
        for me in 0..2 {
            let child = rank(move || {
                if me == victim {
                    let path = path.clone();
                    leaves_a_helper(6, move || {
                        let table = ranks_at(&path, secs(5)).unwrap();
                        table.is_some_and(|table| table.matches("pid").count() == 2)
                    });
                }
                names_death(join(path, me, 3, secs(4)).map(drop), victim)
            });
            if me == victim {
                doomed.push(child)
            } else {
                survivors.push(child)
            }
            let end = far();
            while me == 0 && !complete(1) {
                assert!(!end.has_passed());
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        all_fine(survivors);
        for child in doomed {
            assert_eq!(child.reap(far()), Some(HowDied::Signalled(Signal::SIGKILL as i32)));
        }
    }
    // The helper of the leader holds the name, and nobody answers.
    let late = rank(|| {
        says(
            join(&path, 2, 3, secs(3)),
            &["held by pid", "inherited it from pid ", ", which has ended, and does not answer"],
        )
    });
    all_fine(vec![late]);
    // The folder stays until the helper has ended: another folder could get its inode, and with it the name.
    let name = nix::sys::socket::UnixAddr::new_abstract(socket_name(&path).as_bytes()).unwrap();
    let end = far();
    while nix::sys::socket::bind(std::os::fd::AsRawFd::as_raw_fd(&unix_socket()), &name).is_err() {
        assert!(!end.has_passed());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn unix_socket() -> std::os::fd::OwnedFd {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_NONBLOCK, None).unwrap()
}

/// A socket of this process that holds the name of the rendezvous at `path`, and does not listen there.
fn holder_at(path: &Path) -> std::os::fd::OwnedFd {
    use nix::sys::socket::{UnixAddr, bind};
    let holder = unix_socket();
    let name = UnixAddr::new_abstract(socket_name(path).as_bytes()).unwrap();
    bind(std::os::fd::AsRawFd::as_raw_fd(&holder), &name).unwrap();
    holder
}

/// Expects that a rank waits at `path` until its deadline, and then names this process.
fn names_this_process_as_silent(path: &Path) {
    let error = join(path, 0, 2, Timeout::new(Duration::from_millis(200)).unwrap()).map(drop).unwrap_err();
    let CommError::TimedOut { table, .. } = &error else { panic!("{error}") };
    let held = format!("the rendezvous name is held by pid {}", std::process::id());
    assert!(table.contains(&held) && table.contains(", which does not answer"), "{error}");
}

#[test]
#[serial]
fn rv_2_a_process_that_listens_at_the_name_and_does_not_answer_is_named() {
    let (_folder, path) = path();
    let holder = holder_at(&path);
    nix::sys::socket::listen(&holder, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
    names_this_process_as_silent(&path);
}

#[test]
#[serial]
#[ignore = "slow: cargo xtask ci slow"]
fn f54_a_process_that_takes_the_name_and_does_not_answer_is_named() {
    // RV-2
    use nix::sys::socket::{Backlog, UnixAddr, listen};
    use std::os::fd::AsRawFd;
    let (_folder, path) = path();
    let holder = holder_at(&path);
    let me = format!("held by pid {}", std::process::id());
    says(
        join(&path, 0, 2, secs(10)),
        &[
            "the rendezvous name is ",
            &me,
            "which does not listen there; end that process, or choose another path",
        ],
    )
    .unwrap();
    listen(&holder, Backlog::new(1).unwrap()).unwrap();
    // The first connections are queued, the others are not.
    for _ in 0..4 {
        names_this_process_as_silent(&path);
        // What was queued stays queued.
        let waiting = unix_socket();
        let name = UnixAddr::new_abstract(socket_name(&path).as_bytes()).unwrap();
        let _ = nix::sys::socket::connect(waiting.as_raw_fd(), &name);
        std::mem::forget(waiting);
    }
}

#[test]
#[serial]
fn f54_connections_of_another_user_do_not_keep_the_leader_beyond_its_deadline() {
    use nix::sys::socket::{UnixAddr, connect};
    use std::os::fd::AsRawFd;
    if !nix::unistd::geteuid().is_root() {
        return println!("not run: only root can be another user");
    }
    let (_folder, path) = path();
    let name = socket_name(&path);
    let floods: Vec<Child> = (0..4)
        .map(|_| {
            let name = &name;
            fork(move || {
                nix::unistd::setuid(65534.into()).unwrap();
                let name = UnixAddr::new_abstract(name.as_bytes()).unwrap();
                loop {
                    let _ = connect(unix_socket().as_raw_fd(), &name);
                }
            })
        })
        .collect();
    let path = &path;
    let leader = rank(move || match join(path, 0, 2, secs(1)).map(drop) {
        Err(CommError::TimedOut { missing, .. }) if missing == [1] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let ended = leader.reap(Deadline::after(Duration::from_secs(10)).unwrap());
    for flood in &floods {
        flood.signal(Signal::SIGKILL as i32);
    }
    assert_eq!(ended, Some(HowDied::Exited(0)));
}

/// Runs `body` in another pid namespace.
fn in_other_pid_namespace(body: impl FnOnce() -> Result<(), String>) -> Child {
    rank(move || {
        // SAFETY: plain system calls; the child of this process is single-threaded.
        unsafe {
            if libc::unshare(libc::CLONE_NEWPID) != 0 {
                return Err("unshare is not permitted".to_owned());
            }
            match libc::fork() {
                0 => {
                    let result = body();
                    if let Err(text) = &result {
                        let _ = nix::unistd::write(std::io::stderr().as_fd(), text.as_bytes());
                    }
                    libc::_exit(i32::from(result.is_err()))
                }
                child => {
                    let mut status = 0;
                    libc::waitpid(child, &raw mut status, 0);
                    if status == 0 { Ok(()) } else { Err(format!("status {status:#x}")) }
                }
            }
        }
    })
}

#[test]
#[serial]
#[ignore = "slow: cargo xtask ci slow"]
fn f53_ranks_in_different_pid_namespaces_are_refused() {
    if !nix::unistd::geteuid().is_root() {
        return println!("not run: only root can make a pid namespace");
    }
    let words = [
        "run in different pid namespaces, where neither can tell whether the other lives; start all ranks in one container, \
         or give the containers one pid namespace",
    ];
    for leader_inside in [false, true] {
        let (_folder, path) = path();
        let path = &path;
        let run = move |me: u32| move || says(join(path, me, 2, secs(10)), &words);
        let leader = if leader_inside { in_other_pid_namespace(run(0)) } else { rank(run(0)) };
        await_table(path, |table| table.contains("leader"));
        let joiner = if leader_inside { rank(run(1)) } else { in_other_pid_namespace(run(1)) };
        all_fine(vec![leader, joiner]);
    }
}
