//! The lists of mutants.

use std::fmt;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::mutants::FOLDER;
use crate::workspace::Workspace;

/// One deliberate break.
#[derive(Debug)]
pub(crate) struct Mutant {
    /// The list that it is in: a crate.
    list: String,
    /// The promises that it breaks: numbered invariants, or failure classes.
    pub(crate) breaks: Vec<String>,
    /// What it does, in words.
    pub(crate) what: String,
    /// The file that it changes, from the root.
    pub(crate) file: String,
    /// The text that it replaces, which that file has once.
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) judge: Judge,
}

/// The test that must reject a mutant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Judge {
    /// The crate, or `python`.
    pub(crate) package: String,
    /// `lib` for unit tests, `miri` for those under miri, the name of a file in `tests`, `compiler` where the code must not compile any more, or `pytest` for a test of
    /// the Python package.
    pub(crate) program: String,
    /// What the name of the test has in it, or the error of the compiler.
    pub(crate) filter: String,
    pub(crate) build: Build,
}

/// How the code is built that a test judges.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Build {
    /// With these features only; with all of them where none are named, as some have the tests.
    features: Option<Vec<String>>,
}

impl Build {
    /// The flags of cargo.
    pub(super) fn flags(&self) -> Vec<String> {
        match &self.features {
            None => vec!["--all-features".to_owned()],
            Some(only) => vec!["--no-default-features".to_owned(), format!("--features={}", only.join(","))],
        }
    }
}

/// Numbered invariants that no mutant breaks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Without {
    pub(crate) ids: Vec<String>,
    /// What stands in for a mutant, or why there is none.
    pub(crate) why: String,
    /// Where tests named `mutant_…` are that break them instead: how the paths of their files begin. Each of `ids` is cited there,
    /// beside such a test. A mutant of a list may break one of them too.
    pub(crate) models: Option<String>,
}

/// What one file says.
#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) mutants: Vec<Mutant>,
    pub(crate) without: Vec<Without>,
}

/// A file: the tests of the crate that it is named after judge, unless an entry says otherwise.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    mutant: Vec<Entry>,
    #[serde(default)]
    without: Vec<Without>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    breaks: Vec<String>,
    what: String,
    file: String,
    from: String,
    to: String,
    /// `PROGRAM NAME`, `compiler`, or `compiler ERROR`.
    test: String,
    package: Option<String>,
    features: Option<Vec<String>>,
}

impl Mutant {
    /// Whether `name` is its crate, that of its judge, or a promise that it breaks.
    pub(super) fn is_of(&self, name: &str) -> bool {
        self.list == name || self.judge.package == name || self.breaks.iter().any(|promise| promise == name)
    }

    /// Its promises and what it does.
    pub(crate) fn title(&self) -> String {
        format!("{}: {}", self.breaks.join(", "), self.what)
    }

    /// `text` with the break in it, or how often the text to replace is there, if not once.
    pub(crate) fn applied(&self, text: &str) -> Result<String, usize> {
        match text.matches(&self.from).count() {
            1 => Ok(text.replacen(&self.from, &self.to, 1)),
            other => Err(other),
        }
    }
}

impl Judge {
    pub(crate) fn is_compiler(&self) -> bool {
        self.program == "compiler"
    }

    /// Whether it is a unit test that miri runs, for what is undefined and not always wrong.
    pub(crate) fn is_miri(&self) -> bool {
        self.program == "miri"
    }

    pub(crate) fn is_pytest(&self) -> bool {
        self.program == "pytest"
    }

    /// The flags that select its program.
    pub(super) fn target(&self) -> Vec<&str> {
        match self.program.as_str() {
            "lib" | "miri" | "compiler" => vec!["--lib"],
            test => vec!["--test", test],
        }
    }
}

impl fmt::Display for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.package, self.program, self.filter)
    }
}

impl List {
    /// Whether a mutant breaks this promise.
    pub(crate) fn breaks(&self, id: &str) -> bool {
        self.mutants.iter().any(|mutant| mutant.breaks.iter().any(|promise| promise == id))
    }

    /// Adds another file.
    pub(crate) fn add(&mut self, other: Self) {
        self.mutants.extend(other.mutants);
        self.without.extend(other.without);
    }
}

/// The text of `NAME.toml`, whose mutants the crate NAME judges.
pub(crate) fn parse(name: &str, text: &str) -> Result<List> {
    let file: File = toml::from_str(text).with_context(|| format!("{FOLDER}/{name}.toml"))?;
    let mutants = file.mutant.into_iter().map(|entry| {
        let Entry { breaks, what, file, from, to, test, package, features } = entry;
        let (program, filter) = test.split_once(' ').unwrap_or((&test, ""));
        let judge = Judge {
            package: package.unwrap_or_else(|| name.to_owned()),
            program: program.to_owned(),
            filter: filter.to_owned(),
            build: Build { features },
        };
        Mutant { list: name.to_owned(), breaks, what, file, from, to, judge }
    });
    Ok(List { mutants: mutants.collect(), without: file.without })
}

/// All lists as one; mutants that one crate judges together, so that it is built as few times as can be.
pub(super) fn read(ws: &Workspace) -> Result<List> {
    let mut all = List::default();
    let files = std::fs::read_dir(ws.root.join(FOLDER)).with_context(|| format!("cannot list {FOLDER}"))?;
    for path in files.map(|entry| entry.map(|entry| entry.path())) {
        let path = path?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        all.add(parse(&name, &text)?);
    }
    let place = |name: &str| ws.members.iter().position(|member| member.name == name);
    // What is not a member of the workspace comes last.
    all.mutants.sort_by_key(|mutant| place(&mutant.judge.package).unwrap_or(usize::MAX));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "[[mutant]]\nbreaks = ['ZZ', 'YY']\nwhat = 'more'\nfile = 'a/src/lib.rs'\nfrom = 'a < b'\nto = 'a <= b'\n";

    #[test]
    fn an_entry_names_promises_text_and_judge() {
        let [one] = &parse("a", &format!("{ONE}test = 'lib less'")).unwrap().mutants[..] else { panic!() };
        assert!(one.is_of("a") && one.is_of("YY") && !one.is_of("XX"));
        assert_eq!((one.title(), one.judge.to_string()), ("ZZ, YY: more".into(), "a lib less".into()));
        assert_eq!(one.applied("if a < b {").as_deref(), Ok("if a <= b {"));
        assert_eq!((one.applied(""), one.applied("a < b < a < b")), (Err(0), Err(2)));
        assert_eq!(one.judge.target(), ["--lib"]);
    }

    #[test]
    fn another_crate_or_the_compiler_may_judge() {
        let of = |test: &str| parse("a", &format!("{ONE}{test}")).unwrap().mutants.remove(0).judge;
        assert_eq!(of("test = 'proc_a dies'\npackage = 'b'").to_string(), "b proc_a dies");
        assert_eq!(of("test = 'proc_a dies'").target(), ["--test", "proc_a"]);
        assert!(of("test = 'compiler'").is_compiler() && of("test = 'pytest test_a'").is_pytest());
        let [one] = &parse("a", &format!("{ONE}test = 'lib x'\npackage = 'b'")).unwrap().mutants[..] else {
            panic!()
        };
        assert!(one.is_of("a") && one.is_of("b") && !one.is_of("c"));
        assert!(parse("a", &format!("{ONE}tset = 'lib x'")).is_err());
    }

    #[test]
    fn a_test_may_be_built_with_some_features() {
        let of = |build: &str| {
            let text = format!("{ONE}test = 'lib x'\n{build}");
            parse("a", &text).unwrap().mutants.remove(0).judge.build.flags()
        };
        assert_eq!(of(""), ["--all-features"]);
        assert_eq!(of("features = []"), ["--no-default-features", "--features="]);
        assert_eq!(of("features = ['b', 'c']")[1], "--features=b,c");
    }

    #[test]
    fn what_has_no_mutant_stands_beside_those_that_have() {
        let mut all = parse("a", &format!("{ONE}test = 'lib less'")).unwrap();
        all.add(parse("b", "[[without]]\nids = ['XX']\nwhy = 'a model'").unwrap());
        assert!(all.breaks("YY") && !all.breaks("XX"));
        assert_eq!((all.mutants.len(), all.without[0].why.as_str()), (1, "a model"));
        assert!(parse("b", "[[without]]\nids = ['XX']").is_err());
    }
}
