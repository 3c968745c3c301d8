//! The lists of mutants (`xtask/mutants/*.toml`) and the code: each mutant still has a place, a promise and a test.

use crate::mutants::{FOLDER, List, parse};
use crate::python;
use crate::tidy::invariants::{definitions, ids};
use crate::tidy::{Finding, Tree};

pub(super) fn in_step(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut all = List::default();
    for (path, text) in tree.under(FOLDER, ".toml") {
        let name = path.rsplit('/').next().and_then(|name| name.strip_suffix(".toml")).unwrap_or_default();
        let list = match parse(name, text) {
            Ok(list) => list,
            Err(error) => {
                findings.push(format!("{error:#}"));
                continue;
            }
        };
        for mutant in &list.mutants {
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
            if judge.is_pytest() {
                let test = format!("def {}", judge.filter);
                let tests = format!("{}/tests", python::FOLDER);
                if judge.filter.is_empty() || !tree.under(&tests, ".py").any(|(_, text)| text.contains(&test))
                {
                    find(format!("no test `{}` below {tests}", judge.filter));
                }
                continue;
            }
            let Some(member) = tree.ws.member(&judge.package) else {
                find(format!("no crate `{}`", judge.package));
                continue;
            };
            let of_it = |path: &str| match judge.program.as_str() {
                "lib" | "miri" => path.starts_with(&format!("{}/src/", member.dir)),
                program => path.starts_with(&format!("{}/tests/{program}", member.dir)),
            };
            let holds =
                |(path, text): (&str, &str)| of_it(path) && text.contains(&format!("fn {}", judge.filter));
            if !judge.is_compiler() && (judge.filter.is_empty() || !tree.rust().any(holds)) {
                find(format!("no test `{}` in {} of {}", judge.filter, judge.program, judge.package));
            }
        }
        all.add(list);
    }
    findings.extend(without(tree, &all));
    findings
}

/// Every invariant has a mutant, or the reason why it has none.
fn without<'a>(tree: &'a Tree<'_>, all: &'a List) -> impl Iterator<Item = Finding> {
    let listed = || all.without.iter().flat_map(|without| &without.ids);
    let neither =
        definitions(tree).filter(move |(id, _)| !all.breaks(id) && listed().all(|other| other != id));
    let neither = neither.map(|(id, place)| {
        format!("{place}: no mutant breaks {id}; a list in {FOLDER} has one, or says why not")
    });
    let no_models = all.without.iter().filter(|without| without.models.is_none());
    let both = no_models.flat_map(|without| &without.ids).filter(|id| all.breaks(id));
    let both = both.map(|id| format!("{FOLDER}: {id} has a mutant, and stands among those without"));
    let gone = listed().filter(|id| !promised(tree, id));
    let gone = gone.map(|id| format!("{FOLDER}: no crate doc has {id}, which stands among those without"));
    let modelled = all.without.iter().filter_map(|without| Some((without.models.as_deref()?, &without.ids)));
    let unmodelled = modelled.flat_map(move |(models, ids)| {
        ids.iter().filter(move |id| !cited_by_a_mutant(tree, models, id)).map(move |id| {
            format!("{FOLDER}: no test `mutant_…` in {models}* cites {id}; its comment, without an empty line between, does")
        })
    });
    neither.chain(both).chain(gone).chain(unmodelled)
}

/// Whether a file whose path begins with `models` has a paragraph with this id and a test that is named as a mutant.
fn cited_by_a_mutant(tree: &Tree<'_>, models: &str, id: &str) -> bool {
    let has = |paragraph: &str| paragraph.contains(" mutant_") && ids(paragraph).any(|cited| cited == id);
    tree.rust().any(|(path, text)| path.starts_with(models) && text.split("\n\n").any(has))
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
    fn an_invariant_has_a_mutant_or_the_reason_why_not_and_never_both() {
        let of = |list: &str| findings(&[("a/src/lib.rs", CODE), ("xtask/mutants/a.toml", list)], in_step);
        let reason = concat!("[[without]]\nids = ['ZZ", "-1']\nwhy = 'a model has it'\n");
        assert_eq!(of(reason), Vec::<String>::new());
        assert!(of("")[0].contains("no mutant breaks"));
        let entry =
            concat!("[[mutant]]\nbreaks = ['ZZ", "-1']\nwhat = 'x'\nfile = 'a/src/lib.rs'\nfrom = 'a < b'\n");
        let both = format!("{reason}{entry}to = 'a > b'\ntest = 'lib less_is'");
        assert!(of(&both).len() == 1 && of(&both)[0].contains("stands among those without"));
        let gone = reason.replace("-1", "-2");
        assert!(of(&gone).iter().any(|finding| finding.contains("no crate doc has")));
    }

    #[test]
    fn models_that_stand_for_mutants_cite_each_invariant_beside_a_mutant() {
        let list = concat!("[[without]]\nids = ['ZZ", "-1']\nwhy = 'models'\nmodels = 'a/tests/loom_'\n");
        let of = |models: &str| {
            findings(
                &[
                    ("a/src/lib.rs", CODE),
                    ("xtask/mutants/a.toml", list),
                    ("a/tests/loom_a.rs", models),
                    ("a/tests/proc_a.rs", concat!("// ZZ", "-1\nfn mutant_x() {}")),
                ],
                in_step,
            )
        };
        assert_eq!(of(concat!("/// ZZ", "-1\n#[test]\nfn mutant_x() {}")), Vec::<String>::new());
        assert_eq!(of(concat!("// ZZ", "-1: less.\nmutants! {\n    mutant_x: y;\n}")), Vec::<String>::new());
        for text in [
            concat!("//! ZZ", "-1\n\nfn mutant_x() {}"),
            concat!("/// ZZ", "-1\nfn model_x() {}"),
            concat!("/// ZZ", "-12\nfn mutant_x() {}"),
        ] {
            let found = of(text);
            assert!(found.iter().any(|finding| finding.contains("no test `mutant_")), "{text}: {found:?}");
        }
        let entry =
            concat!("[[mutant]]\nbreaks = ['ZZ", "-1']\nwhat = 'x'\nfile = 'a/src/lib.rs'\nfrom = 'a < b'\n");
        let both = format!("{list}{entry}to = 'a > b'\ntest = 'lib less_is'");
        let model = ("a/tests/loom_a.rs", concat!("/// ZZ", "-1\nfn mutant_x() {}"));
        let found = findings(&[("a/src/lib.rs", CODE), ("xtask/mutants/a.toml", &both), model], in_step);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_test_in_python_is_looked_for_there() {
        let of = |test: &str| {
            let entry = concat!(
                "[[mutant]]\nbreaks = ['ZZ",
                "-1']\nwhat = 'x'\nfile = 'a/src/lib.rs'\nfrom = 'a < b'\n"
            );
            let entry = format!("{entry}to = 'a > b'\ntest = '{test}'");
            let python = "def test_less(comm):\n    pass\n";
            findings(
                &[
                    ("a/src/lib.rs", CODE),
                    ("xtask/mutants/python.toml", &entry),
                    ("bindings/python/tests/test_a.py", python),
                ],
                in_step,
            )
        };
        assert_eq!(of("pytest test_less"), Vec::<String>::new());
        assert!(of("pytest test_more")[0].contains("no test `test_more`"));
        assert!(of("pytest")[0].contains("no test"));
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
            assert!(found.iter().any(|finding| finding.contains(why)), "{new}: {found:?}");
        }
    }
}
