//! What a newcomer waits for: the crates that `cargo run --release` builds from a fresh clone, counted.

use std::collections::BTreeSet;

use crate::cargo::cargo;
use crate::tidy::{Finding, Tree};

/// The package of the main job.
const PACKAGE: &str = "chipcomm-examples";
/// As many as it needs today. A higher number here is a longer first run: say in the commit what it is for.
const MOST: usize = 53;

pub(super) fn counted(tree: &Tree<'_>) -> Vec<Finding> {
    let args = ["tree", "--package", PACKAGE, "--edges", "normal,build", "--prefix", "none", "--no-dedupe"];
    match cargo(&tree.ws.root, args).output() {
        Ok(out) if out.status.success() => {
            too_many(&String::from_utf8_lossy(&out.stdout), MOST).into_iter().collect()
        }
        Ok(out) => vec![format!("`cargo tree` failed: {}", String::from_utf8_lossy(&out.stderr).trim_end())],
        Err(error) => vec![format!("cannot start `cargo tree`: {error}")],
    }
}

/// Counts the packages of `cargo tree --prefix none`, one a line, each as often as it is used.
fn too_many(tree: &str, most: usize) -> Option<Finding> {
    let package = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    let packages: BTreeSet<String> = tree.lines().map(package).filter(|name| !name.is_empty()).collect();
    let count = packages.len();
    if packages.is_empty() {
        return Some(format!("`cargo tree` names no package of {PACKAGE}"));
    }
    (count > most).then(|| {
        format!(
            "the main job builds {count} crates, more than {most}; see what was added: \
             cargo tree -p {PACKAGE} -e normal,build (if it is needed there, raise the number in \
             xtask/src/tidy/main_job.rs)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "examples v0.1.0 (/x)\na v1.0.0\nb v1.0.0 (proc-macro)\na v1.0.0 (*)\na v2.0.0\n\n";

    #[test]
    fn a_crate_too_many_is_found_and_each_counts_once() {
        assert_eq!(too_many(TREE, 4), None);
        assert!(too_many(TREE, 3).unwrap().starts_with("the main job builds 4 crates, more than 3"));
    }

    #[test]
    fn an_empty_answer_is_a_finding() {
        assert!(too_many("", 10).is_some());
    }
}
