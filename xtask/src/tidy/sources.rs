//! Rules about single files.

use crate::tidy::{Finding, Tree, numbered, tests_begin};

// Spelled in two parts, or this file would be a finding.
const MACHINE_FOLDERS: [&str; 3] = [concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/tmp/", "wt")];
/// Folders that hold one folder per person.
const HOMES: [&str; 2] = [concat!("/ho", "me/"), concat!("/Us", "ers/")];
const LEFTOVERS: [&str; 4] =
    [concat!("todo", "!("), concat!("unimple", "mented!("), concat!("FIX", "ME"), concat!("dbg", "!(")];

/// A file longer than this holds more than one subject.
const LONGEST: usize = 700;

/// No path that exists on one machine only.
pub(super) fn machine_paths(tree: &Tree<'_>) -> Vec<Finding> {
    matching(tree, "is a path of one machine", |line| {
        let folder = MACHINE_FOLDERS.iter().find(|folder| line.contains(**folder));
        folder.or_else(|| HOMES.iter().find(|home| names_someone(line, home))).copied()
    })
}

/// `home` followed by a name and another slash.
fn names_someone(line: &str, home: &str) -> bool {
    let name = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    line.split(home).skip(1).any(|rest| {
        let after = rest.trim_start_matches(name);
        after.len() < rest.len() && after.starts_with('/')
    })
}

/// Nothing that was meant to be finished later.
pub(super) fn leftovers(tree: &Tree<'_>) -> Vec<Finding> {
    matching(tree, "is work left undone", |line| LEFTOVERS.iter().find(|word| line.contains(**word)).copied())
}

fn matching(tree: &Tree<'_>, why: &str, find: impl Fn(&str) -> Option<&'static str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.files {
        let hits = numbered(text).filter_map(|(at, line)| Some((at, find(line)?)));
        findings.extend(hits.map(|(at, found)| format!("{path}:{at}: `{found}` {why}")));
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
/// out. A relaxed access needs a comment that says why it may be: on its line, just above, or in the doc of its file.
pub(super) fn orderings(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| path.contains("/src/")) {
        let lines: Vec<&str> = text[..tests_begin(path, text)].lines().collect();
        let says_why =
            |line: &&str| line.split_once("//").is_some_and(|(_, comment)| comment.contains("elaxed"));
        let whole_file = lines.iter().take_while(|line| line.starts_with("//!")).any(says_why);
        let mut bare = Vec::new();
        let code = lines.iter().map(|line| line.split("//").next().unwrap_or(line)).enumerate();
        for (at, code) in code.filter(|(_, code)| !code.trim_start().starts_with("use ")) {
            if has_word(code, concat!("Seq", "Cst")) {
                findings
                    .push(format!("{path}:{}: sequentially consistent; name the pair it stands for", at + 1));
            }
            let explained = || whole_file || lines[at.saturating_sub(3)..=at].iter().any(says_why);
            if has_word(code, concat!("Rel", "axed")) && !explained() {
                bare.push(at + 1);
            }
        }
        if let [first, more @ ..] = &bare[..] {
            let more =
                if more.is_empty() { String::new() } else { format!(" (and {} more lines)", more.len()) };
            findings.push(format!("{path}:{first}{more}: relaxed without a comment that says why it may be"));
        }
    }
    findings
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|other| other == word)
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
        for folder in MACHINE_FOLDERS.into_iter().chain(HOMES) {
            let text = format!("see {folder}someone/x");
            assert_eq!(findings(&[("NOTES.md", &text)], machine_paths).len(), 1, "{folder}");
        }
        assert_eq!(lib(&format!("ASCEND_HOME={}lib64", HOMES[0]), machine_paths), 0);
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
        assert!(
            findings(&[("a/src/b.rs", &format!("{relaxed}\n").repeat(3))], orderings)[0].contains("2 more")
        );
        assert_eq!(lib(&format!("// Relaxed: only this thread writes it.\n{relaxed}"), orderings), 0);
        assert_eq!(lib(&format!("{relaxed} // relaxed: a hint"), orderings), 0);
        assert_eq!(
            lib(&format!("//! All counters are relaxed: nothing is published.\n{relaxed}"), orderings),
            0
        );
        assert_eq!(lib(concat!("use a::Ordering::Rel", "axed;\nx.load(Rel", "axed)"), orderings), 1);
        assert_eq!(lib(&format!("#[cfg(test)]\n{relaxed}"), orderings), 0);
        assert_eq!(lib(concat!("x.load(Ordering::Seq", "Cst)"), orderings), 1);
        assert_eq!(lib("a.cmp(&b) == Ordering::Less; x.load(Ordering::Acquire)", orderings), 0);
    }
}
