//! The structs of orchestrations: the same bytes in C, C++ and Rust. Whether compiled sources can use the names of
//! upstream is a test of the compatible headers.

use std::mem::{align_of, offset_of, size_of};
use std::process::Command;

use comm_context::abi::orchestration::{self as abi, Comparison, TensorTag};

use crate::build::{Language, compile, compilers, output_of, source};
use crate::layout::{Layout, parse};

/// How many bytes a field has.
fn bytes<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

fn rust_layout() -> Layout {
    let mut layout = Layout::new();
    macro_rules! describe {
        ($($name:literal $type:ident { $($field:ident)+ })+) => {$(
            layout.insert($name.into(), (size_of::<abi::$type>(), align_of::<abi::$type>()));
            $(
                let size = bytes(|value: &abi::$type| &value.$field);
                let name = format!("{}.{}", $name, stringify!($field));
                layout.insert(name, (offset_of!(abi::$type, $field), size));
            )+
        )+};
    }
    describe! {
        "OrchPredicate" Predicate { tensor ndims indices op reserved target }
        "OrchLaunch" Launch { tensor_count scalar_count has_error reserved0 error_text block_num sync_start reserved1 early reserved2 predicate timing reserved3 }
        "OrchTaskArgs" TaskArgs { tags tensors scalars launch dump dependencies dependency_kinds dependency_count reserved }
        "OrchPrebuiltTaskArgs" PrebuiltTaskArgs { tags tensors scalars launch dump dependencies dependency_count reserved }
        "OrchEntryArgs" EntryArgs { tags tensors scalars launch dump dependencies dependency_kinds dependency_count reserved }
        "OrchCreateInfo" CreateInfo { initial has_initial reserved0 version ndims dtype manual_dep is_contiguous reserved1 shapes }
        "OrchTaskOutputs" TaskOutputs { task_id count reserved tensors }
        "OrchKernelIds" KernelIds { aic aiv0 aiv1 }
        "OrchWait" WaitSpec { offset domain value signaller reserved }
        "OrchSignal" SignalSpec { offset domain rank value set }
        "OrchRuntime" RuntimeHandle { ops pending_scope_mode reserved magic extension }
    }
    // A table of functions is a row of addresses.
    let functions = [
        "submit_task",
        "scope_begin",
        "scope_end",
        "orchestration_done",
        "is_fatal",
        "report_fatal",
        "log_error",
        "log_warn",
        "log_timing",
        "log_info",
        "log_debug",
        "get_tensor_data",
        "set_tensor_data",
        "alloc_tensors",
        "submit_dummy_task",
        "available_cluster_count",
        "available_aiv_count",
    ];
    for (table, count, last) in [("OrchOps", abi::OPS, 17), ("OrchPrebuiltOps", abi::PREBUILT_OPS, 22)] {
        layout.insert(table.into(), (8 * count, 8));
        for (at, name) in functions.iter().enumerate() {
            layout.insert(format!("{table}.{name}"), (8 * at, 8));
        }
        layout.insert(format!("{table}.scope_set_site"), (8 * last, 8));
    }
    layout.insert("OrchPrebuiltOps.graph_ops".into(), (8 * 17, 8 * 5));
    layout.insert("OrchExtension".into(), (8 + 8 * abi::EXTENSION_OPS, 8));
    layout.insert("OrchExtension.size".into(), (0, 4));
    layout.insert("OrchExtension.prebuilt".into(), (4, 4));
    // Objects that were compiled for an earlier table use it by these offsets: only the end may change.
    let extension =
        ["wait", "signal", "publish_task", "set_site", "add_dependency", "domain_of", "failure_code"];
    for (at, name) in extension.iter().enumerate() {
        layout.insert(format!("OrchExtension.{name}"), (8 + 8 * at, 8));
    }
    let mut constant = |name: &str, value: usize| layout.insert(name.into(), (value, 0));
    constant("ORCH_TASK_TENSORS", abi::TASK_TENSORS);
    constant("ORCH_TASK_SCALARS", abi::TASK_SCALARS);
    constant("ORCH_ENTRY_TENSORS", abi::ENTRY_TENSORS);
    constant("ORCH_ENTRY_SCALARS", abi::ENTRY_SCALARS);
    constant("ORCH_OPS", abi::OPS);
    constant("ORCH_PREBUILT_OPS", abi::PREBUILT_OPS);
    constant("ORCH_EXTENSION_OPS", abi::EXTENSION_OPS);
    constant("ORCH_DEPENDENCY_WAIT", abi::DEPENDENCY_WAIT.into());
    constant("ORCH_DEPENDENCY_RETAIN", abi::DEPENDENCY_RETAIN.into());
    constant("ORCH_EXTENSION_MAGIC", abi::EXTENSION_MAGIC as usize);
    constant(abi::VERSION, 0);
    let tags = ["ORCH_INPUT", "ORCH_OUTPUT", "ORCH_INOUT", "ORCH_OUTPUT_EXISTING", "ORCH_NO_DEP"];
    for (name, tag) in tags.into_iter().zip(TensorTag::ALL) {
        constant(name, tag as usize);
    }
    for op in Comparison::ALL {
        constant(&format!("ORCH_{}", format!("{op:?}").to_uppercase()), op as usize);
    }
    layout
}

// CC-1
#[test]
fn every_offset_of_an_orchestration_is_the_same_in_c_cpp_and_rust() {
    let dir = tempfile::tempdir().unwrap();
    let want = rust_layout();
    for language in [Language::C11, Language::Cpp17] {
        for compiler in compilers(language) {
            let program = dir.path().join(format!("orchestration-{compiler}"));
            output_of(compile(compiler, language, &source("orchestration.c")).arg("-o").arg(&program));
            let found = parse(&output_of(&mut Command::new(&program)));
            assert_eq!(found, want, "{compiler} as {language:?}");
        }
    }
}

/// Sources as upstream's users write them: its paths, its names, and nothing of ours.
#[test]
fn sources_with_the_names_of_upstream_compile_with_the_compatible_headers_alone() {
    for name in ["upstream_orchestration.cpp", "upstream_kernel.cpp"] {
        for compiler in compilers(Language::Cpp17) {
            let mut command = Command::new(compiler);
            command.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fsyntax-only", "-I"]);
            output_of(command.arg(comm_context::COMPAT_INCLUDE_DIR).arg(source(name)));
        }
    }
}
