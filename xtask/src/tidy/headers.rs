//! Headers in step with the Rust side. That offsets and field order agree is proved by a test of
//! comm-context, which compiles the headers and runs the result; text cannot add to that. Checked here is
//! what that test cannot know: a constant that only one side has or changed, a function of `comm.h` or
//! `comm_coll.h` that the shared C API lacks, and a backend that does not export it.

use std::collections::BTreeMap;

use crate::tidy::{Finding, Tree};

const HEADERS: &str = "comm-context/include";
const BACKENDS: [&str; 2] = ["comm-sim", "comm-hccl"];
/// Headers of functions, and the macro that exports them.
const EXPORTS: [(&str, &str); 2] = [("comm.h", "export_c_api!"), ("comm_coll.h", "export_coll_c_api!")];

pub(super) fn in_step(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Error codes are in worker-errors, numbers of collectives in their crate, everything else in comm-context.
    let sources = ["comm-context/src", "worker-errors/src", "collectives/src"].into_iter();
    let rust: String = sources.flat_map(|folder| tree.under(folder, ".rs")).map(|(_, text)| text).collect();
    for (path, text) in tree.under(HEADERS, ".h") {
        for (name, value) in constants(text) {
            match rust_constant(&rust, &name) {
                // Success is not an error and needs no code.
                None if value == 0 => {}
                None => {
                    findings.push(format!("{path}: Rust has neither a constant nor a variant for {name}"))
                }
                Some(Some(other)) if other != value => {
                    findings.push(format!("{path}: {name} is {value} here and {other} in Rust"));
                }
                Some(_) => {}
            }
        }
    }
    let backends: Vec<_> = BACKENDS.iter().filter(|name| tree.ws.member(name).is_some()).collect();
    for (header, export) in EXPORTS.iter().filter(|_| !backends.is_empty()) {
        let functions = functions(tree.text(&format!("{HEADERS}/{header}")));
        for name in functions.iter().filter(|name| !rust.contains(&format!("fn {name}("))) {
            findings.push(format!("{export} does not export `{name}`, which {header} declares"));
        }
        let exports =
            |backend: &str| tree.under(backend, ".rs").any(|(_, text)| text.contains(&format!("{export}(")));
        let silent = backends.iter().filter(|backend| !functions.is_empty() && !exports(backend));
        findings.extend(
            silent.map(|backend| format!("{backend} does not export the C API of {header}; see {export}")),
        );
    }
    findings
}

/// `#define COMM_X 64` and `COMM_X = 64` with a plain integer.
fn constants(header: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for line in header.lines().map(str::trim) {
        let defined = line.strip_prefix("#define").map(str::trim_start).and_then(|rest| rest.split_once(' '));
        let Some((name, value)) = defined.or_else(|| line.split_once('=')) else { continue };
        let name = name.trim().rsplit(' ').next().unwrap_or_default();
        let upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        if name.starts_with("COMM_")
            && name.chars().all(upper)
            && let Some(value) = integer(value)
        {
            found.insert(name.to_owned(), value);
        }
    }
    found
}

/// The value of a constant, or of the variant `TimedOut` for `COMM_E_TIMED_OUT`, where it is a plain
/// integer; the outer `None` says that there is neither.
fn rust_constant(source: &str, name: &str) -> Option<Option<u64>> {
    if let Some((_, rest)) = source.split_once(&format!("const {name}:")) {
        return Some(rest.split_once('=').and_then(|(_, value)| integer(value.split(';').next()?)));
    }
    let words = name.strip_prefix("COMM_E_").or(name.strip_prefix("COMM_"))?.split('_');
    let variant: String = words.map(|word| word[..1].to_owned() + &word[1..].to_lowercase()).collect();
    let (_, rest) = source.split_once(&format!(" {variant} = "))?;
    Some(integer(rest))
}

/// An integer literal of C or Rust, alone or in brackets, before a comment or a separator.
fn integer(text: &str) -> Option<u64> {
    let word = text.trim_start_matches([' ', '(']).split([' ', ',', ';', ')', '/']).next()?;
    let word = word.trim_end_matches(['u', 'U', 'l', 'L']).replace(['_', '\''], "");
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Names of the functions that a header declares.
fn functions(header: &str) -> Vec<String> {
    let code = header.lines().filter(|line| !line.trim_start().starts_with(['/', '*', '#']));
    let mut found: Vec<String> = code
        .filter_map(|line| {
            let name = line.split_once('(')?.0.rsplit([' ', '*']).next()?;
            name.starts_with("comm_").then(|| name.to_owned())
        })
        .collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::{findings, findings_of};
    use crate::workspace::Member;

    const HEADER: (&str, &str) =
        ("comm-context/include/comm_context.h", "#define COMM_MAX_RANK_NUM 64u /* ranks */");

    #[test]
    fn a_constant_that_differs_or_is_missing_is_named() {
        let rust = |text: &str| findings(&[HEADER, ("comm-context/src/lib.rs", text)], in_step);
        assert!(rust("pub const COMM_MAX_RANK_NUM: usize = 64;").is_empty());
        assert!(rust("pub const COMM_MAX_RANK_NUM: usize = OTHER;").is_empty());
        assert!(rust("pub const COMM_MAX_RANK_NUM: usize = 0x20;")[0].contains("64 here and 32 in Rust"));
        assert!(rust("")[0].contains("COMM_MAX_RANK_NUM"));
    }

    #[test]
    fn a_code_may_be_a_variant() {
        let header = ("comm-context/include/comm.h", "COMM_SUCCESS = 0,\nCOMM_E_TIMED_OUT = 2, /* late */");
        let rust = |text: &str| findings(&[header, ("comm-context/src/lib.rs", text)], in_step);
        assert_eq!(rust("enum Code {\n    TimedOut = 2,\n}"), Vec::<String>::new());
        assert!(rust("enum Code {\n    TimedOut = 3,\n}")[0].contains("2 here and 3 in Rust"));
        assert!(rust("enum Code {}")[0].contains("COMM_E_TIMED_OUT"));
    }

    #[test]
    fn constants_are_found_in_every_spelling() {
        let text =
            "enum { COMM_A = 3, };\n#define COMM_GUARD_H\n#define COMM_F(x) x\nconstexpr int COMM_B = 0x10;";
        let all: Vec<_> = constants(text).into_iter().collect();
        assert_eq!(all, [("COMM_A".to_owned(), 3), ("COMM_B".to_owned(), 16)]);
    }

    #[test]
    fn a_function_that_the_c_api_lacks_and_a_backend_without_it_are_named() {
        let header = "/* comm_gone(x) */\nCommHandle comm_init(int rank,\n    int n);\nconst char *comm_last_error(void);";
        let member = || Member { name: "comm-sim".into(), ..Member::default() };
        let found = |api, backend| {
            let files = [
                ("comm-context/include/comm.h", header),
                ("comm-context/src/capi.rs", api),
                ("comm-sim/src/lib.rs", backend),
            ];
            findings_of(vec![member()], &files, in_step)
        };
        let both = "extern \"C\" fn comm_init(rank: c_int) {} extern \"C\" fn comm_last_error() {}";
        let uses = "comm_context::export_c_api!(crate::open);";
        assert!(found(both, uses).is_empty());
        assert!(found(both, "")[0].contains("comm-sim does not export the C API"));
        let lacks = found("extern \"C\" fn comm_init() {}", uses);
        assert_eq!(lacks, ["export_c_api! does not export `comm_last_error`, which comm.h declares"]);
    }
}
