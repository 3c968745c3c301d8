//! The documents: the table of crates is the one of `layers.rs`, what a text points to exists, and prose
//! fits a window.

use crate::layers::{ROWS, SUPPORT};
use crate::tidy::{Finding, Tree, numbered};

const ARCHITECTURE: &str = "docs/ARCHITECTURE.md";
/// The heading of the table of crates.
const CRATES: &str = "## Crates and edges";
/// The heading of the glossary, and the lines that it may have.
const GLOSSARY: &str = "## Glossary";
const GLOSSARY_LINES: usize = 20;
/// Columns of a line of prose.
const WIDEST: usize = 110;

/// The table of crates has the rows of `layers.rs` that exist, in order, each with what the crate may use.
pub(super) fn crates_and_edges(tree: &Tree<'_>) -> Vec<Finding> {
    let text = tree.text(ARCHITECTURE);
    let found: Vec<(&str, &str)> = section(text, CRATES).lines().filter_map(crate_row).collect();
    let member = |name: &str| tree.ws.member(name).is_some();
    let expected: Vec<(&str, &str)> =
        ROWS.iter().filter(|row| member(row.name)).map(|row| (row.name, row.uses_in_words())).collect();
    if found == expected {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (name, uses) in &expected {
        match found.iter().find(|(other, _)| other == name) {
            None => findings.push(format!("{ARCHITECTURE}: no row for `{name}`: | `{name}` | … | {uses} |")),
            Some((_, other)) if other != uses => {
                findings.push(format!("{ARCHITECTURE}: `{name}` may use: {uses}"));
            }
            Some(_) => {}
        }
    }
    let unknown = found.iter().filter(|(name, _)| !expected.iter().any(|(other, _)| other == name));
    findings.extend(
        unknown.map(|(name, _)| format!("{ARCHITECTURE}: `{name}` has no row in xtask/src/layers.rs")),
    );
    if findings.is_empty() {
        let order: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
        findings.push(format!("{ARCHITECTURE}: the rows in order: {}", order.join(", ")));
    }
    findings
}

/// What follows a heading, up to the next one.
fn section<'t>(text: &'t str, heading: &str) -> &'t str {
    text.split(heading).nth(1).unwrap_or("").split("\n## ").next().unwrap_or("")
}

/// Twenty lines of words can be remembered, sixty cannot.
pub(super) fn glossary(tree: &Tree<'_>) -> Vec<Finding> {
    let entries = section(tree.text(ARCHITECTURE), GLOSSARY).lines();
    match entries.skip_while(|line| !line.starts_with("- ")).filter(|line| !line.is_empty()).count() {
        0 => vec![format!("{ARCHITECTURE}: there is no glossary")],
        lines if lines > GLOSSARY_LINES => {
            vec![format!("{ARCHITECTURE}: the glossary has {lines} lines, more than {GLOSSARY_LINES}")]
        }
        _ => Vec::new(),
    }
}

/// First and last cell of a row whose first cell is a name in backticks.
fn crate_row(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim);
    let name = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
    Some((name, cells.next_back()?)).filter(|(name, _)| !SUPPORT.contains(name))
}

/// Every file that a Markdown text names in backticks exists, by its path or the end of it.
pub(super) fn files(tree: &Tree<'_>) -> Vec<Finding> {
    const CODE: [&str; 5] = [".rs", ".h", ".c", ".cpp", ".toml"];
    let is_file = |word: &&str| {
        let name = word.chars().all(|c| c.is_alphanumeric() || "/-_.".contains(c));
        // Below `target` is what a guide has its reader write.
        name && word.contains('/')
            && !word.starts_with("target/")
            && CODE.iter().any(|end| word.ends_with(end))
    };
    let exists = |word: &str| {
        let end = format!("/{word}");
        tree.files.keys().any(|path| path == word || path.ends_with(&end))
    };
    let mut findings = Vec::new();
    for (path, text) in tree.files.iter().filter(|(path, _)| path.ends_with(".md")) {
        for (at, line) in numbered(text) {
            let gone = line.split('`').skip(1).step_by(2).filter(is_file).filter(|word| !exists(word));
            findings.extend(gone.map(|word| format!("{path}:{at}: there is no {word}")));
        }
    }
    findings
}

/// Every relative link of a Markdown file, and every `docs/….md#section` in any file, leads somewhere.
pub(super) fn links(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.files {
        for (at, line) in numbered(text) {
            let from_here = if path.ends_with(".md") { markdown_links(line) } else { Vec::new() };
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let relative = from_here.into_iter().map(|link| join(folder, path, link));
            let from_root = citations(line).into_iter().map(|link| join("", path, link));
            for (file, section) in relative.chain(from_root) {
                if let Some(why) = dead(tree, &file, section) {
                    findings.push(format!("{path}:{at}: {why}"));
                }
            }
        }
    }
    findings.dedup();
    findings
}

/// Targets of `[text](target)` that are not on the web.
fn markdown_links(line: &str) -> Vec<&str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.filter(|target| !target.contains("://")).collect()
}

/// A document of ours, with or without a section, as comments cite it.
fn citations(line: &str) -> Vec<&str> {
    // Spelled in two parts, or this line would be a citation.
    let starts = line.match_indices(concat!("do", "cs/")).map(|(at, _)| &line[at..]);
    let part = |c: char| c.is_alphanumeric() || "/-_.#".contains(c);
    let words = starts.map(|rest| &rest[..rest.find(|c| !part(c)).unwrap_or(rest.len())]);
    words.map(|word| word.trim_end_matches('.')).filter(|word| word.contains(".md")).collect()
}

/// The file from the root and the section that a link means; one that is only a section means its own file.
fn join<'t>(folder: &str, path: &str, link: &'t str) -> (String, Option<&'t str>) {
    let (file, section) = link.split_once('#').map_or((link, None), |(file, section)| (file, Some(section)));
    if file.is_empty() {
        return (path.to_owned(), section);
    }
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in file.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    (parts.join("/"), section)
}

fn dead(tree: &Tree<'_>, file: &str, section: Option<&str>) -> Option<String> {
    let folder = format!("{file}/");
    let Some(text) = tree.files.get(file) else {
        let known = tree.files.keys().any(|path| path.starts_with(&folder));
        return (!known).then(|| format!("there is no {file}"));
    };
    let section = section?;
    let headings = text.lines().filter(|line| line.starts_with('#')).map(anchor);
    (!headings.into_iter().any(|heading| heading == section))
        .then(|| format!("{file} has no section #{section}"))
}

/// A heading as links name it: `## The wait, in short` is `the-wait-in-short`.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Prose in Markdown; tables, code and lines with a web address may be as long as they are.
pub(super) fn width(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files.iter().filter(|(path, _)| path.ends_with(".md")) {
        let mut code = false;
        for (at, line) in numbered(text) {
            code ^= line.trim_start().starts_with("```");
            let free =
                code || line.starts_with(['|', '<']) || line.starts_with("    ") || line.contains("://");
            if !free && line.chars().count() > WIDEST {
                findings.push(format!("{path}:{at}: {} columns, more than {WIDEST}", line.chars().count()));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::{findings, findings_of};
    use crate::workspace::Member;

    fn table(rows: &str) -> String {
        let member = |name: &str| Member { name: name.into(), dir: name.into(), ..Member::default() };
        let text =
            format!("{CRATES}\n\n| crate | holds | may use |\n|---|---|---|\n{rows}\n## Next\n| `x` | | |\n");
        let members = vec![member("worker-errors"), member("comm-context"), member("bench-support")];
        findings_of(members, &[(ARCHITECTURE, &text)], crates_and_edges).join("\n")
    }

    #[test]
    fn the_table_is_the_one_of_the_layers() {
        let (errors, context) = ("| `worker-errors` | a | – |", "| `comm-context` | b | worker-errors |");
        assert_eq!(table(&format!("{errors}\n{context}\n| `bench-support` | c | – |")), "");
        assert!(table(errors).contains("no row for `comm-context`: | `comm-context` | … | worker-errors |"));
        assert!(table(&format!("{errors}\n| `comm-context` | b | – |")).contains("may use: worker-errors"));
        assert!(table(&format!("{context}\n{errors}")).contains("in order: worker-errors, comm-context"));
        assert!(table(&format!("{errors}\n{context}\n| `y` | c | – |")).contains("`y` has no row"));
    }

    #[test]
    fn a_glossary_that_is_long_or_missing_is_found() {
        let with = |lines: usize| {
            let text = format!("{GLOSSARY}\n\nWords.\n\n{}\n## Next\n- x\n", "- **a**: b\n".repeat(lines));
            findings(&[(ARCHITECTURE, &text)], glossary).len()
        };
        assert_eq!((with(0), with(GLOSSARY_LINES), with(GLOSSARY_LINES + 1)), (1, 0, 1));
    }

    #[test]
    fn links_and_citations_that_lead_nowhere_are_found() {
        let doc = (
            ARCHITECTURE,
            "# Title\n## C API of a backend\n[up](../README.md#start) [own](#c-api-of-a-backend)\n",
        );
        let readme =
            ("README.md", "# Start\n[a](docs/ARCHITECTURE.md) [web](https://x.y/z) [folder](docs)\n");
        let code = |text: &'static str| ("a/src/lib.rs", text);
        let good = concat!("//! See do", "cs/ARCHITECTURE.md#c-api-of-a-backend.\n");
        assert_eq!(findings(&[doc, readme, code(good)], links), Vec::<String>::new());
        let gone = concat!("//! See do", "cs/DESIGN.md.\n");
        assert_eq!(
            findings(&[doc, readme, code(gone)], links),
            [concat!("a/src/lib.rs:1: there is no do", "cs/DESIGN.md")]
        );
        let section = concat!("// do", "cs/ARCHITECTURE.md#kernels\n");
        assert!(findings(&[doc, readme, code(section)], links)[0].ends_with("has no section #kernels"));
        assert!(findings(&[("README.md", "[a](b/c.md)")], links)[0].contains("there is no b/c.md"));
    }

    #[test]
    fn files_that_a_text_names_exist() {
        let code = ("a/src/parent/run.rs", "");
        let text = |text: &str| findings(&[code, ("X.md", text)], files);
        assert_eq!(text("see `parent/run.rs`, `tests/loom_*.rs`, `x.rs`"), Vec::<String>::new());
        assert_eq!(text("see `parent/gone.rs`"), ["X.md:1: there is no parent/gone.rs"]);
    }

    #[test]
    fn long_prose_is_found_and_long_tables_are_not() {
        let long = "x".repeat(WIDEST + 1);
        let found = |text: String| findings(&[("README.md", &text)], width).len();
        assert_eq!(found(format!("{long}\n")), 1);
        assert_eq!(found(format!("| {long} |\n```\n{long}\n```\n    {long}\n")), 0);
        assert_eq!(found(format!("```\nx\n```\n{long}\n")), 1);
    }
}
