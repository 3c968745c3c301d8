//! `cargo xtask kernels`: compiles the examples' kernels for Ascend cores, with the vendor's compiler. The
//! sources are those of the simulation; the folder with the platform's name holds the one header that
//! differs.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::workspace::Workspace;

const KERNELS: &str = "examples/kernels";
/// Variables that the vendor's `set_env.sh` sets to the folder of the toolkit.
const HOMES: [&str; 2] = ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"];
const COMPILERS: [&str; 2] = ["bisheng", "ccec"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Platform {
    /// Atlas A2 and A3
    A2a3,
}

impl Platform {
    fn name(self) -> &'static str {
        match self {
            Self::A2a3 => "a2a3",
        }
    }

    /// What the compiler calls the vector core.
    fn core(self) -> &'static str {
        match self {
            Self::A2a3 => "dav-c220-vec",
        }
    }
}

/// What to compile for.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The chips to compile for; cargo itself compiles for the simulation
    #[arg(long, default_value = "a2a3", ignore_case = true)]
    platform: Platform,
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let homes: Vec<PathBuf> = HOMES.iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let compiler = find(&homes, &std::env::split_paths(&path).collect::<Vec<_>>())?;
    let out = ws.target.join("kernels").join(args.platform.name());
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let sources = sources(&ws.root.join(KERNELS))?;
    for source in &sources {
        let object = out.join(source.with_extension("o").file_name().unwrap_or_default());
        let ran = command(&compiler, args.platform, &ws.root, source, &object).output();
        let ran = ran.with_context(|| format!("cannot start {}", compiler.display()))?;
        let errors = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "{} does not compile:\n{errors}", source.display());
        println!("{}", object.display());
    }
    println!("{} kernels compiled for {} with {}", sources.len(), args.platform.name(), compiler.display());
    Ok(ExitCode::SUCCESS)
}

fn command(compiler: &Path, platform: Platform, root: &Path, source: &Path, object: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-c", "-O3", "-x", "cce", "-std=c++17", "--cce-aicore-only"]);
    command.arg(format!("--cce-aicore-arch={}", platform.core()));
    // First the header that replaces the simulation's.
    command.arg("-I").arg(root.join(KERNELS).join(platform.name()));
    command.arg("-I").arg(root.join("comm-context/include"));
    command.arg(source).arg("-o").arg(object);
    command
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let mut sources: Vec<PathBuf> =
        paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "cpp")).collect();
    sources.sort();
    ensure!(!sources.is_empty(), "there are no kernels in {}", folder.display());
    Ok(sources)
}

/// The vendor's compiler: in one of the toolkit's folders, or on the search path.
fn find(homes: &[PathBuf], path: &[PathBuf]) -> Result<PathBuf> {
    let arch = format!("{}-linux", std::env::consts::ARCH);
    let below = ["bin", "compiler/bin", "compiler/ccec_compiler/bin", "ccec_compiler/bin"];
    let in_home = |home: &PathBuf| {
        let plain = below.map(|folder| home.join(folder));
        let by_arch = below.map(|folder| home.join(&arch).join(folder));
        plain.into_iter().chain(by_arch)
    };
    let folders = homes.iter().flat_map(in_home).chain(path.iter().cloned());
    let mut candidates = folders.flat_map(|folder| COMPILERS.map(|name| folder.join(name)));
    if let Some(found) = candidates.find(|file| file.is_file()) {
        return Ok(found);
    }
    let where_looked = match homes {
        [] => format!("{} is not set", HOMES.join(" or ")),
        homes => format!(
            "not in {}",
            homes.iter().map(|home| home.display().to_string()).collect::<Vec<_>>().join(", ")
        ),
    };
    bail!(
        "no {} found ({where_looked}, and not on the search path); install the CANN toolkit and source its set_env.sh",
        COMPILERS.join(" or ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_is_found_where_toolkits_have_it_and_its_absence_explained() {
        let folder = std::env::temp_dir().join(format!("xtask-kernels-{}", std::process::id()));
        let bin = folder.join("compiler/ccec_compiler/bin");
        std::fs::create_dir_all(&bin).unwrap();
        let missed = find(std::slice::from_ref(&folder), &[]).unwrap_err().to_string();
        std::fs::write(bin.join("ccec"), "").unwrap();
        let found = find(std::slice::from_ref(&folder), &[]);
        let on_path = find(&[], std::slice::from_ref(&bin));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(missed.contains("set_env.sh") && missed.contains(&folder.display().to_string()), "{missed}");
        assert_eq!(found.unwrap(), bin.join("ccec"));
        assert_eq!(on_path.unwrap(), bin.join("ccec"));
        assert!(find(&[], &[]).unwrap_err().to_string().contains("ASCEND_HOME_PATH"));
    }

    #[test]
    fn the_platforms_header_comes_before_the_simulations() {
        let command =
            command(Path::new("ccec"), Platform::A2a3, Path::new("/r"), Path::new("a.cpp"), Path::new("a.o"));
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        let at = |end: &str| args.iter().position(|arg| arg.ends_with(end)).unwrap();
        assert!(at("kernels/a2a3") < at("comm-context/include"), "{args:?}");
    }

    #[test]
    fn there_are_kernels_and_a_header_for_every_platform() {
        let ws = Workspace::load().unwrap();
        assert!(!sources(&ws.root.join(KERNELS)).unwrap().is_empty());
        for platform in Platform::value_variants() {
            assert!(ws.root.join(KERNELS).join(platform.name()).join("comm_kernel.h").is_file());
        }
    }
}
