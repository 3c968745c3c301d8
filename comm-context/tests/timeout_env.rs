//! The environment variable of the time limit, in a process of its own: a test must not change its own
//! environment.
// Miri cannot start processes.
#![cfg(all(feature = "std", not(miri)))]

use std::process::Command;

use comm_context::comm::Timeout;

const CHILD: &str = "prints_what_the_variable_means";

/// Runs the test below in a child with the variable set, and returns what it printed.
fn meaning_of(value: &str) -> String {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD, "--ignored", "--nocapture"])
        .env(Timeout::ENV, value)
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
#[ignore = "the child of the test below"]
fn prints_what_the_variable_means() {
    match Timeout::from_env(Timeout::ENV) {
        Ok(timeout) => println!("accepted: {timeout}"),
        Err(error) => println!("refused: {error}"),
    }
}

// CC-6
#[test]
fn f06_the_variable_is_taken_in_seconds_or_refused_with_the_accepted_form() {
    assert!(meaning_of("2.5").contains("accepted: 2.5s"));
    assert!(meaning_of("604800").contains("accepted: 604800s"));
    for bad in ["", "0", "-1", "nan", "1e9", "two", "315360000.5"] {
        let printed = meaning_of(bad);
        assert!(
            printed
                .contains(&format!("refused: CHIPCOMM_TIMEOUT_S is {bad:?}; set it to seconds, such as 120")),
            "{printed}"
        );
    }
}
