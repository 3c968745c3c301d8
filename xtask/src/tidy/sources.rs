//! Rules about single files.

use crate::tidy::{Finding, Tree, numbered, tests_begin};

/// Spelled in two parts, or this file would be a finding.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("/tmp/", "wt"),
];
const LEFTOVERS: [&str; 4] =
    [concat!("todo", "!("), concat!("unimple", "mented!("), concat!("FIX", "ME"), concat!("dbg", "!(")];

/// A file longer than this holds more than one subject.
const LONGEST: usize = 700;

/// No path that exists on one machine only.
pub(super) fn machine_paths(tree: &Tree<'_>) -> Vec<Finding> {
    containing(tree, &MACHINE_PATHS, "is a path of one machine")
}

/// Nothing that was meant to be finished later.
pub(super) fn leftovers(tree: &Tree<'_>) -> Vec<Finding> {
    containing(tree, &LEFTOVERS, "is work left undone")
}

fn containing(tree: &Tree<'_>, patterns: &[&str], why: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.files {
        for (at, line) in numbered(text) {
            let hits = patterns.iter().filter(|pattern| line.contains(**pattern));
            findings.extend(hits.map(|pattern| format!("{path}:{at}: `{pattern}` {why}")));
        }
    }
    findings
}

/// Code files fit in the head.
pub(super) fn length(tree: &Tree<'_>) -> Vec<Finding> {
    const CODE: [&str; 7] = [".rs", ".h", ".hpp", ".c", ".cc", ".cpp", ".py"];
    let code = tree.files.iter().filter(|(path, _)| CODE.iter().any(|end| path.ends_with(end)));
    let long = code.map(|(path, text)| (path, text.lines().count())).filter(|(_, lines)| *lines > LONGEST);
    long.map(|(path, lines)| format!("{path}: {lines} lines, more than {LONGEST}; split it by subject"))
        .collect()
}

/// A file opts in to unsafe code for itself, under a `# Safety` paragraph, and never for a whole library.
pub(super) fn unsafe_files(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        let code = || numbered(text).filter(|(_, line)| !line.trim_start().starts_with("//"));
        let opens = |line: &str| {
            let attribute = line.trim_start();
            attribute.starts_with('#')
                && ["allow(", "expect("].iter().any(|a| attribute.contains(a))
                && attribute.contains("unsafe_code")
        };
        for (at, line) in code().filter(|(_, line)| opens(line)) {
            if !line.starts_with("#![") {
                findings
                    .push(format!("{path}:{at}: open the file with `#![allow(unsafe_code)]`, not one item"));
            }
            if path.ends_with("/src/lib.rs") {
                findings.push(format!(
                    "{path}:{at}: opens the whole crate; move the unsafe code to its own file"
                ));
            }
            if !text.lines().any(|line| line.starts_with("//!") && line.contains("# Safety")) {
                findings.push(format!("{path}:{at}: unsafe code without a `//! # Safety` paragraph"));
            }
        }
    }
    findings
}

/// Acquire and release are what protocols are made of. Sequential consistency hides a protocol that nobody worked
/// out, and a relaxed access needs a comment on it or just above that says why it may be.
pub(super) fn orderings(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| path.contains("/src/")) {
        let lines: Vec<&str> = text[..tests_begin(path, text)].lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            if code.contains(concat!("Ordering::Seq", "Cst")) {
                findings
                    .push(format!("{path}:{}: sequentially consistent; name the pair it stands for", at + 1));
            }
            let explained = || {
                let near = &lines[at.saturating_sub(3)..=at];
                near.iter()
                    .filter_map(|line| line.split_once("//"))
                    .any(|(_, comment)| comment.contains("elaxed"))
            };
            if code.contains(concat!("Ordering::", "Relaxed")) && !explained() {
                findings
                    .push(format!("{path}:{}: relaxed without a comment that says why it may be", at + 1));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::findings;

    fn lib(text: &str, rule: fn(&Tree<'_>) -> Vec<Finding>) -> usize {
        findings(&[("a/src/lib.rs", text)], rule).len()
    }

    #[test]
    fn machine_paths_and_leftovers_are_found_in_any_text() {
        for pattern in MACHINE_PATHS {
            assert_eq!(
                findings(&[("NOTES.md", &format!("see {pattern}x"))], machine_paths).len(),
                1,
                "{pattern}"
            );
        }
        for pattern in LEFTOVERS {
            assert_eq!(
                findings(&[("a/kernel.cpp", &format!("// {pattern}"))], leftovers).len(),
                1,
                "{pattern}"
            );
        }
        assert_eq!(lib("//! the rootinfo file, a/home.rs", machine_paths), 0);
    }

    #[test]
    fn a_file_that_is_too_long_is_found() {
        assert_eq!(lib(&"\n".repeat(LONGEST), length), 0);
        assert_eq!(lib(&"\n".repeat(LONGEST + 1), length), 1);
        assert!(findings(&[("CHANGELOG.md", &"\n".repeat(LONGEST + 1))], length).is_empty());
    }

    #[test]
    fn unsafe_code_needs_its_own_file_and_a_paragraph() {
        let file = |text: &str| findings(&[("a/src/sys.rs", text)], unsafe_files).len();
        assert_eq!(file("//! Calls.\n//!\n//! # Safety\n//! All is mapped.\n#![allow(unsafe_code)]\n"), 0);
        assert_eq!(file("//! Calls.\n#![allow(unsafe_code)]\n"), 1);
        assert_eq!(file("//! # Safety\n#[allow(unsafe_code)]\nfn f() {}"), 1);
        assert_eq!(file("// `#![allow(unsafe_code)]` is explained here"), 0);
        assert_eq!(lib("//! # Safety\n#![allow(unsafe_code)]\n", unsafe_files), 1);
    }

    #[test]
    fn weak_orderings_need_a_reason_and_strong_ones_are_refused() {
        let relaxed = concat!("x.load(Ordering::", "Relaxed)");
        assert_eq!(lib(relaxed, orderings), 1);
        assert_eq!(lib(&format!("// Relaxed: only this thread writes it.\n{relaxed}"), orderings), 0);
        assert_eq!(lib(&format!("{relaxed} // relaxed: a hint"), orderings), 0);
        assert_eq!(lib(&format!("#[cfg(test)]\n{relaxed}"), orderings), 0);
        assert_eq!(lib(concat!("x.load(Ordering::Seq", "Cst)"), orderings), 1);
        assert_eq!(lib("a.cmp(&b) == Ordering::Less; x.load(Ordering::Acquire)", orderings), 0);
    }
}
