//! Compiles the sources in `cc`, each once, and makes a runtime with their kernels.
//!
//! # Safety
//! The kernels access the tensors and scalars that the graphs of these tests give them, and nothing else.
#![allow(unsafe_code)]

use chip_runtime::{KernelId, KernelObject, Limits, Orchestration, Runtime};
use deadline::Deadline;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

pub(crate) const VERSION: &str = "pto2-2026-08";

/// The folder of the objects: one for the process, kept until it ends.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

/// The object of a source in `cc`, compiled with a flag.
pub(crate) fn object(source: &str, flag: &str) -> PathBuf {
    static DONE: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut done = DONE.lock().unwrap();
    let done = done.get_or_insert_default();
    let name = format!("{source}{flag}");
    let made = done.entry(name.clone()).or_insert_with(|| {
        let object = folder().join(format!("lib{name}.so"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/cc").join(source);
        let mut command = Command::new("g++");
        command.args(["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", flag]);
        // A source that includes none of our headers must not find them.
        if !source.ends_with("layouts_only.cpp") {
            let folder = if flag == "-DUPSTREAM" {
                comm_context::COMPAT_INCLUDE_DIR
            } else {
                comm_context::INCLUDE_DIR
            };
            command.arg("-I").arg(folder);
        }
        let built = command.arg(source).arg("-o").arg(&object).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        object
    });
    made.clone()
}

/// An orchestration in a copy of an object that nobody else uses: an object builds one graph at a time.
pub(crate) fn orchestration(object: &Path, entry: Option<&str>) -> Orchestration {
    static COPIES: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only the numbers count.
    let number = COPIES.fetch_add(1, Ordering::Relaxed);
    let copy = folder().join(format!("{number}.so"));
    std::fs::copy(object, &copy).unwrap();
    Orchestration::load(&copy, entry, VERSION).unwrap()
}

/// An entry of `graphs.cpp`.
pub(crate) fn graph(entry: &str) -> Orchestration {
    orchestration(&object("graphs.cpp", "-DOWN"), Some(entry))
}

/// A runtime with two clusters and these symbols of an object as kernels 0, 1, and so on.
pub(crate) fn runtime(limits: Limits, object: &Path, kernels: &[&str]) -> Runtime {
    let mut runtime = Runtime::new(limits).unwrap();
    for (id, symbol) in (0..).zip(kernels) {
        let kernel = KernelObject::load(object, Some(symbol)).unwrap();
        // SAFETY: see above.
        unsafe { runtime.set_raw_kernel(KernelId(id), symbol, move |args| kernel.call(args)) };
    }
    runtime
}

pub(crate) fn small() -> Limits {
    Limits { clusters: 2, ..Limits::default() }
}

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60)).unwrap()
}
