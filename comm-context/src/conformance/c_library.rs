//! A backend's C library, as the tests of its package use it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A C library that cargo has built for a test.
#[derive(Debug)]
pub struct CLibrary {
    path: PathBuf,
    name: String,
}

impl CLibrary {
    /// Builds the shared library `name` of `package`, in the development profile.
    ///
    /// Cargo builds no shared library for the tests of its own package, because Rust does not link it, so the
    /// test asks cargo for it and takes the path from what cargo reports. With `CHIPCOMM_TEST_WORKSPACE`, which
    /// `cargo xtask test` sets, it has the features of a build of all tests, and is there already.
    ///
    /// # Panics
    /// When the build fails.
    pub fn build(package: &str, name: &str) -> Self {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--message-format=json"]);
        // The features that the tests were built with, or everything below would be compiled once more.
        match std::env::var_os("CHIPCOMM_TEST_WORKSPACE") {
            Some(_) => cargo.args(["--workspace", "--lib", "--tests"]),
            None => cargo.args(["--package", package]),
        };
        let output = cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo is needed for this test");
        assert!(output.status.success(), "{cargo:?}: {}", output.status);
        let report = String::from_utf8_lossy(&output.stdout);
        let file = format!("/lib{name}.so");
        let path = report.split('"').rfind(|word| word.ends_with(&file));
        let path = path.unwrap_or_else(|| panic!("cargo reports no {file}: {report}"));
        Self { path: path.into(), name: name.to_owned() }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder that it lies in.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Compiles a program in C11 or C++17 against the headers and this library, which it then finds by itself.
    /// Every warning is an error. `more` comes before the folder of this library, so that its folders are searched first.
    ///
    /// # Panics
    /// When the compiler is missing or refuses the program.
    pub fn compile(&self, source: &Path, into: &Path, more: &[String]) -> PathBuf {
        let output = into.join(source.file_name().unwrap_or_default()).with_extension("program");
        let folder = self.folder().display();
        let link = [
            format!("-L{folder}"),
            format!("-l{}", self.name),
            format!("-Wl,--disable-new-dtags,-rpath,{folder}"),
        ];
        compile(source, &output, &[more, &link].concat());
        output
    }
}

/// Compiles a kernel in C++17 as a shared object, at this level of optimization. It sees the headers only.
///
/// # Panics
/// When the compiler is missing or refuses the kernel.
pub fn compile_kernel(source: &Path, into: &Path, level: &str) -> PathBuf {
    let output = into.join(source.file_name().unwrap_or_default()).with_extension("so");
    compile(source, &output, &[level, "-shared", "-fPIC"].map(str::to_owned));
    output
}

fn compile(source: &Path, output: &Path, arguments: &[String]) {
    let (compiler, standard) = match source.extension().and_then(|suffix| suffix.to_str()) {
        Some("cpp") => ("g++", "-std=c++17"),
        _ => ("gcc", "-std=c11"),
    };
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", "-I", crate::INCLUDE_DIR]);
    command.arg(source).arg("-o").arg(output).args(arguments);
    let built = command.output().expect("gcc and g++ are needed for this test");
    assert!(built.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&built.stderr));
}
