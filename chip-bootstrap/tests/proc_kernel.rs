//! What a kernel gets, and what happens when it asks for too much: C++ kernels, called by a chip.
//!
//! # Safety
//! Forks; the children use chips and shared memory, and no lock of the test harness.
#![cfg(feature = "sim")]
#![allow(unsafe_code, missing_docs)]

use child_process::Child;
use chip_bootstrap::{Chip, ChipConfig, ChipError, ChipGroup, Entry, MAX_BLOCKS, Platform, bring_up};
use comm_context::abi::{CommContext, DType, DeviceAddr, TensorDesc};
use comm_context::comm::{AllocationId, DomainSpec, Membership, Timeout};
use deadline::{Deadline, HowDied};
use serial_test::serial;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SIGSEGV: i32 = 11;

fn far() -> Deadline {
    Deadline::after(limit().get()).unwrap()
}

fn limit() -> Timeout {
    Timeout::new(Duration::from_secs(60)).unwrap()
}

/// Compiles a kernel as its users do.
fn compile(folder: &Path, source: &str) -> PathBuf {
    let (cpp, so) = (folder.join("kernel.cpp"), folder.join("kernel.so"));
    std::fs::write(&cpp, source).unwrap();
    let mut command = Command::new("g++");
    command.args(["-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-I"]);
    let built = command.arg(comm_context::INCLUDE_DIR).arg("-o").arg(&so).arg(&cpp).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    so
}

fn chip() -> Chip {
    bring_up(Platform::Sim, &ChipConfig::new(0), None, limit(), &mut |_| ()).unwrap()
}

/// Writes what it finds in its contexts to the buffer whose address is the first scalar, after one tensor. Then it
/// asks for as many words as the second scalar says, and leaves the third as its error.
const CONTEXTS: &str = r#"
#include "kernel_context.h"
#include "tensor.h"
extern "C" void kernel_entry(int64_t *args) {
    auto *out = reinterpret_cast<int64_t *>(args[1]);
    const auto *local = reinterpret_cast<const LocalContext *>(args[KERNEL_LOCAL_CONTEXT_ARG]);
    const auto *global = reinterpret_cast<const GlobalContext *>(args[KERNEL_GLOBAL_CONTEXT_ARG]);
    auto *count = reinterpret_cast<uint32_t *>(local->completion_count);
    auto *error = reinterpret_cast<int32_t *>(local->completion_error);
    auto *entries = reinterpret_cast<CompletionEntry *>(local->completion_entries);
    const int64_t unused = args[4] | args[KERNEL_LOCAL_CONTEXT_ARG - 1];
    const int64_t found[] = {
        local->block_idx, local->block_num, global->sub_block_id, local->completion_capacity,
        static_cast<int64_t>(local->task), *count, *error, unused,
        reinterpret_cast<char *>(error) - reinterpret_cast<char *>(count),
        reinterpret_cast<char *>(entries) - reinterpret_cast<char *>(count),
        static_cast<int64_t>(local->completion_count % 64),
    };
    for (int64_t value : found) *out++ = value;
    for (uint32_t at = 0; at < local->completion_capacity; ++at) {
        entries[at] = CompletionEntry{local->completion_count, at, 1, 0, 0, 0};
    }
    *count = static_cast<uint32_t>(args[2]);
    *error = static_cast<int32_t>(args[3]);
}
"#;

// CB-7
#[test]
#[serial]
fn a_kernel_finds_its_contexts_at_48_and_49_and_a_request_for_later_completion_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut chip = chip();
    let kernel = chip.load(&compile(folder.path(), CONTEXTS), "kernel_entry").unwrap();
    let tensor = TensorDesc::builder(DeviceAddr(0x1000), 64, DType::Float32, &[16]).build().unwrap();
    let mut out = vec![7_i64; 11];
    let at = out.as_mut_ptr();
    let mut launch = |words: u64, error: u64| {
        chip.launch(kernel, 1, &[tensor], &[at as u64, words, error], &[]).map_err(|error| {
            assert_eq!(error.code(), worker_errors::ErrorCode::Task);
            error.to_string()
        })
    };
    // Each launch starts with an empty slab, whatever the last one left.
    for _ in 0..2 {
        assert_eq!(launch(0, 0), Ok(()));
        // SAFETY: the kernel wrote through the address and has returned.
        let found: Vec<i64> = (0..11).map(|index| unsafe { at.add(index).read_volatile() }).collect();
        assert_eq!(found, [0, 1, 0, 64, -1, 0, 0, 0, 4, 8, 0]);
        let refused = launch(3, 0).unwrap_err();
        let text = "the kernel asks for its task to complete later, when 3 words have reached their values; deferred completion \
                    is not supported yet: have the kernel wait for them before it returns";
        assert!(refused.contains(text), "{refused}");
        assert!(launch(0, -5_i32 as u32 as u64).unwrap_err().contains("reports error -5"));
    }
}

// CB-7
#[test]
#[serial]
fn more_arguments_than_a_kernel_takes_are_refused_with_their_number() {
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <cstdint>\nextern \"C\" void kernel_entry(int64_t *args) {\n\
                  *reinterpret_cast<int64_t *>(args[0]) = args[47];\n}\n";
    let mut chip = chip();
    let kernel = chip.load(&compile(folder.path(), source), "kernel_entry").unwrap();
    let mut out = vec![0_i64; 1];
    let at = out.as_mut_ptr();
    let mut scalars = vec![at as u64; 47];
    scalars.push(9);
    chip.launch(kernel, 1, &[], &scalars, &[]).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { at.read_volatile() }, 9);
    scalars.push(10);
    let refused = chip.launch(kernel, 1, &[], &scalars, &[]).unwrap_err();
    assert!(matches!(refused, ChipError::TooManyArguments { tensors: 0, scalars: 49 }));
    let text = refused.to_string();
    assert!(text.contains("at most 48") && text.contains("0 tensors and 49 scalars; pass fewer"), "{text}");
}

// CB-9
#[test]
#[serial]
fn each_block_gets_a_list_and_contexts_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    // Every block leaves its mark in its list, in its contexts and in its slab.
    let source = r#"
#include "kernel_context.h"
extern "C" void kernel_entry(int64_t *args) {
    auto *local = reinterpret_cast<LocalContext *>(args[KERNEL_LOCAL_CONTEXT_ARG]);
    auto *out = reinterpret_cast<int64_t *>(args[0]) + 3 * local->block_idx;
    out[0] = local->block_idx + 10 * local->block_num;
    out[1] = args[1];
    out[2] = local->completion_capacity;
    args[1] = 99;
    if (local->block_idx == args[2]) *reinterpret_cast<int32_t *>(local->completion_error) = -4;
    local->completion_capacity = 0;
}
"#;
    let mut chip = chip();
    let kernel = chip.load(&compile(folder.path(), source), "kernel_entry").unwrap();
    let mut out = vec![0_i64; 3 * 4];
    let at = out.as_mut_ptr();
    chip.launch(kernel, 3, &[], &[at as u64, 5, 77], &[]).unwrap();
    // SAFETY: as above.
    let found: Vec<i64> = (0..12).map(|index| unsafe { at.add(index).read_volatile() }).collect();
    assert_eq!(found, [30, 5, 64, 31, 5, 64, 32, 5, 64, 0, 0, 0]);
    let failed = chip.launch(kernel, 3, &[], &[at as u64, 5, 1], &[]).unwrap_err().to_string();
    assert!(failed.contains("reports error -4"), "{failed}");
    for blocks in [0, MAX_BLOCKS + 1] {
        let refused = chip.launch(kernel, blocks, &[], &[at as u64, 5, 77], &[]).unwrap_err().to_string();
        assert!(refused.contains(&format!("1 to 1024 blocks, not {blocks}")), "{refused}");
    }
}

/// Writes a byte at the address that is its first scalar.
const WRITE: &str = "#include <cstdint>\nextern \"C\" void kernel_entry(int64_t *args) {\n\
                     *reinterpret_cast<volatile char *>(args[0]) = 1;\n}\n";

/// Two ranks with a base window and a domain; rank 0's kernel writes `beyond` bytes after the last byte of one of the
/// windows. Returns how rank 0 ended.
fn write_beyond(so: &Path, forked: bool, of_domain: bool, of_peer: bool, beyond: u64) -> HowDied {
    let group = ChipGroup::prepare(Platform::Sim, 2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let entry = if forked { Entry::Forked(group.clone()) } else { Entry::Path(folder.path().join("group")) };
    let main = |rank: u32| {
        let member = Membership::new(rank, 2).unwrap();
        let config = ChipConfig::new(rank as i32).communicator(member).window(5000);
        let mut chip = bring_up(Platform::Sim, &config, Some(&entry), limit(), &mut |_| ()).unwrap();
        let spec = |id, size| DomainSpec {
            id: AllocationId(id),
            ranks: &[0, 1],
            domain_rank: rank,
            window_size: size,
        };
        // What a released domain leaves is not in the way of the next one, which is larger.
        chip.alloc_domain(&spec(1, 4096)).unwrap();
        chip.release_domain(AllocationId(1)).unwrap();
        let domain = chip.alloc_domain(&spec(1, 3 * 4096)).unwrap();
        let neighbour = chip.alloc_domain(&spec(2, 4096)).unwrap();
        let window = if of_domain { domain } else { chip.window().unwrap() };
        let mut context = [0; size_of::<CommContext>()];
        chip.read(window.context, &mut context).unwrap();
        let context = CommContext::decode(&context).unwrap();
        let base = context.window_in(if of_peer { 1 } else { 0 }).unwrap();
        let kernel = chip.load(so, "kernel_entry").unwrap();
        let mut run = |at: u64| chip.launch(kernel, 1, &[], &[at], &[]).unwrap();
        // All of every window can be written.
        for start in [base.0, domain.base.0, neighbour.base.0] {
            run(start);
        }
        run(base.0 + window.size as u64 - 1);
        run(domain.base.0 + domain.size as u64 - 1);
        if rank == 0 {
            run(base.0 + window.size as u64 - 1 + beyond);
        } else {
            // Its windows stay while rank 0 uses them; how long rank 0 lives is what the test is about.
            let _ = chip.comm().unwrap().barrier(limit());
        }
        0
    };
    // SAFETY: see the head of the file.
    let fork = |rank| unsafe { Child::fork(&group.fds().collect::<Vec<_>>(), || main(rank)) }.unwrap();
    let [writer, peer] = [0, 1].map(fork);
    let ended = writer.reap(far()).unwrap();
    group.report_death(0, ended);
    peer.reap(far()).unwrap();
    ended
}

// CS-8
#[test]
#[serial]
fn f73_a_kernel_that_writes_beyond_a_window_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let so = compile(folder.path(), WRITE);
    for (forked, of_domain, of_peer) in
        [(true, false, false), (true, true, true), (false, false, true), (false, true, false)]
    {
        for beyond in [1, 4096] {
            let case =
                format!("forked {forked}, domain {of_domain}, peer's {of_peer}, {beyond} bytes beyond");
            let ended = write_beyond(&so, forked, of_domain, of_peer, beyond);
            assert_eq!(ended, HowDied::Signalled(SIGSEGV), "{case}");
        }
    }
    assert_eq!(
        write_beyond(&so, true, true, true, 0),
        HowDied::Exited(0),
        "the last byte is part of the window"
    );
}

/// Throws what its first argument says, unless that is 0.
const THROWS: &str = r#"
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
namespace mine {
struct Base { virtual ~Base() = default; int64_t unused = 7; };
struct Refused : Base, std::invalid_argument { Refused() : std::invalid_argument("not this one") {} };
struct Plain {};
}
static int ended = 0;
struct Ended { ~Ended() { ++ended; } };
static void inner(int64_t which) {
    Ended counts;
    switch (which) {
        case 1: throw std::runtime_error("the text \"of\" the kernel");
        case 2: throw 7;
        case 3: throw "bare words";
        case 4: throw mine::Refused();
        case 5: throw mine::Plain();
        case 6: {
            std::exception_ptr kept;
            try { throw std::runtime_error("thrown again"); } catch (...) { kept = std::current_exception(); }
            std::rethrow_exception(kept);
        }
    }
}
extern "C" void kernel_entry(int64_t *args) {
    inner(args[0]);
    *reinterpret_cast<int64_t *>(args[1]) = ended;
}
"#;

// CB-8
#[test]
#[serial]
fn an_exception_of_a_kernel_fails_its_task_with_type_and_text_and_the_chip_stays_usable() {
    let folder = tempfile::tempdir().unwrap();
    let mut chip = chip();
    let so = compile(folder.path(), THROWS);
    let kernel = chip.load(&so, "kernel_entry").unwrap();
    let mut ended = 0_i64;
    let out = &raw mut ended as u64;
    let cases = [
        "std::runtime_error: the text \"of\" the kernel",
        "int: 7",
        "char const*: bare words",
        "mine::Refused: not this one",
        "mine::Plain",
        "std::runtime_error: thrown again",
    ];
    for round in 0..2 {
        for (which, words) in (1_u64..).zip(cases) {
            let error = chip.launch(kernel, 1, &[], &[which, out], &[]).unwrap_err();
            assert_eq!(error.code(), worker_errors::ErrorCode::Task);
            assert_eq!(error.to_string(), format!("kernel {} threw {words}", so.display()));
        }
        // The destructors of the kernel's frames have run each time, and kernels run as before.
        chip.launch(kernel, 1, &[], &[0, out], &[]).unwrap();
        assert_eq!(ended, (round + 1) * 7);
    }
}
