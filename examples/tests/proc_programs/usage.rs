//! Impossible requests are refused in one line, with exit code 2, before anything starts.

use crate::support::{command, compile, ended, run};

/// Refused with exit code 2 and one line of stderr that contains `reason`; nothing else is printed.
fn refused(name: &str, args: &[&str], reason: &str) {
    let ended = run(name, args);
    assert_eq!(ended.code, Some(2), "{name} {args:?}\n{}{}", ended.out, ended.err);
    assert_eq!((ended.out.as_str(), ended.err.lines().count()), ("", 1), "{name} {args:?}\n{}", ended.err);
    assert!(ended.err.starts_with("error: ") && ended.err.contains(reason), "{name} {args:?}\n{}", ended.err);
}

#[test]
fn wrong_flags_and_values_are_refused() {
    refused("allreduce", &["--fast"], "unknown flag '--fast'");
    refused("allreduce", &["--iter", "3"], "unknown flag '--iter'; did you mean '--iters'?");
    refused("allreduce", &["--iters", "0"], "write a whole number from 1 to ");
    refused("allreduce", &["--count", "0"], "--count");
    refused("allreduce", &["--count", "-3"], "-3");
    refused("allreduce", &["--timeout", "0"], "--timeout");
    refused("allreduce", &["--timeout", "soon"], "such as 120");
    refused("allreduce", &["-p", "tpu"], "choose sim");
    refused("allreduce", &["extra"], "extra");
    refused("allreduce", &["-q", "--json"], "'--json' and '--quiet' exclude each other");
    refused("allreduce", &["--kernel", "k.so:"], "a symbol follows the colon");
    refused(
        "allreduce",
        &["--args", "input"],
        "--args: it is for a kernel of your own; name it with --kernel",
    );
    refused("treduce", &["--runtime", "eager"], "write prebuilt, explicit or inferred");
    refused("allgather", &["-d", "3-1"], "the range 3-1 is reversed; write 1-3");
    refused("graph", &[], "name your orchestration with --orchestration");
    refused("graph", &["--orchestration", "none.so"], "there is no file \"none.so\"");
    let any_file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let graph = |args: &[&str], reason: &str| {
        refused("graph", &[&["--orchestration", any_file], args].concat(), reason);
    };
    let twice = format!("0={any_file}");
    graph(
        &["--kernel", &twice, "--kernel", &twice],
        "--kernel: a number is given twice; each kernel has its own",
    );
    graph(&["--tensor", "x:f16:4=2.5"], "give values of 16-bit floats in a file");
    graph(&["--tensor", &format!("x:f32:4={any_file}")], "bytes, the tensor 16; give a file of that length");
    graph(&["--tensor", "x"], "write NAME:TYPE:COUNT, for example x:f32:1024=2.0");
    graph(&["--tensor", "x:f33:4"], "`f33` is not f32, f16, bf16, i8, u8, i16, u16, i32, u32, i64 or u64");
    graph(&["--tensor", "x:f32:0"], "a tensor has 1 to 2147483647 elements");
    graph(&["--kernel", "scale.so"], "write ID=FILE, for example 0=scale.so");
    graph(&["--kernel", "x=scale.so"], "`x` is not a number; write one, for example 0=scale.so");
    graph(&["--scalar", "many"], "write a whole number, f32:0.5, f64:0.5, or ctx");
    graph(&["--scalar", "f32:x"], "--scalar f32:x: write a whole number, f32:0.5, f64:0.5, or ctx");
    graph(&["--scalar", "0.5"], "--scalar 0.5: write f32:0.5 or f64:0.5, as the entry reads it");
    refused("independent_ranks", &["--rank", "1"], "'--rank' needs '--nranks' as well");
    refused(
        "independent_ranks",
        &["--spawn", "2", "--rank", "1", "--nranks", "2"],
        "'--spawn' and '--rank' exclude each other",
    );
}

#[test]
fn unknown_devices_and_too_many_ranks_are_refused() {
    refused("allreduce", &["-d", "64,1"], "there is no device 64");
    refused("allreduce", &["-d", "65"], "65 ranks are too many; a group has at most 64");
    refused("allreduce", &["-d", "0"], "for device 0 alone write 0-0");
    refused("allgather", &["-d", "1,1"], "device 1 is listed twice; name each once");
    refused(
        "allgather",
        &["-d", "x"],
        "is not a list of devices; write a range such as 0-3, ids such as 0,2,5, or a count such as 4",
    );
    refused("domains", &["-d", "1"], "give two chips or more, and ");
    refused("tp_ffn", &["-d", "9"], "it runs on 2 to 8 chips with 1 to ");
    refused("tp_ffn", &["-d", "1"], "2 to 8");
    refused("independent_ranks", &["--spawn", "65"], "at most 64");
    refused("independent_ranks", &["--rank", "4", "--nranks", "4"], "4");
}

#[test]
fn a_root_beyond_the_ranks_is_refused() {
    refused("treduce", &["--root", "2"], "--root 2: the ranks are 0 to 1");
    refused("treduce", &["-d", "0,5", "--root", "5"], "ranks are 0 to 1");
    refused("treduce", &["--root", "-1"], "-1");
}

#[test]
fn a_kernel_that_does_not_exist_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("kernel.txt");
    std::fs::write(&text, "no code").unwrap();
    let real = compile(folder.path(), "k", "extern \"C\" void entry(long *) {}\n");
    let real = real.to_str().unwrap();
    for name in ["allreduce", "treduce", "domains", "tp_ffn"] {
        refused(name, &["--kernel", "no/such.so"], "there is no file \"no/such.so\"");
        refused(name, &["--kernel", text.to_str().unwrap()], "kernel.txt");
        refused(name, &["--kernel", real], "has no `kernel_entry`");
        refused(name, &["--kernel", &format!("{real}:enrty")], "has no `enrty`");
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_refused() {
    refused("allreduce", &["--trace", "no/such/folder/t.json"], "no/such/folder/t.json");
}

#[test]
fn a_bad_timeout_in_the_environment_is_refused() {
    for name in ["allreduce", "independent_ranks"] {
        let args: &[&str] = if name == "allreduce" { &[] } else { &["--spawn", "2"] };
        let ended = ended(command(name, args).env("CHIPCOMM_TIMEOUT_S", "soon").output().unwrap());
        assert_eq!(ended.code, Some(2), "{}", ended.err);
        assert!(ended.err.contains("CHIPCOMM_TIMEOUT_S"), "{}", ended.err);
    }
}

#[test]
fn a_rank_without_a_number_explains_how_to_start_it() {
    refused(
        "independent_ranks",
        &[],
        "this is one rank of several: start them all with --spawn 4, each with --rank R --nranks 4, or under mpirun -n 4",
    );
}

/// As a user does who follows the help: the command that it prints makes a kernel that it runs.
#[test]
fn the_help_compiles_a_kernel_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("mine.so");
    let help = run("allreduce", &["--help"]).out;
    let line = help.lines().find(|line| line.contains("my_kernel.cpp")).unwrap();
    let mut words = line.split_whitespace();
    assert_eq!(words.next(), Some("g++"));
    let mut compiler = env!("KERNEL_COMPILER").split_whitespace();
    let mut command = std::process::Command::new(compiler.next().unwrap());
    command.args(compiler).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let ran = command.args(words.map(|word| match word {
        "my_kernel.cpp" => "examples/kernels/allreduce.cpp",
        "my_kernel.so" => kernel.to_str().unwrap(),
        other => other,
    }));
    assert!(ran.status().unwrap().success());
    assert_eq!(run("allreduce", &["-d", "3", "--kernel", kernel.to_str().unwrap()]).code, Some(0));
}

#[test]
fn every_program_helps_with_an_example() {
    for name in
        ["allreduce", "allgather", "reduce_scatter", "treduce", "tp_ffn", "domains", "independent_ranks"]
    {
        let ended = run(name, &["--help"]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
        assert!(ended.out.contains("Example"), "{}", ended.out);
        let flags: &[&str] = match name {
            "independent_ranks" => &["--iters", "--count", "--timeout", "--json", "--quiet"],
            _ => &[
                "--platform",
                "--devices",
                "--iters",
                "--count",
                "--kernel",
                "--timeout",
                "--trace",
                "--json",
                "--quiet",
            ],
        };
        if name == "independent_ranks" {
            for launcher in ["mpirun", "torchrun", "srun", "comm-inspect -- PATH"] {
                assert!(ended.out.contains(launcher), "{name} does not explain {launcher}");
            }
        } else {
            assert!(ended.out.contains("args[4]  const CommContext *"), "{}", ended.out);
        }
        assert!(
            ended.out.lines().skip_while(|line| !line.starts_with("Example")).all(|line| line.len() < 110)
        );
        flags.iter().for_each(|flag| assert!(ended.out.contains(flag), "{name} has no {flag}"));
    }
}
