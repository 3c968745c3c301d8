//! `cargo xtask fuzz`: runs the fuzz targets of the crates, `*/fuzz/fuzz_targets/*.rs`, through cargo-fuzz.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{answers, nightly};
use crate::workspace::Workspace;

/// What to fuzz.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this target; all of them in turn where none is named
    target: Option<String>,
    /// How long each target runs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    minutes: u32,
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let targets = chosen(targets(ws), args.target.as_deref())?;
    ensure!(
        answers(nightly(&ws.root, ["fuzz", "--version"])),
        "`cargo +nightly fuzz --version` does not answer; to install:\n  \
         rustup toolchain install nightly\n  cargo install cargo-fuzz"
    );
    let limit = format!("-max_total_time={}", u64::from(args.minutes) * 60);
    let mut failed = Vec::new();
    for (folder, target) in &targets {
        println!("== {target}: {} min, corpus in {folder}/corpus/{target}", args.minutes);
        let mut command = nightly(&ws.root, ["fuzz", "run", "--fuzz-dir", folder, target, "--", &limit]);
        if !command.status().context("cannot start cargo fuzz")?.success() {
            failed.push(target.as_str());
        }
    }
    ensure!(failed.is_empty(), "findings or broken targets: {}", failed.join(", "));
    println!("{} targets, no finding", targets.len());
    Ok(ExitCode::SUCCESS)
}

/// Folder of the fuzz crate and name of the target.
fn targets(ws: &Workspace) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for member in &ws.members {
        let folder = format!("{}/fuzz", member.dir);
        let files =
            std::fs::read_dir(ws.root.join(&folder).join("fuzz_targets")).into_iter().flatten().flatten();
        let names = files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".rs")?.to_owned()));
        found.extend(names.map(|name| (folder.clone(), name)));
    }
    found
}

fn chosen(targets: BTreeSet<(String, String)>, only: Option<&str>) -> Result<BTreeSet<(String, String)>> {
    ensure!(!targets.is_empty(), "no crate has fuzz/fuzz_targets/*.rs yet");
    let Some(only) = only else { return Ok(targets) };
    let names: Vec<String> = targets.iter().map(|(_, name)| name.clone()).collect();
    let one: BTreeSet<_> = targets.into_iter().filter(|(_, name)| name == only).collect();
    if one.is_empty() {
        bail!("no fuzz target `{only}`; there are: {}", names.join(", "));
    }
    Ok(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_target_lists_those_that_exist() {
        let some = BTreeSet::from([("a/fuzz".to_owned(), "decode".to_owned())]);
        assert_eq!(chosen(some.clone(), Some("decode")).unwrap(), some);
        assert_eq!(chosen(some.clone(), None).unwrap(), some);
        assert!(chosen(some, Some("x")).unwrap_err().to_string().ends_with("decode"));
        assert!(chosen(BTreeSet::new(), None).is_err());
    }
}
