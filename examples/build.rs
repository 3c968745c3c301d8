//! Compiles every kernel of `kernels/` for the simulation: one shared object each, beside the programs.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-env-changed=CXX");
    println!("cargo::rerun-if-changed={}", comm_context::INCLUDE_DIR);
    if let Err(error) = compile_all() {
        println!("cargo::error={error}");
    }
}

fn compile_all() -> Result<(), String> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR; build with cargo")?);
    let list = std::fs::read_dir("kernels").map_err(|error| format!("kernels: {error}"))?;
    for entry in list {
        let source = entry.map_err(|error| format!("kernels: {error}"))?.path();
        if source.extension().is_some_and(|end| end == "cpp") {
            compile(&source, &out)?;
        }
    }
    Ok(())
}

/// Always optimised: a kernel stands for a chip, also in a debug build of the program around it.
fn compile(source: &Path, out: &Path) -> Result<(), String> {
    let object = out.join(source.with_extension("so").file_name().unwrap_or_default());
    let compiler = cc::Build::new().cpp(true).cargo_metadata(false).opt_level(3).try_get_compiler();
    let compiler = compiler.map_err(|error| no_compiler(&error.to_string()))?;
    let mut command = Command::new(compiler.path());
    command.args(["-std=c++17", "-O3", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-I"]);
    command.arg(comm_context::INCLUDE_DIR).arg(source).arg("-o").arg(object);
    let ran =
        command.output().map_err(|error| no_compiler(&format!("{}: {error}", compiler.path().display())))?;
    if ran.status.success() {
        return Ok(());
    }
    // Cargo takes one line as one error.
    let told = String::from_utf8_lossy(&ran.stderr).trim().replace('\n', "\\n");
    Err(format!("kernel {} does not compile: {told}", source.display()))
}

fn no_compiler(why: &str) -> String {
    format!(
        "the examples' kernels need a C++17 compiler ({why}); install g++ or clang++, or set CXX to yours"
    )
}
