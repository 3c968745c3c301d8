//! The command line that all programs have in common.

use crate::devices::Devices;
use crate::stop::Stop;
use comm_context::comm::Timeout;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use worker_orch::Platform;

/// What every program understands.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// What the chips are: sim, a2a3 or a5
    #[arg(short, long, value_name = "NAME", default_value_t = Platform::Sim)]
    pub platform: Platform,
    /// Chips to use: 0-3, or 0,2,5, or a count; without it as few as the program needs
    #[arg(short, long, value_name = "LIST")]
    pub devices: Option<Devices>,
    /// How often to do it, one after the other, in the same window
    #[arg(long, value_name = "N", default_value = "1")]
    pub iters: NonZeroU32,
    /// How many floats each chip contributes; the program's text says how many without it
    #[arg(long, value_name = "N")]
    pub count: Option<NonZeroU32>,
    /// Run this kernel in place of the program's own, with the same arguments; SYMBOL is kernel_entry if left out
    #[arg(long, value_name = "FILE[:SYMBOL]")]
    pub kernel: Option<KernelFile>,
    /// Give up when bring-up, or a batch of iterations, takes longer than this many seconds [default: 120]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<Timeout>,
    /// Write when every task ran to this file; ui.perfetto.dev shows it
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Print the verdict only
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

impl Options {
    /// The devices, or the first `otherwise`.
    pub fn devices_or(&self, otherwise: usize) -> Result<Devices, Stop> {
        self.devices.clone().map_or_else(|| Devices::first(otherwise).map_err(Stop::Usage), Ok)
    }

    /// Where one of our own kernels is, by its name in `kernels/`: where cargo built it for the simulation, or, for other
    /// platforms, in the folder that `CHIPCOMM_KERNEL_DIR` names, where `cargo xtask kernels` has put its objects.
    pub fn kernel_path(&self, name: &str) -> PathBuf {
        let elsewhere = std::env::var_os("CHIPCOMM_KERNEL_DIR").filter(|_| self.platform != Platform::Sim);
        match elsewhere {
            Some(folder) => PathBuf::from(folder).join(format!("{name}.o")),
            None => PathBuf::from(env!("OUT_DIR")).join(format!("{name}.so")),
        }
    }

    /// The count, or `otherwise`.
    pub fn count_or(&self, otherwise: usize) -> usize {
        self.count.map_or(otherwise, |count| count.get() as usize)
    }
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
            // A file whose name has a colon in it is not taken apart.
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
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn nothing_given_means_sim_once() {
        let options = Cli::parse_from(["x"]).options;
        assert_eq!((options.platform, options.iters.get(), options.count_or(7)), (Platform::Sim, 1, 7));
        assert_eq!(options.devices_or(2).unwrap().ids(), [0, 1]);
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
