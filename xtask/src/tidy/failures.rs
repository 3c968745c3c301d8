//! docs/FAILURES.md and the tests in step. A row `| F02 | … | … | crates |` describes a class of failures;
//! a test is about it when it is named after it (`fn f02_…`, `fn f01_f02_…`, `mutant_f02_…`, `def test_f02_…`)
//! or a comment of its file cites it; at least one is named. The last cell lists the crates with such tests, or
//! says `not tested: why`.

use std::collections::{BTreeMap, BTreeSet};

use crate::layers::position;
use crate::tidy::{Finding, Tree, numbered, tests_begin};

const FILE: &str = "docs/FAILURES.md";
const NOT_TESTED: &str = "not tested: ";
/// This file: the tests below are about tests.
const EXCEPT: &str = "xtask/src/tidy/failures.rs";

pub(super) fn in_step(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut rows: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for (at, line) in numbered(tree.text(FILE)) {
        let Some((id, crates)) = row(line) else { continue };
        if rows.insert(id, (at, crates)).is_some() {
            findings.push(format!("{FILE}:{at}: {id} has two rows"));
        }
    }
    let mut tested: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let python = tree.files.iter().filter(|(path, _)| path.ends_with(".py"));
    let mut with_name: BTreeSet<String> = python.flat_map(|(_, text)| named(text)).collect();
    for (path, text) in tree.rust().filter(|(path, _)| *path != EXCEPT) {
        let tests = &text[tests_begin(path, text)..];
        with_name.extend(named(tests));
        for id in named(tests).chain(cited(path, tests).map(str::to_owned)) {
            if !rows.contains_key(id.as_str()) {
                findings.push(format!("{path} tests {id}, which has no row in {FILE}"));
            }
            tested.entry(id).or_default().extend(crate_of(tree, path));
        }
    }
    for (path, text) in tree.files.iter().filter(|(path, _)| *path != FILE && *path != EXCEPT) {
        let unknown: BTreeSet<&str> = cited(path, text).filter(|id| !rows.contains_key(id)).collect();
        findings
            .extend(unknown.into_iter().map(|id| format!("{path} cites {id}, which has no row in {FILE}")));
    }
    findings.dedup();
    for (id, (at, crates)) in rows {
        let mut expected: Vec<&str> = tested.get(id).into_iter().flatten().copied().collect();
        expected.sort_by_key(|name| position(name));
        let reason = crates.strip_prefix(NOT_TESTED).is_some_and(|reason| !reason.is_empty());
        match expected[..] {
            [] if reason => {}
            [] => findings
                .push(format!("{FILE}:{at}: no test is about {id}; write one, or `{NOT_TESTED}` and why")),
            _ if !with_name.contains(id) => findings.push(format!(
                "{FILE}:{at}: no test is named after {id}; begin the name of one with `{}_`",
                id.to_lowercase()
            )),
            _ if crates == expected.join(", ") => {}
            _ => findings.push(format!("{FILE}:{at}: {id} is tested in: {}", expected.join(", "))),
        }
    }
    findings
}

/// Id and last cell of a row.
fn row(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim);
    let id = cells.next().filter(|id| is_id(id))?;
    Some((id, cells.next_back()?))
}

fn is_id(word: &str) -> bool {
    word.len() == 3 && word.starts_with('F') && word[1..].chars().all(|c| c.is_ascii_digit())
}

/// Ids in the names of functions: `F01` and `F02` for `fn f01_f02_child_dies`. Mutants are named in lists of a macro.
fn named(text: &str) -> impl Iterator<Item = String> {
    let starts = ["fn f", "mutant_f", "def test_f"].into_iter().flat_map(|start| text.split(start).skip(1));
    let names = starts.map(|rest| {
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        format!("F{}", rest[..end].to_uppercase())
    });
    names.flat_map(|name| {
        let ids: Vec<String> = name.split('_').map(str::to_owned).take_while(|part| is_id(part)).collect();
        ids
    })
}

/// Ids in prose: all of a Markdown file, and the comments of others.
fn cited<'t>(path: &str, text: &'t str) -> impl Iterator<Item = &'t str> {
    let markdown = path.ends_with(".md");
    let prose = text.lines().filter_map(move |line| {
        let comment = || line.find("//").or_else(|| line.trim_start().starts_with(['#', '*']).then_some(0));
        Some(&line[if markdown { 0 } else { comment()? }..])
    });
    prose.flat_map(|line| line.split(|c: char| !(c.is_alphanumeric() || c == '_'))).filter(|word| is_id(word))
}

/// The crate of the table to which a file belongs.
fn crate_of<'t>(tree: &'t Tree<'_>, path: &str) -> Option<&'t str> {
    let holds = |dir: &str| path.starts_with(&format!("{dir}/"));
    tree.ws.top_level().find(|member| holds(&member.dir)).map(|member| member.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::findings;

    const DOC: &str = "| id | elsewhere | here | tested in |\n|---|---|---|---|\n| F02 | x | y | a |\n";
    const TEST: (&str, &str) = ("a/tests/proc_a.rs", "#[test]\nfn f02_child_killed_in_task_is_reported() {}");

    fn found(doc: &str, files: &[(&str, &str)]) -> Vec<Finding> {
        findings(&[&[(FILE, doc)], files].concat(), in_step)
    }

    #[test]
    fn a_row_and_its_test_pass_when_one_is_named_after_it() {
        assert_eq!(found(DOC, &[TEST]), Vec::<String>::new());
        let cited = ("a/tests/proc_b.rs", "// F02\n#[test]\nfn dies() {}");
        assert_eq!(found(DOC, &[TEST, cited]), Vec::<String>::new());
        assert_eq!(
            found(DOC, &[cited]),
            ["docs/FAILURES.md:3: no test is named after F02; begin the name of one with `f02_`"]
        );
        let mutant = ("a/tests/loom_a.rs", "mutants! { mutant_f02_no_fence: Fence; }");
        assert_eq!(found(DOC, &[mutant]), Vec::<String>::new());
        let python = ("b/tests/test_a.py", "def test_f02_dies():");
        assert_eq!(found(DOC, &[cited, python]), Vec::<String>::new());
        let second = ("a/src/b.rs", "#[cfg(test)]\nmod tests { fn f01_f02_both() {} }");
        let both = DOC.to_owned() + "| F01 | x | y | a |\n";
        assert_eq!(found(&both, &[second]), Vec::<String>::new());
    }

    #[test]
    fn a_test_without_a_row_is_found() {
        let other = ("a/tests/b.rs", "fn f03_parent_dies() {}");
        assert_eq!(
            found(DOC, &[TEST, other]),
            ["a/tests/b.rs tests F03, which has no row in docs/FAILURES.md"]
        );
        let code = ("a/src/c.rs", "// F04: closed first.\nfn c() {}");
        assert!(found(DOC, &[TEST, code])[0].contains("cites F04"));
        assert!(found(DOC, &[TEST, ("README.md", "see F05")])[0].contains("cites F05"));
    }

    #[test]
    fn a_row_without_a_test_needs_a_reason() {
        assert!(found(DOC, &[])[0].contains("no test is about F02"));
        assert!(found(&DOC.replace("| a |", "| not tested: |"), &[]).len() == 1);
        assert!(found(&DOC.replace("| a |", "| not tested: needs a device |"), &[]).is_empty());
        assert!(
            found(&DOC.replace("| a |", "| not tested: needs a device |"), &[TEST])[0]
                .contains("tested in: a")
        );
    }

    #[test]
    fn a_row_that_lists_other_crates_or_stands_twice_is_found() {
        assert_eq!(
            found(&DOC.replace("| a |", "| b |"), &[TEST]),
            ["docs/FAILURES.md:3: F02 is tested in: a"]
        );
        assert!(found(&(DOC.to_owned() + "| F02 | x | y | a |\n"), &[TEST])[0].contains("two rows"));
    }

    #[test]
    fn data_types_are_not_classes() {
        let types = ("a/src/t.rs", "let f16 = DType::F16; fn f16(x: u16) {} fn f32_of() {}");
        assert_eq!(found(DOC, &[TEST, types]), Vec::<String>::new());
    }
}
