//! Compiles the double's device, which is a program of its own: `OUT_DIR/cann-sim-device`.

use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "device/main.rs";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    if let Err(error) = compile() {
        println!("cargo::error=the device of the vendor double does not compile: {error}");
    }
}

fn compile() -> Result<(), String> {
    let variable = |name: &str| std::env::var_os(name).ok_or(format!("{name} is not set; build with cargo"));
    let program = PathBuf::from(variable("OUT_DIR")?).join("cann-sim-device");
    let (host, target) = (variable("HOST")?, variable("TARGET")?);
    let mut compiler = Command::new(variable("RUSTC")?);
    compiler.args(["--edition", "2024", "--crate-name", "cann_sim_device", "-O", "-D", "warnings"]);
    compiler.arg("-o").arg(&program);
    // Kernels find functions of the device in the program.
    compiler.args(["-C", "link-arg=-rdynamic"]);
    if host != target {
        compiler.arg("--target").arg(target);
    }
    let output = compiler.arg(SOURCE).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    // Cargo takes one line as one error.
    Err(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "\\n"))
}
