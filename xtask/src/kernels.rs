//! `cargo xtask kernels`: compiles the examples' kernels, or those that are named, for Ascend cores, with the vendor's
//! compiler. The sources are those of the simulation; the folder with the platform's name holds the one header that
//! differs.
//!
//! The vendor's loader must know for which kind of core a kernel is. So each source is compiled inside a source that is
//! made here, which adds a section with the type of each kernel. A plain `kernel_entry`, which a device cannot start,
//! gets an entry around it. A .json file beside each object says the same, for tools that do not read sections.

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
    /// Kernels to compile; without any, those of the examples
    sources: Vec<PathBuf>,
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let homes: Vec<PathBuf> = HOMES.iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let compiler = find(&homes, &std::env::split_paths(&path).collect::<Vec<_>>())?;
    let out = ws.target.join("kernels").join(args.platform.name());
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let sources = match args.sources.as_slice() {
        [] => sources(&ws.root.join(KERNELS))?,
        named => named.to_vec(),
    };
    for source in &sources {
        let object = out.join(source.with_extension("o").file_name().unwrap_or_default());
        let around = object.with_extension("device.cpp");
        let source = source.canonicalize().with_context(|| format!("cannot find {}", source.display()))?;
        let text = std::fs::read_to_string(&source)?;
        let around_text = device_source(&source, &text)?;
        std::fs::write(&around, around_text)?;
        std::fs::write(object.with_extension("json"), DESCRIPTION)?;
        let ran = command(&compiler, args.platform, &ws.root, &around, &object).output();
        let ran = ran.with_context(|| format!("cannot start {}", compiler.display()))?;
        let errors = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "{} does not compile:\n{errors}", source.display());
        println!("{}", object.display());
    }
    println!("{} kernels compiled for {} with {}", sources.len(), args.platform.name(), compiler.display());
    Ok(ExitCode::SUCCESS)
}

/// What lies beside an object: the load option for vector cores.
const DESCRIPTION: &str = "{\"magic\": \"RT_DEV_BINARY_MAGIC_ELF_AIVEC\", \"coreType\": \"VectorCore\"}\n";

/// The kernels of a source that are entries of the device.
fn device_entries(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    ["COMM_KERNEL ", "__global__ "]
        .iter()
        .flat_map(|mark| text.split(mark).skip(1))
        .filter_map(|after| {
            let at = after.find("void")? + "void".len();
            // Nothing but keywords and attributes stands before the type.
            let rest = (!after[..at].contains([';', '{', '\n'])).then(|| after[at..].trim_start())?;
            let end = rest.find(|c| !is_word(c))?;
            (end > 0 && rest[end..].trim_start().starts_with('(')).then_some(&rest[..end])
        })
        .collect()
}

/// A source that includes `source`, with a section for each of its kernels that says that it is for a vector core. Where
/// the source has a plain `kernel_entry`, that is called by a device entry of the same name.
fn device_source(source: &Path, text: &str) -> Result<String> {
    const PLAIN: &str = "kernel_entry";
    let mut entries = device_entries(text);
    entries.sort_unstable();
    entries.dedup();
    let include = format!("#include \"{}\"\n", source.display());
    let body = match entries.as_slice() {
        [] => {
            ensure!(
                text.contains(PLAIN),
                "{} has neither a device entry (COMM_KERNEL or __global__) nor a function {PLAIN}",
                source.display()
            );
            entries.push(PLAIN);
            format!(
                "#define {PLAIN} chipcomm_plain_{PLAIN}\n{include}#undef {PLAIN}\n\
                 extern \"C\" __global__ __aicore__ void {PLAIN}(__gm__ int64_t *args) {{ chipcomm_plain_{PLAIN}(args); }}\n"
            )
        }
        _ => include,
    };
    // The entry of a section: type 1 (the kernel's type), four bytes, 3 (a vector kernel).
    let section = |name: &&str| {
        format!(
            "static const ChipcommKernelType chipcomm_type_{name}\n    \
             __attribute__((used, section(\".ascend.meta.{name}\"))) = {{1, 4, 3}};\n"
        )
    };
    let sections: String = entries.iter().map(section).collect();
    Ok(format!(
        "/* Made by `cargo xtask kernels`. */\n#include <stdint.h>\n{body}\
         struct ChipcommKernelType {{\n    unsigned short entry, length;\n    unsigned int type;\n}};\n{sections}"
    ))
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

    /// Compiles a device source for this machine, with stubs for the vendor's keywords.
    fn compile_with_stubs(folder: &Path, text: &str) -> Vec<u8> {
        let (source, around, object) =
            (folder.join("k.cpp"), folder.join("k.device.cpp"), folder.join("k.o"));
        std::fs::write(&source, text).unwrap();
        std::fs::write(&around, device_source(&source, text).unwrap()).unwrap();
        let keywords = ["-D__global__=", "-D__aicore__=", "-D__gm__="];
        let mut compiler = Command::new("g++");
        compiler
            .args(["-c", "-std=c++17", "-Wall", "-Werror"])
            .args(keywords)
            .arg("-o")
            .arg(&object)
            .arg(&around);
        let built = compiler.output().expect("g++ is needed for this test");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        std::fs::read(object).unwrap()
    }

    #[test]
    fn every_device_entry_gets_a_section_and_a_plain_kernel_gets_an_entry() {
        let folder = std::env::temp_dir().join(format!("xtask-device-source-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let has = |object: &[u8], name: &str| object.windows(name.len()).any(|part| part == name.as_bytes());
        // As upstream writes them: an ordinary function of the device.
        let plain = "extern \"C\" __aicore__ void kernel_entry(__gm__ int64_t *args) { args[0] = 1; }\n";
        let object = compile_with_stubs(&folder, plain);
        for name in [".ascend.meta.kernel_entry", "chipcomm_plain_kernel_entry"] {
            assert!(has(&object, name), "{name}");
        }
        let two = "extern \"C\" __global__ __aicore__ void first(__gm__ int64_t *args) { args[0] = 1; }\n\
                   __aicore__ static void helper() {}\n\
                   extern \"C\" __global__ __aicore__ void second(__gm__ int64_t *args) { helper(); args[0] = 2; }\n";
        let object = compile_with_stubs(&folder, two);
        assert!(has(&object, ".ascend.meta.first") && has(&object, ".ascend.meta.second"));
        assert!(!has(&object, "chipcomm_plain") && !has(&object, ".ascend.meta.helper"));
        let error = device_source(&folder.join("none.cpp"), "int x;").unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(error.contains("none.cpp") && error.contains("COMM_KERNEL"), "{error}");
    }

    #[test]
    fn every_kernel_of_the_examples_is_an_entry() {
        let ws = Workspace::load().unwrap();
        for source in sources(&ws.root.join(KERNELS)).unwrap() {
            let text = std::fs::read_to_string(&source).unwrap();
            let count = text.matches("COMM_KERNEL void").count();
            assert!(count > 0 && device_entries(&text).len() == count, "{}", source.display());
        }
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
