//! The README of each package, which is what a registry shows of it. It is made of the crate's front page, so that its example is one
//! that the tests run, and `cargo xtask tidy --write-readmes` writes it. The workspace's own README would not do: a registry follows its
//! links from the folder of the crate, where they lead nowhere.

use anyhow::{Context, Result};

use crate::tidy::{Finding, Tree};
use crate::workspace::{Member, Workspace};

const WIDTH: usize = 108;
/// What each of them ends with.
const END: &str = "This crate is a part of chipcomm, which brings up communication between accelerator chips and runs distributed \
    kernels on them. Its documentation has the contract, what it does not do, and every call. Linux only; nothing of chipcomm has been run \
    on Ascend hardware.";
const LICENCE: &str = "Apache-2.0 or MIT, at your choice.";

/// Each README says what the front page says.
pub(super) fn in_step(tree: &Tree<'_>) -> Vec<Finding> {
    let packages = tree.ws.members.iter().filter(|member| member.published);
    let stale = packages.filter(|member| tree.text(&path(member)) != readme(tree, member));
    stale
        .map(|member| {
            format!(
                "{}: is not what the front page says; `cargo xtask tidy --write-readmes` writes it",
                path(member)
            )
        })
        .collect()
}

/// Writes them.
pub(super) fn write(ws: &Workspace, tree: &Tree<'_>) -> Result<usize> {
    let packages = ws.members.iter().filter(|member| member.published);
    packages
        .map(|member| {
            let path = path(member);
            std::fs::write(ws.root.join(&path), readme(tree, member))
                .with_context(|| format!("cannot write {path}"))
        })
        .try_fold(0, |count, written| written.map(|()| count + 1))
}

fn path(member: &Member) -> String {
    format!("{}/README.md", member.dir)
}

/// Title, what it is, an example, and where there is more.
fn readme(tree: &Tree<'_>, member: &Member) -> String {
    let page = front_page(tree.text(&format!("{}/src/lib.rs", member.dir)));
    let mut text = format!("# {}\n\n{}\n", member.package, excerpt(&page));
    for part in [END, LICENCE] {
        text += &format!("\n{}", filled(part, ""));
    }
    text
}

/// The lines of the crate's documentation.
fn front_page(source: &str) -> Vec<&str> {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect()
}

/// What stands above the first heading and, where that has no code, the first section that has some.
fn excerpt(page: &[&str]) -> String {
    let mut sections: Vec<Vec<&str>> = vec![Vec::new()];
    let mut code = false;
    for line in page {
        code ^= line.starts_with("```");
        if !code && line.starts_with("# ") {
            sections.push(Vec::new());
        }
        if let Some(section) = sections.last_mut() {
            section.push(line);
        }
    }
    let has_code = |section: &&Vec<&str>| section.iter().any(|line| line.starts_with("```"));
    let (above, rest) = sections.split_at(1);
    let example = rest.iter().find(has_code).filter(|_| !above.iter().any(|section| has_code(&section)));
    let shown = above.iter().chain(example).map(|section| markdown(section));
    shown.collect::<Vec<_>>().join("\n\n")
}

/// A section as it is read outside rustdoc: without links to items and without the lines of code that rustdoc hides.
fn markdown(section: &[&str]) -> String {
    let (mut text, mut paragraph) = (String::new(), String::new());
    let mut code = false;
    for line in section {
        let fence = line.starts_with("```");
        let item = line.starts_with("- ")
            || line.split_once(". ").is_some_and(|(number, _)| number.parse::<u8>().is_ok());
        if code || fence || item || line.is_empty() || line.starts_with(['#', '|']) {
            text += &filled(&paragraph, if paragraph.starts_with("- ") { "  " } else { "" });
            paragraph.clear();
        }
        if fence {
            code = !code;
            text += if code { "```rust\n" } else { "```\n" };
        } else if code {
            let hidden = line.trim_start() == "#" || line.trim_start().starts_with("# ");
            text += &if hidden { String::new() } else { format!("{line}\n") };
        } else if line.is_empty() || line.starts_with('|') {
            text += &format!("{line}\n");
        } else if let Some(heading) = line.strip_prefix("# ") {
            text += &format!("## {heading}\n\n");
        } else {
            paragraph += &format!("{line} ");
        }
    }
    text += &filled(&paragraph, if paragraph.starts_with("- ") { "  " } else { "" });
    text.trim_end().to_owned()
}

/// One paragraph in lines, without links to items; nothing for none.
fn filled(paragraph: &str, indent: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in unlinked(paragraph).split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            text += &format!("\n{indent}");
            column = indent.len();
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += width;
    }
    text + if column > 0 { "\n" } else { "" }
}

/// `[text](target)` and `[text]` without their brackets: rustdoc finds the items that they name, a registry does not.
fn unlinked(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, linked)) = rest.split_once('[') {
        let Some((label, after)) = linked.split_once(']') else { break };
        plain += &format!("{before}{label}");
        rest = match after.strip_prefix('(') {
            Some(target) => target.split_once(')').map_or("", |(_, after)| after),
            None => after,
        };
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::findings_of;

    const PAGE: &str = "\
//! Words, and [`Wait::on`](crate::Wait) for\n//! a [wait].\n//!\n//! - one\n//! # Contract\n//! - **It** A promise.\n//!\n//! # Example
//! ```no_run\n//! # hidden\n//! #[allow(x)]\n//! let word = [0];\n//! ```\n//! After it.\n//!\n//! # Next\n//! Not shown.\n\nuse core::x;\n//! neither
";

    fn of(page: &str) -> String {
        excerpt(&front_page(page))
    }

    #[test]
    fn a_readme_is_what_it_is_and_an_example() {
        let expected = "\
Words, and `Wait::on` for a wait.\n\n- one\n\n## Example\n\n```rust\n#[allow(x)]\nlet word = [0];\n```\nAfter it.";
        assert_eq!(of(PAGE), expected);
        assert_eq!(
            of("//! Above.\n//! ```\n//! code();\n//! ```\n//! # More\n//! ```\n//! more();\n//! ```"),
            "Above.\n```rust\ncode();\n```"
        );
        assert_eq!(of("//! No example.\n//! # Contract"), "No example.");
    }

    #[test]
    fn prose_is_narrow_and_tables_are_as_they_are() {
        let long = format!("//! {}\n//!\n//! | {} |", "word ".repeat(50), "wide ".repeat(40));
        let shown = of(&long);
        assert!(
            shown.lines().filter(|line| !line.starts_with('|')).all(|line| line.len() <= WIDTH),
            "{shown}"
        );
        assert_eq!(shown.lines().filter(|line| line.starts_with('|')).count(), 1);
    }

    #[test]
    fn a_readme_of_another_page_is_named() {
        let member = |published| Member {
            dir: "a".into(),
            package: "chipcomm-a".into(),
            published,
            ..Member::default()
        };
        let found = |published, readme: &str| {
            findings_of(vec![member(published)], &[("a/src/lib.rs", PAGE), ("a/README.md", readme)], in_step)
        };
        let ws = Workspace { members: vec![member(true)], ..Workspace::default() };
        let tree = Tree { ws: &ws, files: [("a/src/lib.rs".to_owned(), PAGE.to_owned())].into() };
        let right = readme(&tree, &ws.members[0]);
        assert!(
            right.starts_with("# chipcomm-a\n\nWords")
                && right.ends_with("choice.\n")
                && !right.contains("](")
        );
        assert_eq!(found(true, &right), Vec::<String>::new());
        assert!(found(true, &right.replace("Words", "Names"))[0].starts_with("a/README.md: "));
        assert_eq!(found(true, "").len(), 1);
        assert_eq!(found(false, ""), Vec::<String>::new());
    }
}
