//! Everything that [`sys`](super) declares, as data, and the C++ that compares it with the vendor's headers.
//!
//! Sizes, offsets and values are measured from the compiled Rust items; types are the tokens of the tables.
//! Each entry becomes one check with its own `#line`, so that every compiler error names its entry.

use super::{AscendCl, FunctionDecl, Hccl, codes, types};
use std::fmt::Write;

/// The kind of a named type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeKind {
    /// `void *`.
    Handle,
    /// An integer, spelled as in Rust.
    Integer(&'static str),
    /// A C enumeration.
    Enumeration,
}

/// A named type that is not a struct.
#[derive(Debug, Clone, Copy)]
pub struct TypeDecl {
    /// The vendor's name.
    pub name: &'static str,
    /// What it is.
    pub kind: TypeKind,
    /// Bytes of the Rust type.
    pub size: usize,
}

/// A field of a struct.
#[derive(Debug, Clone, Copy)]
pub struct FieldDecl {
    /// Its name, `r#` included.
    pub name: &'static str,
    /// Its type, spelled as in Rust.
    pub ty: &'static str,
    /// Bytes from the start.
    pub offset: usize,
    /// Bytes of the Rust type.
    pub size: usize,
}

/// A struct with its complete list of fields.
#[derive(Debug, Clone, Copy)]
pub struct StructDecl {
    /// The vendor's name.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// In order of their offsets.
    pub fields: &'static [FieldDecl],
}

/// A check: its name (`function aclInit`) and the C++ that fails to compile when the declaration is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What is checked; unique.
    pub name: String,
    /// One line of C++.
    pub cpp: String,
}

/// All that is declared.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// Functions of both libraries.
    pub functions: Vec<FunctionDecl>,
    /// Structs.
    pub structs: Vec<StructDecl>,
    /// Handles, integers, enumerations.
    pub types: Vec<TypeDecl>,
    /// Values of enumerations, error codes, flags, sizes.
    pub constants: Vec<(&'static str, i64)>,
}

/// Whether the checks state the declarations as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// As declared: every check must compile.
    AsDeclared,
    /// Each one slightly wrong: no check may compile. This proves that every check can fail.
    Distorted,
}

impl Manifest {
    /// The whole of `sys`.
    pub fn of_sys() -> Self {
        Self {
            functions: [AscendCl::FUNCTIONS, Hccl::FUNCTIONS].concat(),
            structs: types::STRUCTS.to_vec(),
            types: types::TYPES.to_vec(),
            constants: [types::ENUM_VALUES, codes::CONSTANTS].concat(),
        }
    }

    /// Keeps only the entries with these names.
    pub fn only(mut self, names: &[&str]) -> Self {
        self.functions.retain(|f| names.contains(&f.name));
        self.structs.retain(|s| names.contains(&s.name));
        self.types.retain(|t| names.contains(&t.name));
        self.constants.retain(|(name, _)| names.contains(name));
        self
    }

    /// One check per function, type and constant; a struct has one for itself and one for each field.
    pub fn checks(&self, truth: Truth) -> Vec<Check> {
        let off = usize::from(truth == Truth::Distorted);
        let mut checks = Vec::new();
        for f in &self.functions {
            let mut args: Vec<_> = f.args.iter().map(|a| cpp_type(a)).collect();
            args.extend((off == 1).then(|| "int".to_owned()));
            let declared = format!("{} (*)({})", cpp_type(f.ret), args.join(", "));
            checks.push(Check {
                name: format!("function {}", f.name),
                cpp: assert_same(&format!("decltype(&::{})", f.name), &declared),
            });
        }
        for s in &self.structs {
            let (size, align) = (s.size + off, s.align);
            checks.push(Check {
                name: format!("struct {}", s.name),
                cpp: format!(
                    "static_assert(sizeof(::{0}) == {size} && alignof(::{0}) == {align}, \
                     \"declared with size {size}, alignment {align}\");",
                    s.name
                ),
            });
            for field in s.fields {
                let (name, offset) = (field.name.trim_start_matches("r#"), field.offset + off);
                checks.push(Check {
                    name: format!("field {}.{name}", s.name),
                    cpp: format!(
                        "static_assert(offsetof(::{0}, {name}) == {offset} && sizeof(::{0}::{name}) == {1} && \
                         std::is_same<decltype(::{0}::{name}), {2}>::value, \
                         \"declared as {2} of {1} bytes at offset {offset}\");",
                        s.name,
                        field.size,
                        cpp_type(field.ty)
                    ),
                });
            }
        }
        for t in &self.types {
            let size = t.size + off;
            let (kind, property) = match t.kind {
                TypeKind::Handle => ("void *", format!("std::is_same<::{}, void *>::value", t.name)),
                TypeKind::Integer(repr) => {
                    ("integer", format!("std::is_same<::{}, {}>::value", t.name, cpp_type(repr)))
                }
                TypeKind::Enumeration => ("enum", format!("std::is_enum<::{}>::value", t.name)),
            };
            checks.push(Check {
                name: format!("type {}", t.name),
                cpp: format!(
                    "static_assert(sizeof(::{}) == {size} && {property}, \"declared as {kind} of {size} bytes\");",
                    t.name
                ),
            });
        }
        for (name, value) in &self.constants {
            let value = value + off as i64;
            checks.push(Check {
                name: format!("constant {name}"),
                cpp: format!(
                    "static_assert(static_cast<long long>({name}) == {value}LL, \"declared as {value}\");"
                ),
            });
        }
        checks
    }

    /// A C++ source that includes the vendor's headers and pins every declaration.
    pub fn to_cpp(&self, truth: Truth) -> String {
        let fields: usize = self.structs.iter().map(|s| s.fields.len()).sum();
        let mut text = format!(
            "// counts: functions={} structs={} fields={fields} types={} constants={}\n\
             #include <cstddef>\n#include <cstdint>\n#include <type_traits>\n\
             #include \"acl/acl_rt.h\"\n#include \"hccl/hccl.h\"\n",
            self.functions.len(),
            self.structs.len(),
            self.types.len(),
            self.constants.len()
        );
        for check in self.checks(truth) {
            writeln!(text, "#line 1 \"sys: {}\"\n{}", check.name, check.cpp)
                .expect("a String takes every write");
        }
        text
    }
}

fn assert_same(found: &str, declared: &str) -> String {
    format!("static_assert(std::is_same<{found}, {declared}>::value, \"declared as {declared}\");")
}

/// C++ for a type as the tables spell it. A vendor name stands for itself.
fn cpp_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(pointee) = rust.strip_prefix("*mut ") {
        return format!("{} *", cpp_type(pointee));
    }
    if let Some(pointee) = rust.strip_prefix("*const ") {
        return format!("{} const *", cpp_type(pointee));
    }
    if let Some((element, len)) =
        rust.strip_prefix('[').and_then(|r| r.strip_suffix(']')).and_then(|r| r.split_once(';'))
    {
        return format!("{}[{}]", cpp_type(element), len.trim());
    }
    match rust {
        "c_void" => "void",
        "c_char" => "char",
        "i32" => "int32_t",
        "u8" => "uint8_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        vendor => return format!("::{vendor}"),
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_arrays_and_vendor_names_translate() {
        for (rust, cpp) in [
            ("*mut *mut c_void", "void * *"),
            ("*const aclrtPhysicalMemProp", "::aclrtPhysicalMemProp const *"),
            ("[u8; 12]", "uint8_t[12]"),
            ("aclError", "::aclError"),
            ("usize", "size_t"),
        ] {
            assert_eq!(cpp_type(rust), cpp);
        }
    }

    #[test]
    fn every_check_has_its_own_name() {
        let mut names: Vec<_> =
            Manifest::of_sys().checks(Truth::AsDeclared).into_iter().map(|c| c.name).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
