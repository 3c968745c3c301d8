//! The program itself, on this machine.

use std::process::{Command, Output};

fn doctor(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chipcomm-doctor"));
    command.args(arguments).envs(environment.iter().copied()).output().unwrap()
}

#[test]
fn here_the_simulation_runs_and_both_forms_say_the_same() {
    let text = doctor(&[], &[]);
    let shown = String::from_utf8(text.stdout).unwrap();
    assert_eq!(text.status.code(), Some(0), "{shown}");
    assert!(shown.contains("The simulation can run here.") && shown.contains("shared a window"), "{shown}");
    let json = doctor(&["--json"], &[]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["simulation"], true);
    let findings = json["findings"].as_array().unwrap();
    for finding in findings {
        assert!(shown.contains(&format!("{}: ", finding["what"].as_str().unwrap())), "{finding}");
        assert!(!finding["advice"].as_str().unwrap().is_empty(), "{finding}");
    }
    assert!(findings.len() > 20, "{findings:?}");
}

#[test]
fn a_limit_that_stops_the_simulation_is_the_exit_code() {
    // The descriptors of two ranks are more.
    let program = env!("CARGO_BIN_EXE_chipcomm-doctor");
    let limited = Command::new("sh").args(["-c", "ulimit -n 12; exec \"$0\"", program]).output().unwrap();
    let shown = String::from_utf8_lossy(&limited.stdout);
    assert_eq!(limited.status.code(), Some(1), "{shown}");
    assert!(shown.contains("MISSING open files: 12") && shown.contains("cannot run"), "{shown}");
    assert!(shown.contains("MISSING two ranks"), "{shown}");
}

#[test]
fn libraries_that_are_not_there_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let shown = String::from_utf8(doctor(&[], &[("CHIPCOMM_CANN_LIB_DIR", path)]).stdout).unwrap();
    assert!(shown.contains("note    libraries: ") && shown.contains(path), "{shown}");
}

#[test]
fn a_bad_command_line_is_refused() {
    let refused = doctor(&["--jsn"], &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--jsn"));
}
