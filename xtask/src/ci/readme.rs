//! The `readme` lane: the README's own `cargo run` commands, as a newcomer would type them, what they print beside what it
//! shows, and the guides.

use anyhow::{Context, Result};

use crate::cargo::cargo;
use crate::ci::guides;
use crate::lane::{Outcome, Report, Setting};

/// Runs every `cargo run` line of the README's code blocks, compares what they print, and follows the guides.
pub(super) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    let file = setting.ws.root.join("README.md");
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let (mut count, mut failure, mut printed) = (0, None, Vec::new());
    for words in commands(&text) {
        let ended = setting.console.run(&mut cargo(&setting.ws.root, words.iter().copied()))?;
        failure = failure.or(ended.failure.map(|why| format!("`cargo {}`: {why}", words.join(" "))));
        printed.extend(ended.lines);
        count += 1;
    }
    let unlike = guides::missing(&shown(&text), &printed).map(|wrong| format!("README.md: {wrong}"));
    failure = failure.or(unlike);
    let (typed, wrong) = guides::follow(setting, guides::LANE)?;
    Ok(Outcome::Ran(Report::checks(count + typed, "command", failure.or(wrong))))
}

/// The lines of the page's `text` blocks: what its commands print, in their order.
fn shown(text: &str) -> Vec<&str> {
    let blocks = text.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest));
    blocks.flat_map(str::lines).collect()
}

/// What follows `cargo` in lines that begin with `cargo run`, where a `#` begins a comment. Commands for a
/// chip that CI does not have are passed over, and so are those with a placeholder.
fn commands(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("cargo run "));
    let lines = lines.map(|line| line.split('#').next().unwrap_or(line));
    let here = lines.filter(|line| !line.contains("a2a3") && !line.contains(char::is_uppercase));
    here.map(|line| std::iter::once("run").chain(line.split_whitespace()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_with_their_arguments_and_without_comments() {
        let text = "Text with cargo run --no.\n\ncargo run --release   # the main job\ncargo xtask test\n\
            cargo run --release --bin x -- -d 0-3\ncargo run --release -- -p a2a3\ncargo run -- --kernel FILE\n";
        let found: Vec<_> = commands(text).collect();
        assert_eq!(
            found,
            [&["run", "--release"][..], &["run", "--release", "--bin", "x", "--", "-d", "0-3"]]
        );
    }

    #[test]
    fn the_readme_has_some() {
        let ws = crate::workspace::Workspace::load().unwrap();
        let text = std::fs::read_to_string(ws.root.join("README.md")).unwrap();
        assert!(commands(&text).any(|words| words == ["run", "--release"]));
        assert!(shown(&text).iter().any(|line| line.starts_with("allreduce: right on 2 chips")));
    }
}
