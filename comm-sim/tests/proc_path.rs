//! What can lie at the path, or hold its name, is refused at once, by name, and never used (F16 to F18).
#![allow(missing_docs)]

mod support;

use comm_context::comm::{Communicator, Membership};
use comm_sim::SimComm;
use nix::unistd::{Uid, geteuid};
use serial_test::serial;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{Entry, Texts, descriptors, far, in_processes, listing, mappings, rendezvous_path, secs};

/// A refusal at once takes less, on a busy machine too; a wait for another rank takes longer.
const AT_ONCE: Duration = Duration::from_secs(10);
const TIMEOUT_S: u64 = 30;
const NOBODY: u32 = 65534;

/// Checks that a rendezvous at `path` is refused at once, with these words and the path in the error.
fn assert_refused(path: &Path, words: &[&str]) {
    let started = Instant::now();
    let joined = SimComm::rendezvous(path, Membership::new(0, 2).unwrap(), secs(TIMEOUT_S));
    let error = joined.expect_err("a path that cannot be used").to_string();
    assert!(started.elapsed() < AT_ONCE, "{}: {:?}", path.display(), started.elapsed());
    let all = words.iter().all(|word| error.contains(word)) && error.contains(&path.display().to_string());
    assert!(all, "{} lacks {words:?}: {error}", path.display());
}

/// A file as an earlier version or another program might have left it: magic, nonce, sizes, bytes.
fn plausible() -> Vec<u8> {
    let mut bytes = b"chipcomm rootinfo 1\n".to_vec();
    bytes.extend(0x1234_5678_9abc_def0_u64.to_le_bytes());
    bytes.extend((0..228).map(|at: u32| at.wrapping_mul(37) as u8));
    bytes
}

#[test]
#[serial]
fn f16_f17_a_stale_file_and_each_flipped_byte_of_it_are_refused_at_once() {
    // RV-2
    let (_folder, path) = rendezvous_path();
    let good = plausible();
    std::fs::write(&path, &good).unwrap();
    assert_refused(&path, &["there is a file", "nothing may exist", "remove it"]);
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0xff;
        std::fs::write(&path, &bytes).unwrap();
        assert_refused(&path, &["there is a file", "nothing may exist"]);
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "the file was changed, byte {at}");
    }
}

#[test]
#[serial]
fn f18_links_fifos_folders_and_files_of_others_are_refused_by_name() {
    // RV-2
    let (folder, _) = rendezvous_path();
    let at = |name: &str| folder.path().join(name);
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
    std::fs::write(at("target"), "x").unwrap();
    std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    std::fs::write(at("open"), "x").unwrap();
    std::fs::set_permissions(at("open"), std::fs::Permissions::from_mode(0o666)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::fs::write(at("foreign"), "x").unwrap();
    let root = geteuid().is_root();
    if root {
        std::os::unix::fs::chown(at("foreign"), Some(NOBODY), None).unwrap();
    } else {
        println!("not run: only root can make a file of another owner");
    }
    let before = listing(folder.path());
    assert_refused(&at("fifo"), &["a FIFO"]);
    assert_refused(&at("dangling"), &["a symbolic link"]);
    assert_refused(&at("link"), &["a symbolic link"]);
    assert_refused(&at("folder"), &["a folder"]);
    assert_refused(&at("open"), &["a file", "anybody may write"]);
    assert_refused(&at("socket"), &["a socket"]);
    if root {
        assert_refused(&at("foreign"), &["of another owner (uid 65534)"]);
    }
    assert_eq!(listing(folder.path()), before);
}

/// The names in the abstract namespace at which root's ranks rendezvous now.
fn bound_names() -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let names = sockets.split_whitespace().filter_map(|word| word.strip_prefix('@'));
    names.filter(|name| name.starts_with("chipcomm/0/")).map(str::to_owned).collect()
}

#[test]
#[serial]
fn f18_a_name_that_another_user_holds_is_refused_and_a_connection_of_another_user_does_no_harm() {
    // RV-2
    if !geteuid().is_root() {
        println!("not run: only root can act as another user");
        return;
    }
    let (_folder, path) = rendezvous_path();
    // A rendezvous of ours that never completes shows the name that it binds.
    let others = bound_names();
    let leader = Entry::Path(&path).fork(|| {
        let _ = SimComm::rendezvous(&path, Membership::new(0, 2).unwrap(), secs(60));
        0
    });
    let name = loop {
        if let Some(name) = bound_names().into_iter().find(|name| !others.contains(name)) {
            break name;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let address = nix::sys::socket::UnixAddr::new_abstract(name.as_bytes()).unwrap();
    let socket = || {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).unwrap()
    };
    let stranger = Entry::Path(&path).fork(|| {
        nix::unistd::setuid(Uid::from_raw(NOBODY)).unwrap();
        let connection = socket();
        nix::sys::socket::connect(connection.as_raw_fd(), &address).unwrap();
        let mut answer = [0; 256];
        let len = nix::unistd::read(&connection, &mut answer).unwrap();
        i32::from(!String::from_utf8_lossy(&answer[..len]).contains("belongs to another user"))
    });
    assert_eq!(stranger.reap(far()), Some(deadline::HowDied::Exited(0)));
    drop(leader);

    // Now the other user holds the name.
    let ready = Texts::new(1, 64);
    let squatter = Entry::Path(&path).fork(|| {
        nix::unistd::setuid(Uid::from_raw(NOBODY)).unwrap();
        let held = socket();
        nix::sys::socket::bind(held.as_raw_fd(), &address).unwrap();
        nix::sys::socket::listen(&held, nix::sys::socket::Backlog::new(8).unwrap()).unwrap();
        ready.write(0, "ready");
        std::thread::sleep(Duration::from_secs(60));
        0
    });
    while ready.read(0) != "ready" {
        assert_eq!(squatter.try_reap(), None);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_refused(
        &path,
        &[
            ": the rendezvous name is held by a process of another user (uid 65534); choose a path in a folder of your own",
        ],
    );
}

#[test]
#[serial]
fn f16_a_thousand_communicators_at_one_path_leave_nothing() {
    // RV-4, CS-4
    let (folder, path) = rendezvous_path();
    in_processes(2, Entry::Path(&path), |rank| {
        let mut first = None;
        for round in 0..1000_u32 {
            let me = Membership::new(rank, 2).unwrap();
            let comm =
                SimComm::rendezvous(&path, me, secs(60)).map_err(|error| format!("{round}: {error}"))?;
            let window = comm.alloc_windows(4096, secs(60)).map_err(|error| format!("{round}: {error}"))?;
            comm.write(window.base, &round.to_le_bytes()).unwrap();
            comm.barrier(secs(60)).map_err(|error| format!("{round}: {error}"))?;
            Box::new(comm).destroy(secs(60)).map_err(|error| format!("{round}: {error}"))?;
            let now = (descriptors(), mappings());
            // The first rounds fill the allocator's and the standard library's caches.
            if round >= 10 && now != *first.get_or_insert(now) {
                return Err(format!(
                    "{first:?} descriptors and mappings at first, {now:?} after {round} rounds"
                ));
            }
        }
        Ok(())
    });
    assert!(listing(folder.path()).is_empty());
}

#[test]
#[serial]
fn f83_simulated_ranks_on_several_hosts_are_refused_with_the_reason() {
    for path in ["tcp://127.0.0.1:29500", "tcp://[fd00::1]:1", "env://", "tcp://malformed"] {
        let text = format!(
            "{path:?} names ranks on several hosts, but simulated ranks share memory, which ends at the host; use a file path as \
             rootinfo_path and start all ranks on one host, or use the Ascend backend"
        );
        assert_refused(Path::new(path), &[&text]);
    }
}
