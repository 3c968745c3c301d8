//! The generator of the ABI check, with small headers written for this test. `cargo xtask abi-check` uses the vendor's.

use comm_hccl::sys::manifest::{Manifest, Truth};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const ACL: &str = "
#include <stdint.h>
#include <stddef.h>
typedef int aclError;
typedef void *aclrtStream;
typedef enum aclrtMemMallocPolicy { ACL_MEM_MALLOC_HUGE_FIRST, ACL_MEM_MALLOC_HUGE_ONLY } aclrtMemMallocPolicy;
typedef enum aclrtMemLocationType { ACL_MEM_LOCATION_TYPE_HOST, ACL_MEM_LOCATION_TYPE_DEVICE } aclrtMemLocationType;
typedef struct aclrtMemLocation { uint32_t id; aclrtMemLocationType type; } aclrtMemLocation;
#define ACL_ERROR_RT_PARAM_INVALID 107000
extern \"C\" aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
extern \"C\" aclError aclrtDestroyStream(aclrtStream stream);
extern \"C\" const char *aclrtGetSocName();
";

const NAMES: &[&str] = &[
    "aclError",
    "aclrtStream",
    "aclrtMemMallocPolicy",
    "aclrtMemLocationType",
    "aclrtMemLocation",
    "ACL_MEM_MALLOC_HUGE_ONLY",
    "ACL_MEM_LOCATION_TYPE_DEVICE",
    "ACL_ERROR_RT_PARAM_INVALID",
    "aclrtMalloc",
    "aclrtDestroyStream",
    "aclrtGetSocName",
];

/// The names of the checks that do not compile.
fn failures(headers: &Path, source: &str) -> BTreeSet<String> {
    let file = headers.join("check.cpp");
    fs::write(&file, source).unwrap();
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-fsyntax-only", "-fmax-errors=0", "-I"]).arg(headers).arg(&file);
    let output = compiler.output().expect("g++ is needed for this test");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let names: BTreeSet<_> = text
        .lines()
        .filter(|line| line.contains("error:"))
        .map(|line| {
            line.strip_prefix("sys: ")
                .unwrap_or_else(|| panic!("{line}"))
                .split(':')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(output.status.success(), names.is_empty(), "{text}");
    names
}

fn headers() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (folder, file, text) in [("acl", "acl_rt.h", ACL), ("hccl", "hccl.h", "")] {
        fs::create_dir(dir.path().join(folder)).unwrap();
        fs::write(dir.path().join(folder).join(file), text).unwrap();
    }
    dir
}

fn manifest() -> Manifest {
    let manifest = Manifest::of_sys().only(NAMES);
    let entries =
        manifest.functions.len() + manifest.structs.len() + manifest.types.len() + manifest.constants.len();
    assert_eq!(entries, NAMES.len(), "every name is declared");
    manifest
}

// HC-1
#[test]
fn right_declarations_compile_and_each_distorted_one_is_reported() {
    let dir = headers();
    assert_eq!(failures(dir.path(), &manifest().to_cpp(Truth::AsDeclared)), BTreeSet::new());
    let all: BTreeSet<_> = manifest().checks(Truth::Distorted).into_iter().map(|c| c.name).collect();
    // Every entry has a check.
    for name in NAMES {
        assert!(all.iter().any(|check| check.split(' ').nth(1) == Some(name)), "{name}");
    }
    assert_eq!(failures(dir.path(), &manifest().to_cpp(Truth::Distorted)), all);
}

#[test]
fn one_changed_declaration_is_reported_by_name_and_alone() {
    let dir = headers();
    let mut changed = manifest();
    let function = changed.functions.iter_mut().find(|f| f.name == "aclrtMalloc").unwrap();
    // 32 bits of size instead of the machine's.
    function.args = &["*mut *mut c_void", "u32", "aclrtMemMallocPolicy"];
    let expected = BTreeSet::from(["function aclrtMalloc".to_owned()]);
    assert_eq!(failures(dir.path(), &changed.to_cpp(Truth::AsDeclared)), expected);
}

#[test]
fn a_function_that_the_headers_lack_is_reported_by_name() {
    let dir = headers();
    let names = [NAMES, &["aclrtFree"]].concat();
    let more = Manifest::of_sys().only(&names);
    let expected = BTreeSet::from(["function aclrtFree".to_owned()]);
    assert_eq!(failures(dir.path(), &more.to_cpp(Truth::AsDeclared)), expected);
}
