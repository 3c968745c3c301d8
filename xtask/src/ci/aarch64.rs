//! The lane `aarch64`: libraries and programs are checked by the compiler for 64-bit Arm, which has other system calls, weaker
//! ordering and pages of up to 64 KiB. Nothing is linked, so that only the standard library of that target is needed; what
//! compiles C++ is left to hosted CI, which has such a machine.

use anyhow::Result;
use std::path::Path;
use std::process::Command;

use crate::cargo::cargo;
use crate::lane::{Outcome, Report, Setting};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// They compile C++ or link for the target, or are commands of this machine.
const LEFT_OUT: [&str; 4] = ["cann-sim-ascendcl", "cann-sim-hccl", "chipcomm-examples", "xtask"];

pub(super) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    if !has_standard_library() {
        return Ok(Outcome::LeftOut(format!(
            "{TARGET} is not installed; to install: rustup target add {TARGET}"
        )));
    }
    let mut command =
        cargo(&setting.ws.root, ["check", "--target", TARGET, "--workspace", "--lib", "--bins"]);
    for name in LEFT_OUT {
        command.args(["--exclude", name]);
    }
    let log = setting.console.run(&mut command)?;
    Ok(Outcome::Ran(Report::checks(setting.ws.members.len() - LEFT_OUT.len(), "crate", log.failure)))
}

fn has_standard_library() -> bool {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let out = Command::new(compiler).args(["--print", "target-libdir", "--target", TARGET]).output();
    out.is_ok_and(|out| Path::new(String::from_utf8_lossy(&out.stdout).trim()).is_dir())
}
