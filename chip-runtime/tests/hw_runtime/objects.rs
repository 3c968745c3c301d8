//! Orchestrations in C++, compiled for the host, that build graphs of a device.

use super::{COUNT, GraphDevice, soon, with_kernels};
use cann_sim::hw_test::kernel;
use chip_runtime::on_device::OnDeviceError;
use chip_runtime::{Buffer, FrontEnd, KernelId, Orchestration, TensorArg};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `cc/graphs.cpp`, compiled into a folder.
pub(crate) fn object(folder: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let object = folder.join("libgraphs.so");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-I"]);
    compiler.arg(comm_context::INCLUDE_DIR).arg(here.join("tests/hw_runtime/cc/graphs.cpp"));
    assert!(compiler.arg("-o").arg(&object).status().expect("g++ is needed for this test").success());
    object
}

pub(crate) fn orchestration(object: &Path, entry: &str) -> Orchestration {
    Orchestration::load(object, Some(entry), "pto2-2026-08").unwrap()
}

/// Loads the kernels under the numbers that the entries know.
pub(crate) fn set_kernels(graphs: &mut GraphDevice) {
    for (id, name) in (0..).zip(["scale", "add", "fail"]) {
        graphs.set_kernel(KernelId(id), &kernel(name), "kernel_entry").unwrap();
    }
}

/// Runs an entry with x, all of one value, and y in host memory; returns y.
fn run(
    graphs: &mut GraphDevice,
    entry: &Orchestration,
    value: f32,
    scalars: &[u64],
) -> Result<Vec<f32>, OnDeviceError> {
    let mut x = Buffer::of(&vec![value; COUNT as usize]);
    let mut y = Buffer::of(&vec![-1.0f32; COUNT as usize]);
    let ended = graphs.run(FrontEnd::Prebuilt, soon(), |graph| {
        let (x, y) = (graph.import_host(&mut x)?, graph.import_host(&mut y)?);
        let tensors = [TensorArg::Input(*x.as_ref()), TensorArg::OutputExisting(*y.as_ref())];
        entry.call_on_device(graph, &tensors, scalars)
    });
    let y = y.to_vec()?;
    assert!(ended.is_ok() || y == vec![-1.0; COUNT as usize], "a run that failed has written {:?}", y[0]);
    ended.map(|()| y)
}

// CA-1, CA-7
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn an_orchestration_in_cpp_builds_the_graph_of_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let object = object(folder.path());
    let [five_times, edges] = ["five_times", "edges"].map(|entry| orchestration(&object, entry));
    with_kernels(&[], |_, graphs, []| {
        set_kernels(graphs);
        for value in [1.0, 4.0] {
            let wanted = 5.0 * value * value;
            assert_eq!(run(graphs, &five_times, value, &[]).unwrap(), vec![wanted; COUNT as usize]);
            assert_eq!(run(graphs, &edges, value, &[0]).unwrap(), vec![6.0 * value; COUNT as usize]);
        }
    });
}

// CA-4, CA-7
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn mistakes_of_an_orchestration_in_cpp_are_named_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let object = object(folder.path());
    let [mistakes, edges] = ["mistakes", "edges"].map(|entry| orchestration(&object, entry));
    let wanted = [
        (0, "std::runtime_error: nothing to build"),
        (1, "a task with several kernels on one cluster (submitted at "),
        (2, "kernel 77 is not registered"),
        (3, "1 scopes are open at the end of the orchestration"),
        (4, "whose scope has ended"),
        (5, "tensors that its tasks make hold nothing yet"),
        (6, "rounds=3 (code 42, reported by the orchestration)"),
        (7, "this chip has no window 0"),
        (8, "set the error 17"),
    ];
    with_kernels(&[], |_, graphs, []| {
        set_kernels(graphs);
        for (mistake, text) in wanted {
            let error = run(graphs, &mistakes, 1.0, &[mistake]).unwrap_err().to_string();
            // Calls that do not say where they are, are counted.
            let has_place = error.contains("graphs.cpp:") || error.contains("libgraphs.so `mistakes`, call:");
            assert!(error.contains(text) && has_place, "{mistake}: {error}");
        }
        let cycle = run(graphs, &edges, 1.0, &[1]).unwrap_err().to_string();
        assert!(cycle.contains("closes a cycle") && cycle.contains("graphs.cpp:"), "{cycle}");
        assert_eq!(run(graphs, &edges, 1.0, &[0]).unwrap(), vec![6.0; COUNT as usize]);
    });
}
