//! Compiles every kernel of `kernels/` for the simulation: one shared object each, in `OUT_DIR`.
//!
//! It has no dependencies, because each would be built a second time for the build script.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The headers that kernels include.
const INCLUDE_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../comm-context/include");

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed={INCLUDE_DIR}");
    println!("cargo::rerun-if-env-changed=CXX");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    // The tests compile kernels of their own with it.
    println!("cargo::rustc-env=KERNEL_COMPILER={compiler}");
    if let Err(error) = compile_all(&compiler) {
        println!("cargo::error={error}");
    }
}

fn compile_all(compiler: &str) -> Result<(), String> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set; build with cargo")?);
    let list = std::fs::read_dir("kernels").map_err(|error| format!("kernels: {error}"))?;
    for entry in list {
        let source = entry.map_err(|error| format!("kernels: {error}"))?.path();
        if source.extension().is_some_and(|extension| extension == "cpp") {
            compile(compiler, &source, &out)?;
        }
    }
    Ok(())
}

/// With optimisation in a debug build too: a kernel stands for a chip's code.
fn compile(compiler: &str, source: &Path, out: &Path) -> Result<(), String> {
    let object = out.join(source.with_extension("so").file_name().unwrap_or_default());
    // `CXX` may have arguments or a wrapper, such as `ccache g++`.
    let mut words = compiler.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command.args(["-std=c++17", "-O3", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-I"]);
    command.arg(INCLUDE_DIR).arg(source).arg("-o").arg(object);
    let output = command.output().map_err(|error| {
        format!(
            "the examples' kernels need a C++17 compiler ({compiler}: {error}); \
             install g++ or clang++, or set CXX to yours"
        )
    })?;
    if output.status.success() {
        return Ok(());
    }
    // Cargo takes one line as one error.
    let errors = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "\\n");
    Err(format!("kernel {} does not compile: {errors}", source.display()))
}
