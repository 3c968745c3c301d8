//! Numbered invariants. A crate doc defines one as `**AB-n**`, bold and in a `//!` line; the id is unique
//! in the workspace, and at least one test cites it, in a comment or in its name (`fn ab_n_…`).

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::{Finding, Tree, numbered, tests_begin};

/// Crates that are programs, or for benchmarks, and promise nothing to other crates.
const WITHOUT: [&str; 3] = ["bench-support", "chipcomm-examples", "xtask"];

pub(super) fn defined_once_and_cited(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut defined: BTreeMap<&str, String> = BTreeMap::new();
    for (id, place) in definitions(tree) {
        if let Some(first) = defined.get(id) {
            findings.push(format!("{place}: {id} is defined in {first} already"));
        } else {
            defined.insert(id, place);
        }
    }
    let in_python = || tree.under("bindings/python/tests", ".py").map(|(_, text)| text);
    let tests = || tree.rust().map(|(path, text)| &text[tests_begin(path, text)..]).chain(in_python());
    let cited: BTreeSet<&str> = tests().flat_map(ids).collect();
    for (id, place) in &defined {
        let name = format!("fn {}_", id.to_lowercase().replace('-', "_"));
        if !cited.contains(id) && !tests().any(|text| text.contains(&name)) {
            findings.push(format!("{place}: no test cites {id}"));
        }
    }
    // `UTF-8` has the same form; only the prefix of a crate makes it an id.
    let prefixes: BTreeSet<&str> = defined.keys().filter_map(|id| id.split('-').next()).collect();
    let meant = |id: &&str| id.split('-').next().is_some_and(|prefix| prefixes.contains(prefix));
    for (path, text) in tree.rust() {
        let unknown = ids(text).filter(meant).filter(|id| !defined.contains_key(id));
        findings.extend(unknown.map(|id| format!("{path}: {id} is cited and defined nowhere")));
    }
    for member in tree.ws.top_level().filter(|member| !WITHOUT.contains(&member.name.as_str())) {
        let folder = format!("{}/", member.dir);
        if !defined.values().any(|place| place.starts_with(&folder)) {
            findings.push(format!("{}: its crate doc defines no invariant (`**AB-n**`)", member.name));
        }
    }
    findings
}

/// Every definition, and where it is.
pub(super) fn definitions<'a>(tree: &'a Tree<'_>) -> impl Iterator<Item = (&'a str, String)> {
    tree.rust().flat_map(|(path, text)| {
        let docs = numbered(text).filter(|(_, line)| line.starts_with("//!"));
        docs.flat_map(move |(at, line)| {
            let bold = ids(line).filter(move |id| line.contains(&format!("**{id}**")));
            bold.map(move |id| (id, format!("{path}:{at}")))
        })
    })
}

/// Every word of the form `AB-12`: two to four capitals, a hyphen, digits.
pub(super) fn ids(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
    words.filter(|word| {
        let Some((prefix, number)) = word.split_once('-') else { return false };
        (2..=4).contains(&prefix.len())
            && prefix.chars().all(|c| c.is_ascii_uppercase())
            && !number.is_empty()
            && number.chars().all(|c| c.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::findings;

    // Spelled in two parts, or this file would cite them itself.
    const DOC: (&str, &str) = ("a/src/lib.rs", concat!("//! - **ZZ", "-1**: it holds.\n"));
    const CITED: (&str, &str) = ("a/tests/proc_a.rs", concat!("/// ZZ", "-1\n#[test] fn holds() {}"));

    #[test]
    fn an_invariant_with_a_test_passes_however_it_is_cited() {
        assert_eq!(findings(&[DOC, CITED], defined_once_and_cited), Vec::<String>::new());
        let by_name = ("a/src/b.rs", "#[cfg(test)]\nmod tests { #[test] fn zz_1_holds() {} }");
        assert_eq!(findings(&[DOC, by_name], defined_once_and_cited), Vec::<String>::new());
    }

    #[test]
    fn an_invariant_that_no_test_cites_is_named() {
        assert!(findings(&[DOC], defined_once_and_cited)[0].contains("no test cites"));
        let outside_of_tests = ("a/src/b.rs", concat!("// see ZZ", "-1\nfn b() {}"));
        assert_eq!(findings(&[DOC, outside_of_tests], defined_once_and_cited).len(), 1);
        let longer = ("a/tests/b.rs", concat!("// ZZ", "-12"));
        assert!(findings(&[DOC, longer], defined_once_and_cited).iter().any(|f| f.contains("no test cites")));
    }

    #[test]
    fn an_id_defined_twice_or_never_is_named() {
        let again = ("a/src/b.rs", DOC.1);
        assert!(findings(&[DOC, CITED, again], defined_once_and_cited)[0].contains("already"));
        let unknown = ("a/tests/b.rs", concat!("// ZZ", "-7"));
        assert!(findings(&[DOC, CITED, unknown], defined_once_and_cited)[0].contains("defined nowhere"));
        let another_standard = ("a/tests/b.rs", "// UTF-8, SHA-256");
        assert!(findings(&[DOC, CITED, another_standard], defined_once_and_cited).is_empty());
    }

    #[test]
    fn a_library_without_invariants_is_named() {
        assert_eq!(findings(&[("a/src/lib.rs", "//! A crate.")], defined_once_and_cited).len(), 1);
    }
}
