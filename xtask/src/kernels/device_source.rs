//! The source around a kernel's source, which makes it one that a device can start.

use std::path::Path;

use anyhow::{Result, ensure};

/// The kernels of a source, by how they are declared.
#[derive(Debug, Default)]
pub(super) struct Kernels<'a> {
    /// Ordinary functions of the device, marked `COMM_KERNEL`: an entry is made around each.
    pub(super) plain: Vec<&'a str>,
    /// Entries of the device already, marked `__global__`.
    pub(super) global: Vec<&'a str>,
}

pub(super) fn kernels(text: &str) -> Kernels<'_> {
    Kernels { plain: marked(text, "COMM_KERNEL "), global: marked(text, "__global__ ") }
}

fn marked<'a>(text: &'a str, mark: &str) -> Vec<&'a str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let parts = text.split(mark).skip(1).filter_map(|after| {
        let at = after.find("void")? + "void".len();
        // Nothing but keywords and attributes stands before the type.
        let rest = (!after[..at].contains([';', '{', '\n'])).then(|| after[at..].trim_start())?;
        let end = rest.find(|c| !is_word(c))?;
        (end > 0 && rest[end..].trim_start().starts_with('(')).then_some(&rest[..end])
    });
    let mut names: Vec<&str> = parts.collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What stands for the vendor's keywords and functions where g++ compiles for the double.
pub(super) const FOR_THE_DOUBLE: &str = "#define __global__\n#define __aicore__\n#define __gm__\n\
                                         extern \"C\" int64_t get_block_idx();\n";

/// A source that includes `source`, with a section for each of its kernels that says that it is for a vector core.
/// `first` comes before everything else.
///
/// Each kernel marked `COMM_KERNEL`, or a plain `kernel_entry` where nothing is marked, is called by a device entry of the
/// same name, which picks the argument list of its block.
pub(super) fn device_source(source: &Path, text: &str, first: &str) -> Result<String> {
    const PLAIN: &str = "kernel_entry";
    let mut kernels = kernels(text);
    if kernels.plain.is_empty() && kernels.global.is_empty() {
        ensure!(
            text.contains(PLAIN),
            "{} has neither a kernel (COMM_KERNEL or __global__) nor a function {PLAIN}",
            source.display()
        );
        kernels.plain.push(PLAIN);
    }
    let each =
        |names: &[&str], line: fn(&str) -> String| names.iter().map(|name| line(name)).collect::<String>();
    let hide = each(&kernels.plain, |name| format!("#define {name} chipcomm_plain_{name}\n"));
    let show = each(&kernels.plain, |name| format!("#undef {name}\n"));
    let entries = each(&kernels.plain, |name| {
        format!(
            "extern \"C\" __global__ __aicore__ void {name}(__gm__ int64_t *args) {{\n    \
             chipcomm_plain_{name}(args + get_block_idx() * KERNEL_ARGS_STRIDE);\n}}\n"
        )
    });
    // The entry of a section: type 1 (the kernel's type), four bytes, 3 (a vector kernel).
    let section = |name: &str| {
        format!(
            "static const ChipcommKernelType chipcomm_type_{name}\n    \
             __attribute__((used, section(\".ascend.meta.{name}\"))) = {{1, 4, 3}};\n"
        )
    };
    let sections = each(&kernels.plain, section) + &each(&kernels.global, section);
    Ok(format!(
        "/* Made by `cargo xtask kernels`. */\n#include <stddef.h>\n#include <stdint.h>\n\
         #include \"kernel_context.h\"\n{first}{hide}#include \"{}\"\n{show}{entries}\
         struct ChipcommKernelType {{\n    unsigned short entry, length;\n    unsigned int type;\n}};\n{sections}",
        source.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Compiles a device source for this machine, with stubs for the vendor's keywords.
    fn compile_with_stubs(folder: &Path, text: &str) -> Vec<u8> {
        let (source, around, object) =
            (folder.join("k.cpp"), folder.join("k.device.cpp"), folder.join("k.o"));
        std::fs::write(&source, text).unwrap();
        std::fs::write(&around, device_source(&source, text, FOR_THE_DOUBLE).unwrap()).unwrap();
        let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../comm-context/include");
        let mut compiler = Command::new("g++");
        compiler
            .args(["-c", "-std=c++17", "-Wall", "-Werror"])
            .arg("-I")
            .arg(headers)
            .arg("-o")
            .arg(&object)
            .arg(&around);
        let built = compiler.output().expect("g++ is needed for this test");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        std::fs::read(object).unwrap()
    }

    #[test]
    fn every_kernel_gets_a_section_and_one_that_is_not_global_gets_an_entry() {
        let folder = std::env::temp_dir().join(format!("xtask-device-source-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let has = |object: &[u8], name: &str| object.windows(name.len()).any(|part| part == name.as_bytes());
        // As upstream writes them: an ordinary function of the device.
        let plain = "extern \"C\" __aicore__ void kernel_entry(__gm__ int64_t *args) { args[0] = 1; }\n";
        let object = compile_with_stubs(&folder, plain);
        for name in [".ascend.meta.kernel_entry", "chipcomm_plain_kernel_entry"] {
            assert!(has(&object, name), "{name}");
        }
        // Each kernel that is marked gets an entry; one beside it that is declared as the vendor does keeps its own.
        let marked = "#include \"comm_kernel.h\"\n\
                      COMM_KERNEL void first(COMM_GM int64_t *args) { args[0] = 1; }\n\
                      COMM_KERNEL void second(COMM_GM int64_t *args) { first(args); }\n";
        let object = compile_with_stubs(&folder, marked);
        for name in ["first", "second"] {
            for part in [".ascend.meta.", "chipcomm_plain_"] {
                assert!(has(&object, &format!("{part}{name}")), "{part}{name}");
            }
        }
        let two = "extern \"C\" __global__ __aicore__ void first(__gm__ int64_t *args) { args[0] = 1; }\n\
                   __aicore__ static void helper() {}\n\
                   extern \"C\" __global__ __aicore__ void second(__gm__ int64_t *args) { helper(); args[0] = 2; }\n";
        let object = compile_with_stubs(&folder, two);
        assert!(has(&object, ".ascend.meta.first") && has(&object, ".ascend.meta.second"));
        assert!(!has(&object, "chipcomm_plain") && !has(&object, ".ascend.meta.helper"));
        let error = device_source(&folder.join("none.cpp"), "int x;", "").unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(error.contains("none.cpp") && error.contains("COMM_KERNEL"), "{error}");
    }
}
