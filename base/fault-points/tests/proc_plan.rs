//! Plans in processes: this test program starts itself with a plan in the environment.
#![cfg(feature = "inject")]
#![allow(missing_docs)]

use fault_points::{Action, LOG_VARIABLE, LogLine, PLAN_VARIABLE, Plan, fault_call, fault_point};
use std::process::{Command, Output};

/// Set in the process under test.
const INSIDE: &str = "CHIPCOMM_FAULT_TEST";

/// Passes `test.step` three times and `test.call` once, as rank 1.
fn body() {
    fault_points::set_rank(1);
    for _ in 0..3 {
        fault_point!("test.step");
    }
    println!("call: {:?}", fault_call!("test.call"));
}

fn run(variables: &[(&str, &str)]) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_process_under_test", "--nocapture"])
        .env(INSIDE, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

#[test]
fn the_process_under_test() {
    if std::env::var_os(INSIDE).is_some() {
        body();
    }
}

/// FP-2
#[test]
fn a_malformed_plan_ends_the_process() {
    let ended = run(&[(PLAN_VARIABLE, "test.step=explode")]);
    assert_eq!(ended.status.code(), Some(2));
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(text.contains("CHIPCOMM_FAULT_PLAN: malformed fault \"test.step=explode\""), "{text}");
}

/// FP-4
#[test]
fn a_fault_happens_at_its_pass_and_in_its_rank_only() {
    let code = |plan: &str| run(&[(PLAN_VARIABLE, plan)]).status.code();
    assert_eq!(code("test.step#3=exit:41"), Some(41));
    assert_eq!(code("test.step@1#3=exit:41"), Some(41));
    for elsewhere in ["test.step#4=exit:41", "test.step@0=exit:41", "test.other=exit:41"] {
        assert_eq!(code(elsewhere), Some(0), "{elsewhere}");
    }
    let failed = run(&[(PLAN_VARIABLE, "test.call=error:12")]);
    assert!(String::from_utf8_lossy(&failed.stdout).contains("call: Err(12)"));
}

#[test]
fn a_log_has_every_pass_or_the_fault_alone() {
    let log = std::env::temp_dir().join(format!("fault-points-{}.log", std::process::id()));
    let points = |variables: &[(&str, &str)]| {
        let path = log.to_str().unwrap();
        run(&[variables, &[(LOG_VARIABLE, path)]].concat());
        let text = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        let lines: Vec<LogLine> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(lines.iter().all(|line| line.rank == Some(1)));
        lines.into_iter().map(|line| (line.point, line.hit)).collect::<Vec<_>>()
    };
    let pass = |point: &str, hit| (point.to_owned(), hit);
    let all = [pass("test.step", 1), pass("test.step", 2), pass("test.step", 3), pass("test.call", 1)];
    assert_eq!(points(&[]), all);
    let plan = Plan::one("test.step", 1, 2, Action::Exit(3)).to_string();
    assert_eq!(points(&[(PLAN_VARIABLE, &plan)]), [pass("test.step", 2)]);
}
