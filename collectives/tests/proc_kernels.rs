//! Ranks that are kernels in C++ (`comm_collectives.h`) beside ranks in Rust, in one group.
//!
//! # Safety
//! Calls functions of a shared object that this test has compiled, with buffers that live as long as the call.
#![allow(missing_docs, unsafe_code)]

mod support;

use collectives::{CallText, Collectives, DType, Kind, Op, Request, Shared, Table};
use comm_context::abi::{
    CommContext, CommContextTail, CompletionSlab, DeviceAddr, KERNEL_ARGS, KERNEL_LOCAL_CONTEXT_ARG,
    KernelContexts,
};
use comm_context::comm::{AllocationId, CommError, Communicator, DomainSpec};
use comm_context::conformance::compile_kernel;
use mailbox_atomics::{AllowedCores, move_this_thread_to};
use std::ffi::{CStr, CString, c_void};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::LazyLock;
use support::{Random, Ranks, in_comms, options, secs};

type Kernel = unsafe extern "C" fn(*mut i64);

/// Compiled objects, which stay loaded.
static CALLS: LazyLock<usize> = LazyLock::new(|| object("calls.cpp"));
static PLACED: LazyLock<usize> = LazyLock::new(|| object("placed.cpp"));

/// At `-O1`, which takes half the time of `-O2`; the examples' kernels are tested at that.
fn object(source: &str) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cc").join(source);
    let path = CString::new(compile_kernel(&source, folder.path(), "-O1").as_os_str().as_bytes()).unwrap();
    // SAFETY: a live path; the object's constructors are the compiler's.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    library as usize
}

/// A function of the first.
fn load(name: &CStr) -> Kernel {
    load_of(*CALLS, name)
}

fn load_of(object: usize, name: &CStr) -> Kernel {
    // SAFETY: the library is loaded, the name is live, and the function is of this type.
    unsafe {
        let symbol = libc::dlsym(object as *mut c_void, name.as_ptr());
        assert!(!symbol.is_null());
        std::mem::transmute::<*mut c_void, Kernel>(symbol)
    }
}

/// Makes a call as a kernel, on the memory of a group that the host has made.
fn as_kernel(kernel: Kernel, group: &Collectives<'_>, request: &Request) -> bool {
    in_memory(kernel, group.for_kernels().unwrap(), request)
}

/// Makes a call as a kernel with this context, in so many bytes at this address.
fn in_memory(kernel: Kernel, memory: (DeviceAddr, DeviceAddr, usize), request: &Request) -> bool {
    in_task(kernel, memory, request).is_ok()
}

/// The same; an error is the code and the text with which its task fails.
fn in_task(
    kernel: Kernel,
    (context, memory, bytes): (DeviceAddr, DeviceAddr, usize),
    request: &Request,
) -> Result<(), (i32, String)> {
    let op = request.op.map_or(0, |op| op as i64);
    let mut contexts = Box::new(KernelContexts::of_block(DeviceAddr(0), 0, 1));
    let at = DeviceAddr(&raw mut *contexts as u64);
    *contexts = KernelContexts::of_block(at, 0, 1);
    let mut args = [0_i64; KERNEL_ARGS];
    args[KERNEL_LOCAL_CONTEXT_ARG..].copy_from_slice(&KernelContexts::arguments(at).map(|arg| arg as i64));
    args[..10].copy_from_slice(&[
        context.0 as i64,
        memory.0 as i64,
        bytes as i64,
        request.kind as i64,
        request.dtype as i64,
        op,
        request.root.into(),
        request.count as i64,
        request.input as i64,
        request.output as i64,
    ]);
    // SAFETY: the arguments that this kernel takes; the caller's buffers live.
    unsafe { kernel(args.as_mut_ptr()) };
    // SAFETY: the kernel, which wrote to it through its address, has returned.
    let slab = unsafe { (at.0 as *const KernelContexts).read() }.slab;
    match (args[10], slab.error) {
        (1, 0) => Ok(()),
        _ => Err((slab.error, CompletionSlab::failure_text(&slab.entries).unwrap_or_default())),
    }
}

const KINDS: [Kind; 9] = [
    Kind::AllReduce,
    Kind::AllReduce,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::AllToAll,
    Kind::Gather,
    Kind::Scatter,
];

/// One of each kind: every further one takes a compiler a second.
const DTYPES: [DType; 6] = [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::I8, DType::U64];

/// A random call, the same on every rank but for its buffers.
fn random_call(random: &mut Random, nranks: usize) -> Request {
    let kind = if random.below(20) == 0 { Kind::Barrier } else { KINDS[random.below(KINDS.len())] };
    let dtype = DTYPES[random.below(DTYPES.len())];
    let ops: Vec<Op> = Op::ALL.iter().copied().filter(|op| op.applies_to(dtype)).collect();
    let reduces = matches!(kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce);
    let has_root = matches!(kind, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter);
    let bytes = [0, 4, 48, 300, 5000, 12_000, 70_000, 300_000, 1_200_000][random.below(9)];
    let count = random.below(bytes + 1) / dtype.size();
    Request {
        kind,
        dtype: if kind == Kind::Barrier { DType::U8 } else { dtype },
        op: reduces.then(|| ops[random.below(ops.len())]),
        root: if has_root { random.below(nranks) as u32 } else { 0 },
        count: if kind == Kind::Barrier { 0 } else { count },
        shared: Shared::Both,
        ..Request::BARRIER
    }
}

/// Memory for a buffer: of the pool, or of this process.
struct Buffers<'g, 'c> {
    group: &'g Collectives<'c>,
    of_pool: Vec<std::ptr::NonNull<u8>>,
    own: Vec<Vec<u64>>,
}

impl<'g, 'c> Buffers<'g, 'c> {
    fn new(group: &'g Collectives<'c>) -> Self {
        Self { group, of_pool: Vec::new(), own: Vec::new() }
    }

    fn get(&mut self, bytes: usize, in_pool: bool) -> *mut u8 {
        if let Some(at) = in_pool.then(|| self.group.alloc_raw(bytes).ok()).flatten() {
            self.of_pool.push(at);
            return at.as_ptr();
        }
        self.own.push(vec![0; bytes / 8 + 1]);
        self.own.last_mut().unwrap().as_mut_ptr().cast()
    }
}

impl Drop for Buffers<'_, '_> {
    fn drop(&mut self) {
        for at in &self.of_pool {
            // SAFETY: the calls on it are over.
            let _ = unsafe { self.group.free_raw(*at) };
        }
    }
}

/// A sequence of calls in which the ranks of `seed` are kernels; a second group, all in Rust and by the default table, says what is
/// right.
fn sequence(nranks: usize, seed: u64, calls: usize, kernel: Kernel, table: Table) {
    in_comms(nranks, |comm| {
        let text = |error: collectives::CollError| error.to_string();
        let mixed = Collectives::new(comm, options().table(table)).map_err(text)?;
        let plain = Collectives::new(comm, options()).map_err(text)?;
        let me = mixed.rank();
        let is_kernel = (seed >> me) & 1 == 1;
        let mut random = Random::new(seed);
        for number in 0..calls {
            let call = random_call(&mut random, nranks);
            // Where each rank's buffers lie is its own affair.
            let mut own = Random::new(seed ^ ((number as u64) << 20) ^ ((me as u64) << 50));
            let place = random.below(3);
            let in_pool = |own: &mut Random| place == 1 || place == 2 && own.below(2) == 1;
            let size = call.dtype.size() * call.count * nranks;
            let mut buffers = Buffers::new(&mixed);
            let in_place = matches!(call.kind, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter)
                && random.below(2) == 0
                || call.kind == Kind::Broadcast;
            let input = buffers.get(size, in_pool(&mut own));
            // In place, where this rank's block begins.
            let scatters = call.kind == Kind::ReduceScatter;
            let block = if in_place && scatters { me * call.count * call.dtype.size() } else { 0 };
            let buffer = if in_place { input } else { buffers.get(size, in_pool(&mut own)) };
            let output = buffer.wrapping_add(block);
            let (mut given, mut expected) = (vec![0_u8; size], vec![0_u8; size]);
            given.chunks_mut(8).for_each(|part| {
                let bits = if own.below(4) == 0 { own.next() } else { own.next() & 0x3fff_bfff_3fff_bfff };
                part.copy_from_slice(&bits.to_le_bytes()[..part.len()]);
            });
            // SAFETY: both have so many bytes, and are apart.
            unsafe {
                std::ptr::copy_nonoverlapping(given.as_ptr(), input, size);
                if !in_place {
                    std::ptr::write_bytes(output, 0, size);
                }
            }
            let request = Request { input: input.cast_const(), output, ..call };
            if is_kernel {
                if !as_kernel(kernel, &mixed, &request) {
                    return Err(format!("call {number}, {call:?}: the kernel's call failed"));
                }
            } else {
                // SAFETY: live buffers of that size.
                unsafe { mixed.run_raw(request) }.map_err(|error| format!("call {number}: {error}"))?;
            }
            let reference = if in_place {
                expected.copy_from_slice(&given);
                let at = expected.as_mut_ptr();
                Request { input: at.cast_const(), output: at.wrapping_add(block), ..call }
            } else {
                Request { input: given.as_ptr(), output: expected.as_mut_ptr(), ..call }
            };
            // SAFETY: as above.
            unsafe { plain.run_raw(reference) }.map_err(text)?;
            // SAFETY: as above; the call is over, and a peer that writes to it no more has said so.
            let got = unsafe { std::slice::from_raw_parts(buffer, size) };
            let compare = !(in_place && matches!(call.kind, Kind::Reduce) && me != call.root as usize);
            if let Some(at) = (0..size).find(|at| compare && got[*at] != expected[*at]) {
                return Err(format!(
                    "seed {seed}, call {number}, kernel {is_kernel}, place {place}, in place {in_place}: {call:?}: byte {at} is {}, \
                     not {}",
                    got[at], expected[at]
                ));
            }
        }
        mixed.close().map_err(text)?;
        plain.close().map_err(text)
    });
}

// CO-1, CO-2, CO-12
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn kernels_and_ranks_in_rust_make_one_group_with_the_same_bits() {
    let kernel = load(c"kernel_entry");
    for (nranks, calls) in [(1, 50), (2, 250), (3, 120), (4, 80), (9, 30)] {
        for kernels in [0x155_u64, 0x1ff, 0x002] {
            sequence(nranks, kernels | (0x1000 * (nranks as u64 + 1)), calls, kernel, Table::default());
        }
    }
}

// CO-8, CO-12
#[test]
fn kernels_choose_by_the_table_that_the_host_has_given_the_group() {
    let kernel = load(c"kernel_entry");
    let table = "pair_one_shot: 8 KiB\none_shot_reads: 4 KiB\nreduce_reads: 0\nwindow_min: 1 KiB\nby_reference_min: 2 KiB\n\
                 pieces_from: 16 KiB\npiece: 12 KiB\nrooted_piece: 4 KiB\nnotify_first: any\ntake_over: any\nask_from: 64\nask_ahead: 64\nask_polling: 0\nstrings_from: 100";
    for nranks in [2, 3] {
        sequence(nranks, 0x1001 * nranks as u64, 40, kernel, table.parse().unwrap());
    }
}

/// What a kernel must not pass is refused before a peer knows of it, so that the group is as it was.
// CO-5, CO-12
#[test]
fn a_kernel_is_refused_buffers_that_overlap_or_cannot_be() {
    let kernel = load(c"kernel_entry");
    in_comms(2, |comm| {
        let group = Collectives::new(comm, options()).map_err(|error| error.to_string())?;
        let mut values = vec![1.0_f32; 4000];
        let at: *mut u8 = values.as_mut_ptr().cast();
        let call = |kind, count, input: *const u8, output| {
            let op = matches!(kind, Kind::AllReduce | Kind::ReduceScatter).then_some(Op::Sum);
            let request = Request { kind, dtype: DType::F32, op, count, input, output, ..Request::BARRIER };
            as_kernel(kernel, &group, &request)
        };
        let refused = [
            ("overlap", call(Kind::AllReduce, 1000, at, at.wrapping_add(4))),
            ("overlap of blocks", call(Kind::ReduceScatter, 1000, at, at.wrapping_add(4004))),
            ("no place of its own", call(Kind::AllToAll, 1000, at, at)),
            ("too many", call(Kind::AllReduce, usize::MAX / 8, at, at)),
            ("too many in all", call(Kind::AllGather, usize::MAX / 16, at, at.wrapping_add(8))),
            ("no input", call(Kind::AllReduce, 10, std::ptr::null(), at)),
            ("no output", call(Kind::AllGather, 10, at, std::ptr::null_mut())),
        ];
        if let Some((what, _)) = refused.iter().find(|(_, made)| *made) {
            return Err(format!("{what}: accepted"));
        }
        if !call(Kind::AllReduce, 1000, at, at) || values[999] != 2.0 {
            return Err("the group is not as it was".to_owned());
        }
        group.close().map_err(|error| error.to_string())
    });
}

/// After a run that was cancelled, kernels count anew; a group that the host makes then counts like them.
// CO-12
// F52
#[test]
fn f52_kernels_and_ranks_in_rust_meet_after_a_run_that_was_cancelled() {
    let kernel = load(c"kernel_entry");
    let prepared = comm_sim::SimComm::prepare_group(2).unwrap();
    for _ in 0..3 {
        prepared.cancel_kernels();
        prepared.resume_kernels();
    }
    let said = Ranks::start_in(prepared, 2, |comm| {
        let group = Collectives::new(&comm, options()).unwrap();
        let mut values = [group.rank() as f32 + 1.0; 1000];
        let at = values.as_mut_ptr().cast();
        let call = Request {
            kind: Kind::AllReduce,
            dtype: DType::F32,
            op: Some(Op::Sum),
            count: 1000,
            input: at,
            output: at,
            ..Request::BARRIER
        };
        for _ in 0..20 {
            // SAFETY: a live buffer.
            let made = if group.rank() == 0 { unsafe { group.run_raw(call) } } else { Ok(()) };
            if let Err(error) = made {
                return error.to_string();
            }
            if group.rank() == 1 && !as_kernel(kernel, &group, &call) {
                return "the kernel's call failed".to_owned();
            }
        }
        // A number for a reader, and a kernel that finds out that its peer gave up.
        let last = Request { count: 999 - group.rank(), ..call };
        if group.rank() == 1 {
            return if as_kernel(kernel, &group, &last) { "nobody noticed" } else { "" }.to_owned();
        }
        // SAFETY: as above.
        unsafe { group.run_raw(last) }.unwrap_err().to_string()
    })
    .end();
    assert_eq!(said[1].1, "");
    assert!(said[0].1.contains("all_reduce f32 sum × 998, call 21"), "{}", said[0].1);
}

// CO-8, CO-12
#[test]
fn the_layout_is_the_same_in_rust_and_in_the_header() {
    let layout = load(c"layout");
    for nranks in 1..=64 {
        for pool in [0, 1, 4096, 5000, 1 << 20] {
            let mut args = [nranks as i64, pool as i64, 0, 0];
            // SAFETY: the arguments that this function takes.
            unsafe { layout(args.as_mut_ptr()) };
            let found = (Some(args[2] as usize), Some(args[3] as u64));
            let ours = (collectives::group_bytes(nranks, pool), collectives::group_hash(nranks, pool));
            assert_eq!(found, ours, "{nranks} ranks, pool {pool}");
        }
    }
}

// CO-3, CO-12
// F85
#[test]
fn a_kernel_that_makes_another_call_is_an_error_on_both_sides() {
    let kernel = load(c"kernel_entry");
    in_comms(2, |comm| {
        let group = Collectives::new(comm, options()).map_err(|error| error.to_string())?;
        let mut values = [1.0_f32; 1000];
        let at = values.as_mut_ptr().cast();
        let all_reduce = Request {
            kind: Kind::AllReduce,
            dtype: DType::F32,
            op: Some(Op::Sum),
            count: 1000,
            input: at,
            output: at,
            ..Request::BARRIER
        };
        if group.rank() == 0 {
            // SAFETY: a live buffer.
            let error =
                unsafe { group.run_raw(all_reduce) }.err().ok_or("rank 0 noticed nothing")?.to_string();
            let named =
                ["rank 0: all_reduce f32 sum × 1000, call 1", "rank 1: all_reduce f32 max × 1000, call 1"];
            if !named.iter().all(|text| error.contains(text)) {
                return Err(error);
            }
        } else {
            let other = Request { op: Some(Op::Max), ..all_reduce };
            if as_kernel(kernel, &group, &other) || as_kernel(kernel, &group, &Request::BARRIER) {
                return Err("the kernel noticed nothing".to_owned());
            }
        }
        group.close().map_err(|error| error.to_string())
    });
}

/// Rank 1 of three kernels makes another call than the others, each time another kind of difference; each says which calls differ, those
/// too that only find that another one has given up.
// CO-3, CO-12
// F85
#[test]
fn kernels_that_make_different_calls_name_both_and_their_number() {
    let kernel = load(c"kernel_entry");
    in_comms(3, |comm| {
        let said = |error: CommError| error.to_string();
        let (me, bytes) = (comm.rank(), collectives::group_bytes(3, 0).ok_or("no such group")?);
        let (mut input, mut output) = (vec![1.0_f64; 4096], vec![0.0_f64; 4096]);
        let sum = Request {
            kind: Kind::AllReduce,
            dtype: DType::F32,
            op: Some(Op::Sum),
            count: 1024,
            input: input.as_mut_ptr().cast(),
            output: output.as_mut_ptr().cast(),
            ..Request::BARRIER
        };
        let broadcast = Request { kind: Kind::Broadcast, op: None, input: sum.output, ..sum };
        let (plain, root) = ("all_reduce f32 sum × 1024", "broadcast f32 × 1024 from 0");
        for (ours, theirs, us, them) in [
            (sum, broadcast, plain, root),
            (sum, Request { count: 1000, ..sum }, plain, "all_reduce f32 sum × 1000"),
            (sum, Request { dtype: DType::F64, ..sum }, plain, "all_reduce f64 sum × 1024"),
            (sum, Request { op: Some(Op::Max), ..sum }, plain, "all_reduce f32 max × 1024"),
            (broadcast, Request { root: 2, ..broadcast }, root, "broadcast f32 × 1024 from 2"),
            (sum, Request::BARRIER, plain, "barrier"),
            // Rank 2 has sent its part and waits for nobody; in the broadcast it waits for rank 0, which has given up.
            (Request { kind: Kind::Gather, op: None, ..sum }, sum, "gather f32 × 1024 to 0", plain),
        ] {
            let spec =
                DomainSpec { id: AllocationId(1), ranks: &[0, 1, 2], domain_rank: me, window_size: bytes };
            let window = comm.alloc_domain(&spec, secs(20)).map_err(said)?;
            let make = |request: &Request| in_task(kernel, (window.context, window.base, bytes), request);
            for _ in 0..16 {
                make(&Request::BARRIER).map_err(|(_, text)| text)?;
            }
            // A root waits for nobody, and finds out in the next call.
            let call = if me == 1 { theirs } else { ours };
            let failed = make(&call).and_then(|()| make(&broadcast)).and_then(|()| make(&sum));
            let (code, text) = failed.err().ok_or(format!("rank {me} noticed nothing of {us}, {them}"))?;
            let of = |rank: u32| format!("rank {rank}: {}, call 17", if rank == 1 { them } else { us });
            let error = |one, other| {
                let (one, other) = (of(one), of(other));
                format!(
                    "ranks made different calls: {one}; {other}; let every rank make the same calls in the same order"
                )
            };
            if code != 9 || (text != error(0, 1) && text != error(1, 2)) {
                return Err(format!("rank {me}: code {code}, {text:?}, not {:?}", error(0, 1)));
            }
            let again = make(&sum).err().ok_or("the group goes on")?;
            if again
                != (
                    9,
                    format!(
                        "this group failed before, and fails until the next run; the first cause: {text}"
                    ),
                )
            {
                return Err(format!("rank {me}, again: {again:?}"));
            }
            comm.release_domain(spec.id, secs(20)).map_err(said)?;
        }
        Ok(())
    });
}

/// A rank of the host that gives up for its own reasons, and a layout that is another.
// CO-3, CO-12
#[test]
fn kernels_say_who_has_given_up() {
    let kernel = load(c"kernel_entry");
    in_comms(2, |comm| {
        let group = Collectives::new(comm, options()).map_err(|error| error.to_string())?;
        if group.rank() == 0 {
            group.give_up("its own reasons");
        } else {
            let failed = in_task(kernel, group.for_kernels().unwrap(), &Request::BARRIER);
            let wanted = "rank 0 has given up on this group; see its own error";
            if failed != Err((9, wanted.to_owned())) {
                return Err(format!("{failed:?}"));
            }
        }
        comm.barrier(secs(20)).map_err(|error| error.to_string())
    });
}

/// What the host says of a record, whatever stands there.
// CO-3, CO-12
#[test]
fn kernels_put_calls_in_the_words_of_the_host() {
    let function = load(c"call_in_words");
    let name = [*b"direct_o", *b"ne shot\0"].map(u64::from_le_bytes);
    let mut random = Random::new(3);
    for kind in (0..=14).chain([0x40, 0xff]) {
        for dtype in (0..12).chain([31, 32, 33, 34, 255]) {
            for op in (0..12).chain([255]) {
                let head = kind | dtype << 8 | op << 16 | (random.below(64) as u64) << 32;
                let count = random.next() >> random.below(64);
                let record = [random.next(), head, count, 7, random.next(), name[0], name[1]];
                let mut text = [0_u8; 256];
                let mut args = [record.as_ptr() as i64, text.as_mut_ptr() as i64];
                // SAFETY: the arguments that this function takes; a text has at most 160 bytes.
                unsafe { function(args.as_mut_ptr()) };
                let text = CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap();
                assert_eq!(text, CallText::of(&record).to_string(), "{record:x?}");
            }
        }
    }
}

/// Kernels of ranks that share a core move (see `leave_full_core` in the header), and are bound nowhere afterwards.
// F71
#[test]
fn kernels_that_start_on_one_core_may_run_where_they_could_before() {
    let kernel = load(c"kernel_entry");
    for nranks in [2, 5] {
        in_comms(nranks, |comm| {
            let group = Collectives::new(comm, options()).map_err(|error| error.to_string())?;
            let allowed = AllowedCores::of_this_process();
            let first = allowed.iter().next().ok_or("no core")?;
            for call in 0..300_usize {
                if call % 100 == 0 {
                    move_this_thread_to(first).map_err(|error| error.to_string())?;
                }
                let values = vec![(group.rank() + call) as f32; [1, 100, 5000][call % 3]];
                let mut sums = vec![0.0_f32; values.len()];
                let request = Request {
                    kind: Kind::AllReduce,
                    dtype: DType::F32,
                    op: Some(Op::Sum),
                    count: values.len(),
                    input: values.as_ptr().cast(),
                    output: sums.as_mut_ptr().cast(),
                    ..Request::BARRIER
                };
                if !as_kernel(kernel, &group, &request) {
                    return Err(format!("call {call} failed"));
                }
                let sum = (0..nranks).map(|rank| rank + call).sum::<usize>() as f32;
                if sums.iter().any(|found| *found != sum) {
                    return Err(format!("call {call}: {:?}, not {sum}", sums.first()));
                }
            }
            if AllowedCores::of_this_process() != allowed {
                return Err("a rank may not run any more where it could".to_owned());
            }
            group.close().map_err(|error| error.to_string())
        });
    }
}

/// Four ranks on the first of two cores, which the object makes up: the last two move to the other one, and the rest stay.
// F71
#[test]
fn kernels_that_crowd_a_core_move_to_an_emptier_one_until_both_have_as_many() {
    let (kernel, place) = (load_of(*PLACED, c"kernel_entry"), load_of(*PLACED, c"place"));
    in_comms(4, |comm| {
        let group = Collectives::new(comm, options()).map_err(|error| error.to_string())?;
        let mut found = [0; 3];
        // A rank looks in waits only, so how many calls it takes is the scheduler's business. All ranks see the same sum.
        for _ in 0..200_000 {
            // SAFETY: the arguments that this function takes.
            unsafe { place(found.as_mut_ptr()) };
            let (mine, mut moved) = (found[0] as f32, 0.0_f32);
            let request = Request {
                kind: Kind::AllReduce,
                dtype: DType::F32,
                op: Some(Op::Sum),
                count: 1,
                input: (&raw const mine).cast(),
                output: (&raw mut moved).cast(),
                ..Request::BARRIER
            };
            if !as_kernel(kernel, &group, &request) {
                return Err("a call failed".to_owned());
            }
            if moved == 2.0 {
                break;
            }
        }
        // Bound to the one core, then to both again; those that stay never ask.
        let wanted = if group.rank() < 2 { [0, 2, 0] } else { [1, 2, 2] };
        if found != wanted {
            return Err(format!("core, bound to, how often: {found:?}, not {wanted:?}"));
        }
        group.close().map_err(|error| error.to_string())
    });
}

/// Memory that is not in the window, or not all of it, has no counterpart on the peers.
// CO-5, CO-12
#[test]
fn a_kernel_is_refused_a_group_outside_of_its_window() {
    let kernel = load(c"kernel_entry");
    in_comms(2, |comm| {
        let said = |error: CommError| error.to_string();
        let bytes = collectives::group_bytes(2, 0).ok_or("no such group")?;
        let spec = DomainSpec {
            id: AllocationId(1),
            ranks: &[0, 1],
            domain_rank: comm.rank(),
            window_size: bytes + 4096,
        };
        let window = comm.alloc_domain(&spec, secs(20)).map_err(said)?;
        let at = |memory: u64, bytes: usize| {
            in_memory(kernel, (window.context, DeviceAddr(memory), bytes), &Request::BARRIER)
        };
        let base = window.base.0;
        let outside = vec![0_u64; bytes / 8];
        let end = base + window.size as u64;
        for (memory, bytes) in [
            (outside.as_ptr() as u64, bytes),
            (base - 4096, bytes),
            (end, bytes),
            (end - bytes as u64 + 128, bytes),
            (base, window.size + 1),
            (base, bytes - 4096),
            (0, bytes),
        ] {
            if at(memory, bytes) {
                return Err(format!("{bytes} bytes at {memory:#x} were taken"));
            }
        }
        // The window is as it was: a group that nobody has used.
        if !at(base, bytes) {
            return Err("the group does not open".to_owned());
        }
        comm.barrier(secs(20)).map_err(said)
    });
}

/// How many cores there are is the backend's to say, which counts those of all ranks and their CPU quotas.
// CO-12
// F71
#[test]
fn kernels_count_the_cores_that_the_backend_counted() {
    const TAIL_CORES: usize = size_of::<CommContext>() + offset_of!(CommContextTail, cores);
    const GROUP_CORES: usize = 16;
    let kernel = load(c"kernel_entry");
    in_comms(2, |comm| {
        let said = |error: CommError| error.to_string();
        let bytes = collectives::group_bytes(2, 0).ok_or("no such group")?;
        for (cores, core_per_rank) in [(1_u64, 0_u64), (2, 1), (1, 0)] {
            let ranks = [0, 1];
            let spec = DomainSpec {
                id: AllocationId(1),
                ranks: &ranks,
                domain_rank: comm.rank(),
                window_size: bytes,
            };
            let window = comm.alloc_domain(&spec, secs(20)).map_err(said)?;
            // SAFETY: the field is in the context's page, which is this process's; no kernel runs.
            unsafe { (window.context.0 as *mut u8).add(TAIL_CORES).cast::<u64>().write(cores) };
            if !in_memory(kernel, (window.context, window.base, bytes), &Request::BARRIER) {
                return Err("the barrier failed".to_owned());
            }
            // SAFETY: the word is in the window, and written once, before the barrier.
            let found = unsafe { (window.base.0 as *const u8).add(GROUP_CORES).cast::<u64>().read() };
            if found != core_per_rank {
                return Err(format!("{cores} cores for 2 ranks: the group says {found}"));
            }
            comm.release_domain(spec.id, secs(20)).map_err(said)?;
        }
        Ok(())
    });
}

/// Another pool is another layout, as another build would have it.
// CO-8, CO-12
#[test]
fn kernels_with_different_layouts_refuse_each_other() {
    let kernel = load(c"kernel_entry");
    in_comms(2, |comm| {
        let said = |error: CommError| error.to_string();
        let bytes = collectives::group_bytes(2, 4096).ok_or("no such group")?;
        let spec =
            DomainSpec { id: AllocationId(1), ranks: &[0, 1], domain_rank: comm.rank(), window_size: bytes };
        let window = comm.alloc_domain(&spec, secs(20)).map_err(said)?;
        let mine = bytes - 4096 * comm.rank() as usize;
        let refused = in_task(kernel, (window.context, window.base, mine), &Request::BARRIER);
        let (theirs, ours) = (1 - comm.rank(), |rank: u32| {
            collectives::group_hash(2, 4096 * (1 - rank as usize)).unwrap_or_default()
        });
        let text = format!(
            "rank {theirs} has another layout of the group's memory ({:016x}, here {:016x}); run the same build with the \
             same options on every rank",
            ours(theirs),
            ours(comm.rank())
        );
        if refused != Err((9, text)) {
            return Err(format!("{refused:?}"));
        }
        comm.barrier(secs(20)).map_err(said)
    });
}
