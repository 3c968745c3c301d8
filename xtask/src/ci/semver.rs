//! The lane `semver`: who called the last release can call this one, unless the version in Cargo.toml says otherwise. cargo-semver-checks
//! compares the libraries with those of the last tag. Before the first one nobody can have called anything.

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
    let published: Vec<&str> = setting
        .ws
        .members
        .iter()
        .filter(|member| member.published)
        .map(|member| member.package.as_str())
        .collect();
    let Some(last) = last_tag(root) else {
        if git(root, &["rev-parse", "--is-shallow-repository"]).is_none_or(|answer| answer != "false") {
            return Ok(Outcome::LeftOut("this clone has no history; fetch all of it".to_owned()));
        }
        let mut report = Report::checks(published.len(), "library", None);
        report.counted = format!("{} libraries, none released yet", published.len());
        return Ok(Outcome::Ran(report));
    };
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

fn was_in(root: &Path, commit: &str, package: &str) -> bool {
    let line = format!("name = \"{package}\"");
    git(root, &["grep", "-lx", &line, commit, "--", "*Cargo.toml"]).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_release_is_the_last_tag_of_a_version() {
        let folder = tempfile::tempdir().unwrap();
        let run = |args: &str| {
            let words: Vec<&str> = args.split(' ').collect();
            assert!(git(folder.path(), &words).is_some() || words[0] != "rev-parse", "{args}");
        };
        let commit = |name: &str| {
            let by = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
            let args = [&by[..], &["commit", "--quiet", "--allow-empty", "--message", name]].concat();
            git(folder.path(), &args);
        };
        run("init --quiet");
        commit("one");
        run("rev-parse HEAD");
        assert_eq!(last_tag(folder.path()), None);
        run("tag v0.1.0");
        run("tag other");
        commit("two");
        assert_eq!(last_tag(folder.path()).as_deref(), Some("v0.1.0"));
    }
}
