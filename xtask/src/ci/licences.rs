//! The lane `licences`: every crate that a build links may be used under a licence of the list.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cargo::cargo;
use crate::lane::{Outcome, Report, Setting};

/// Licences that ask for no more than to be named. Add one after reading it.
const ALLOWED: [&str; 9] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
}

pub(super) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    let mut packages = BTreeMap::new();
    for manifest in ["Cargo.toml", "bindings/python/Cargo.toml"] {
        let args = ["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest];
        let out = cargo(&setting.ws.root, args).output().context("cannot start `cargo metadata`")?;
        ensure!(out.status.success(), "`cargo metadata` failed:\n{}", String::from_utf8_lossy(&out.stderr));
        let metadata: Metadata = serde_json::from_slice(&out.stdout)?;
        packages
            .extend(metadata.packages.into_iter().map(|p| (format!("{} {}", p.name, p.version), p.license)));
    }
    let refused: Vec<String> = packages
        .iter()
        .filter(|(_, licence)| !licence.as_deref().is_some_and(allowed))
        .map(|(name, licence)| format!("{name}: {}", licence.as_deref().unwrap_or("no licence")))
        .collect();
    let failure = (!refused.is_empty()).then(|| format!("not on the list: {}", refused.join("; ")));
    Ok(Outcome::Ran(Report::checks(packages.len(), "licence", failure)))
}

/// Whether an expression of `OR`, `AND` (which binds closer) and brackets can be met by the list.
fn allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(&mut rest) && rest.is_empty()
}

fn any_of(words: &mut &[&str]) -> bool {
    let mut met = all_of(words);
    while let Some(("OR", rest)) = words.split_first().map(|(first, rest)| (*first, rest)) {
        *words = rest;
        met |= all_of(words);
    }
    met
}

fn all_of(words: &mut &[&str]) -> bool {
    let mut met = one(words);
    while let Some(("AND", rest)) = words.split_first().map(|(first, rest)| (*first, rest)) {
        *words = rest;
        met &= one(words);
    }
    met
}

fn one(words: &mut &[&str]) -> bool {
    match **words {
        ["(", ref rest @ ..] => {
            *words = rest;
            let met = any_of(words);
            let closed = words.first() == Some(&")");
            *words = words.get(1..).unwrap_or_default();
            met && closed
        }
        [licence, "WITH", exception, ref rest @ ..] => {
            *words = rest;
            ALLOWED.contains(&format!("{licence} WITH {exception}").as_str()) || ALLOWED.contains(&licence)
        }
        [licence, ref rest @ ..] => {
            *words = rest;
            ALLOWED.contains(&licence)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn an_expression_is_met_by_one_side_of_or_and_by_both_of_and() {
        for met in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/Apache-2.0",
            "(MIT OR GPL-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(allowed(met), "{met}");
        }
        for refused in ["", "GPL-3.0", "MIT AND GPL-3.0", "GPL-2.0 OR MIT AND GPL-3.0", "(MIT", "MIT MIT"] {
            assert!(!allowed(refused), "{refused}");
        }
    }
}
