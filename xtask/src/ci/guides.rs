//! The guides as a newcomer follows them: their files are written, their commands typed in order, and what these print is
//! compared with the page.
//!
//! What follows the language of a code block says what it is; a page shows nothing of it. `cpp file=PATH` is a file, and
//! `rust file:PATH` too, because rustdoc does not compile a block with `=` there;
//! `console run` has commands that must succeed, `console run exit=3` some of which the last ends with that code; a `text`
//! block right behind it has lines that they print, in that order. `…` in such a line stands for anything. Numbers of processes,
//! addresses and times are not compared, nor is the number of spaces.
//!
//! Commands are typed by the lane `readme`, those of a block `console run lane=mpi` by the lane `mpi`. A block with
//! `needs=PROGRAM` is passed over where that program is not installed.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::answers;
use crate::lane::Setting;
use crate::workspace::Workspace;

/// A block of a guide that does something.
#[derive(Debug, PartialEq, Eq)]
enum Step<'t> {
    File { path: &'t str, text: String },
    Commands { lines: Vec<&'t str>, exit: i32, lane: &'t str, needs: Option<&'t str> },
    Prints { lines: Vec<&'t str> },
}

/// The lane that types the commands of a block which names none.
pub(super) const LANE: &str = "readme";

/// The guides: pages of `docs` that have commands for the lane, by name.
fn pages(ws: &Workspace, lane: &str) -> Result<Vec<(String, String)>> {
    let folder = ws.root.join("docs");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut pages = Vec::new();
    for path in entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()? {
        if path.extension().is_some_and(|end| end == "md") {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            pages.push((name, text));
        }
    }
    let here = |step: &Step<'_>| matches!(step, Step::Commands { lane: of, .. } if *of == lane);
    pages.retain(|(_, text)| steps(text).iter().any(here));
    pages.sort();
    Ok(pages)
}

/// Follows every guide, as far as the lane goes. How many commands it typed, and the first thing that was not as the page says.
pub(crate) fn follow(setting: &Setting<'_>, lane: &str) -> Result<(usize, Option<String>)> {
    let (mut count, mut failure) = (0, None);
    for (name, text) in pages(setting.ws, lane)? {
        // Of the last block of commands; none where that was passed over.
        let mut printed = None;
        for step in steps(&text) {
            let wrong = match step {
                Step::File { path, text } => write(setting.ws, path, &text).map(|()| None)?,
                Step::Commands { lane: of, needs, .. } if of != lane || needs.is_some_and(is_missing) => {
                    printed = None;
                    None
                }
                Step::Commands { lines, exit, .. } => {
                    count += lines.len();
                    let (output, wrong) = type_in(setting, &lines, exit)?;
                    printed = Some(output);
                    wrong
                }
                Step::Prints { lines } => printed.as_ref().and_then(|printed| missing(&lines, printed)),
            };
            if let Some(wrong) = wrong {
                setting.console.line(&format!("docs/{name}: {wrong}"));
                failure = failure.or(Some(format!("docs/{name}: {wrong}")));
            }
        }
    }
    Ok((count, failure))
}

fn is_missing(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version");
    !answers(command)
}

fn write(ws: &Workspace, path: &str, text: &str) -> Result<()> {
    let path = ws.root.join(path);
    let written =
        path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&path, text));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// What Open MPI asks of a machine on which CI runs as root, with fewer cores than a page has ranks.
const MACHINE_OF_CI: [(&str, &str); 4] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
];

/// Types the lines into one shell, which ends at the first that fails.
fn type_in(setting: &Setting<'_>, lines: &[&str], exit: i32) -> Result<(Vec<String>, Option<String>)> {
    // A block that must fail is right when it does, and prints nothing but what its commands print.
    let script = "sh -ec \"$1\"; test $? -eq \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", &lines.join("\n"), &exit.to_string()]);
    command.current_dir(&setting.ws.root).env("CARGO_TERM_COLOR", "never");
    command.envs(MACHINE_OF_CI);
    let ended = setting.console.run_unseen(&mut command)?;
    let last = lines.last().copied().unwrap_or_default();
    let wrong = ended.failure.map(|_| format!("does not end with {exit}: {last}"));
    Ok((ended.lines, wrong))
}

/// The first line of the page that was not printed behind the ones before it.
pub(super) fn missing(lines: &[&str], printed: &[String]) -> Option<String> {
    let printed: Vec<String> = printed.iter().map(|line| plain(line)).collect();
    let mut from = 0;
    for line in lines {
        let wanted = plain(line);
        match printed[from..].iter().position(|line| fits(line, &wanted)) {
            Some(at) => from += at + 1,
            None => {
                return Some(format!("not printed: {}\nprinted:\n  {}", line.trim(), printed.join("\n  ")));
            }
        }
    }
    None
}

/// Whether the parts of `wanted` between its `…` are in the line in order, from its beginning to its end.
fn fits(line: &str, wanted: &str) -> bool {
    let mut parts = wanted.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// A line without what differs from run to run: `pid 71`, addresses, times, and the number of spaces.
fn plain(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut out = String::new();
    for (at, word) in words.iter().enumerate() {
        let of_process = at > 0 && words[at - 1].trim_start_matches('(') == "pid";
        let before_unit =
            words.get(at + 1).is_some_and(|next| UNITS.contains(&next.trim_end_matches([',', ';'])));
        let core = word.trim_end_matches([',', ';', ':', ')', '.']);
        let varies = of_process || before_unit && is_number(core) || is_time(core) || core.starts_with("0x");
        let shown = if varies { format!("#{}", &word[core.len()..]) } else { (*word).to_owned() };
        let _ = write!(out, "{}{shown}", if at == 0 { "" } else { " " });
    }
    out
}

const UNITS: [&str; 4] = ["ns", "µs", "ms", "s"];

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(|c| c.is_ascii_digit() || c == '.')
}

fn is_time(word: &str) -> bool {
    UNITS.iter().any(|unit| word.strip_suffix(unit).is_some_and(is_number))
}

/// The blocks of a page that do something, in order.
fn steps(text: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    let mut lines = text.lines();
    // Whether what stands directly before was a block of commands.
    let mut ran = false;
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            ran = ran && line.is_empty();
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let words: Vec<&str> = info.split(' ').collect();
        let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
        let now_ran = words.starts_with(&["console", "run"]);
        if let Some(path) = value("file=").or_else(|| value("file:")) {
            steps.push(Step::File { path, text: block.join("\n") + "\n" });
        } else if now_ran {
            let exit = value("exit=").and_then(|code| code.parse().ok()).unwrap_or(0);
            let lane = value("lane=").unwrap_or(LANE);
            steps.push(Step::Commands { lines: block, exit, lane, needs: value("needs=") });
        } else if ran && words == ["text"] {
            steps.push(Step::Prints { lines: block });
        }
        ran = now_ran;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Title\n\n```cpp file=target/a.cpp\nint a;\n```\n\n```console run\nmake a   # it\n./a\n```\n\n\
        ```text\na: done\n```\n\n```text\na picture\n```\n```console run exit=3 lane=mpi needs=cc\n./a -1\n```\nSee:\n```text\nnot this\n```\n```console\nnot this\n```\n```text\nx\n```\n";

    #[test]
    fn a_page_is_files_commands_and_what_they_print() {
        let lines = vec!["make a   # it", "./a"];
        let expected = [
            Step::File { path: "target/a.cpp", text: "int a;\n".into() },
            Step::Commands { lines, exit: 0, lane: LANE, needs: None },
            Step::Prints { lines: vec!["a: done"] },
            Step::Commands { lines: vec!["./a -1"], exit: 3, lane: "mpi", needs: Some("cc") },
        ];
        assert_eq!(steps(PAGE), expected);
    }

    #[test]
    fn lines_are_compared_but_for_what_differs_from_run_to_run() {
        let same = |line: &str, wanted: &str| missing(&[wanted], &["before".into(), line.into()]).is_none();
        assert!(same("chip 0   pid 71   for 2.0s: has 0", "chip 0 pid 8 for 1.9ms: has 0"));
        assert!(same("up in 946.4µs, ran 222.3 µs an iteration", "up in 1.2ms, ran 3 µs an iteration"));
        assert!(same("chip 1 (pid 28118) died", "chip 1 (pid 2) died"));
        assert!(same("window at 0x37fa: signals", "window at 0x1: signals"));
        assert!(same("WRONG on chip 0, 1 of 4 chips", "WRONG on chip … of 4 chips") && same("a/b/c", "a…c"));
        assert!(!same("chip 0 has 0", "chip 0 has 1") && !same("chip 0 has 0, wants 1", "chip 0 has 0"));
        assert!(!same("WRONG on chip 0 of 3 chips", "WRONG on chip … of 4 chips") && !same("a/b/c", "a…b"));
        let printed = ["one".to_owned(), "two".to_owned()];
        assert!(missing(&["one", "two"], &printed).is_none() && missing(&["two", "one"], &printed).is_some());
    }

    /// Guides whose code a test of the Python package runs, since it needs that package.
    const IN_PYTEST: [(&str, &str); 2] = [
        ("guide-hosts.md", include_str!("../../../bindings/python/tests/test_hosts.py")),
        ("guide-python.md", include_str!("../../../bindings/python/tests/test_guide.py")),
    ];

    #[test]
    fn the_code_of_every_guide_is_run() {
        let ws = Workspace::load().unwrap();
        let typed: Vec<_> = [LANE, "mpi"].iter().flat_map(|lane| pages(&ws, lane).unwrap()).collect();
        let mut guides = 0;
        for entry in std::fs::read_dir(ws.root.join("docs")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !name.starts_with("guide-") {
                continue;
            }
            guides += 1;
            let in_pytest = IN_PYTEST.iter().any(|(page, test)| *page == name && test.contains(page));
            assert!(
                in_pytest || typed.iter().any(|(page, _)| *page == name),
                "{name} has no `console run` block, and no test that runs its code"
            );
        }
        assert!(guides > 8, "{guides}");
    }
}
