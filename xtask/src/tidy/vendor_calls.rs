//! docs/vendor-calls.md in step with the declarations of comm-hccl, its sources, the double's invariants and the tests.

use std::collections::BTreeSet;

use crate::tidy::{Finding, Tree, numbered};

const FILE: &str = "docs/vendor-calls.md";
const SYS: &str = "comm-hccl/src/sys";
const SOURCES: &str = "comm-hccl/src";
const DOUBLE: &str = "comm-hccl/cann-sim/src/lib.rs";
const NOT_CALLED: &str = "not called";

/// A row of the table.
struct Row<'a> {
    at: usize,
    function: &'a str,
    called_in: &'a str,
    enforced: &'a str,
    tests: &'a str,
}

pub(super) fn in_step(tree: &Tree<'_>) -> Vec<Finding> {
    let rows: Vec<Row<'_>> = numbered(tree.text(FILE)).filter_map(|(at, line)| row(at, line)).collect();
    let mut findings = Vec::new();
    let declared: Vec<&str> = tree.under(SYS, ".rs").flat_map(|(_, text)| functions(text)).collect();
    for name in &declared {
        let count = rows.iter().filter(|row| row.function == *name).count();
        if count != 1 {
            findings
                .push(format!("{FILE}: `{name}`, which comm-hccl declares, has {count} rows instead of one"));
        }
    }
    let calling: Vec<(&str, &str)> =
        tree.under(SOURCES, ".rs").filter(|(path, _)| !path.starts_with(SYS)).collect();
    let tests: BTreeSet<&str> = tree
        .under("comm-hccl", ".rs")
        .chain(tree.under("collectives/tests", ".rs"))
        .flat_map(|(_, text)| test_names(text))
        .collect();
    for row in rows {
        let mut wrong = |what: String| findings.push(format!("{FILE}:{}: {what}", row.at));
        if !declared.contains(&row.function) {
            wrong(format!("`{}` is not declared by comm-hccl", row.function));
        }
        match row.called_in {
            NOT_CALLED => {
                let callers = calling.iter().filter(|(_, text)| is_called(text, row.function));
                callers.for_each(|(path, _)| wrong(format!("`{}` is called in {path}", row.function)));
            }
            file => {
                let path = format!("{SOURCES}/{}", file.trim_matches('`'));
                let named = calling.iter().any(|(own, text)| *own == path && has_word(text, row.function));
                if !named {
                    wrong(format!("{path} does not call `{}`", row.function));
                }
            }
        }
        let invariants = row.enforced.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        for id in invariants.filter(|word| word.starts_with("CN-")) {
            if !tree.text(DOUBLE).contains(&format!("**{id}**")) {
                wrong(format!("the double has no invariant {id}"));
            }
        }
        let named: Vec<&str> = row.tests.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            wrong(format!("no test of `{}`", row.function));
        }
        named
            .iter()
            .filter(|name| !tests.contains(*name))
            .for_each(|name| wrong(format!("there is no test `{name}`")));
    }
    findings
}

/// `| `function` | header | file | how | enforced | tests |`
fn row(at: usize, line: &str) -> Option<Row<'_>> {
    let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
    let [function, _, called_in, _, enforced, tests] = cells[..] else { return None };
    let function = function.strip_prefix('`')?.strip_suffix('`')?;
    Some(Row { at, function, called_in, enforced, tests })
}

/// The functions of a table of `sys`.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    let declared = |line: &'_ str| -> Option<usize> {
        let line = line.trim_start();
        ["required fn ", "optional fn "]
            .iter()
            .find(|start| line.starts_with(**start))
            .map(|start| start.len())
    };
    text.lines().filter_map(move |line| {
        let at = declared(line)?;
        line.trim_start()[at..].split('(').next()
    })
}

fn test_names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix("fn ")?.strip_suffix("() {"))
}

/// Where a name stands as a whole word, and what follows it.
fn uses<'t>(text: &'t str, name: &'t str) -> impl Iterator<Item = &'t str> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name).filter_map(move |(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        (!before.ends_with(part) && !after.starts_with(part)).then_some(after)
    })
}

fn has_word(text: &str, name: &str) -> bool {
    uses(text, name).next().is_some()
}

/// `name(…)` in a macro, or `(table.name)(…)`.
fn is_called(text: &str, name: &str) -> bool {
    uses(text, name).any(|after| after.starts_with('(') || after.starts_with(")("))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    const TABLE: &str = "| function | declared in | called in | how | what the double enforces | tests |\n\
        |---|---|---|---|---|---|\n\
        | `aclInit` | a.h:1 | `runtime.rs` | once | CN-5 | `it_starts` |\n\
        | `aclrtLaunchKernel` | a.h:2 | not called | never | CN-8 | `it_starts` |\n";

    fn findings(table: &str) -> Vec<Finding> {
        let ws = Workspace::default();
        let files = [
            (FILE, table),
            (
                "comm-hccl/src/sys/ascendcl.rs",
                "    required fn aclInit(a: u8);\n    optional fn aclrtLaunchKernel(\n",
            ),
            (
                "comm-hccl/src/runtime.rs",
                "acl!(vendor, aclInit(null)); acl!(vendor, aclrtLaunchKernelWithHostArgs(f));",
            ),
            ("comm-hccl/tests/proc.rs", "#[test]\nfn it_starts() {\n}\n"),
            (DOUBLE, "//! - **CN-5** x\n//! - **CN-8** y\n"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        in_step(&Tree { ws: &ws, files })
    }

    #[test]
    fn a_table_in_step_has_no_findings() {
        assert_eq!(findings(TABLE), Vec::<Finding>::new());
    }

    #[test]
    fn each_thing_that_is_out_of_step_is_found() {
        for (from, to, expected) in [
            ("| `aclInit` | a.h:1", "| `aclInut` | a.h:1", "`aclInit`, which comm-hccl declares, has 0 rows"),
            ("`aclInit`", "`aclInut`", "`aclInut` is not declared"),
            ("`runtime.rs`", "`device.rs`", "does not call `aclInit`"),
            ("`runtime.rs`", "not called", "is called in comm-hccl/src/runtime.rs"),
            ("CN-5", "CN-9", "no invariant CN-9"),
            ("never | CN-8 | `it_starts`", "never | CN-8 | none", "no test of `aclrtLaunchKernel`"),
            ("CN-5 | `it_starts`", "CN-5 | `it_runs`", "there is no test `it_runs`"),
        ] {
            let found = findings(&TABLE.replacen(from, to, 1));
            assert!(found.iter().any(|finding| finding.contains(expected)), "{expected}: {found:?}");
        }
    }
}
