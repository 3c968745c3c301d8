//! The source around a kernel's source, which makes it one that a device can start.

use std::path::Path;

use anyhow::{Result, ensure};

/// The kernels of a source that are entries of the device.
pub(super) fn device_entries(text: &str) -> Vec<&str> {
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
pub(super) fn device_source(source: &Path, text: &str) -> Result<String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

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
}
