//! `cargo xtask kernels`: compiles the examples' kernels, or those that are named, for Ascend cores, with the vendor's
//! compiler. The sources are those of the simulation; one header differs.
//!
//! The vendor's loader must know for which kind of core a kernel is. So each source is compiled inside a source that is
//! made here, which adds a section with the type of each kernel. A kernel that is an ordinary function, which a device
//! cannot start, gets an entry around it, which picks the arguments of its block. A .json file beside each object says the same, for tools that do not read sections.

mod device_source;
mod toolchain;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;

pub(crate) use toolchain::{Platform, Toolchain};

/// The sources of the examples' kernels.
pub(crate) const EXAMPLES: &str = "examples/kernels";

/// What to compile for.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The chips to compile for; cargo itself compiles for the simulation
    #[arg(long, default_value = "a2a3", ignore_case = true)]
    platform: Platform,
    /// Kernels to compile; without any, those of the examples
    sources: Vec<PathBuf>,
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let toolchain = Toolchain::vendor(args.platform)?;
    let sources = match args.sources.as_slice() {
        [] => sources(&ws.root.join(EXAMPLES))?,
        named => named.to_vec(),
    };
    let objects =
        toolchain.build(&ws.root, &sources, &ws.target.join("kernels").join(args.platform.name()))?;
    objects.iter().for_each(|object| println!("{}", object.display()));
    println!("{} kernels compiled for {}", objects.len(), args.platform.name());
    Ok(ExitCode::SUCCESS)
}

/// The kernels in a folder.
pub(crate) fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let mut sources: Vec<PathBuf> =
        paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "cpp")).collect();
    sources.sort();
    ensure!(!sources.is_empty(), "there are no kernels in {}", folder.display());
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_the_examples_is_an_entry() {
        let ws = Workspace::load().unwrap();
        for source in sources(&ws.root.join(EXAMPLES)).unwrap() {
            let text = std::fs::read_to_string(&source).unwrap();
            let count = text.matches("COMM_KERNEL void").count();
            assert!(count > 0 && device_source::kernels(&text).plain.len() == count, "{}", source.display());
        }
    }

    #[test]
    fn there_are_kernels_and_a_header_for_chips() {
        let ws = Workspace::load().unwrap();
        assert!(!sources(&ws.root.join(EXAMPLES)).unwrap().is_empty());
        assert!(ws.root.join(toolchain::ASCEND_HEADERS).join("comm_kernel.h").is_file());
    }
}
