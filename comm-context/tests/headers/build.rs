//! Compiling C and C++ in tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The flags of every compilation: a header that kernels include must not make their build noisy.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// What is compiled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Language {
    C11,
    Cpp17,
}

/// The compilers of this machine. GNU's must be there; clang's are used where they are.
pub(crate) fn compilers(language: Language) -> Vec<&'static str> {
    let (gnu, clang) = match language {
        Language::C11 => ("gcc", "clang"),
        Language::Cpp17 => ("g++", "clang++"),
    };
    let answers =
        |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
    assert!(answers(&gnu), "{gnu} is missing; install a C++ compiler to run this test");
    [gnu, clang].into_iter().filter(answers).collect()
}

/// The path of a source in `cc`.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/headers/cc").join(name)
}

/// A strict compiler command with the crate's headers.
pub(crate) fn compile(compiler: &str, language: Language, source: &Path) -> Command {
    let mut command = Command::new(compiler);
    match language {
        Language::C11 => command.args(["-x", "c", "-std=c11"]),
        Language::Cpp17 => command.args(["-x", "c++", "-std=c++17"]),
    };
    command.args(STRICT).arg("-I").arg(comm_context::INCLUDE_DIR).arg(source);
    command
}

/// Runs a command that must succeed, and returns what it printed, both streams.
pub(crate) fn output_of(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {}\n{text}", out.status);
    text
}
