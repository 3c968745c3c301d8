//! `cargo xtask tidy`: the rules of the codebase as checks. Each rule is a function from the [`Tree`] to
//! findings, with a unit test that shows it can fail; the whole is also a test, so that `cargo test`
//! notices an untidy change.

mod docs;
mod edges;
mod errors;
mod failures;
mod headers;
mod invariants;
mod main_job;
mod manifests;
mod mutants;
mod readmes;
mod sources;
mod texts;
mod vendor_calls;
mod words;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::lane::{Outcome, Report, Setting};
use crate::workspace::{Workspace, relative};

/// What the rules look at.
pub(crate) struct Tree<'a> {
    ws: &'a Workspace,
    /// Every text file by its path from the root.
    files: BTreeMap<String, String>,
}

/// One thing that is wrong: where, what, and what would be right.
type Finding = String;

struct Rule {
    name: &'static str,
    check: fn(&Tree<'_>) -> Vec<Finding>,
}

const RULES: &[Rule] = &[
    Rule { name: "crate edges", check: edges::edges },
    Rule { name: "order of members", check: edges::order },
    Rule { name: "features for tests only in tests", check: edges::test_features },
    Rule { name: "inherited fields", check: manifests::inherited },
    Rule { name: "tests that features hide", check: manifests::hidden_tests },
    Rule { name: "headers in step", check: headers::in_step },
    Rule { name: "invariants", check: invariants::defined_once_and_cited },
    Rule { name: "mutants", check: mutants::in_step },
    Rule { name: "failure classes", check: failures::in_step },
    Rule { name: "error texts", check: errors::in_step },
    Rule { name: "vendor calls", check: vendor_calls::in_step },
    Rule { name: "words", check: words::plain },
    Rule { name: "commands in texts", check: texts::commands },
    Rule { name: "crate table", check: texts::crate_table },
    Rule { name: "READMEs of packages", check: readmes::in_step },
    Rule { name: "licences of packages", check: manifests::licences },
    Rule { name: "crates and edges", check: docs::crates_and_edges },
    Rule { name: "glossary", check: docs::glossary },
    Rule { name: "links", check: docs::links },
    Rule { name: "files in texts", check: docs::files },
    Rule { name: "width of prose", check: docs::width },
    Rule { name: "crates of the main job", check: main_job::counted },
    Rule { name: "machine paths", check: sources::machine_paths },
    Rule { name: "leftovers", check: sources::leftovers },
    Rule { name: "file length", check: sources::length },
    Rule { name: "times in tests", check: sources::times },
    Rule { name: "unsafe files", check: sources::unsafe_files },
    Rule { name: "orderings", check: sources::orderings },
];

/// What else than to check.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// First write the README of each package, which is made of the front page of its crate
    #[arg(long)]
    write_readmes: bool,
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    if args.write_readmes {
        println!("tidy: {} READMEs written", readmes::write(ws, &Tree::read(ws)?)?);
    }
    let tree = Tree::read(ws)?;
    let findings = tree.findings();
    findings.iter().for_each(|finding| println!("{finding}"));
    let (rules, files, crates) = (RULES.len(), tree.files.len(), ws.members.len());
    if findings.is_empty() {
        println!("tidy: {rules} rules hold over {files} files of {crates} crates");
        return Ok(ExitCode::SUCCESS);
    }
    println!("tidy: {} findings", findings.len());
    Ok(ExitCode::FAILURE)
}

/// The rules as one lane.
pub(crate) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    let findings = Tree::read(setting.ws)?.findings();
    findings.iter().for_each(|finding| setting.console.line(finding));
    let failure = (!findings.is_empty()).then(|| format!("{} findings", findings.len()));
    Ok(Outcome::Ran(Report::checks(RULES.len(), "rule", failure)))
}

impl<'a> Tree<'a> {
    fn read(ws: &'a Workspace) -> Result<Self> {
        let mut files = BTreeMap::new();
        collect(&ws.root, &ws.root, &mut files)?;
        Ok(Self { ws, files })
    }

    fn findings(&self) -> Vec<Finding> {
        let name = |rule: &'static Rule| move |finding| format!("{}: {finding}", rule.name);
        RULES.iter().flat_map(|rule| (rule.check)(self).into_iter().map(name(rule))).collect()
    }

    /// The text of one file; empty where it is missing, for rules about what it must contain.
    fn text(&self, path: &str) -> &str {
        self.files.get(path).map_or("", String::as_str)
    }

    /// Files below a folder whose names end so.
    fn under<'t>(&'t self, dir: &str, suffix: &'t str) -> impl Iterator<Item = (&'t str, &'t str)> {
        let dir = format!("{dir}/");
        let wanted = move |path: &str| path.starts_with(&dir) && path.ends_with(suffix);
        self.files
            .iter()
            .filter(move |(path, _)| wanted(path))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The Rust files of the whole workspace.
    fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        all.filter(|(path, _)| path.ends_with(".rs"))
    }
}

/// By the end of the name, and the licences and the scripts of CI, which have none.
fn is_text(path: &Path) -> bool {
    const ENDS: [&str; 14] =
        ["rs", "toml", "md", "svg", "h", "hpp", "c", "cc", "cpp", "py", "sh", "yaml", "yml", "json"];
    let end = path.extension().and_then(|end| end.to_str());
    let folder = path.parent().and_then(Path::file_name);
    let licence = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("LICENSE-"));
    end.is_some_and(|end| ENDS.contains(&end)) || licence || folder.is_some_and(|name| name == ".ci")
}

/// Reads the text files of a folder and of those below it. Other files, builds and fuzz inputs are passed
/// over.
fn collect(root: &Path, folder: &Path, files: &mut BTreeMap<String, String>) -> Result<()> {
    const PASSED_OVER: [&str; 4] = ["target", "corpus", "artifacts", "node_modules"];
    const HIDDEN_BUT_OURS: [&str; 3] = [".cargo", ".ci", ".github"];
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if entry.file_type()?.is_dir() {
            let hidden = name.starts_with('.') && !HIDDEN_BUT_OURS.contains(&name.as_str());
            if !hidden && !PASSED_OVER.contains(&name.as_str()) {
                collect(root, &path, files)?;
            }
        } else if is_text(&path) {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.insert(relative(root, &path), text);
        }
    }
    Ok(())
}

/// The lines of a text with their numbers, from 1.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line))
}

/// Where in a Rust file the tests begin: all of it for a test file, else what follows the first
/// `#[cfg(test)]`.
fn tests_begin(path: &str, text: &str) -> usize {
    let test_file = path.contains("/tests/") || path.ends_with("/tests.rs") || path.contains("/conformance");
    let marks = ["#[cfg(test)]", "#[cfg(all(test"];
    if test_file { 0 } else { marks.iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Member;

    /// A workspace with one crate, `a`, and the given files.
    pub(super) fn findings(files: &[(&str, &str)], check: fn(&Tree<'_>) -> Vec<Finding>) -> Vec<Finding> {
        let member = Member { name: "a".into(), dir: "a".into(), ..Member::default() };
        findings_of(vec![member], files, check)
    }

    pub(super) fn findings_of(
        members: Vec<Member>,
        files: &[(&str, &str)],
        check: fn(&Tree<'_>) -> Vec<Finding>,
    ) -> Vec<Finding> {
        let ws = Workspace { members, ..Workspace::default() };
        let files = files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        check(&Tree { ws: &ws, files })
    }

    #[test]
    fn the_workspace_is_tidy() {
        let ws = Workspace::load().unwrap();
        let tree = Tree::read(&ws).unwrap();
        assert!(tree.files.contains_key("xtask/src/tidy.rs") && tree.files.contains_key(".ci/run"));
        let findings = tree.findings();
        assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
    }

    #[test]
    fn tests_begin_at_the_test_module_or_at_once() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {}\n";
        assert_eq!(tests_begin("a/src/lib.rs", text), 10);
        assert_eq!(tests_begin("a/tests/proc_a.rs", text), 0);
        assert_eq!(tests_begin("a/src/lib.rs", "fn a() {}"), 9);
    }
}
