//! The checks of tasks' memory: kernels in C++ that do what they must not, and kernels that may do what they do.
#![allow(missing_docs)]

mod support;

use comm_context::abi::DType;
use serial_test::serial;
use std::path::Path;
use support::{builder, form_group, kernel, says, text};
use worker_orch::{Access, Args, ErrorCode, Failure, Program, Task, TensorDesc, Worker, flat_tensor};

/// A kernel whose body has `in`, `out` (floats), and `n`, the length of `out`.
fn body(folder: &Path, name: &str, body: &str) -> std::path::PathBuf {
    let source = format!(
        "#include \"comm_kernel.h\"\nextern \"C\" void kernel_entry(int64_t *args) {{\n\
         auto *in = comm_tensor<float>(args[0]).data; auto *out = comm_tensor<float>(args[1]).data;\n\
         const size_t n = comm_tensor<float>(args[1]).count; (void)in; (void)out; (void)n;\n{}\n}}\n",
        // A statement a line, or the compiler finds them misleading.
        body.replace("; ", ";\n")
    );
    kernel(folder, name, &source)
}

/// A checked Worker of two chips.
fn checked() -> Worker {
    builder(2).checked().build().unwrap()
}

/// Runs `program` on chip 1 with an input and an output of `n` floats.
fn run(worker: &mut Worker, program: Program, n: usize) -> Result<(Vec<f32>, Vec<f32>), Failure> {
    let (input, output) = (worker.host_buffer::<f32>(n)?, worker.host_buffer::<f32>(n)?);
    input.write(&vec![1.0; n])?;
    let args = Args::new().tensor(&input.tensor(), Access::Input).tensor(&output.tensor(), Access::Output);
    worker.run(|orch| orch.submit_next_level(program, &args, 1))?;
    Ok((input.to_vec(), output.to_vec()))
}

/// The program fails with `words`, and the chip runs a right one afterwards.
fn found(worker: &mut Worker, program: Program, right: Program, n: usize, words: &[&str]) {
    let failure = run(worker, program, n).unwrap_err();
    let told = text(&failure);
    assert_eq!(failure.code, ErrorCode::Task, "{told}");
    for words in words.iter().chain(&["chip 1", "in memory check", "task "]) {
        assert!(told.contains(words), "`{words}` is not in: {told}");
    }
    let (input, output) = run(worker, right, n).unwrap();
    assert_eq!((input, output), (vec![1.0; n], vec![2.0; n]));
}

const RIGHT: &str = "for (size_t i = 0; i < n; ++i) out[i] = 2 * in[i];";

// WO-15
#[test]
#[serial]
fn an_overrun_of_one_byte_is_found_behind_and_before_a_buffer() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = checked();
    let mut program =
        |name: &str, text: &str| worker.register_kernel(&body(folder.path(), name, text)).unwrap();
    let right = program("right", RIGHT);
    let one_behind =
        "for (size_t i = 0; i < n; ++i) out[i] = 2 * in[i]; reinterpret_cast<char *>(out)[4 * n] = 1;";
    let behind = program("behind", one_behind);
    let before = program("before", "out[0] = 1; reinterpret_cast<char *>(in)[-1] = 1;");
    let reads =
        program("reads", "float sum = 0; for (size_t i = 0; i <= n; ++i) sum += in[i]; out[0] = sum;");
    worker.init().unwrap();
    // At the guard page, where 4 n is a multiple of 64, and before it.
    found(
        &mut worker,
        behind,
        right,
        1024,
        &["`behind.so` failed", "wrote to offset 4096 of tensor 1", "ends at 4096"],
    );
    found(&mut worker, behind, right, 10, &["offset 40 of tensor 1", "ends at 40, was overwritten"]);
    found(&mut worker, before, right, 1024, &["wrote to offset -1 of tensor 0"]);
    found(&mut worker, before, right, 10, &["wrote to offset -1 of tensor 0, which ends at 40"]);
    found(&mut worker, reads, right, 2048, &["read offset 8192 of tensor 0", "ends at 8192"]);
    worker.close().unwrap();
}

// WO-15
#[test]
#[serial]
fn a_write_to_an_input_and_a_read_of_an_unwritten_output_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = checked();
    let mut program =
        |name: &str, text: &str| worker.register_kernel(&body(folder.path(), name, text)).unwrap();
    let right = program("right", RIGHT);
    let writes = program("writes", "for (size_t i = 0; i < n; ++i) out[i] = 1; in[n / 2] = 7;");
    let adds = program("adds", "for (size_t i = 0; i < n; ++i) out[i] += in[i];");
    let last = program("last", "for (size_t i = 0; i + 1024 < n; ++i) out[i] = 1; out[n - 1] += in[n - 1];");
    worker.init().unwrap();
    for n in [10, 4096] {
        let at = format!("wrote to offset {} of tensor 0, which is an input", n * 2);
        found(&mut worker, writes, right, n, &["`writes.so` failed", &at]);
        found(
            &mut worker,
            adds,
            right,
            n,
            &["`adds.so` failed", "read offset 0 of tensor 1 before it wrote it"],
        );
    }
    found(&mut worker, last, right, 4096, &["read offset 16380 of tensor 1 before it wrote it"]);
    worker.close().unwrap();
}

fn writes_its_input(task: &mut Task<'_>) -> Result<(), Failure> {
    task.write(0, &[1.0_f32])
}

/// The same for functions, on sub-workers too; and what a function returned is kept.
#[test]
#[serial]
fn functions_are_checked_on_chips_and_on_sub_workers() {
    let mut worker = builder(1).sub_workers(1).checked().build().unwrap();
    let writes = worker.register_function("writes_its_input", writes_its_input);
    let fails = worker.register_closure("fails", |task| {
        task.read::<f32>(0)?;
        Err(Failure::new(ErrorCode::Task, "it had to be"))
    });
    let fails = fails.unwrap();
    worker.init().unwrap();
    let x = worker.host_buffer::<f32>(4).unwrap();
    let input = Args::new().tensor(&x.tensor(), Access::Input);
    let output = Args::new().tensor(&x.tensor(), Access::Output);
    for place in ["chip 0", "sub-worker 0"] {
        let submit = |worker: &mut Worker, program, args: &Args| {
            let ran = worker.run(|orch| match place {
                "chip 0" => orch.submit_next_level(program, args, 0),
                _ => orch.submit_sub(program, args),
            });
            text(&ran.unwrap_err())
        };
        let told = submit(&mut worker, writes, &input);
        assert!(
            told.contains(place) && told.contains("wrote to offset 0 of tensor 0, which is an input"),
            "{told}"
        );
        let told = submit(&mut worker, fails, &output);
        assert!(
            told.contains("read offset 0 of tensor 0 before it wrote it") && told.contains("it had to be"),
            "{told}"
        );
    }
    worker.close().unwrap();
}

/// Buffers of the chips' windows and of domains, by tensor and by scalar.
#[test]
#[serial]
fn an_overrun_in_a_window_or_through_a_scalar_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = checked();
    form_group(&mut worker, 2, 10);
    let poke = kernel(
        folder.path(),
        "poke",
        "#include \"comm_kernel.h\"\nextern \"C\" void kernel_entry(int64_t *args) {\n\
         comm_pointer<char>(args[0])[args[1]] = 1;\n}\n",
    );
    let poke = worker.register_kernel(&poke).unwrap();
    worker.init().unwrap();
    let contexts = worker.chip_contexts().unwrap().to_vec();
    let data = contexts[0].buffer("data").unwrap().addr;
    let barrier = contexts[0].buffer("barrier").unwrap().addr;
    let host = worker.host_buffer::<u8>(100).unwrap();
    let chip_memory = worker.chip_alloc(0, 64).unwrap();
    let mut poke_at = |addr: u64, at: i64| {
        let args = Args::new().scalar(addr).scalar(at as u64);
        worker.run(|orch| orch.submit_next_level(poke, &args, 0)).map_err(|failure| text(&failure))
    };
    for (addr, at, words) in [
        (data.0, 40, "offset 40 of `data` of the window, which ends at 40, was overwritten"),
        (data.0, -1, "offset -1 of `data` of the window"),
        (barrier.0, 4096, "wrote to offset 4096 of `barrier` of the window"),
        (host.tensor().addr, 100, "offset 100 of the buffer that scalar 0 points to"),
        (chip_memory.addr().0, 64, "wrote to offset 64 of the buffer that scalar 0 points to"),
    ] {
        let told = poke_at(addr, at).unwrap_err();
        assert!(told.contains(words) && told.contains("chip 0"), "`{words}` is not in: {told}");
        poke_at(addr, at.clamp(0, 39)).unwrap();
    }
    for round in 0..3 {
        let told = worker.run(|orch| {
            let domain = orch.allocate_domain("pair", &[0, 1], 4096, &[("x", DType::Float32, 16 + round)])?;
            let bytes = 4 * (16 + round) as u64;
            let at = domain.contexts()[0].buffer("x")?.addr.0;
            orch.submit_next_level(poke, &Args::new().scalar(at).scalar(bytes - 1), 0)?;
            orch.submit_next_level(poke, &Args::new().scalar(at).scalar(bytes), 0)
        });
        let told = text(&told.unwrap_err());
        assert!(told.contains(&format!("offset {}", 64 + 4 * round)), "{told}");
        assert!(told.contains("of buffer 0 of a domain, which ends at"), "{told}");
    }
    worker.close().unwrap();
}

/// Nothing of this is wrong: parts of one buffer as input and output, members of a group that write one output together, outputs in
/// windows that peers have written, tasks that share memory on several chips.
#[test]
#[serial]
fn programs_that_keep_to_their_memory_are_not_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = checked();
    form_group(&mut worker, 2, 16);
    let right = worker.register_kernel(&body(folder.path(), "right", RIGHT)).unwrap();
    let half = "for (size_t i = *args % 2; i < n; i += 1) out[i] = 2 * in[i];";
    let half = worker.register_kernel(&body(folder.path(), "half", half)).unwrap();
    worker.init().unwrap();
    let both = worker.host_buffer::<f32>(2000).unwrap();
    both.write(&[1.0; 1000]).unwrap();
    let addr = comm_context::abi::DeviceAddr;
    let at = |from: usize, len: usize| {
        flat_tensor(addr(both.tensor().addr + 4 * from as u64), DType::Float32, len).unwrap()
    };
    let parts = Args::new().tensor(&at(0, 1000), Access::Input).tensor(&at(1000, 1000), Access::Output);
    let one = |chip: usize| {
        let args = Args::new().tensor(&at(0, 1000), Access::Input).tensor(&at(1000, 1000), Access::Output);
        (chip, args)
    };
    for _ in 0..10 {
        worker
            .run(|orch| {
                orch.submit_next_level(right, &parts, 0)?;
                orch.submit_group(half, &[one(0), one(1)])
            })
            .unwrap();
        assert_eq!(both.to_vec(), [vec![1.0; 1000], vec![2.0; 1000]].concat());
    }
    // In place, and from and to windows.
    let contexts = worker.chip_contexts().unwrap().to_vec();
    let windows =
        contexts.iter().map(|chip| chip.buffer("data").unwrap().tensor().unwrap()).collect::<Vec<_>>();
    let (start, end) = (worker.host_buffer::<f32>(16).unwrap(), worker.host_buffer::<f32>(16).unwrap());
    start.write(&[1.0; 16]).unwrap();
    let step = |from: &TensorDesc, to: &TensorDesc| {
        Args::new().tensor(from, Access::Input).tensor(to, Access::Output)
    };
    let in_place = Args::new().tensor(&end.tensor(), Access::InOut).tensor(&end.tensor(), Access::InOut);
    worker
        .run(|orch| {
            orch.submit_next_level(right, &step(&start.tensor(), &windows[0]), 0)?;
            orch.submit_next_level(right, &step(&windows[0], &end.tensor()), 0)?;
            orch.submit_next_level(right, &in_place, 1)
        })
        .unwrap();
    assert_eq!(end.to_vec(), [8.0; 16]);
    worker.close().unwrap();
}

/// A fault that is not about a task's memory is what it was.
#[test]
#[serial]
fn a_kernel_that_follows_a_null_pointer_still_dies_by_sigsegv() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = checked();
    let null = body(folder.path(), "null", "*comm_pointer<volatile int>(out[0] > 1e30f ? 1 : 8) = 1;");
    let null = worker.register_kernel(&null).unwrap();
    worker.init().unwrap();
    let out = worker.host_buffer::<f32>(4).unwrap();
    let args = Args::new().tensor(&out.tensor(), Access::InOut).tensor(&out.tensor(), Access::InOut);
    let failure = worker.run(|orch| orch.submit_next_level(null, &args, 1)).unwrap_err();
    let told = text(&failure);
    assert!(told.contains("chip 1") && told.contains("SIGSEGV"), "{told}");
    worker.close().unwrap();
}

#[test]
fn the_checks_are_of_the_simulation() {
    says(
        Worker::builder().platform("a2a3".parse().unwrap()).devices(&[0]).checked().build(),
        "in build: invalid argument: the memory of tasks is checked on the simulation only, and these chips are a2a3; \
         leave CHIPCOMM_CHECK and `checked` out and use the vendor's tool",
    );
}
