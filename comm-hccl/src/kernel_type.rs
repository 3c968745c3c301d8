//! The kind of core that a kernel is compiled for, as the files of the kernel state it.
//!
//! The vendor's loader takes a kernel of unknown type for a cube kernel on A2 and A3, and vector code then faults on the
//! device. So the type must be known before anything is loaded. There are two places for it. The vendor's compiler and
//! `cargo xtask kernels` write a section `.ascend.meta.SYMBOL` into the object, which the vendor's loader reads by itself:
//! entries of {u16 type, u16 length, bytes}, of which type 1 is the kernel's type. The vendor's operator tools write a
//! `.json` file beside the object, whose `magic` is passed on as a load option.

use crate::error::DeviceError;
use crate::sys::{
    ACL_RT_BINARY_MAGIC_ELF_AICORE, ACL_RT_BINARY_MAGIC_ELF_CUBE_CORE, ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE,
};
use std::path::Path;

/// The entry of a section that holds the type.
const TYPE_ENTRY: u16 = 1;
/// What the sections' names start with; the kernel's name follows.
const SECTION_PREFIX: &str = ".ascend.meta.";
/// Descriptions are small; larger files are something else.
const LONGEST_JSON: u64 = 1 << 20;

/// How the vendor's loader learns a kernel's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelType {
    /// From a section of the object. The number is the vendor's: 2 is a cube kernel, 3 a vector kernel, 4 and 5 are mixed.
    Section(u32),
    /// From this load option, `ACL_RT_BINARY_LOAD_OPT_MAGIC`.
    Magic(u32),
}

impl KernelType {
    /// The type of the kernel `symbol` of the object at `path`.
    ///
    /// # Errors
    /// When the object cannot be read, and when neither the object nor a `.json` file beside it has a type.
    pub fn of(path: &Path, symbol: &str) -> Result<Self, DeviceError> {
        let failed = |error: std::io::Error| DeviceError::KernelFile {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let object = std::fs::read(path).map_err(failed)?;
        if let Some(number) = in_sections(&object, symbol) {
            return Ok(Self::Section(number));
        }
        let magic = beside(path).as_deref().and_then(magic_in);
        magic
            .map(Self::Magic)
            .ok_or_else(|| DeviceError::NoKernelType { path: path.to_owned(), symbol: symbol.to_owned() })
    }
}

fn beside(path: &Path) -> Option<String> {
    let json = path.with_extension("json");
    let small = json.metadata().is_ok_and(|found| found.len() <= LONGEST_JSON);
    if small { std::fs::read_to_string(json).ok() } else { None }
}

/// The load option for the `magic` of a description. Only the value of that key counts.
fn magic_in(json: &str) -> Option<u32> {
    let after = json.split_once("\"magic\"")?.1.trim_start().strip_prefix(':')?.trim_start();
    match after.strip_prefix('"')?.split_once('"')?.0 {
        "RT_DEV_BINARY_MAGIC_ELF_AIVEC" => Some(ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE),
        "RT_DEV_BINARY_MAGIC_ELF_AICUBE" => Some(ACL_RT_BINARY_MAGIC_ELF_CUBE_CORE),
        "RT_DEV_BINARY_MAGIC_ELF" => Some(ACL_RT_BINARY_MAGIC_ELF_AICORE),
        _ => None,
    }
}

/// The type in the section of `symbol`; of a mixed kernel, the section of one of its halves.
fn in_sections(object: &[u8], symbol: &str) -> Option<u32> {
    let named = |name: &str| {
        let kernel = name.strip_prefix(SECTION_PREFIX)?;
        let half = kernel.strip_suffix("_mix_aic").or_else(|| kernel.strip_suffix("_mix_aiv"));
        [Some(kernel), half].contains(&Some(symbol)).then_some(())
    };
    sections(object)?.into_iter().find_map(|(name, bytes)| {
        named(name)?;
        type_in(bytes)
    })
}

fn type_in(mut bytes: &[u8]) -> Option<u32> {
    loop {
        let (kind, rest) = bytes.split_first_chunk::<2>()?;
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let value = rest.get(..usize::from(u16::from_le_bytes(*len)))?;
        if u16::from_le_bytes(*kind) == TYPE_ENTRY {
            return value.first_chunk::<4>().map(|number| u32::from_le_bytes(*number));
        }
        bytes = &rest[value.len()..];
    }
}

/// Names and contents of the sections of a little-endian 64-bit ELF file. `None` for any other file.
fn sections(elf: &[u8]) -> Option<Vec<(&str, &[u8])>> {
    const HEADER: usize = 64;
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let u16_at = |at: usize| Some(usize::from(u16::from_le_bytes(*elf.get(at..)?.first_chunk()?)));
    let u64_at = |at: usize| usize::try_from(u64::from_le_bytes(*elf.get(at..)?.first_chunk()?)).ok();
    let (table, entry, count, names) = (u64_at(0x28)?, u16_at(0x3A)?, u16_at(0x3C)?, u16_at(0x3E)?);
    if entry < HEADER {
        return None;
    }
    let header = |index: usize| table.checked_add(index.checked_mul(entry)?);
    let contents = |index: usize| {
        let at = header(index)?;
        // A section without bytes in the file (NOBITS) is empty here.
        let kind = u32::from_le_bytes(*elf.get(at.checked_add(4)?..)?.first_chunk()?);
        let (from, len) = (u64_at(at.checked_add(0x18)?)?, u64_at(at.checked_add(0x20)?)?);
        if kind == 8 { Some(&[][..]) } else { elf.get(from..from.checked_add(len)?) }
    };
    let texts = contents(names)?;
    (0..count)
        .map(|index| {
            let at = header(index)?;
            let name = usize::try_from(u32::from_le_bytes(*elf.get(at..)?.first_chunk()?)).ok()?;
            let text = texts.get(name..)?.split(|byte| *byte == 0).next()?;
            Some((std::str::from_utf8(text).ok()?, contents(index)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    /// Compiles an object for this machine.
    fn object(folder: &Path, source: &str) -> std::path::PathBuf {
        let (file, object) = (folder.join("k.c"), folder.join("k.o"));
        std::fs::write(&file, source).unwrap();
        let built = Command::new("gcc").args(["-c", "-o"]).arg(&object).arg(&file).status();
        assert!(built.expect("gcc is needed for this test").success());
        object
    }

    const TYPED: &str = "struct meta { unsigned short other, length; unsigned char skipped[8];\n\
        unsigned short type, len; unsigned kind; };\n\
        static const struct meta m __attribute__((used, section(\".ascend.meta.fast\"))) =\n\
        { 2, 8, {0}, 1, 4, 3 };\nvoid fast(void) {}\nvoid other(void) {}\n";

    #[test]
    fn the_type_of_a_kernel_is_in_its_section() {
        let folder = tempfile::tempdir().unwrap();
        let object = object(folder.path(), TYPED);
        assert_eq!(KernelType::of(&object, "fast"), Ok(KernelType::Section(3)));
        let error = KernelType::of(&object, "other").unwrap_err();
        assert!(matches!(error, DeviceError::NoKernelType { .. }), "{error}");
    }

    // F68
    #[test]
    fn f68_an_object_without_a_type_is_refused_unless_a_description_lies_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let object = object(folder.path(), "void kernel_entry(void) {}\n");
        let error = KernelType::of(&object, "kernel_entry").unwrap_err().to_string();
        let parts = [
            "k.o does not say for which kind of core `kernel_entry` is compiled: it has no section .ascend.meta.",
            " and no .json file with a `magic` beside it; build it from its source with `cargo xtask kernels`. An object that was \
             compiled for another runtime, without a __global__ entry, cannot be launched",
        ];
        let in_order = parts.iter().try_fold(&*error, |rest, part| Some(rest.split_once(part)?.1));
        assert_eq!(in_order, Some(""), "{error}");
        let json = object.with_extension("json");
        for (magic, option) in [
            ("RT_DEV_BINARY_MAGIC_ELF_AIVEC", Some(0x4141_5246)),
            ("RT_DEV_BINARY_MAGIC_ELF_AICUBE", Some(0x4149_4343)),
            ("RT_DEV_BINARY_MAGIC_ELF", Some(0x4355_4245)),
            ("something else", None),
        ] {
            std::fs::write(&json, format!("{{\"kernelName\": \"k\", \"magic\" : \"{magic}\"}}")).unwrap();
            let found = KernelType::of(&object, "kernel_entry").ok();
            assert_eq!(found, option.map(KernelType::Magic), "{magic}");
        }
        let missing = KernelType::of(&folder.path().join("none.o"), "x").unwrap_err().to_string();
        assert!(missing.contains("none.o"), "{missing}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0..64_usize) {
            let _ = in_sections(&bytes, "kernel_entry");
            let mut elf = b"\x7fELF\x02\x01".to_vec();
            elf.resize(64, 0);
            elf.extend(&bytes);
            elf[0x3A] = 64;
            elf[0x3C] = 3;
            elf[0x28] = at as u8;
            let _ = in_sections(&elf, "kernel_entry");
        }
    }
}
