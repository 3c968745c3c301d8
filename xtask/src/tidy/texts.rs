//! The texts that a newcomer follows: each command in them exists, and the README's crate table is the
//! workspace.

use clap::CommandFactory;

use crate::layers::{SUPPORT, position};
use crate::tidy::{Finding, Tree, numbered};
use crate::workspace::Member;

const XTASK: &str = "cargo xtask ";

/// `cargo xtask …` in a text must parse; `cargo run --release` must know which program it means.
pub(super) fn commands(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_text = |path: &str| path.ends_with(".md") || path.starts_with(".ci/");
    for (path, text) in tree.files.iter().filter(|(path, _)| is_text(path)) {
        for (at, line) in numbered(text) {
            for (start, _) in line.match_indices(XTASK) {
                let rest = &line[start + XTASK.len()..];
                let command = rest.split(['`', '#', '|', ';']).next().unwrap_or(rest).trim();
                if let Err(why) = parses(command) {
                    findings.push(format!("{path}:{at}: `{XTASK}{command}`: {why}"));
                }
            }
            if line.contains("cargo run --release") && !has_main_program(&tree.ws.members) {
                findings.push(format!("{path}:{at}: `cargo run --release` needs one default-run program"));
            }
        }
    }
    findings
}

/// A command with `[optional]` or other placeholders is held to its name only.
fn parses(command: &str) -> Result<(), String> {
    let cli = crate::Cli::command();
    let words: Vec<&str> = command.split_whitespace().collect();
    let name = words.first().copied().unwrap_or_default();
    if !cli.get_subcommands().any(|sub| sub.get_name() == name) {
        return Err("there is no such subcommand".to_owned());
    }
    let placeholders =
        words.iter().any(|word| word.contains(['[', '<', '…']) || word.chars().any(char::is_uppercase));
    if placeholders {
        return Ok(());
    }
    match cli.try_get_matches_from(["xtask"].into_iter().chain(words)) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string().lines().next().unwrap_or("does not parse").to_owned()),
    }
}

/// As cargo decides it: one default-run among the default members, or else one program in all.
fn has_main_program(members: &[Member]) -> bool {
    let default = || members.iter().filter(|member| member.is_default);
    let chosen = default().filter(|member| member.default_run.is_some()).count();
    chosen == 1 || (chosen == 0 && default().flat_map(|member| member.targets_named("bin", "")).count() == 1)
}

/// The README's table has one row for each top-level member but the support crates, in dependency order.
pub(super) fn crate_table(tree: &Tree<'_>) -> Vec<Finding> {
    let rows: Vec<&str> = tree.text("README.md").lines().filter_map(|line| first_name(line)).collect();
    let mut findings = Vec::new();
    let names = tree.ws.top_level().map(|member| member.name.as_str());
    let mut expected: Vec<&str> = names.filter(|name| !SUPPORT.contains(name)).collect();
    expected.sort_by_key(|name| position(name));
    for name in expected.iter().filter(|name| !rows.contains(name)) {
        let says =
            tree.ws.member(name).and_then(|member| member.description.as_deref()).unwrap_or("what it holds");
        findings.push(format!("README.md: the crate table lacks `{name}`: | layer | `{name}` | {says} |"));
    }
    for name in rows.iter().filter(|name| !expected.contains(name)) {
        findings.push(format!("README.md: the crate table lists `{name}`, which is not a member"));
    }
    if findings.is_empty() && rows != expected {
        findings
            .push(format!("README.md: the crate table must be in dependency order: {}", expected.join(", ")));
    }
    findings
}

/// The crate of a row `| layer | `crate` | … |`.
fn first_name(line: &str) -> Option<&str> {
    let mut cells = line.trim().strip_prefix('|')?.split('|');
    cells.nth(1)?.trim().strip_prefix('`')?.strip_suffix('`')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::{findings, findings_of};
    use crate::workspace::Target;

    fn readme(text: &str) -> usize {
        findings(&[("README.md", text)], commands).len()
    }

    #[test]
    fn a_command_that_does_not_exist_or_has_a_wrong_flag_is_found() {
        assert_eq!(readme("Run `cargo xtask test`, then `cargo xtask ci`."), 0);
        assert_eq!(readme("    cargo xtask test -p comm-context   # one crate"), 0);
        assert_eq!(readme("`cargo xtask bench [name] [--json]`"), 0);
        assert_eq!(readme("Run `cargo xtask tests`."), 1);
        assert_eq!(readme("Run `cargo xtask deploy [where]`."), 1);
        assert_eq!(readme("Run `cargo xtask test --fast` and `cargo xtask no`"), 2);
    }

    #[test]
    fn cargo_run_must_mean_one_program() {
        let text = [("README.md", "cargo run --release")];
        let bin = |name: &str| Target { name: name.into(), kind: vec!["bin".into()], ..Target::default() };
        let member = |default_run: Option<&str>| Member {
            name: "examples".into(),
            is_default: true,
            default_run: default_run.map(str::to_owned),
            targets: vec![bin("a"), bin("b")],
            ..Member::default()
        };
        assert_eq!(findings_of(vec![member(None)], &text, commands).len(), 1);
        assert!(findings_of(vec![member(Some("a"))], &text, commands).is_empty());
    }

    #[test]
    fn the_crate_table_is_the_workspace_in_order() {
        let member = |name: &str| Member { name: name.into(), dir: name.into(), ..Member::default() };
        let table = |rows: &[&str]| {
            let text: String = rows.iter().map(|name| format!("| L | `{name}` | text |\n")).collect();
            let members = vec![member("bench-support"), member("comm-context"), member("xtask")];
            findings_of(members, &[("README.md", &text)], crate_table).join(" ")
        };
        assert_eq!(table(&["comm-context", "xtask"]), "");
        assert!(table(&["comm-context"]).contains("lacks `xtask`"));
        assert!(table(&["comm-context", "gone", "xtask"]).contains("`gone`"));
        assert!(table(&["xtask", "comm-context"]).contains("dependency order"));
    }
}
