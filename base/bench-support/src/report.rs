//! The command line of a benchmark, and its figures as lines.

use std::fmt::Write;
use std::process::exit;

/// One figure and what it is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure<'a> {
    /// What was measured.
    pub case: &'a str,
    /// The value.
    pub value: f64,
    /// Its unit.
    pub unit: &'a str,
    /// What the value is compared with.
    pub limit: &'a str,
    /// Its value, in the same unit; `None` where it could not be measured.
    pub limit_value: Option<f64>,
}

impl Figure<'_> {
    fn ratio(&self) -> Option<f64> {
        self.limit_value.map(|limit| self.value / limit).filter(|ratio| ratio.is_finite())
    }

    /// One line for `cargo xtask bench`.
    pub fn json(&self, bench: &str) -> String {
        let Self { case, value, unit, limit, .. } = self;
        let ratio = self.ratio();
        let limit_value = ratio.and(self.limit_value);
        let mut line = String::from("{");
        for (name, text) in [("bench", bench), ("case", *case), ("unit", *unit), ("limit", *limit)] {
            // The texts of benchmarks are plain; Rust's escapes of quotes and backslashes are JSON's.
            let _ = write!(line, "\"{name}\": {text:?}, ");
        }
        for (name, number) in [("value", Some(*value)), ("limit_value", limit_value), ("ratio", ratio)] {
            let number = number.map_or("null".to_owned(), |number| format!("{number:.4}"));
            let _ = write!(line, "\"{name}\": {number}, ");
        }
        line.truncate(line.len() - 2);
        line + "}"
    }

    fn words(&self, bench: &str) -> String {
        let Self { case, value, unit, limit, .. } = self;
        let compared = match (self.limit_value, self.ratio()) {
            (Some(against), Some(ratio)) => format!("{ratio:.2} x {limit}, {against:.1} {unit}"),
            _ => format!("no ratio: {limit} was not measured"),
        };
        format!("{bench}: {case}: {value:.1} {unit} ({compared})")
    }
}

/// How figures are printed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Words,
    Json,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Extent {
    Full,
    Quick,
}

/// A benchmark program.
#[derive(Debug, PartialEq)]
pub struct Bench {
    name: &'static str,
    form: Form,
    extent: Extent,
    only: Vec<String>,
}

impl Bench {
    /// The benchmark `name`, as the command line asks for. Ends the program after `--help` and after an
    /// argument that it does not know.
    pub fn from_args(name: &'static str) -> Self {
        Self::parse(name, std::env::args().skip(1)).unwrap_or_else(|answer| match answer {
            Answer::Help => {
                println!("{USAGE}");
                exit(0)
            }
            Answer::Unknown(argument) => {
                eprintln!("unknown argument `{argument}`\n{USAGE}");
                exit(2)
            }
        })
    }

    fn parse(name: &'static str, args: impl IntoIterator<Item = String>) -> Result<Self, Answer> {
        let mut bench = Self { name, form: Form::Words, extent: Extent::Full, only: Vec::new() };
        for argument in args {
            match argument.as_str() {
                "--json" => bench.form = Form::Json,
                "--quick" => bench.extent = Extent::Quick,
                "--help" | "-h" => return Err(Answer::Help),
                unknown if unknown.starts_with('-') => return Err(Answer::Unknown(argument)),
                _ => bench.only.push(argument),
            }
        }
        Ok(bench)
    }

    /// Whether the user wants this case: all, or those whose names contain one of the words given.
    pub fn wants(&self, case: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| case.contains(word.as_str()))
    }

    /// `full`, or a tenth of it where the user only wants to see that it runs.
    pub fn amount(&self, full: usize) -> usize {
        match self.extent {
            Extent::Full => full,
            Extent::Quick => full.div_ceil(10),
        }
    }

    /// Prints a figure, at once.
    pub fn print(&self, figure: &Figure<'_>) {
        match self.form {
            Form::Words => println!("{}", figure.words(self.name)),
            Form::Json => println!("{}", figure.json(self.name)),
        }
    }
}

const USAGE: &str = "usage: [--json] [--quick] [CASE...]
  --json   one JSON object per line
  --quick  fewer rounds: shows that it runs, not how fast
  CASE     only cases whose names contain this word";

#[derive(Debug, PartialEq)]
enum Answer {
    Help,
    Unknown(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURE: Figure<'_> =
        Figure { case: "spin \"a\"", value: 181.25, unit: "ns", limit: "bare", limit_value: Some(145.0) };

    fn parse(line: &str) -> Result<Bench, Answer> {
        Bench::parse("mailbox", line.split_whitespace().map(str::to_owned))
    }

    /// BK-2
    #[test]
    fn a_figure_is_one_line_of_json() {
        assert_eq!(
            FIGURE.json("mailbox"),
            "{\"bench\": \"mailbox\", \"case\": \"spin \\\"a\\\"\", \"unit\": \"ns\", \"limit\": \"bare\", \
             \"value\": 181.2500, \"limit_value\": 145.0000, \"ratio\": 1.2500}"
        );
        for unmeasured in [None, Some(0.0)] {
            let line = Figure { limit_value: unmeasured, ..FIGURE }.json("mailbox");
            assert!(line.ends_with("\"limit_value\": null, \"ratio\": null}"), "{line}");
        }
    }

    #[test]
    fn in_words_it_says_the_ratio_and_the_limit() {
        assert_eq!(FIGURE.words("mailbox"), "mailbox: spin \"a\": 181.2 ns (1.25 x bare, 145.0 ns)");
        assert!(Figure { limit_value: None, ..FIGURE }.words("m").contains("not measured"));
    }

    #[test]
    fn the_command_line_chooses_form_extent_and_cases() {
        let bench = parse("--json --quick spin parked").unwrap();
        assert_eq!((bench.form, bench.amount(100)), (Form::Json, 10));
        assert!(bench.wants("spin round trip") && bench.wants("parked") && !bench.wants("barrier"));
        let bench = parse("").unwrap();
        assert_eq!((bench.form, bench.amount(100), bench.wants("anything")), (Form::Words, 100, true));
        assert_eq!(parse("--slow"), Err(Answer::Unknown("--slow".into())));
        assert_eq!(parse("-h"), Err(Answer::Help));
    }
}
