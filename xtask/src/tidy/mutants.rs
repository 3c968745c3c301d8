//! The lists of mutants (`xtask/mutants/*.toml`) and the code: each mutant still has a place, a promise and a test.

use crate::mutants::{FOLDER, parse};
use crate::tidy::{Finding, Tree};

pub(super) fn in_step(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.under(FOLDER, ".toml") {
        let name = path.rsplit('/').next().and_then(|name| name.strip_suffix(".toml")).unwrap_or_default();
        let mutants = match parse(name, text) {
            Ok(mutants) => mutants,
            Err(error) => {
                findings.push(format!("{error:#}"));
                continue;
            }
        };
        for mutant in mutants {
            let mut find = |what: String| findings.push(format!("{path}: {}: {what}", mutant.title()));
            match mutant.applied(tree.text(&mutant.file)) {
                Ok(_) if mutant.from == mutant.to => find("it changes nothing".to_owned()),
                Ok(_) => {}
                Err(count) => {
                    find(format!("{} has the text to replace {count} times, not once", mutant.file))
                }
            }
            for promise in mutant.breaks.iter().filter(|promise| !promised(tree, promise)) {
                find(format!("no crate doc and no row of docs/FAILURES.md has {promise}"));
            }
            let judge = &mutant.judge;
            let Some(member) = tree.ws.member(&judge.package) else {
                find(format!("no crate `{}`", judge.package));
                continue;
            };
            let of_it = |path: &str| match judge.program.as_str() {
                "lib" => path.starts_with(&format!("{}/src/", member.dir)),
                program => path.starts_with(&format!("{}/tests/{program}", member.dir)),
            };
            let holds =
                |(path, text): (&str, &str)| of_it(path) && text.contains(&format!("fn {}", judge.filter));
            if !judge.is_compiler() && (judge.filter.is_empty() || !tree.rust().any(holds)) {
                find(format!("no test `{}` in {} of {}", judge.filter, judge.program, judge.package));
            }
        }
    }
    findings
}

/// Whether a crate doc, or the list of failures, says so.
fn promised(tree: &Tree<'_>, promise: &str) -> bool {
    let bold = format!("**{promise}**");
    tree.rust().any(|(_, text)| text.contains(&bold))
        || tree.text("docs/FAILURES.md").contains(&format!("| {promise} |"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::findings;

    const CODE: &str = concat!(
        "//! - **ZZ",
        "-1**: less.\nfn less() { a < b }\n#[cfg(test)]\nmod tests { fn less_is_less() {} }"
    );

    fn with(entry: &str) -> Vec<Finding> {
        let entry = format!("[[mutant]]\nwhat = 'x'\nfile = 'a/src/lib.rs'\n{entry}");
        findings(&[("a/src/lib.rs", CODE), ("xtask/mutants/a.toml", &entry)], in_step)
    }

    #[test]
    fn a_mutant_that_has_place_promise_and_test_passes() {
        let good = concat!("breaks = ['ZZ", "-1']\nfrom = 'a < b'\nto = 'a > b'\ntest = 'lib less_is'");
        assert_eq!(with(good), Vec::<String>::new());
        assert_eq!(with(&good.replace("lib less_is", "compiler")), Vec::<String>::new());
    }

    #[test]
    fn one_that_lost_its_place_its_promise_or_its_test_is_named() {
        let good = concat!("breaks = ['ZZ", "-1']\nfrom = 'a < b'\nto = 'a > b'\ntest = 'lib less_is'");
        for (old, new, why) in [
            ("a < b", "a == b", "0 times"),
            ("a < b", "less", "times"),
            ("a > b", "a < b", "changes nothing"),
            ("Z-", "Y-", "no crate doc"),
            ("less_is", "more_is", "no test"),
            ("lib", "proc_a", "no test"),
            ("test", "tset", "unknown field"),
        ] {
            let found = with(&good.replace(old, new));
            assert!(found.len() == 1 && found[0].contains(why), "{new}: {found:?}");
        }
    }
}
