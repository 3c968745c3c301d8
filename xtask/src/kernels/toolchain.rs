//! The compilers of kernels: the vendor's for chips, and g++ for the vendor double.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::device_source::{FOR_THE_DOUBLE, device_source};

/// The header that replaces the simulation's on a chip.
pub(super) const ASCEND_HEADERS: &str = "examples/kernels/ascend";
/// Variables that the vendor's `set_env.sh` sets to the folder of the toolkit.
const HOMES: [&str; 2] = ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"];
const COMPILERS: [&str; 2] = ["bisheng", "ccec"];
const LINKERS: [&str; 1] = ["ld.lld"];

/// A generation of chips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Platform {
    /// Atlas A2 and A3
    A2a3,
    /// Ascend A5
    A5,
}

impl Platform {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::A2a3 => "a2a3",
            Self::A5 => "a5",
        }
    }

    /// What the compiler calls the vector core.
    fn core(self) -> &'static str {
        match self {
            Self::A2a3 => "dav-c220-vec",
            Self::A5 => "dav-c310-vec",
        }
    }
}

/// What kernels are compiled with.
#[derive(Debug, Clone)]
pub(crate) enum Toolchain {
    /// The vendor's, for chips.
    Vendor { platform: Platform, compiler: PathBuf, linker: PathBuf },
    /// g++, for the double, which runs kernels on the host.
    Host,
}

impl Toolchain {
    /// The vendor's compiler and linker, in the toolkit's folders or on the search path; the error says what is missing.
    pub(crate) fn vendor(platform: Platform) -> Result<Self> {
        let homes = homes(std::env::var_os);
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self::vendor_in(platform, &homes, &std::env::split_paths(&path).collect::<Vec<_>>())
    }

    fn vendor_in(platform: Platform, homes: &[PathBuf], path: &[PathBuf]) -> Result<Self> {
        let compiler = find(&COMPILERS, homes, path)?;
        // The machine's own ld.lld does not know the cores: the vendor's is beside its compiler.
        let real = compiler.canonicalize().unwrap_or_else(|_| compiler.clone());
        let beside: Vec<PathBuf> =
            [&compiler, &real].into_iter().filter_map(|file| file.parent()).map(Path::to_owned).collect();
        let linker = find(&LINKERS, homes, &beside)?;
        Ok(Self::Vendor { platform, compiler, linker })
    }

    /// Compiles each source to an object of its name in `out`, with the description that the loader needs beside it.
    pub(crate) fn build(&self, root: &Path, sources: &[PathBuf], out: &Path) -> Result<Vec<PathBuf>> {
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        sources.iter().map(|source| self.build_one(root, source, out)).collect()
    }

    fn build_one(&self, root: &Path, source: &Path, out: &Path) -> Result<PathBuf> {
        let object = out.join(source.with_extension("o").file_name().unwrap_or_default());
        let source = source.canonicalize().with_context(|| format!("cannot find {}", source.display()))?;
        for mut command in self.commands(root, &source, &object)? {
            let ran = command.output();
            let ran = ran.with_context(|| format!("cannot start {}", command.get_program().display()))?;
            let errors = String::from_utf8_lossy(&ran.stderr);
            ensure!(
                ran.status.success(),
                "{} does not compile with {command:?}:\n{errors}",
                source.display()
            );
        }
        std::fs::write(object.with_extension("json"), DESCRIPTION)?;
        Ok(object)
    }

    /// What makes the object, in order.
    fn commands(&self, root: &Path, source: &Path, object: &Path) -> Result<Vec<Command>> {
        let around = object.with_extension("device.cpp");
        let text = std::fs::read_to_string(source)?;
        let first = if matches!(self, Self::Host) { FOR_THE_DOUBLE } else { "" };
        std::fs::write(&around, device_source(source, &text, first)?)?;
        match self {
            Self::Host => {
                let mut command = Command::new("g++");
                command.args(["-std=c++17", "-O2", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]);
                command.arg("-I").arg(root.join("comm-context/include")).arg(&around).arg("-o").arg(object);
                Ok(vec![command])
            }
            Self::Vendor { platform, compiler, linker } => {
                let part = object.with_extension("part.o");
                let mut compile = Command::new(compiler);
                compile.args(["-c", "-O3", "-x", "cce", "-std=c++17", "--cce-aicore-only"]);
                compile.arg(format!("--cce-aicore-arch={}", platform.core()));
                // As the vendor's own build files have them: room for the stack of a kernel with functions, and no cache
                // maintenance beside that of the kernel.
                for option in [
                    "-cce-aicore-stack-size=0x8000",
                    "-cce-aicore-function-stack-size=0x8000",
                    "-cce-aicore-addr-transform",
                    "-cce-aicore-dcci-insert-for-scalar=false",
                ] {
                    compile.args(["-mllvm", option]);
                }
                // First the header that replaces the simulation's.
                compile.arg("-I").arg(root.join(ASCEND_HEADERS));
                compile.arg("-I").arg(root.join("comm-context/include"));
                compile.arg(&around).arg("-o").arg(&part);
                // The loader takes a linked image: calls and constants of an object alone have no addresses yet.
                let mut link = Command::new(linker);
                link.args(["-m", "aicorelinux", "-Ttext=0", "-static"]).arg(&part).arg("-o").arg(object);
                Ok(vec![compile, link])
            }
        }
    }
}

/// What lies beside an object: the load option for vector cores.
const DESCRIPTION: &str = "{\"magic\": \"RT_DEV_BINARY_MAGIC_ELF_AIVEC\", \"coreType\": \"VectorCore\"}\n";

/// The folders of the toolkit that the environment names. A variable that is set to nothing names none.
fn homes(variable: impl Fn(&'static str) -> Option<OsString>) -> Vec<PathBuf> {
    HOMES.into_iter().filter_map(variable).filter(|home| !home.is_empty()).map(PathBuf::from).collect()
}

/// A program of the toolkit: in one of its folders, or in one of `path`.
fn find(names: &[&str], homes: &[PathBuf], path: &[PathBuf]) -> Result<PathBuf> {
    let arch = format!("{}-linux", std::env::consts::ARCH);
    let below = ["bin", "compiler/bin", "compiler/ccec_compiler/bin", "ccec_compiler/bin"];
    let in_home = |home: &PathBuf| {
        let plain = below.map(|folder| home.join(folder));
        let by_arch = below.map(|folder| home.join(&arch).join(folder));
        plain.into_iter().chain(by_arch)
    };
    let folders = homes.iter().flat_map(in_home).chain(path.iter().cloned());
    let mut candidates = folders.flat_map(|folder| names.iter().map(move |name| folder.join(name)));
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
        names.join(" or ")
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
        let missed = find(&COMPILERS, std::slice::from_ref(&folder), &[]).unwrap_err().to_string();
        std::fs::write(bin.join("ccec"), "").unwrap();
        let found = find(&COMPILERS, std::slice::from_ref(&folder), &[]);
        let on_path = find(&COMPILERS, &[], std::slice::from_ref(&bin));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(missed.contains("set_env.sh") && missed.contains(&folder.display().to_string()), "{missed}");
        assert_eq!(found.unwrap(), bin.join("ccec"));
        assert_eq!(on_path.unwrap(), bin.join("ccec"));
        let none = homes(|name| (name == "ASCEND_HOME_PATH").then(OsString::new));
        assert_eq!(
            find(&COMPILERS, &none, &[]).unwrap_err().to_string(),
            "no bisheng or ccec found (ASCEND_HOME_PATH or ASCEND_TOOLKIT_HOME is not set, and not on the search path); \
             install the CANN toolkit and source its set_env.sh"
        );
    }

    #[test]
    fn a_toolkit_compiles_and_links_with_its_own_linker_and_the_platforms_header_first() {
        let folder = std::env::temp_dir().join(format!("xtask-toolchain-{}", std::process::id()));
        let bin = folder.join("compiler/ccec_compiler/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("bisheng"), "").unwrap();
        let homes = [folder.clone()];
        let unlinked = Toolchain::vendor_in(Platform::A5, &homes, &[]).unwrap_err().to_string();
        std::fs::write(bin.join("ld.lld"), "").unwrap();
        let found = Toolchain::vendor_in(Platform::A5, &homes, &[]).unwrap();
        let source = folder.join("k.cpp");
        std::fs::write(&source, "extern \"C\" __aicore__ void kernel_entry(__gm__ int64_t *args) {}\n")
            .unwrap();
        let commands = found.commands(Path::new("/r"), &source, &folder.join("k.o")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(unlinked.contains("ld.lld"), "{unlinked}");
        let [compile, link] = commands.as_slice() else { panic!("{commands:?}") };
        let args: Vec<_> = compile.get_args().map(|arg| arg.to_string_lossy()).collect();
        let at = |end: &str| args.iter().position(|arg| arg.ends_with(end)).unwrap();
        assert!(at("kernels/ascend") < at("comm-context/include"), "{args:?}");
        assert!(args.iter().any(|arg| arg == "--cce-aicore-arch=dav-c310-vec"), "{args:?}");
        assert_eq!(link.get_program(), bin.join("ld.lld").as_os_str());
        let args: Vec<_> = link.get_args().map(|arg| arg.to_string_lossy()).collect();
        assert!(
            args.iter().any(|arg| arg == "aicorelinux") && args.last().unwrap().ends_with("k.o"),
            "{args:?}"
        );
    }
}
