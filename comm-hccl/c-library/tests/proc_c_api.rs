//! `libcomm_hccl.so` as a C program uses it, on the double.
#![allow(missing_docs)]

use cann_sim::Session;
use comm_context::conformance::CLibrary;
use std::path::Path;
use std::process::{Command, Stdio};

// CH-7
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn a_program_in_c_runs_two_ranks_on_the_double() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rootinfo");
    two_ranks("rank.c", path.to_str().unwrap());
}

// The same calls with an address: ranks that could be on several hosts.
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn a_program_in_c_joins_at_an_address() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    two_ranks("rank.c", &format!("tcp://127.0.0.1:{port}"));
}

// CO-1, CO-5, CO-10
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn a_program_in_c_makes_collective_calls_on_the_double() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rootinfo");
    two_ranks("coll.c", path.to_str().unwrap());
}

fn two_ranks(program: &str, path: &str) {
    let folder = tempfile::tempdir().unwrap();
    let session = Session::create(folder.path()).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(program);
    let vendor = cann_sim::library_dir();
    let vendor = vendor.display();
    // Cargo's own search path takes precedence over other settings and may hold a second copy of the double. A process
    // must have only one, so the folder is part of the program.
    let link = [format!("-L{vendor}"), "-lascendcl".to_owned(), format!("-Wl,-rpath,{vendor}")];
    let program = CLibrary::build("comm-hccl-c", "comm_hccl").compile(&source, folder.path(), &link);
    let children = [0, 1].map(|rank| {
        let mut command = Command::new(&program);
        command.args([rank.to_string(), "2".to_owned()]).arg(path);
        command.env("CHIPCOMM_TOKEN", "the token of this test");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).env("CHIPCOMM_TIMEOUT_S", "60");
        session.enlist_as(&mut command, rank).spawn().unwrap()
    });
    for (rank, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{stdout}{stderr}", output.status);
        assert!(stdout.contains(&format!("rank {rank} of 2: ok")), "{stdout}{stderr}");
    }
    let report = session.report().unwrap();
    assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
}
