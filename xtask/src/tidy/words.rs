//! One vocabulary: the field's words, and the glossary of docs/ARCHITECTURE.md. Words that this codebase
//! once used in a sense of its own stay out, each with the word that took its place.

use crate::tidy::{Finding, Tree};

/// Files that the rule reads.
const ENDS: [&str; 9] = [".rs", ".md", ".h", ".hpp", ".c", ".cc", ".cpp", ".py", ".toml"];
/// Files that must name the old words: this one, and the record of what was renamed.
const EXCEPT: [&str; 2] = ["xtask/src/tidy/words.rs", "CHANGELOG.md"];
/// Where an old word is right: the name of a variable that a user may still have, in its refusal.
const ALLOWED: [&str; 1] = ["CHIPCOMM_HAND"];

/// Words in prose and parts of identifiers (`exec_hand`, `HandId`), in any case, in files and in their names.
const WORDS: &[(&[&str], &str)] = &[
    (&["hand", "hands"], "child, child process; for a user: chip 0, sub-worker 1"),
    (&["meeting", "meetings"], "rendezvous"),
    (&["guest", "guests"], "joiner"),
    (&["seat", "seats", "seated"], "slot"),
    (&["greet", "greets", "greeting"], "accept"),
    (&["hear", "hears", "heard"], "receive"),
    (&["farewell"], "abort"),
    (&["card", "cards"], "rank block (memory), device (an NPU)"),
    (&["letter", "letters"], "broadcast, message"),
    (&["notebook", "notebooks"], "inbox"),
    (&["topic", "topics"], "tag"),
    (&["leash"], "parent-death pipe"),
    (&["voice", "voices"], "liveness pipe"),
    (&["lifeline", "lifelines"], "process watch"),
    (&["bell", "bells", "rung"], "doorbell, notify"),
    (&["board", "boards"], "control block"),
    (&["handover", "handovers"], "launch spec"),
    (&["teach", "teaches", "taught"], "register"),
    (&["verdict", "verdicts"], "outcome, death word, loom error: one name each"),
    (&["ledger", "ledgers"], "allocation table"),
    (&["nap", "naps", "napped", "napping"], "poll interval, sleep"),
    (&["glance", "glances"], "check, poll"),
    (&["bed"], "futex model"),
    (&["scene", "scenes"], "scenario"),
    (&["diary"], "log"),
    (&["carve", "carves", "carved", "carving"], "lay out"),
    (&["nonsense"], "malformed"),
];

/// Identifiers whose word is plain English elsewhere, in this spelling only.
const NAMES: &[(&[&str], &str)] = &[
    (&["Note", "Notes", "NOTE_BYTES"], "Message"),
    (&["ChipPost", "ChipOrders"], "ChipRole, ChipLaunch"),
    (&["Way", "NoWay"], "ShareMode"),
    (&["Reach"], "ReachableRanges"),
    (&["Home"], "HostSlot"),
    (&["LOOK"], "POLL_INTERVAL"),
    (&["Learn", "learn_program"], "Register"),
    (&["two_lives", "whole_life", "at_the_door"], "a name that says what it does"),
];

/// Turns of phrase, in lower case.
const PHRASES: &[(&[&str], &str)] = &[
    (&["is told", "are told", "was told", "were told", "told of"], "is reported, learns, receives"),
    (&["who sees it", "of whoever"], "name the process or the caller"),
    (&["makes sense", "make sense", "makes no sense"], "is valid, is malformed"),
    (&["rings the", "ring the bell", "ringing"], "notifies"),
    (&["in vain"], "without success"),
];

/// Phrases as they may stand.
const PHRASES_ALLOWED: [&str; 1] = ["told apart"];

/// Words inside a folder in which they had a meaning of their own.
const WITHIN: &[(&str, &[&str], &str)] = &[("comm-hccl/", &["lane", "lanes"], "vendor thread")];

/// `17 is no data type` is not plain English, and `there is no data type` is.
const IS_NO: &[(&[&str], &str)] = &[(&[" is no ", " are no "], "is not a …, unknown …, malformed …")];
/// What may follow.
const AFTER_IS_NO: [&str; 9] =
    ["longer", "more", "less", "fewer", "later", "earlier", "better", "worse", "different"];

pub(super) fn plain(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let read = |path: &str| ENDS.iter().any(|end| path.ends_with(end)) && !EXCEPT.contains(&path);
    for (path, text) in tree.files.iter().filter(|(path, _)| read(path)) {
        findings.extend(hits(path, path).into_iter().map(|hit| format!("{path}: {}", hit.text())));
        for hit in hits(path, text) {
            let line = text[..hit.first].lines().count().max(1);
            let more = if hit.more > 0 { format!(" (and {} more)", hit.more) } else { String::new() };
            findings.push(format!("{path}:{line}{more}: {}", hit.text()));
        }
    }
    findings
}

/// One old word in a file.
struct Hit {
    word: &'static str,
    instead: &'static str,
    /// Where it stands first, just behind its start, and how often it follows.
    first: usize,
    more: usize,
}

impl Hit {
    fn text(&self) -> String {
        format!("`{}`; instead: {}", self.word.trim(), self.instead)
    }
}

/// What is found in a text.
fn hits(path: &str, text: &str) -> Vec<Hit> {
    let text = blanked(text, &ALLOWED);
    let lower = text.to_ascii_lowercase();
    let prose = blanked(&lower, &PHRASES_ALLOWED);
    let here = WITHIN.iter().filter(|(folder, ..)| path.starts_with(folder));
    let here = here.map(|(_, words, instead)| (*words, *instead));
    let mut hits = Vec::new();
    let mut search = |table: &[(&'static [&'static str], &'static str)],
                      find: &dyn Fn(&str) -> Vec<usize>| {
        for (words, instead) in table {
            for word in *words {
                if let [first, more @ ..] = &find(word)[..] {
                    hits.push(Hit { word, instead, first: first + 1, more: more.len() });
                }
            }
        }
    };
    let part = |word: &str| places(&lower, word, |start, end| is_part(&text, start, end));
    search(WORDS, &part);
    search(&here.collect::<Vec<_>>(), &part);
    search(NAMES, &|name| places(&text, name, |start, end| is_name(&text, start, end)));
    search(PHRASES, &|phrase| places(&prose, phrase, |_, _| true));
    search(IS_NO, &|phrase| places(&prose, phrase, |start, end| !is_plain(&prose, start, end)));
    hits
}

/// The text with the allowed ones taken out and everything else in its place.
fn blanked(text: &str, allowed: &[&str]) -> String {
    let blank = |text: String, allowed: &&str| text.replace(allowed, &" ".repeat(allowed.len()));
    allowed.iter().fold(text.to_owned(), blank)
}

fn places(text: &str, word: &str, counts: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let all = text.match_indices(word).map(|(at, _)| at);
    all.filter(|at| counts(*at, at + word.len())).collect()
}

/// Whether a word stands alone or is a part of an identifier: no small letter before or after, unless a
/// capital begins the next part.
fn is_part(text: &str, start: usize, end: usize) -> bool {
    let (before, after) = (text[..start].chars().next_back(), text[end..].chars().next());
    let (first, last) = (text[start..].chars().next(), text[..end].chars().next_back());
    let joined = |left: Option<char>, right: Option<char>| {
        let letters = left.is_some_and(char::is_alphabetic) && right.is_some_and(char::is_alphabetic);
        letters && !(left.is_some_and(char::is_lowercase) && right.is_some_and(char::is_uppercase))
    };
    !joined(before, first) && !joined(last, after)
}

/// Whether an identifier ends on both sides.
fn is_name(text: &str, start: usize, end: usize) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].ends_with(part) && !text[end..].starts_with(part)
}

/// `there is no list` and `is no longer`.
fn is_plain(prose: &str, start: usize, end: usize) -> bool {
    let next = prose[end..].split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    prose[..start].ends_with("there") || AFTER_IS_NO.contains(&next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::findings;

    fn found(line: &str) -> Vec<String> {
        findings(&[("a/src/lib.rs", line)], plain)
    }

    #[test]
    fn every_old_word_is_found_in_prose_and_in_identifiers() {
        for (words, instead) in WORDS {
            for word in *words {
                let capital = word[..1].to_uppercase() + &word[1..];
                for line in
                    [format!("// The {word}."), format!("fn a_{word}_b()"), format!("struct {capital}Id;")]
                {
                    let found = found(&line);
                    assert!(found.len() == 1 && found[0].contains(instead), "{line}: {found:?}");
                }
            }
        }
        for (names, instead) in NAMES {
            for name in *names {
                assert!(found(&format!("let x: {name} = y;"))[0].contains(instead), "{name}");
            }
        }
    }

    #[test]
    fn words_that_only_contain_an_old_word_pass() {
        for line in
            ["handle, beforehand", "a shorthand", "wildcard", "doorbell", "dashboard", "note that", "embed"]
        {
            assert_eq!(found(line), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn phrases_are_found_and_plain_english_is_not() {
        for line in ["17 is no data type", "bytes that are no frame", "the parent is told", "it Makes sense"]
        {
            assert_eq!(found(line).len(), 1, "{line}");
        }
        for line in [
            "there is no such file",
            "is no longer open",
            "they are told apart",
            "is not a frame",
            "is no",
            "Err(\"there is no x\")",
        ] {
            assert_eq!(found(line), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn names_of_files_count_and_other_files_do_not() {
        assert!(findings(&[("a/src/exec/hand.rs", "")], plain)[0].starts_with("a/src/exec/hand.rs: `hand`"));
        assert!(findings(&[("a/data.json", "hand")], plain).is_empty());
        assert!(findings(&[("CHANGELOG.md", "`Hands` is `Children`")], plain).is_empty());
    }

    #[test]
    fn a_word_may_be_out_of_place_in_one_folder_only() {
        assert_eq!(findings(&[("comm-hccl/src/a.rs", "the lane")], plain).len(), 1);
        assert_eq!(found("the lane"), Vec::<String>::new());
    }

    #[test]
    fn what_a_user_may_still_have_can_be_refused_by_name() {
        assert_eq!(found("const OLD: &str = \"CHIPCOMM_HAND\";"), Vec::<String>::new());
    }

    #[test]
    fn a_file_names_each_word_once() {
        assert_eq!(
            found("hand\nhand\nhand"),
            [
                "a/src/lib.rs:1 (and 2 more): `hand`; instead: child, child process; for a user: chip 0, sub-worker 1"
            ]
        );
    }
}
