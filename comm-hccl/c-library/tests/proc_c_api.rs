//! `libcomm_hccl.so` from C, on the double.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::*;

/// Has cargo build the library and say where it is. No test can depend on a library of another crate that Rust does not link.
fn library() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "comm-hccl-c", "--message-format=json"]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let file = text.split('"').rfind(|word| word.ends_with("/libcomm_hccl.so"));
    PathBuf::from(file.unwrap_or_else(|| panic!("no libcomm_hccl.so in {text}")))
}

fn compile(dir: &Path) -> PathBuf {
    let (library, program) = (library(), dir.join("rank"));
    let [ours, vendors] =
        [library.parent().unwrap(), &cann_sim::library_dir()].map(|dir| dir.display().to_string());
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", comm_context::INCLUDE_DIR]);
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/rank.c")).arg("-o").arg(&program);
    compiler.args([format!("-L{vendors}"), format!("-L{ours}"), "-lcomm_hccl".into(), "-lascendcl".into()]);
    // Cargo's own search path comes before other settings, and may hold a second copy of the double; there must be one in a
    // process, so the folders are part of the program.
    compiler.arg(format!("-Wl,--disable-new-dtags,-rpath,{vendors}:{ours}"));
    assert!(compiler.status().expect("gcc is needed for this test").success());
    program
}

// CH-7
#[test]
fn a_program_in_c_runs_two_ranks_on_the_double() {
    let double = double("");
    let program = compile(double.dir.path());
    let children = [0, 1].map(|rank| {
        let mut command = Command::new(&program);
        command.args([rank.to_string(), "2".to_owned()]).arg(double.dir.path().join("rootinfo"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        double.session.enlist_as(&mut command, rank).spawn().unwrap()
    });
    for (rank, output) in children.map(finish).iter().enumerate() {
        assert!(output.status.success(), "{}\n{}", output.status, text(output));
        assert!(text(output).contains(&format!("rank {rank} of 2: ok")), "{}", text(output));
    }
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
}
