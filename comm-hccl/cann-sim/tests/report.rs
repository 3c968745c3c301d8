//! The program that prints a session's report.

use std::process::Command;

#[test]
fn an_empty_session_is_clean_and_a_missing_one_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_cann-sim")).args(args).output().unwrap();
    let output = run(&[dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "cann-sim session (test double): 0 processes\n");
    let missing = run(&["/nonexistent/session"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nonexistent/session"));
    assert_eq!(run(&[]).status.code(), Some(2));
}
