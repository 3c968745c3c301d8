//! What can lie at the path, or hold its name: refused at once, by name, and never used (F16 to F18).
//!
//! # Safety
//! Declares and calls two functions of the C API, which this program links through the crate.
#![allow(unsafe_code, missing_docs)]

mod kit;

use comm_context::comm::{Communicator, Membership};
use comm_sim::SimComm;
use kit::{Way, descriptors, in_processes, listing, mappings, meeting_place, secs};
use nix::unistd::{Uid, geteuid};
use serial_test::serial;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Long enough to be told from an answer at once, on a busy machine too.
const PATIENCE_S: &str = "30";
const AT_ONCE: Duration = Duration::from_secs(10);
const NOBODY: u32 = 65534;

unsafe extern "C" {
    fn comm_init(rank: c_int, nranks: c_int, stream: *mut c_void, path: *const c_char) -> *mut c_void;
    fn comm_last_error() -> *const c_char;
}

/// What `comm_init` says about a path at which it must not meet anybody.
fn refusal(path: &Path) -> Result<String, String> {
    let text = CString::new(path.as_os_str().as_bytes()).unwrap();
    let started = Instant::now();
    // SAFETY: the path is a live C string; the stream is not used.
    let handle = unsafe { comm_init(0, 2, std::ptr::null_mut(), text.as_ptr()) };
    if !handle.is_null() {
        return Err("it was accepted".to_owned());
    }
    if started.elapsed() > AT_ONCE {
        return Err(format!("it took {:?}", started.elapsed()));
    }
    // SAFETY: the text is this thread's and stays until its next call.
    Ok(unsafe { CStr::from_ptr(comm_last_error()) }.to_string_lossy().into_owned())
}

/// Runs `body` in a process of its own without standard error, which `comm_init` would fill.
fn quietly(body: impl Fn() -> Result<(), String>) {
    let (_folder, path) = meeting_place();
    in_processes(1, Way::Met(&path), |_| {
        let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
        nix::unistd::dup2_stderr(&null).unwrap();
        // SAFETY: the process has one thread.
        unsafe { std::env::set_var("CHIPCOMM_TIMEOUT_S", PATIENCE_S) };
        body()
    });
}

fn expect(path: &Path, words: &[&str]) -> Result<(), String> {
    let told = refusal(path).map_err(|why| format!("{}: {why}", path.display()))?;
    let all = words.iter().all(|word| told.contains(word)) && told.contains(&path.display().to_string());
    if all { Ok(()) } else { Err(format!("{} lacks {words:?}: {told}", path.display())) }
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
    let (_folder, path) = meeting_place();
    let good = plausible();
    quietly(|| {
        std::fs::write(&path, &good).unwrap();
        expect(&path, &["comm_init", "a file", "never read", "remove it"])?;
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 0xff;
            std::fs::write(&path, &bytes).unwrap();
            expect(&path, &["a file", "never read"])?;
            if std::fs::read(&path).unwrap() != bytes {
                return Err(format!("the file was changed, byte {at}"));
            }
        }
        Ok(())
    });
}

#[test]
#[serial]
fn f18_links_fifos_folders_and_files_of_others_are_refused_by_name() {
    // RV-2
    let (folder, _) = meeting_place();
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
        println!("not root: a file of another owner cannot be made, so that part is not run");
    }
    let before = listing(folder.path());
    quietly(|| {
        expect(&at("fifo"), &["a FIFO"])?;
        expect(&at("dangling"), &["a symbolic link"])?;
        expect(&at("link"), &["a symbolic link"])?;
        expect(&at("folder"), &["a folder"])?;
        expect(&at("open"), &["a file", "anybody may write"])?;
        expect(&at("socket"), &["a socket"])?;
        if root {
            expect(&at("foreign"), &["of another owner (uid 65534)"])?;
        }
        Ok(())
    });
    assert_eq!(listing(folder.path()), before);
}

#[test]
#[serial]
fn f18_a_name_that_another_user_holds_is_refused_and_a_visit_of_another_user_does_no_harm() {
    // RV-2
    if !geteuid().is_root() {
        println!("not root: nobody else can be impersonated, so this is not run");
        return;
    }
    let (_folder, path) = meeting_place();
    // A meeting of ours that never completes shows under which name it is held.
    let host = Way::Met(&path).fork(|| {
        let _ = SimComm::rendezvous(&path, Membership::new(0, 2).unwrap(), secs(60));
        0
    });
    let name = loop {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        if let Some(name) = sockets.split_whitespace().find_map(|word| word.strip_prefix("@chipcomm/0/")) {
            break format!("chipcomm/0/{name}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let address = nix::sys::socket::UnixAddr::new_abstract(name.as_bytes()).unwrap();
    let socket = || {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).unwrap()
    };
    let visitor = Way::Met(&path).fork(|| {
        use std::os::fd::AsRawFd;
        nix::unistd::setuid(Uid::from_raw(NOBODY)).unwrap();
        let visit = socket();
        nix::sys::socket::connect(visit.as_raw_fd(), &address).unwrap();
        let mut answer = [0; 256];
        let len = nix::unistd::read(&visit, &mut answer).unwrap();
        i32::from(!String::from_utf8_lossy(&answer[..len]).contains("belongs to another user"))
    });
    assert_eq!(visitor.reap(kit::far()), Some(deadline::HowDied::Exited(0)));
    drop(host);

    // Now the other user holds the name.
    let ready = kit::Says::new(1, 64);
    let squatter = Way::Met(&path).fork(|| {
        use std::os::fd::AsRawFd;
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
    quietly(|| expect(&path, &["held by a process of another user (uid 65534)"]));
}

#[test]
#[serial]
fn f16_a_thousand_communicators_at_one_path_cost_nothing_that_stays() {
    // RV-4, CS-4
    let (folder, path) = meeting_place();
    in_processes(2, Way::Met(&path), |rank| {
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
