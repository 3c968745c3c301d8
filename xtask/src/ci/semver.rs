//! The lane `semver`: who called the last release can call this one, unless the version in Cargo.toml says otherwise. cargo-semver-checks
//! compares the libraries with those of the last tag, or, before the first one, of the commit that gave the changelog its newest
//! version.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::cargo::{answers, cargo};
use crate::lane::{Outcome, Report, Setting};

pub(super) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    let root = &setting.ws.root;
    if !answers(cargo(root, ["semver-checks", "--version"])) {
        let how =
            "cargo-semver-checks is not installed; to install: cargo install cargo-semver-checks --locked";
        return Ok(Outcome::LeftOut(how.to_owned()));
    }
    let changelog = std::fs::read_to_string(root.join("CHANGELOG.md"))?;
    let Some(last) = last_tag(root).or_else(|| commit_of(root, newest(&changelog)?)) else {
        return Ok(Outcome::LeftOut(
            "no release is in the history of this clone; fetch all of it".to_owned(),
        ));
    };
    let published: Vec<&str> = setting
        .ws
        .members
        .iter()
        .filter(|member| member.published)
        .map(|member| member.package.as_str())
        .collect();
    let mut check = cargo(root, ["semver-checks", "--baseline-rev", &last]);
    // A library that is newer than the release has nothing to be compared with.
    let (old, new): (Vec<&str>, Vec<&str>) =
        published.iter().partition(|package| was_in(root, &last, package));
    check.args(old.iter().flat_map(|package| ["--package", package]));
    let failure = setting.console.run(&mut check)?.failure;
    let mut report = Report::checks(old.len(), "library", failure);
    report.counted = format!("{} libraries beside {last}, {} new", old.len(), new.len());
    Ok(Outcome::Ran(report))
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let out = Command::new("git").current_dir(root).args(args).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| out.status.success() && !text.is_empty())
}

fn last_tag(root: &Path) -> Option<String> {
    git(root, &["describe", "--tags", "--abbrev=0", "--match", "v*"])
}

/// The first commit whose changelog has this heading.
fn commit_of(root: &Path, heading: &str) -> Option<String> {
    let all = git(root, &["log", "--format=%h", &format!("-S{heading}"), "--", "CHANGELOG.md"])?;
    all.lines().last().map(str::to_owned)
}

/// The heading of the newest version.
fn newest(changelog: &str) -> Option<&str> {
    changelog.lines().find(|line| {
        line.strip_prefix("## ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

fn was_in(root: &Path, commit: &str, package: &str) -> bool {
    let line = format!("name = \"{package}\"");
    git(root, &["grep", "-lx", &line, commit, "--", "*Cargo.toml"]).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_the_first_with_a_number() {
        let text = "# Changelog\n\n## Unreleased\n\n- x\n\n## 0.2.0\n\n## 0.1.0\n";
        assert_eq!(newest(text), Some("## 0.2.0"));
        assert_eq!(newest("## Unreleased\n"), None);
    }
}
