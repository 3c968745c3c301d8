//! The flags that all programs on a Worker have in common.

use crate::cli::{Arguments, Flag};
use crate::devices::Devices;
use crate::exit::Error;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use worker_orch::{ChipMemoryKind, Platform, Timeout};

/// The flags behind [`Options`].
pub const FLAGS: &[Flag] = &[
    Flag::with_value("platform", "NAME", "What the chips are: sim, a2a3sim or a5sim (8, 24 or 36 clusters for graphs), a2a3 or a5 [default: sim]").short('p'),
    Flag::with_value(
        "devices",
        "LIST",
        "Chips to use: a count (4), a range (0-3) or ids (0,2,5); device 5 alone is 5-5; \
         as few as the program needs if left out",
    )
    .short('d'),
    Flag::with_value(
        "iters",
        "N",
        "How often to do it, one after the other, in the same window [default: 1]",
    ),
    Flag::with_value(
        "count",
        "N",
        "How many floats each chip contributes; the first line says how many if left out",
    ),
    Flag::with_value(
        "kernel",
        "FILE[:SYMBOL]",
        "Run this kernel in place of the program's own, with the arguments below; \
         SYMBOL is kernel_entry if left out",
    ),
    Flag::with_value(
        "timeout",
        "SECONDS",
        "Give up when bring-up, or a batch of iterations, takes longer than this [default: 120]",
    ),
    Flag::with_value("trace", "FILE", "Write when every task ran to this file; ui.perfetto.dev shows it"),
    Flag::switch(
        "check",
        "Check what kernels do with their memory; an error names program, argument and offset (sim only)",
    ),
    Flag::switch("json", "Print the result as one JSON object"),
    Flag::switch("quiet", "Print the last line only").short('q'),
];

/// What the kernel of `--kernel` gets, and how to compile it: a note of the programs whose kernel takes the
/// arguments of `kernels/allreduce.cpp`.
pub const KERNEL_NOTE: &str = "\
The kernel of --kernel is a shared object with a function `extern \"C\" void kernel_entry(int64_t *args)`:
  args[0]  TensorDesc *         input: floats
  args[1]  TensorDesc *         output: floats
  args[2]  float *              this rank's \"data\", in its window: a CommGroup, or the input twice
  args[3]  CommPhaseBarrier *   this rank's \"signals\", in its window: 4096 bytes, zero at first
  args[4]  const CommContext *  this rank, how many there are, and where their windows are
comm_kernel.h has what reads them, comm_collectives.h the collectives. In the folder of this
repository, compile it with
  g++ -std=c++17 -O2 -g -fPIC -shared -I comm-context/include my_kernel.cpp -o my_kernel.so";

/// What every program on a Worker understands.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the chips are.
    pub platform: Platform,
    /// The name that it was given by.
    pub platform_name: String,
    /// Chips to use.
    pub devices: Option<Devices>,
    /// How many iterations.
    pub iters: NonZeroU32,
    /// Floats of each chip.
    pub count: Option<NonZeroU32>,
    /// The user's kernel.
    pub kernel: Option<KernelFile>,
    /// The limit of bring-up and of a run.
    pub timeout: Option<Timeout>,
    /// Where the trace goes.
    pub trace: Option<PathBuf>,
    /// Whether the memory of tasks is checked.
    pub check: bool,
    /// How much is printed.
    pub style: Style,
}

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Lines for people.
    Text,
    /// The last of these lines only.
    Quiet,
    /// One JSON object.
    Json,
}

impl Options {
    /// Reads them.
    pub fn read(arguments: &Arguments) -> Result<Self, Error> {
        Ok(Self {
            platform: arguments.value("platform")?.unwrap_or(Platform::Sim),
            platform_name: arguments.value("platform")?.unwrap_or_else(|| Platform::Sim.to_string()),
            devices: arguments.value("devices")?,
            iters: arguments.value_with("iters", at_least_one)?.unwrap_or(NonZeroU32::MIN),
            count: arguments.value_with("count", at_least_one)?,
            // Where it may be given several times it means something else.
            kernel: if arguments.is_repeated("kernel") { None } else { arguments.value("kernel")? },
            timeout: arguments.value("timeout")?,
            trace: arguments.path("trace"),
            check: arguments.has("check"),
            style: Style::read(arguments)?,
        })
    }

    /// The devices, or the first `otherwise`.
    pub fn devices_or(&self, otherwise: usize) -> Result<Devices, Error> {
        self.devices.clone().map_or_else(|| Devices::first(otherwise).map_err(Error::Usage), Ok)
    }

    /// Where one of our own kernels is, by its name in `kernels/`: where cargo built it for the simulation,
    /// or, for other platforms, in the folder that `CHIPCOMM_KERNEL_DIR` names, into which `cargo xtask
    /// kernels` compiles.
    pub fn kernel_path(&self, name: &str) -> PathBuf {
        let on_device = self.platform.chip_memory() == ChipMemoryKind::Device;
        match std::env::var_os("CHIPCOMM_KERNEL_DIR").filter(|_| on_device) {
            Some(folder) => PathBuf::from(folder).join(format!("{name}.o")),
            None => PathBuf::from(env!("OUT_DIR")).join(format!("{name}.so")),
        }
    }

    /// The count, or `otherwise`.
    pub fn count_or(&self, otherwise: usize) -> usize {
        self.count.map_or(otherwise, |count| count.get() as usize)
    }
}

impl Style {
    /// Reads `--json` and `--quiet`.
    pub fn read(arguments: &Arguments) -> Result<Self, Error> {
        arguments.exclusive("json", "quiet")?;
        Ok(match (arguments.has("json"), arguments.has("quiet")) {
            (true, _) => Self::Json,
            (_, true) => Self::Quiet,
            _ => Self::Text,
        })
    }
}

/// A number of things of which there must be one.
pub fn at_least_one(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| format!("write a whole number from 1 to {}", u32::MAX))
}

/// A function of a shared object on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFile {
    /// The shared object.
    pub file: PathBuf,
    /// The function.
    pub symbol: String,
}

/// The function that a kernel file exports unless its user says otherwise.
pub const DEFAULT_SYMBOL: &str = "kernel_entry";

impl FromStr for KernelFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = PathBuf::from(text);
        let (file, symbol) = match text.rsplit_once(':') {
            // A file whose name contains a colon is taken whole.
            Some((file, symbol)) if !whole.exists() => (file.into(), symbol),
            _ => (whole, DEFAULT_SYMBOL),
        };
        if symbol.is_empty() {
            return Err("a symbol follows the colon".to_owned());
        }
        if !file.is_file() {
            return Err(format!("there is no file {file:?}"));
        }
        Ok(Self { file, symbol: symbol.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::CommandLine;

    #[test]
    fn without_flags_it_is_sim_once() {
        let line = CommandLine { program: "x", about: "", flags: &[FLAGS], examples: "", notes: &[] };
        let options = Options::read(&line.parse([]).unwrap().unwrap()).unwrap();
        assert_eq!((options.platform, options.iters.get(), options.count_or(7)), (Platform::Sim, 1, 7));
        assert_eq!((options.devices_or(2).unwrap().ids(), options.style), (&[0, 1][..], Style::Text));
    }

    #[test]
    fn a_kernel_is_a_file_and_a_symbol() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("k.so");
        let odd = folder.path().join("k.so:x");
        std::fs::write(&plain, "").unwrap();
        let read = |text: String| text.parse::<KernelFile>();
        let plain = plain.display().to_string();
        assert_eq!(read(plain.clone()).unwrap().symbol, DEFAULT_SYMBOL);
        assert_eq!(read(format!("{plain}:x")).unwrap().symbol, "x");
        std::fs::write(&odd, "").unwrap();
        assert_eq!(read(odd.display().to_string()).unwrap().file, odd);
        assert!(read(format!("{plain}:")).unwrap_err().contains("symbol"));
        assert!(read(format!("{plain}.no")).unwrap_err().contains("no file"));
    }
}
