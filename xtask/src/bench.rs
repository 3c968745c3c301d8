//! `cargo xtask bench`: builds and runs the benchmark programs, examples `bench_*` and `*_perf` of the crates, and
//! prints one line per figure. A program prints one JSON object per line with the fields of [`Figure`]; a
//! line that is not one, or a program without figures, is a failure.

use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::cargo::cargo;
use crate::workspace::Workspace;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these benchmarks, such as `mailbox`; all of them where none is named
    names: Vec<String>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
    /// Fewer rounds: shows that the benchmarks run, not how fast
    #[arg(long)]
    quick: bool,
}

/// One figure beside its limit, both from the same run.
#[derive(Debug, PartialEq, Deserialize)]
struct Figure {
    bench: String,
    case: String,
    value: f64,
    unit: String,
    /// What the value is held against, such as a bare spin ping-pong.
    limit: String,
    /// Absent, as `null`, where the other side could not be measured; then so is the ratio.
    #[serde(deserialize_with = "Option::deserialize")]
    limit_value: Option<f64>,
    #[serde(deserialize_with = "Option::deserialize")]
    ratio: Option<f64>,
}

/// A benchmark program.
#[derive(Debug, PartialEq)]
struct Program<'a> {
    /// `mailbox` for `bench_mailbox`, `coll` for `coll_perf`.
    name: &'a str,
    package: &'a str,
    example: &'a str,
}

const PREFIX: &str = "bench_";
/// Of programs that are also useful by themselves.
const SUFFIX: &str = "_perf";

/// The name by which a benchmark is asked for.
fn name_of(example: &str) -> Option<&str> {
    example.strip_prefix(PREFIX).or_else(|| example.strip_suffix(SUFFIX))
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let programs = chosen(programs(ws), &args.names)?;
    for program in &programs {
        eprintln!("building {} of {} …", program.example, program.package);
        let build =
            ["build", "--quiet", "--release", "--package", program.package, "--example", program.example];
        let status = cargo(&ws.root, build).status().context("cannot start cargo")?;
        ensure!(status.success(), "{} does not build", program.example);
    }
    if !args.json {
        println!("{}", columns("bench", "case", "value", "unit", "limit", "limit value", "ratio"));
    }
    for program in &programs {
        measure(ws, program, args).with_context(|| format!("{} of {}", program.example, program.package))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(ws: &Workspace, program: &Program<'_>, args: &Args) -> Result<()> {
    let start = ["run", "--quiet", "--release", "--package", program.package, "--example", program.example];
    let mut command = cargo(&ws.root, start);
    command.args(["--", "--json"]).args(args.quick.then_some("--quick"));
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start it")?;
    let out = child.stdout.take().context("its output is not connected")?;
    let mut figures = 0;
    let read = BufReader::new(out).lines().try_for_each(|line| -> Result<()> {
        let line = line?;
        let figure = parse(&line)?;
        figures += 1;
        println!("{}", if args.json { line } else { figure.to_string() });
        Ok(())
    });
    if read.is_err() {
        // It may wait for someone to read the rest.
        child.kill().context("cannot end it")?;
    }
    let status = child.wait().context("cannot wait for it")?;
    read?;
    ensure!(status.success(), "it failed ({status})");
    ensure!(figures > 0, "it printed no figure, and a benchmark without figures has failed");
    Ok(())
}

fn parse(line: &str) -> Result<Figure> {
    let figure: Figure = serde_json::from_str(line).with_context(|| format!("not a figure: {line}"))?;
    ensure!(
        figure.limit_value.is_some() == figure.ratio.is_some(),
        "a figure has both `limit_value` and `ratio` or, as null, neither: {line}"
    );
    Ok(figure)
}

fn programs(ws: &Workspace) -> Vec<Program<'_>> {
    ws.members
        .iter()
        .flat_map(|member| {
            member.targets_named("example", "").filter_map(|example| {
                Some(Program { name: name_of(example)?, package: &member.name, example })
            })
        })
        .collect()
}

fn chosen<'a>(programs: Vec<Program<'a>>, names: &[String]) -> Result<Vec<Program<'a>>> {
    ensure!(!programs.is_empty(), "no crate has an examples/{PREFIX}*.rs yet");
    for name in names {
        if !programs.iter().any(|program| program.name == name) {
            let known: Vec<&str> = programs.iter().map(|program| program.name).collect();
            bail!("no benchmark `{name}`; there are: {}", known.join(", "));
        }
    }
    Ok(programs.into_iter().filter(|p| names.is_empty() || names.iter().any(|name| name == p.name)).collect())
}

fn columns(
    bench: &str,
    case: &str,
    value: &str,
    unit: &str,
    limit: &str,
    limit_value: &str,
    ratio: &str,
) -> String {
    format!("{bench:<10} {case:<36} {value:>12} {unit:<6} {limit:<30} {limit_value:>12} {ratio:>7}")
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let or_dash = |number: Option<f64>| number.map_or("-".to_owned(), readable);
        let ratio = self.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        let (value, limit_value) = (readable(self.value), or_dash(self.limit_value));
        f.write_str(&columns(&self.bench, &self.case, &value, &self.unit, &self.limit, &limit_value, &ratio))
    }
}

/// A number with as many decimals as its size deserves.
fn readable(number: f64) -> String {
    match number.abs() {
        size if size >= 1000.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::{Member, Target};

    const LINE: &str = r#"{"bench": "mailbox", "case": "spin round trip", "value": 181.25, "unit": "ns",
        "limit": "bare spin ping-pong", "limit_value": 145.0, "ratio": 1.25, "cores": 2}"#;

    fn error(line: &str) -> String {
        parse(line).expect_err(line).to_string()
    }

    #[test]
    fn a_figure_may_say_more_but_not_less() {
        assert_eq!(parse(LINE).unwrap().ratio, Some(1.25));
        for field in ["bench", "case", "value", "unit", "limit", "limit_value", "ratio"] {
            let without = LINE.replace(&format!("\"{field}\""), "\"other\"");
            assert!(error(&without).starts_with("not a figure: {"), "{field}");
        }
        assert_eq!(error("warming up"), "not a figure: warming up");
    }

    #[test]
    fn a_limit_that_could_not_be_measured_is_null_in_both_fields() {
        let half = LINE.replace("145.0", "null");
        let said = "a figure has both `limit_value` and `ratio` or, as null, neither: {";
        assert!(error(&half).starts_with(said), "{}", error(&half));
        let figure = parse(&half.replace("\"ratio\": 1.25", "\"ratio\": null")).unwrap();
        assert!(figure.to_string().trim_end().ends_with('-'), "{figure}");
    }

    #[test]
    fn the_columns_of_a_figure_stand_under_their_titles() {
        let title = columns("bench", "case", "value", "unit", "limit", "limit value", "ratio");
        let line = parse(LINE).unwrap().to_string();
        assert_eq!(title.find("limit "), line.find("bare spin"));
        assert_eq!(title.len(), line.len());
    }

    #[test]
    fn an_unknown_name_lists_those_that_exist() {
        let target =
            Target { name: "bench_mailbox".into(), kind: vec!["example".into()], ..Target::default() };
        let member = Member { name: "mailbox-atomics".into(), targets: vec![target], ..Member::default() };
        let ws = Workspace { members: vec![member], ..Workspace::default() };
        assert_eq!(chosen(programs(&ws), &[]).unwrap()[0].name, "mailbox");
        assert_eq!((name_of("coll_perf"), name_of("first")), (Some("coll"), None));
        let error = chosen(programs(&ws), &["mail".into()]).unwrap_err().to_string();
        assert_eq!(error, "no benchmark `mail`; there are: mailbox");
    }
}
