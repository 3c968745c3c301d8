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

/// F45: a test asserts a contract. That something is over in fractions of a second is a property of the
/// machine and its load.
pub(super) fn times(tree: &Tree<'_>) -> Vec<Finding> {
    const FRACTIONS: [&str; 3] = ["from_millis(", "from_micros(", "from_nanos("];
    let tight = |line: &str| {
        line.contains("assert") && line.contains("elapsed() <") && FRACTIONS.iter().any(|f| line.contains(f))
    };
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        let hits = numbered(text).filter(|(_, line)| tight(line));
        findings.extend(
            hits.map(|(at, _)| format!("{path}:{at}: a test asserts a short time; allow whole seconds")),
        );
    }
    findings
}

/// A file or an inline module opts in to unsafe code for itself, under a `# Safety` paragraph, and never
/// for a whole library.
pub(super) fn unsafe_files(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        let mut argued = false;
        for (at, line) in numbered(text).map(|(at, line)| (at, line.trim_start())) {
            argued |= line.starts_with("//!") && line.contains("# Safety");
            let opens = ["allow(", "expect("].iter().any(|word| line.contains(word));
            if !(line.starts_with('#') && opens && has_word(line, "unsafe_code")) {
                continue;
            }
            if !line.starts_with("#![") {
                findings
                    .push(format!("{path}:{at}: open the file with `#![allow(unsafe_code)]`, not one item"));
            }
            if path.ends_with("/src/lib.rs") {
                findings.push(format!(
                    "{path}:{at}: opens the whole crate; move the unsafe code to its own file"
                ));
            }
            if !argued {
                findings.push(format!("{path}:{at}: unsafe code without a `//! # Safety` paragraph above"));
            }
        }
    }
    findings
}

/// Acquire and release are what protocols are made of. Any other ordering needs a comment with its name
/// that says why it may or must be: on its line, up to six lines above, or in the doc of its file.
pub(super) fn orderings(tree: &Tree<'_>) -> Vec<Finding> {
    // Each with what a comment about it contains, in its spelling or in plain English.
    const OTHERS: [(&str, &[&str]); 2] =
        [(concat!("Rel", "axed"), &["elaxed"]), (concat!("Seq", "Cst"), &["eqCst", "equential"])];
    let mut findings = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| path.contains("/src/")) {
        let lines: Vec<&str> = text[..tests_begin(path, text)].lines().collect();
        for (ordering, words) in OTHERS {
            let says_why = |line: &&str| {
                line.split_once("//")
                    .is_some_and(|(_, comment)| words.iter().any(|word| comment.contains(word)))
            };
            if lines.iter().take_while(|line| line.starts_with("//!")).any(says_why) {
                continue;
            }
            let code = lines.iter().map(|line| line.split("//").next().unwrap_or(line)).enumerate();
            let used =
                code.filter(|(_, code)| has_word(code, ordering) && !code.trim_start().starts_with("use "));
            let bare: Vec<usize> = used
                .map(|(at, _)| at)
                .filter(|at| !lines[at.saturating_sub(6)..=*at].iter().any(says_why))
                .collect();
            if let [first, more @ ..] = &bare[..] {
                let more =
                    if more.is_empty() { String::new() } else { format!(" (and {} more)", more.len()) };
                let at = first + 1;
                findings.push(format!(
                    "{path}:{at}{more}: {ordering} without a comment with that word that says why"
                ));
            }
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
    fn f45_a_test_that_asserts_a_short_time_is_found() {
        let test = |limit: &str| format!("assert!(start.{}() < Duration::{limit});", "elapsed");
        assert_eq!(lib(&test("from_millis(200)"), times), 1);
        assert_eq!(lib(&test("from_micros(9)"), times), 1);
        assert_eq!(lib(&test("from_secs(20)"), times), 0);
        let wait = test("from_millis(50)").replace("assert!", "while ");
        assert_eq!(lib(&wait, times), 0);
    }

    #[test]
    fn unsafe_code_needs_its_own_file_and_a_paragraph() {
        let file = |text: &str| findings(&[("a/src/sys.rs", text)], unsafe_files).len();
        assert_eq!(file("//! Calls.\n//!\n//! # Safety\n//! All is mapped.\n#![allow(unsafe_code)]\n"), 0);
        assert_eq!(file("//! Calls.\n#![allow(unsafe_code)]\n"), 1);
        assert_eq!(file("//! # Safety\n#[allow(unsafe_code)]\nfn f() {}"), 1);
        assert_eq!(file("// `#![allow(unsafe_code)]` is explained here"), 0);
        assert_eq!(
            file("mod raw {\n    //! # Safety\n    //! It is ours.\n    #![allow(unsafe_code)]\n}"),
            0
        );
        assert_eq!(lib("//! # Safety\n#![allow(unsafe_code)]\n", unsafe_files), 1);
    }

    #[test]
    fn other_orderings_need_a_reason() {
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
        let strong = concat!("fence(Ordering::Seq", "Cst)");
        assert_eq!(lib(strong, orderings), 1);
        assert_eq!(
            lib(&format!("// Sequentially consistent: both sides store, then load.\n{strong}"), orderings),
            0
        );
        assert_eq!(lib("a.cmp(&b) == Ordering::Less; x.load(Ordering::Acquire)", orderings), 0);
    }
}
