//! Manifests: what is said once for the workspace is not said again in a crate.

use toml::{Table, Value};

use crate::tidy::{Finding, Tree};

const FIELDS: [&str; 4] = ["version", "edition", "rust-version", "license"];
const DEPENDENCIES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// Package fields, lints and every dependency come from the workspace.
pub(super) fn inherited(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &tree.ws.members {
        let path = format!("{}/Cargo.toml", member.dir);
        let manifest = match tree.text(&path).parse::<Table>() {
            Ok(manifest) => manifest,
            Err(error) => {
                findings.push(format!("{path}: {error}"));
                continue;
            }
        };
        let package = manifest.get("package");
        for field in FIELDS.iter().filter(|field| !from_workspace(package.and_then(|table| table.get(field))))
        {
            findings.push(format!("{path}: write `{field}.workspace = true`"));
        }
        // Cargo finds the README of a package by its name.
        if !member.published && !from_workspace(package.and_then(|table| table.get("publish"))) {
            findings.push(format!("{path}: write `publish.workspace = true`, as all programs do"));
        }
        if package.is_some_and(|table| table.get("readme").is_some()) {
            findings.push(format!("{path}: leave `readme` out: cargo takes the README.md in this folder"));
        }
        if !from_workspace(manifest.get("lints")) {
            findings.push(format!("{path}: write `[lints]` with `workspace = true`"));
        }
        for (section, name) in own_dependencies(&manifest, "") {
            findings
                .push(format!("{path}: {section}: `{name}` belongs in the root's [workspace.dependencies]"));
        }
    }
    findings
}

/// Both licences ask that whoever passes a package on passes their text on too, and cargo packs only what is in the folder.
pub(super) fn licences(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in tree.ws.members.iter().filter(|member| member.published) {
        for text in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let path = format!("{}/{text}", member.dir);
            if tree.text(&path).is_empty() || tree.text(&path) != tree.text(text) {
                findings.push(format!("{path}: make it a link to the {text} at the root, for the package"));
            }
        }
    }
    findings
}

fn from_workspace(value: Option<&Value>) -> bool {
    value.and_then(|value| value.get("workspace")).and_then(Value::as_bool) == Some(true)
}

/// Dependencies that say more than that the workspace knows them. A crate may depend on itself by path,
/// which is how its tests turn on one of its features.
fn own_dependencies(table: &Table, prefix: &str) -> Vec<(String, String)> {
    let itself = |value: &Value| value.get("path").and_then(Value::as_str) == Some(".");
    let mut found = Vec::new();
    for section in DEPENDENCIES {
        let Some(Value::Table(dependencies)) = table.get(section) else { continue };
        let own = dependencies.iter().filter(|(_, value)| !from_workspace(Some(value)) && !itself(value));
        found.extend(own.map(|(name, _)| (format!("{prefix}{section}"), name.clone())));
    }
    if let Some(Value::Table(targets)) = table.get("target") {
        for (target, value) in targets {
            let inner = value.as_table().map(|table| own_dependencies(table, &format!("{target} ")));
            found.extend(inner.unwrap_or_default());
        }
    }
    found
}

/// A test that needs a feature which nothing turns on is skipped by cargo without a word.
pub(super) fn hidden_tests(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &tree.ws.members {
        let default = member.features.get("default");
        let by_default = |feature: &String| default.is_some_and(|list| list.contains(feature));
        let by_a_member = |feature: &String| {
            let all = tree.ws.members.iter().flat_map(|other| &other.dependencies);
            all.into_iter().any(|edge| edge.name == member.name && edge.features.contains(feature))
        };
        for target in member.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "test")) {
            for feature in target.required_features.iter().filter(|f| !by_default(f) && !by_a_member(f)) {
                findings.push(format!(
                    "{}: test `{}` needs the feature `{feature}`, which no member turns on",
                    member.name, target.name
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::{findings, findings_of};
    use crate::workspace::{Dependency, Member, Target};

    const GOOD: &str = "\
[package]
name = \"a\"
version.workspace = true
edition.workspace = true
rust-version.workspace = true
license.workspace = true
publish.workspace = true
[lints]
workspace = true
[dependencies]
nix = { workspace = true, features = [\"fs\"] }
[dev-dependencies]
a = { path = \".\", features = [\"conformance\"] }
";

    #[test]
    fn an_inheriting_manifest_passes() {
        assert_eq!(findings(&[("a/Cargo.toml", GOOD)], inherited), Vec::<String>::new());
    }

    #[test]
    fn each_field_that_is_not_inherited_is_named() {
        for field in FIELDS {
            let own = GOOD.replace(&format!("\n{field}.workspace = true"), &format!("\n{field} = \"1\""));
            let found = findings(&[("a/Cargo.toml", &own)], inherited);
            assert!(found.len() == 1 && found[0].contains(field), "{field}: {found:?}");
        }
        let no_lints = GOOD.replace("[lints]\nworkspace = true\n", "");
        assert_eq!(findings(&[("a/Cargo.toml", &no_lints)], inherited).len(), 1);
    }

    #[test]
    fn a_version_of_ones_own_is_named_in_every_section() {
        for section in ["dependencies", "build-dependencies", "target.'cfg(loom)'.dependencies"] {
            let head = GOOD.split("[dependencies]").next().unwrap();
            let own = format!("{head}[{section}]\nloom = \"0.7\"\n");
            let found = findings(&[("a/Cargo.toml", &own)], inherited);
            assert!(found.len() == 1 && found[0].contains("`loom`"), "{section}: {found:?}");
        }
    }

    #[test]
    fn a_package_says_nothing_of_publishing_and_has_no_readme_of_another_name() {
        let member = |published| Member { name: "a".into(), dir: "a".into(), published, ..Member::default() };
        let found = |published, manifest: &str| {
            findings_of(vec![member(published)], &[("a/Cargo.toml", manifest)], inherited)
        };
        let package = GOOD.replace("publish.workspace = true\n", "");
        assert_eq!(found(true, &package), Vec::<String>::new());
        assert!(found(false, &package)[0].contains("`publish.workspace = true`"));
        let own = package.replace("[lints]", "readme = \"x\"\n[lints]");
        assert!(found(true, &own)[0].contains("leave `readme` out"));
    }

    #[test]
    fn a_package_without_the_text_of_a_licence_is_named() {
        let found = |published, mit: &str| {
            let member = Member { dir: "a".into(), published, ..Member::default() };
            let files = [
                ("LICENSE-APACHE", "Apache"),
                ("LICENSE-MIT", "MIT"),
                ("a/LICENSE-APACHE", "Apache"),
                ("a/LICENSE-MIT", mit),
            ];
            findings_of(vec![member], &files, licences)
        };
        assert!(found(true, "MIT").is_empty() && found(false, "").is_empty());
        assert!(found(true, "")[0].starts_with("a/LICENSE-MIT: "));
        assert_eq!(found(true, "another").len(), 1);
    }

    #[test]
    fn a_manifest_that_is_missing_or_broken_is_a_finding() {
        assert!(!findings(&[], inherited).is_empty());
        assert!(!findings(&[("a/Cargo.toml", "[package")], inherited).is_empty());
    }

    #[test]
    fn a_test_behind_a_feature_that_nothing_turns_on_is_named() {
        let target =
            Target { name: "suite".into(), kind: vec!["test".into()], required_features: vec!["f".into()] };
        let hidden = || Member { name: "a".into(), targets: vec![target.clone()], ..Member::default() };
        assert_eq!(findings_of(vec![hidden()], &[], hidden_tests).len(), 1);
        let edge = Dependency {
            name: "a".into(),
            kind: Some("dev".into()),
            features: vec!["f".into()],
            ..Dependency::default()
        };
        let reached = Member { dependencies: vec![edge], ..hidden() };
        assert!(findings_of(vec![reached], &[], hidden_tests).is_empty());
    }
}
