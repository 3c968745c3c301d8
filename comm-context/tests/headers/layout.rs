//! The headers and the Rust structs describe the same bytes, for every compiler of this machine.

use std::collections::BTreeMap;
use std::fs;
use std::mem::{align_of, offset_of, size_of};
use std::path::{Path, PathBuf};

use comm_context::abi::{
    COMM_MAX_RANK_NUM, CommContext, CommContextTail, CommWait, CompletionEntry, CompletionSlab, DType,
    GlobalContext, KERNEL_ARGS, KERNEL_ARGS_STRIDE, KERNEL_COMPLETIONS, KERNEL_GLOBAL_CONTEXT_ARG,
    KERNEL_LOCAL_CONTEXT_ARG, LocalContext, TENSOR_MAX_DIMS, TensorDesc,
};
use worker_errors::ErrorCode;

use crate::build::{Language, compile, compilers, output_of, source};

/// Name, then offset and size; for a type, size and alignment; for a constant, value and 0.
pub(crate) type Layout = BTreeMap<String, (usize, usize)>;

fn rust_layout() -> Layout {
    let mut layout = Layout::new();
    macro_rules! describe {
        ($($type:ident { $($field:ident as $name:literal: $field_type:ty),+ $(,)? })+) => {$(
            layout.insert(stringify!($type).into(), (size_of::<$type>(), align_of::<$type>()));
            $(
                let name = format!("{}.{}", stringify!($type), $name);
                layout.insert(name, (offset_of!($type, $field), size_of::<$field_type>()));
            )+
        )+};
    }
    describe! {
        CommContext {
            work_space as "workSpace": u64,
            work_space_size as "workSpaceSize": u64,
            rank_id as "rankId": u32,
            rank_num as "rankNum": u32,
            win_size as "winSize": u64,
            windows_in as "windowsIn": [u64; 64],
            windows_out as "windowsOut": [u64; 64],
        }
        CommContextTail {
            magic as "magic": u64,
            abort as "abort": u64,
            generation as "generation": u64,
            wait as "wait": u64,
            cores as "cores": u64,
        }
        CommWait {
            word as "word": u64,
            wanted as "wanted": u64,
            seen as "seen": u64,
            writer as "writer": u64,
        }
        CompletionEntry {
            address as "address": u64,
            cookie as "cookie": u64,
            expected as "expected": u32,
            engine as "engine": u32,
            kind as "type": i32,
            reserved as "reserved": u32,
        }
        CompletionSlab {
            count as "count": u32,
            error as "error": i32,
            entries as "entries": [CompletionEntry; 64],
            reserved as "reserved": [u8; 56],
        }
        LocalContext {
            block_idx as "block_idx": i32,
            block_num as "block_num": i32,
            completion_count as "completion_count": u64,
            completion_error as "completion_error": u64,
            completion_entries as "completion_entries": u64,
            completion_capacity as "completion_capacity": u32,
            reserved as "reserved": u32,
            task as "task": u64,
        }
        GlobalContext {
            sub_block_id as "sub_block_id": i32,
            reserved as "reserved": u32,
            words as "words": [u64; 2],
        }
        TensorDesc {
            addr as "addr": u64,
            size as "size": u64,
            owner_task_id as "owner_task_id": u64,
            start_offset as "start_offset": u64,
            version as "version": i32,
            ndims as "ndims": u32,
            dtype as "dtype": u8,
            manual_dep as "manual_dep": u8,
            is_contiguous as "is_contiguous": u8,
            address_space as "address_space": u8,
            shapes as "shapes": [u32; 5],
            extent as "extent": u64,
            strides as "strides": [u32; 5],
            reserved as "reserved": [u8; 36],
        }
    }
    let mut constant = |name: String, value: usize| layout.insert(name, (value, 0));
    constant("COMM_MAX_RANK_NUM".into(), COMM_MAX_RANK_NUM);
    constant("TENSOR_MAX_DIMS".into(), TENSOR_MAX_DIMS);
    constant("KERNEL_LOCAL_CONTEXT_ARG".into(), KERNEL_LOCAL_CONTEXT_ARG);
    constant("KERNEL_GLOBAL_CONTEXT_ARG".into(), KERNEL_GLOBAL_CONTEXT_ARG);
    constant("KERNEL_ARGS".into(), KERNEL_ARGS);
    constant("KERNEL_ARGS_STRIDE".into(), KERNEL_ARGS_STRIDE);
    constant("KERNEL_COMPLETIONS".into(), KERNEL_COMPLETIONS);
    constant("COMM_CONTEXT_TAIL_MAGIC".into(), CommContextTail::MAGIC as usize);
    constant("KERNEL_FAILURE_TEXT_MAGIC".into(), CompletionSlab::TEXT_MAGIC as usize);
    for dtype in DType::ALL {
        constant(format!("TENSOR_{}", format!("{dtype:?}").to_uppercase()), dtype.code().into());
    }
    constant("COMM_SUCCESS".into(), 0);
    for code in ErrorCode::ALL.iter().filter(|code| of_communicators(**code)) {
        constant(format!("COMM_E_{}", upper_case(code)), code.as_i32() as usize);
    }
    layout
}

/// Codes that a communicator never returns are not in `comm.h`.
fn of_communicators(code: ErrorCode) -> bool {
    use ErrorCode::{Exited, Killed, Load, Panic, Task};
    !matches!(code, Panic | Exited | Killed | Task | Load)
}

/// `TIMED_OUT` for `TimedOut`.
fn upper_case(code: &ErrorCode) -> String {
    let mut name = String::new();
    for c in format!("{code:?}").chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}

pub(crate) fn parse(printed: &str) -> Layout {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        Some((name, (words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
    };
    printed.lines().map(|text| line(text).unwrap_or_else(|| panic!("cannot read {text:?}"))).collect()
}

// CC-1
#[test]
fn every_offset_is_the_same_in_c_cpp_and_rust() {
    let dir = tempfile::tempdir().unwrap();
    let want = rust_layout();
    for language in [Language::C11, Language::Cpp17] {
        for compiler in compilers(language) {
            let program = dir.path().join(format!("layout-{compiler}"));
            output_of(compile(compiler, language, &source("layout.c")).arg("-o").arg(&program));
            let found = parse(&output_of(&mut std::process::Command::new(&program)));
            assert_eq!(found, want, "{compiler} as {language:?}");
        }
    }
}

/// Headers for kernels and orchestrations.
const CPP_ONLY: [&str; 8] = [
    "comm_kernel.h",
    "comm_fold.h",
    "comm_collectives.h",
    "comm_collectives_calls.h",
    "comm_collectives_fault.h",
    "chip_tensor.h",
    "kernel_completion.h",
    "orchestration.h",
];

/// The headers of a folder, and of those below.
fn headers(folder: &Path, below: bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.flat_map(|path| match path.is_dir() {
        true if below => headers(&path, below),
        true => Vec::new(),
        false => vec![path],
    });
    found.filter(|path| path.extension().is_some_and(|end| end == "h" || end == "hpp")).collect()
}

#[test]
fn each_header_stands_alone_and_may_be_included_twice() {
    let dir = tempfile::tempdir().unwrap();
    let headers = headers(Path::new(comm_context::INCLUDE_DIR), false);
    assert!(headers.len() >= 8, "{headers:?}");
    for header in headers {
        let header = header.file_name().unwrap().to_str().unwrap();
        let unit = dir.path().join("unit.c");
        let include = format!("#include \"{header}\"\n");
        fs::write(&unit, format!("{include}{include}int main(void) {{ return 0; }}\n")).unwrap();
        let languages: &[Language] =
            if CPP_ONLY.contains(&header) { &[Language::Cpp17] } else { &[Language::C11, Language::Cpp17] };
        for language in languages {
            for compiler in compilers(*language) {
                output_of(compile(compiler, *language, &unit).arg("-fsyntax-only"));
            }
        }
    }
}

#[test]
fn the_compatible_headers_may_be_included_in_any_order_and_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut headers = headers(Path::new(comm_context::COMPAT_INCLUDE_DIR), true);
    assert!(headers.len() >= 12, "{headers:?}");
    headers.sort();
    for order in ["forth", "back"] {
        let lines: String = headers.iter().map(|path| format!("#include \"{}\"\n", path.display())).collect();
        let unit = dir.path().join(order);
        fs::write(&unit, format!("{lines}{lines}int main() {{ return 0; }}\n")).unwrap();
        output_of(compile("g++", Language::Cpp17, &unit).arg("-fsyntax-only"));
        headers.reverse();
    }
}
