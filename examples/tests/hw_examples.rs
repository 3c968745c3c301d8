//! Every program with flags on Ascend devices, or on the double of the vendor's libraries:
//! `cargo xtask hw-test --layer examples`.

use std::process::Command;

/// The first `chips` of the devices that hw-test was given. Fewer are a failure: nothing would have been tested.
fn devices(chips: usize) -> String {
    let all = std::env::var("CHIPCOMM_DEVICES").expect("cargo xtask hw-test sets CHIPCOMM_DEVICES");
    let some: Vec<&str> = all.split(',').take(chips).collect();
    assert_eq!(some.len(), chips, "this test needs {chips} devices, and hw-test was given {all}");
    some.join(",")
}

fn right(program: &str, chips: usize) {
    let platform = std::env::var("CHIPCOMM_PLATFORM").expect("cargo xtask hw-test sets CHIPCOMM_PLATFORM");
    let devices = devices(chips);
    let mut command = Command::new(program);
    // On the double, a session of its own.
    let session = tempfile::tempdir().unwrap();
    if std::env::var_os("CHIPCOMM_CANN_LIB_DIR").is_some() {
        command.env("CANN_SIM_DIR", session.path());
    }
    let ran = command.args(["-p", &platform, "-d", &devices, "--iters", "100"]).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert_eq!(ran.status.code(), Some(0), "{program} on {chips} chips\n{out}{err}");
}

macro_rules! programs {
    ($($test:ident: $program:literal),+ $(,)?) => {
        $(#[test]
        #[ignore = "needs devices: cargo xtask hw-test --layer examples"]
        fn $test() {
            right(env!(concat!("CARGO_BIN_EXE_", $program)), 2);
            right(env!(concat!("CARGO_BIN_EXE_", $program)), 4);
        })+
    };
}

programs! {
    allreduce_is_right: "allreduce",
    allgather_is_right: "allgather",
    reduce_scatter_is_right: "reduce_scatter",
    treduce_is_right: "treduce",
    tp_ffn_is_right: "tp_ffn",
    domains_is_right: "domains",
}
