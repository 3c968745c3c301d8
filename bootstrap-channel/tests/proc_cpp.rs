//! A C++ program on each side in turn, compiled here. It knows nothing of stamps and wakes nobody.
#![allow(missing_docs)]

use bootstrap_channel::layout::MAILBOX_SIZE;
use bootstrap_channel::{Failed, Mailbox, Nonce, Reader, Reply, Success};
use deadline::Deadline;
use mailbox_atomics::Wait;
use shared_memory::Region;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use worker_errors::ErrorCode;

/// The compiled program. Its static assertions have checked the offsets by then.
fn peer() -> &'static PathBuf {
    static PEER: OnceLock<PathBuf> = OnceLock::new();
    PEER.get_or_init(|| {
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bootstrap-peer");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cpp/peer.cpp");
        let compiled = Command::new("g++")
            .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O2", "-pthread", "-o"])
            .arg(&program)
            .arg(source)
            .status()
            .expect("g++ is needed to check the mailbox against C++");
        assert!(compiled.success(), "{source} does not compile");
        program
    })
}

/// Starts the program on a region of this process.
fn start(what: &str, region: &Region) -> Child {
    let path = format!("/proc/{}/fd/{}", std::process::id(), region.fd().as_raw_fd());
    Command::new(peer()).args([what, &path]).stdout(Stdio::piped()).spawn().unwrap()
}

fn region() -> Region {
    Region::create("t", MAILBOX_SIZE).unwrap()
}

/// Waits without watching: a store alone must be noticed, and not only by the last check at the deadline.
fn reply(reader: &Reader<'_>) -> Reply {
    let deadline = Deadline::after(Duration::from_secs(60)).unwrap();
    let reply = reader.wait(&Wait::until(deadline)).unwrap();
    assert!(!deadline.has_passed(), "noticed only at the deadline");
    reply
}

/// BC-8, and BC-6 for a parent that stamped the mailbox of a child that does not know of it.
#[test]
fn a_cpp_writer_is_read_although_it_wakes_nobody() {
    let (region, nonce) = (region(), Nonce::random());
    let mailbox = Mailbox::at(&region, 0).unwrap();
    mailbox.stamp(nonce);
    let mut child = start("write-success", &region);
    let expected = Success {
        device_ctx: 0x1122_3344_5566_7788,
        window_base: 0x7f00_0000_1000,
        window_size: 1 << 20,
        buffers: (0..376).map(|index| 0x7f00_0000_1000 + 64 * index).collect(),
    };
    assert_eq!(reply(&mailbox.reader(nonce)), Reply::Success(expected));
    assert!(child.wait().unwrap().success());
}

/// BC-4 and BC-8
#[test]
fn a_cpp_error_without_a_nul_is_read_to_the_end_of_its_field() {
    let region = region();
    let mut child = start("write-error", &region);
    let failed = reply(&Mailbox::at(&region, 0).unwrap().reader(Nonce::random()));
    let message = format!("aclrtSetDevice\\n{}\u{fffd}", "x".repeat(1023 - 15));
    assert_eq!(failed, Reply::Failed(Failed { code: 507_018, message }));
    assert!(child.wait().unwrap().success());
}

/// BC-6: the parent that did not stamp the mailbox.
#[test]
fn a_cpp_reader_reads_what_is_published() {
    let region = region();
    let child = start("read", &region);
    let mut writer = Mailbox::at(&region, 0).unwrap().writer(Nonce::random()).unwrap();
    let success =
        Success { device_ctx: 0x10, window_base: 0x20, window_size: 0x30, buffers: vec![0x40, 0x50] };
    writer.publish_success(&success).unwrap();
    assert_eq!(output(child), "success 10 20 30 40 50\n");
}

#[test]
fn a_cpp_reader_reads_an_error_with_its_text() {
    let region = region();
    let child = start("read", &region);
    let mut writer = Mailbox::at(&region, 0).unwrap().writer(Nonce::random()).unwrap();
    writer.publish_error(ErrorCode::Vendor, &format!("broken: {}", "ü".repeat(600))).unwrap();
    let text = output(child);
    assert!(text.starts_with("error 8 broken: ü") && text.ends_with("ü\n"), "{text}");
    assert!(text.trim_end().len() <= 1023 + "error 8 ".len());
}

fn output(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
