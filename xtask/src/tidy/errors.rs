//! docs/errors.md and the sources in step. A section `## crate` lists the texts of that crate's errors: each row has a text, with
//! `…` for what is filled in, and the test that provokes it: a function in Rust or Python, or a program in C. A text is what an
//! `#[error]` says, and every other string of four words or more outside of tests; a row of one that is not an error by itself
//! says what it is instead of a test, and so does a row whose text is a file or folder of the crate, for all that these say.
//!
//! Every crate has a section that says anything, and so has what is not a crate and speaks to users as well: [`BESIDE`].

use std::collections::BTreeSet;

use crate::tidy::{Finding, Tree, numbered, tests_begin};

const FILE: &str = "docs/errors.md";
/// Folders outside of the sources of crates with a section by their path.
const BESIDE: [&str; 2] = ["collectives/examples/coll_perf", PYTHON];
/// Its texts reach users through Python alone, and so are provoked there.
const PYTHON: &str = "bindings/python";
/// Crates that speak to nobody but those who work on this repository: what measures, and the doubles and programs of tests.
const LEFT_OUT: [&str; 5] =
    ["bench-support", "cann-sim", "cann-sim-ascendcl", "cann-sim-hccl", "worker-chaos"];
/// How the second cell begins where no test stands in it.
const INSTEAD: [&str; 3] = ["part of ", "not an error: ", "not provoked: "];
/// A string with fewer words is a name or a fragment.
const WORDS: usize = 4;
/// Characters that a test and a text have in common: some words, and not one that many texts have.
const COMMON: usize = 14;
/// The longest piece of a text that is found in a test has more characters than a comma and a word such as `at`.
const SHORTEST: usize = 4;
/// What stands before a string that is for the reader of the source.
const FOR_READERS: [&str; 10] = [
    "expect(",
    "panic!(",
    "unreachable!(",
    "reason = ",
    "must_use = ",
    "debug!(",
    "info!(",
    "warn!(",
    "trace!(",
    "error!(",
];

struct Row<'t> {
    at: usize,
    of: &'t str,
    text: String,
    by: &'t str,
}

pub(super) fn in_step(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let rows = rows(tree.text(FILE));
    let members = tree.ws.members.iter().map(|member| (member.name.as_str(), member.dir.as_str()));
    let held: Vec<_> =
        members.chain(BESIDE.map(|dir| (dir, dir))).filter(|(of, _)| !LEFT_OUT.contains(of)).collect();
    let strangers: BTreeSet<&str> =
        rows.iter().map(|row| row.of).filter(|of| held.iter().all(|(name, _)| name != of)).collect();
    findings.extend(
        strangers.iter().map(|of| format!("{FILE}: `{of}` is not a crate, or not one of those held")),
    );
    for (of, dir) in held {
        let rows = || rows.iter().filter(|row| row.of == of);
        let (whole, listed): (BTreeSet<&str>, BTreeSet<&str>) =
            rows().map(|row| row.text.as_str()).partition(|text| place(text).is_some());
        let mut found = BTreeSet::new();
        for (path, texts) in sources(tree, of, dir) {
            let inside = &path[dir.len() + 1..];
            let mut wholes =
                whole.iter().filter(|row| place(row).is_some_and(|place| inside.starts_with(place)));
            if let Some(row) = wholes.next() {
                found.insert((*row).to_owned());
                continue;
            }
            for (at, said) in texts {
                if !listed.contains(said.as_str()) {
                    findings.push(format!("{path}:{at}: not in {FILE}: | {} | `test` |", escaped(&said)));
                }
                found.insert(said);
            }
        }
        let gone = rows().filter(|row| !found.contains(&row.text));
        findings.extend(gone.map(|row| format!("{FILE}:{}: {of} does not say this: {}", row.at, row.text)));
        let tested = rows().filter(|row| !INSTEAD.iter().any(|start| row.by.starts_with(start)));
        let wrong = tested.filter_map(|row| Some(format!("{FILE}:{}: {}", row.at, not_provoked(tree, row)?)));
        findings.extend(wrong);
    }
    findings
}

/// The file or folder that a row is about as a whole.
fn place(text: &str) -> Option<&str> {
    let path = text.strip_prefix('`')?.strip_suffix('`')?;
    (path.ends_with('/') || [".rs", ".py", ".c"].iter().any(|end| path.ends_with(end))).then_some(path)
}

type Texts = Vec<(usize, String)>;

/// The sources of a section, each with its texts.
fn sources<'t>(tree: &'t Tree<'_>, of: &str, dir: &str) -> Vec<(&'t str, Texts)> {
    let texts = |path: &str, text: &str| {
        let inside = path.strip_prefix(dir)?.strip_prefix('/')?;
        let (folder, _) = inside.split_once('/').unwrap_or_default();
        let whole = BESIDE.contains(&of) && !["tests", "benches", "examples"].contains(&folder);
        match path.rsplit_once('.')?.1 {
            "rs" if whole || folder == "src" => {
                let test_file = path.ends_with("/tests.rs") || path.contains("/tests/");
                let source = &text[..if test_file { 0 } else { tests_begin(path, text) }];
                Some(error_texts(source, strings(source)))
            }
            "py" if whole => Some(error_texts(text, python_strings(text))),
            "c" if folder == "c" => {
                let said = strings(text).into_iter().map(|(start, at, said)| (start, at, conversions(&said)));
                Some(error_texts(text, said.collect()))
            }
            _ => None,
        }
    };
    tree.files.iter().filter_map(|(path, text)| Some((path.as_str(), texts(path, text)?))).collect()
}

/// Why no test provokes the text of this row and compares it.
fn not_provoked(tree: &Tree<'_>, row: &Row<'_>) -> Option<String> {
    let Some(name) = row.by.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
        return Some(format!("name the test in backticks, or begin with one of {INSTEAD:?}"));
    };
    if name.ends_with(".c") || name.ends_with(".cpp") {
        let end = format!("/tests/c/{name}");
        let file = tree.files.iter().find(|(path, _)| path.ends_with(&end));
        let Some((_, text)) = file else { return Some(format!("there is no test {name}")) };
        let compared = strings(text).iter().any(|(_, _, said)| shares(&plain(said), &row.text));
        return (!compared).then(|| format!("no string of {name} is in this text"));
    }
    let in_python = format!("def {name}(");
    let mut scripts = tree.under(PYTHON, ".py").filter(|(_, text)| text.contains(&in_python));
    if let Some((_, text)) = scripts.next() {
        let compared = python_strings(text).iter().any(|(_, _, said)| shares(&plain(said), &row.text));
        return (!compared).then(|| format!("no string of {name}'s file is in this text"));
    }
    if row.of == PYTHON {
        return Some(format!("there is no test {name} in Python, where this text is said"));
    }
    let declared = format!("fn {name}(");
    let mut files = tree
        .rust()
        .filter_map(|(path, text)| Some(&text[tests_begin(path, text)..]).filter(|t| t.contains(&declared)));
    let Some(first) = files.next() else { return Some(format!("there is no test {name}")) };
    let compares = |tests: &str| strings(tests).iter().any(|(_, _, said)| shares(&plain(said), &row.text));
    let compared = compares(first) || files.any(compares);
    (!compared).then(|| format!("no string of {name}'s file is in this text"))
}

/// Whether a string of a test is a piece of a text, or has the longest piece of it.
fn shares(said: &str, text: &str) -> bool {
    let trim = |piece: &str| piece.trim_matches([' ', ';', ':', ',', '`', '(', ')']).to_owned();
    let pieces: Vec<&str> = text.split('…').collect();
    let longest = pieces.iter().map(|piece| trim(piece)).max_by_key(|piece| piece.chars().count());
    let of_text = said
        .split('…')
        .map(trim)
        .any(|piece| piece.chars().count() >= COMMON && pieces.iter().any(|whole| whole.contains(&piece)));
    of_text || longest.is_some_and(|longest| longest.chars().count() >= SHORTEST && said.contains(&longest))
}

fn rows(text: &str) -> Vec<Row<'_>> {
    let (mut of, mut rows) = ("", Vec::new());
    for (at, line) in numbered(text) {
        if let Some(name) = line.strip_prefix("## ") {
            of = name.trim();
        }
        let cells = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |"));
        let Some((said, by)) = cells.and_then(|cells| cells.rsplit_once(" | ")) else { continue };
        if said != "text" && !of.is_empty() {
            rows.push(Row { at, of, text: said.replace("\\|", "|"), by });
        }
    }
    rows
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The texts of errors in a source, with their lines.
fn error_texts(source: &str, strings: Vec<(usize, usize, String)>) -> Texts {
    let mut texts = Vec::new();
    for (start, at, said) in strings {
        let before = source[..start].trim_end();
        let statement = &before[before.rfind([';', '{', '}']).map_or(0, |end| end + 1)..];
        let asserts = ["assert!(", "assert_eq!(", "assert_ne!(", "doc = concat!("]
            .iter()
            .any(|mark| statement.contains(mark));
        if asserts || FOR_READERS.iter().any(|mark| before.ends_with(mark.trim_end())) {
            continue;
        }
        let of_error = before.ends_with("#[error(");
        let text = plain(&said);
        let words = text.split(' ').filter(|word| word.chars().any(char::is_alphabetic)).count();
        let all_words = text.split_whitespace().count();
        if (of_error && words > 0) || (all_words >= WORDS && words > 1) {
            texts.push((at, text));
        }
    }
    texts
}

/// A string as it is listed: `…` for what is filled in, and one space where there are several.
fn plain(said: &str) -> String {
    let mut text = String::new();
    let mut chars = said.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' | '}' if chars.peek() == Some(&c) => {
                chars.next();
                text.push(c);
            }
            '{' => {
                chars.by_ref().find(|c| *c == '}');
                text.push('…');
            }
            c => text.push(c),
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The strings of a source: where each starts, its line, and what it says.
fn strings(source: &str) -> Vec<(usize, usize, String)> {
    let (bytes, mut found) = (source.as_bytes(), Vec::new());
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &source[at..];
        let (start, first) = (at, line);
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        let word_before = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        if let Some((open, close)) = (!word_before).then(|| raw(rest)).flatten() {
            let inside = &rest[open..];
            let end = inside.find(&close).unwrap_or(inside.len());
            found.push((start, first, inside[..end].to_owned()));
            let whole = (open + end + close.len()).min(rest.len());
            line += rest[..whole].matches('\n').count();
            at += whole;
        } else if rest.starts_with('"') {
            let (said, whole) = quoted(rest);
            found.push((start, first, said));
            line += rest[..whole].matches('\n').count();
            at += whole;
        } else if rest.starts_with('\'') {
            // A character, or else a lifetime.
            let mut chars = rest.char_indices().skip(1);
            let escape = chars.next().is_some_and(|(_, c)| c == '\\');
            let close = if escape {
                rest[2..].find('\'').map(|end| end + 3).filter(|end| *end < 13)
            } else {
                chars.next().filter(|(_, c)| *c == '\'').map(|(end, _)| end + 1)
            };
            at += close.unwrap_or(1).max(1);
            // `'\''` ends one later.
            if rest.starts_with(r"'\''") {
                at = start + 4;
            }
        } else {
            line += usize::from(bytes[at] == b'\n');
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    found
}

/// A format of C as one of Rust.
fn conversions(said: &str) -> String {
    let mut pieces = said.split('%');
    let mut text = pieces.next().unwrap_or("").to_owned();
    for piece in pieces {
        let end =
            piece.find(|c: char| c.is_ascii_alphabetic() && !"lzjht".contains(c)).map_or(0, |end| end + 1);
        text.push_str("{}");
        text.push_str(&piece[end..]);
    }
    text
}

/// The strings of a source in Python, without those that document, and with those that stand side by side as one.
fn python_strings(source: &str) -> Vec<(usize, usize, String)> {
    let mut found: Vec<(usize, usize, String)> = Vec::new();
    let (mut at, mut line, mut last_end) = (0, 1, usize::MAX);
    while at < source.len() {
        let rest = &source[at..];
        if rest.starts_with('#') {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| rest.starts_with(quote));
        let Some(quote) = quote else {
            line += usize::from(rest.starts_with('\n'));
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        let (mut said, mut end) = (String::new(), quote.len());
        while end < rest.len() && !rest[end..].starts_with(quote) {
            let c = rest[end..].chars().next().unwrap_or(' ');
            end += c.len_utf8();
            if c == '\\' {
                let next = rest[end..].chars().next().unwrap_or(' ');
                said.push(if next == 'n' { ' ' } else { next });
                end += next.len_utf8();
            } else {
                said.push(c);
            }
        }
        end = (end + quote.len()).min(rest.len());
        let between =
            source.get(last_end..at).map(|between| between.trim_matches([' ', '\n', 'f', 'r', 'b']));
        match found.last_mut().filter(|_| between == Some("")) {
            Some((_, _, before)) => before.push_str(&said),
            None if quote.len() == 1 => found.push((at, line, said)),
            None => {}
        }
        line += rest[..end].matches('\n').count();
        at += end;
        last_end = at;
    }
    found
}

/// Length of the opening of a raw string, and its closing.
fn raw(rest: &str) -> Option<(usize, String)> {
    let after = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let marks = after.len() - after.trim_start_matches('#').len();
    after[marks..]
        .starts_with('"')
        .then(|| (rest.len() - after.len() + marks + 1, format!("\"{}", "#".repeat(marks))))
}

/// What a string in quotes says, and its length in the source.
fn quoted(rest: &str) -> (String, usize) {
    let (mut said, mut chars) = (String::new(), rest.char_indices().skip(1).peekable());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (said, at + 1),
            '\\' => match chars.next() {
                Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                Some((_, 'n' | 't' | 'r')) => said.push(' '),
                Some((_, c)) => said.push(c),
                None => {}
            },
            c => said.push(c),
        }
    }
    (said, rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::findings;

    const SOURCE: (&str, &str) = (
        "a/src/error.rs",
        "/// Not \"this comment at all\".\nenum Error<'a> {\n#[error(\"{what} is null\")] Null,\n#[error(\n\"a tensor of {} bytes does \\\n   not fit \\\"here\\\"\")] Large, }\n\
         fn f() { g('\"'); h(\"short one\").expect(\"it is always there, you know\"); let text = format!(\"there is no chip {x}; ask for one\"); }\n\
         #[cfg(test)]\nmod tests { const A: &str = \"not a text of an error\"; }\n",
    );
    const TEST: (&str, &str) = (
        "a/tests/errors.rs",
        "#[test]\nfn all_of_them() { said(\"input is null\"); said(\"bytes does not fit\"); said(\"there is no chip 7; ask\"); }",
    );
    const DOC: &str = "# Errors\n\n## a\n\n| text | provoked by |\n|---|---|\n| … is null | `all_of_them` |\n\
        | a tensor of … bytes does not fit \"here\" | `all_of_them` |\n| there is no chip …; ask for one | `all_of_them` |\n";

    fn found(doc: &str) -> Vec<Finding> {
        findings(&[(FILE, doc), SOURCE, TEST], in_step)
    }

    #[test]
    fn a_list_that_has_every_text_and_its_test_passes() {
        assert_eq!(found(DOC), Vec::<String>::new());
        let instead =
            DOC.replace("chip …; ask for one | `all_of_them`", "chip …; ask for one | part of another");
        assert_eq!(found(&instead), Vec::<String>::new());
    }

    #[test]
    fn a_text_that_is_missing_or_gone_is_found() {
        let line = "| there is no chip …; ask for one | `all_of_them` |\n";
        assert_eq!(
            found(&DOC.replace(line, "")),
            ["a/src/error.rs:7: not in docs/errors.md: | there is no chip …; ask for one | `test` |"]
        );
        assert_eq!(
            found(&DOC.replace("no chip …; ask", "no chip …, ask"))[1],
            "docs/errors.md:9: a does not say this: there is no chip …, ask for one"
        );
        assert_eq!(
            found(&DOC.replace("## a", "## b")),
            [
                "docs/errors.md: `b` is not a crate, or not one of those held",
                "a/src/error.rs:3: not in docs/errors.md: | … is null | `test` |",
                "a/src/error.rs:5: not in docs/errors.md: | a tensor of … bytes does not fit \"here\" | `test` |",
                "a/src/error.rs:7: not in docs/errors.md: | there is no chip …; ask for one | `test` |",
            ]
        );
    }

    /// A row for a file or folder stands for all that it says; asserts are for readers of the source.
    #[test]
    fn a_file_is_listed_as_a_whole_or_by_its_texts() {
        let whole = "# Errors\n\n## a\n\n| `src/error.rs` | not an error: a picture |\n";
        assert_eq!(found(whole), Vec::<String>::new());
        assert_eq!(found(&whole.replace("src/error.rs", "src/")), Vec::<String>::new());
        let other = found(&whole.replace("src/error.rs", "src/other.rs"));
        assert_eq!((other.len(), &*other[3]), (4, "docs/errors.md:5: a does not say this: `src/other.rs`"));
        let asserts = "fn f() { assert!(x < 3, \"x is more than there are\"); debug_assert_eq!(1, 2, \"these two are not the same\"); }";
        assert!(error_texts(asserts, strings(asserts)).is_empty());
    }

    #[test]
    fn texts_in_c_and_python_are_found_and_their_tests() {
        let dir = "bindings/python/";
        let source = format!("{dir}python/chipcomm/a.py");
        let test = format!("{dir}tests/test_a.py");
        let doc = "## bindings/python\n\n| rank is … of …; a rank is a number | `test_ranks` |\n";
        let files = [
            (FILE, doc),
            (
                &*source,
                "\"\"\"Says nothing of what it is.\"\"\"\n# 'nor does this one here'\nraise Bad(\n    f\"rank is {rank!r} of {n}; \"\n    \"a rank is a number\")\n",
            ),
            (&*test, "def test_ranks():\n    says('a rank is a number')\n"),
        ];
        assert_eq!(findings(&files, in_step), Vec::<String>::new());
        let without = [files[0], files[1], (&*test, "def test_ranks():\n    says('nothing')\n")];
        assert_eq!(
            findings(&without, in_step),
            ["docs/errors.md:3: no string of test_ranks's file is in this text"]
        );
        let in_rust = doc.replace("test_ranks", "all_of_them");
        let elsewhere = [
            (FILE, &*in_rust),
            files[1],
            ("a/tests/errors.rs", "fn all_of_them() { said(\"a rank is a number\"); }"),
        ];
        assert_eq!(
            findings(&elsewhere, in_step),
            ["docs/errors.md:3: there is no test all_of_them in Python, where this text is said"]
        );
        assert_eq!(conversions("rank %d of %-4llu: %s"), "rank {} of {}: {}");
        let c = ("a/c/say.c", "void f(void) { fprintf(stderr, \"rank %d of %d: %s\\n\", 1, 2, \"x\"); }");
        assert_eq!(
            findings(&[c], in_step),
            ["a/c/say.c:1: not in docs/errors.md: | rank … of …: … | `test` |"]
        );
    }

    #[test]
    fn a_test_that_is_not_there_or_compares_nothing_is_found() {
        assert_eq!(
            found(&DOC.replace("one | `all_of_them`", "one | `none_of_them`")),
            ["docs/errors.md:9: there is no test none_of_them"]
        );
        assert!(found(&DOC.replace("one | `all_of_them`", "one | all_of_them"))[0].contains("in backticks"));
        let test =
            (TEST.0, "#[test]\nfn all_of_them() { said(\"input is null\"); said(\"bytes does not fit\"); }");
        let found = findings(&[(FILE, DOC), SOURCE, test], in_step);
        assert_eq!(found, ["docs/errors.md:9: no string of all_of_them's file is in this text"]);
    }
}
