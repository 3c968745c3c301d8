//! Runs a user's own orchestration, a C++ shared object, as a graph on each chip.

use chipcomm_examples::{
    Arguments, CommandLine, DOT_FLAG, Error, FLAGS, Flag, GraphOptions, Job, KernelFile, Options, Outcome,
    counted, main as run, print_line, usage,
};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use worker_orch::runtime::FrontEnd;
use worker_orch::{
    Access, Args, ChipConfig, DType, DeviceAddr, Failure, GraphObject, HostBuffer, Membership, TensorDesc,
    Worker, flat_tensor,
};

const LINE: CommandLine = CommandLine {
    program: "graph",
    about: "Runs an orchestration of your own, a C++ shared object, as a graph on each chip",
    flags: &[
        // All but --kernel, which is another one here.
        FLAGS.split_at(KERNEL_AT).0,
        FLAGS.split_at(KERNEL_AT + 1).1,
        &[
            Flag::with_value("runtime", "NAME", "prebuilt, explicit or inferred [default: inferred]"),
            Flag::with_value("orchestration", "FILE[:ENTRY]", "The orchestration; ENTRY is aicpu_orchestration_entry if left out"),
            Flag::with_value("kernel", "ID=FILE[:SYMBOL][@aic|@aiv]", "Kernel number ID of the orchestration's tasks; once for each").repeated(),
            Flag::with_value(
                "tensor",
                "NAME:TYPE:COUNT[@window][=VALUE|=FILE][>FILE]",
                "One more tensor: of a value or of a file's bytes, written to a file at the end; in the window with @window",
            )
            .repeated(),
            Flag::with_value(
                "scalar",
                "[TYPE:]VALUE",
                "One more scalar: a whole number, f32:0.5 or f64:0.5, or ctx for the address of the CommContext",
            )
            .repeated(),
            DOT_FLAG,
            Flag::with_value("abi", "NAME", "The layouts that it was compiled for [default: pto2-2026-08]"),
        ],
    ],
    examples: "Example: an orchestration with one kernel on two chips\n  cargo run --release --bin graph -- -d 2 \
               --orchestration orch.so --kernel 0=scale.so --tensor 'x:f32:1024=2.0' --tensor 'y:f32:1024>y{rank}.bin' --scalar 7",
    notes: &[
        "Tensors and scalars are the arguments of the entry, each in the order given. {rank} in names of files and in\n\
         values is the chip's rank. orchestration.h has what an orchestration calls.",
    ],
};

/// Where --kernel is among the flags of all programs.
const KERNEL_AT: usize = 4;

/// A tensor of the command line.
#[derive(Clone)]
struct Tensor {
    name: String,
    dtype: DType,
    count: usize,
    in_window: bool,
    from: Option<String>,
    to: Option<String>,
}

impl Tensor {
    fn parse(text: &str) -> Result<Self, String> {
        let (text, to) = text.split_once('>').map_or((text, None), |(text, to)| (text, Some(to.to_owned())));
        let (text, from) =
            text.split_once('=').map_or((text, None), |(text, from)| (text, Some(from.to_owned())));
        let (text, in_window) = text.strip_suffix("@window").map_or((text, false), |text| (text, true));
        let [name, dtype, count] = text.split(':').collect::<Vec<_>>()[..] else {
            return Err("write NAME:TYPE:COUNT, for example x:f32:1024=2.0".to_owned());
        };
        let dtype = match dtype {
            "f32" => DType::Float32,
            "f16" => DType::Float16,
            "bf16" => DType::Bfloat16,
            "i8" => DType::Int8,
            "u8" => DType::Uint8,
            "i16" => DType::Int16,
            "u16" => DType::Uint16,
            "i32" => DType::Int32,
            "u32" => DType::Uint32,
            "i64" => DType::Int64,
            "u64" => DType::Uint64,
            _ => {
                return Err(format!(
                    "`{dtype}` is not f32, f16, bf16, i8, u8, i16, u16, i32, u32, i64 or u64"
                ));
            }
        };
        let count = count.parse().ok().filter(|count| (1..1_usize << 31).contains(count));
        let count = count.ok_or("a tensor has 1 to 2147483647 elements")?;
        Ok(Self { name: name.to_owned(), dtype, count, in_window, from, to })
    }

    fn bytes(&self) -> usize {
        self.count * self.dtype.size() as usize
    }

    /// What it holds at first on the chip of this rank.
    fn values(&self, rank: usize) -> Result<Vec<u8>, Error> {
        let Some(from) = self.from.as_ref().map(|from| of_rank(from, rank)) else {
            return Ok(vec![0; self.bytes()]);
        };
        let bad = |why: String| usage(format!("--tensor {}: {why}", self.name));
        let one = match (from.parse::<f64>(), self.dtype) {
            (Ok(value), DType::Float32) => (value as f32).to_le_bytes().to_vec(),
            (Ok(0.0), DType::Float16 | DType::Bfloat16) => vec![0; 2],
            (Ok(_), DType::Float16 | DType::Bfloat16) => {
                return Err(bad("give values of 16-bit floats in a file".to_owned()));
            }
            (Ok(value), dtype) => (value as i64).to_le_bytes()[..dtype.size() as usize].to_vec(),
            (Err(_), _) => {
                let bytes = std::fs::read(&from).map_err(|error| bad(format!("{from}: {error}")))?;
                if bytes.len() != self.bytes() {
                    return Err(bad(format!(
                        "{from} has {} bytes, the tensor {}; give a file of that length",
                        bytes.len(),
                        self.bytes()
                    )));
                }
                return Ok(bytes);
            }
        };
        Ok(one.repeat(self.count))
    }
}

/// A scalar of the command line.
enum Scalar {
    Value(u64),
    /// The address of the chip's context.
    Context,
}

impl Scalar {
    /// That of the chip of this rank.
    fn parse(text: &str, rank: usize) -> Result<Self, Error> {
        let text = of_rank(text, rank);
        if text == "ctx" {
            return Ok(Self::Context);
        }
        let value = if let Some(value) = text.strip_prefix("f32:") {
            value.parse::<f32>().ok().map(|value| u64::from(value.to_bits()))
        } else if let Some(value) = text.strip_prefix("f64:") {
            value.parse::<f64>().ok().map(f64::to_bits)
        } else if text.parse::<f64>().is_ok() && text.contains(['.', 'e', 'E']) {
            // Its bits depend on the type, and the wrong ones look like another number.
            return Err(usage(format!(
                "--scalar {text}: write f32:{text} or f64:{text}, as the entry reads it"
            )));
        } else {
            text.parse::<i64>().map(|value| value as u64).or_else(|_| text.parse::<u64>()).ok()
        };
        let wrong = || usage(format!("--scalar {text}: write a whole number, f32:0.5, f64:0.5, or ctx"));
        value.map(Self::Value).ok_or_else(wrong)
    }
}

/// What the chip of one rank gets and gives, checked before anything starts.
struct Inputs {
    tensors: Vec<Vec<u8>>,
    scalars: Vec<Scalar>,
}

impl Inputs {
    fn read(tensors: &[Tensor], scalars: &[String], rank: usize) -> Result<Self, Error> {
        for tensor in tensors {
            let Some(file) = tensor.to.as_ref().map(|file| of_rank(file, rank)) else { continue };
            let opened = std::fs::File::options().append(true).create(true).open(&file);
            opened.map_err(|error| usage(format!("--tensor {}: {file}: {error}", tensor.name)))?;
        }
        Ok(Self {
            tensors: tensors.iter().map(|tensor| tensor.values(rank)).collect::<Result<_, _>>()?,
            scalars: scalars.iter().map(|text| Scalar::parse(text, rank)).collect::<Result<_, _>>()?,
        })
    }
}

fn of_rank(text: &str, rank: usize) -> String {
    text.replace("{rank}", &rank.to_string())
}

/// `ID=FILE[:SYMBOL]`, with @aic or @aiv at its end, which the orchestration says too.
fn kernel(text: &str) -> Result<(u32, PathBuf, Option<String>), String> {
    let text = text.strip_suffix("@aic").or_else(|| text.strip_suffix("@aiv")).unwrap_or(text);
    let (id, file) = text.split_once('=').ok_or("write ID=FILE, for example 0=scale.so")?;
    let id = id.parse().map_err(|_| format!("`{id}` is not a number; write one, for example 0=scale.so"))?;
    let KernelFile { file, symbol } = file.parse()?;
    Ok((id, file, Some(symbol)))
}

fn graph(arguments: &Arguments) -> Result<GraphObject, Error> {
    let file = arguments.value_with("orchestration", |text| {
        let (file, entry) = match text.rsplit_once(':') {
            Some((file, entry)) if !PathBuf::from(text).exists() => {
                (PathBuf::from(file), Some(entry.to_owned()))
            }
            _ => (PathBuf::from(text), None),
        };
        if file.is_file() { Ok((file, entry)) } else { Err(format!("there is no file {file:?}")) }
    })?;
    let absolute = |path: PathBuf| std::path::absolute(path).map_err(usage);
    let (file, entry) = file.ok_or_else(|| usage("name your orchestration with --orchestration"))?;
    let kernels = arguments.values_with("kernel", kernel)?;
    let numbers: BTreeSet<u32> = kernels.iter().map(|(id, ..)| *id).collect();
    if numbers.len() < kernels.len() {
        return Err(usage("--kernel: a number is given twice; each kernel has its own"));
    }
    let kernels = kernels.into_iter().map(|(id, file, symbol)| Ok((id, absolute(file)?, symbol)));
    let options = if arguments.has("runtime") { GraphOptions::read(arguments)? } else { None };
    let options = options.map_or_else(|| GraphOptions::of(FrontEnd::Inferred, arguments), Ok)?;
    Ok(GraphObject {
        orchestration: (absolute(file)?, entry),
        abi: arguments.value("abi")?.unwrap_or_else(|| "pto2-2026-08".to_owned()),
        kernels: kernels.collect::<Result<_, Error>>()?,
        front_end: options.front_end,
        limits: options.limits,
        dot: options.dot.map(absolute).transpose()?,
    })
}

/// The tensors of one chip: those on the host with their memory.
type Place = (TensorDesc, Option<HostBuffer<u8>>);

fn place(worker: &mut Worker, chip: usize, tensor: &Tensor, values: &[u8]) -> Result<Place, Failure> {
    if tensor.in_window {
        let addr = worker.chip_contexts()?[chip].buffer(&tensor.name)?.addr;
        worker.copy_to(chip, addr, values)?;
        return Ok((flat_tensor(addr, tensor.dtype, tensor.count)?, None));
    }
    let buffer = worker.host_buffer::<u8>(tensor.bytes())?;
    buffer.write(values)?;
    let desc = flat_tensor(DeviceAddr(buffer.tensor().addr), tensor.dtype, tensor.count)?;
    Ok((desc, Some(buffer)))
}

fn main() -> ExitCode {
    run(&LINE, |arguments| {
        let options = Options::read(arguments)?;
        let graph = graph(arguments)?;
        let tensors = arguments.values_with("tensor", Tensor::parse)?;
        let scalars = arguments.values_with("scalar", |text| Ok::<_, String>(text.to_owned()))?;
        let devices = options.devices_or(1)?;
        let n = devices.ids().len();
        let inputs = (0..n).map(|rank| Inputs::read(&tensors, &scalars, rank));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let in_window = || tensors.iter().filter(|tensor| tensor.in_window);
        let mut job =
            Job::new(LINE.program, &options, devices, tensors.first().map_or(0, |tensor| tensor.count))?;
        let mut worker = job.worker().build().map_err(Error::before_start)?;
        let program = graph.register(&mut worker, "graph").map_err(Error::before_start)?;
        let chip = |(rank, device): (usize, &i32)| {
            let member = Membership::new(rank as u32, n as u32).map_err(usage)?;
            let bytes = in_window().map(|tensor| tensor.bytes() + 64).sum::<usize>() + 4096;
            let chip = ChipConfig::new(*device).communicator(member).window(bytes).region("signals", 4096);
            Ok(in_window().fold(chip, |chip, tensor| chip.buffer(&tensor.name, tensor.dtype, tensor.count)))
        };
        let chips = job.devices().iter().enumerate().map(chip).collect::<Result<Vec<_>, Error>>()?;
        worker.configure_chips(chips).map_err(Error::before_start)?;
        job.bring_up(&mut worker)?;
        let contexts = worker.chip_contexts()?.to_vec();
        let (mut members, mut places) = (Vec::new(), Vec::new());
        for (rank, (context, inputs)) in contexts.iter().zip(&inputs).enumerate() {
            let mut args = Args::new();
            for (tensor, values) in tensors.iter().zip(&inputs.tensors) {
                let placed = place(&mut worker, rank, tensor, values)?;
                args = args.tensor(&placed.0, Access::InOut);
                places.push(placed);
            }
            for scalar in &inputs.scalars {
                args = args.scalar(match scalar {
                    Scalar::Value(value) => *value,
                    Scalar::Context => context.device_ctx.0,
                });
            }
            members.push((rank, args));
        }
        job.batches(64, |job, batch| {
            job.run(&mut worker, |orch| {
                batch.clone().try_for_each(|_| orch.submit_group(program, &members).map(drop))
            })
        })?;
        for (at, (desc, buffer)) in places.iter().enumerate() {
            let (rank, tensor) = (at / tensors.len(), &tensors[at % tensors.len()]);
            let Some(file) = tensor.to.as_ref().map(|file| of_rank(file, rank)) else { continue };
            let bytes = match buffer {
                Some(buffer) => buffer.to_vec(),
                None => {
                    let mut bytes = vec![0; tensor.bytes()];
                    worker.copy_from(rank, DeviceAddr(desc.addr), &mut bytes)?;
                    bytes
                }
            };
            std::fs::write(&file, bytes).map_err(|error| Error::Failed(format!("{file}: {error}")))?;
        }
        drop(places);
        worker.close()?;
        let times = counted(options.iters.get() as usize, "time");
        print_line(format_args!("graph: ran {times} on {}", counted(n, "chip")))?;
        Ok(Outcome::Right)
    })
}
