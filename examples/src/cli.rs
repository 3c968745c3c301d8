//! Command lines: a table of flags, from which parsing, help and errors follow.
//!
//! A table and not a derive macro, because a library with one would lengthen the first build by a third.

use crate::exit::Error;
use lexopt::Arg;
use std::ffi::OsString;
use std::fmt::{self, Display, Write};
use std::path::PathBuf;
use std::str::FromStr;

/// One flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    short: Option<char>,
    long: &'static str,
    value: Option<&'static str>,
    help: &'static str,
    repeated: bool,
}

impl Flag {
    /// A flag that a value follows; `value` is what the help calls it.
    pub const fn with_value(long: &'static str, value: &'static str, help: &'static str) -> Self {
        Self { short: None, long, value: Some(value), help, repeated: false }
    }

    /// A flag without a value.
    pub const fn switch(long: &'static str, help: &'static str) -> Self {
        Self { short: None, long, value: None, help, repeated: false }
    }

    /// The same flag, which may be given several times.
    pub const fn repeated(self) -> Self {
        Self { repeated: true, ..self }
    }

    /// The same flag with a short form.
    pub const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }
}

/// `--iters <N>`
impl Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Some(value) => write!(f, "--{} <{value}>", self.long),
            None => write!(f, "--{}", self.long),
        }
    }
}

const HELP: Flag = Flag::switch("help", "Print this text").short('h');

/// What a program's command line looks like.
#[derive(Clone, Copy, Debug)]
pub struct CommandLine {
    /// The program's name.
    pub program: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Its flags, group after group.
    pub flags: &'static [&'static [Flag]],
    /// How to call it.
    pub examples: &'static str,
    /// What else its user has to know, a paragraph each.
    pub notes: &'static [&'static str],
}

impl CommandLine {
    fn flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.flags.iter().copied().flatten().chain(std::iter::once(&HELP))
    }

    /// Reads arguments, without the program's name; `None` when they ask for help.
    pub fn parse(&self, args: impl IntoIterator<Item = OsString>) -> Result<Option<Arguments>, Error> {
        let mut parser = lexopt::Parser::from_args(args);
        let mut given: Vec<(&'static Flag, OsString)> = Vec::new();
        while let Some(arg) = parser.next().map_err(usage)? {
            let found = match &arg {
                Arg::Long(long) => self.flags().find(|flag| flag.long == *long),
                Arg::Short(short) => self.flags().find(|flag| flag.short == Some(*short)),
                Arg::Value(_) => None,
            };
            let Some(flag) = found else { return Err(self.unknown(&arg)) };
            if *flag == HELP {
                return Ok(None);
            }
            if !flag.repeated && given.iter().any(|(earlier, _)| *earlier == flag) {
                return Err(usage(format!("'{flag}' is given twice")));
            }
            let value = match flag.value {
                Some(_) => parser.value().map_err(|_| usage(format!("'{flag}' needs a value")))?,
                None => OsString::new(),
            };
            given.push((flag, value));
        }
        Ok(Some(Arguments { line: *self, given }))
    }

    fn unknown(&self, arg: &Arg<'_>) -> Error {
        match arg {
            Arg::Long(long) => {
                let close =
                    self.flags().map(|flag| (distance(flag.long, long), flag)).min_by_key(|(far, _)| *far);
                match close {
                    Some((0..=2, flag)) => {
                        usage(format!("unknown flag '--{long}'; did you mean '--{}'?", flag.long))
                    }
                    _ => usage(format!("unknown flag '--{long}'")),
                }
            }
            Arg::Short(short) => usage(format!("unknown flag '-{short}'")),
            Arg::Value(value) => usage(format!("unexpected argument '{}'", value.display())),
        }
    }

    /// The text of `--help`.
    pub fn help(&self) -> String {
        let width = self.flags().map(|flag| flag.to_string().len()).max().unwrap_or(0);
        let mut text = format!("{}\n\nUsage: {} [OPTIONS]\n\nOptions:\n", self.about, self.program);
        for flag in self.flags() {
            let short = flag.short.map_or("    ".to_owned(), |short| format!("-{short}, "));
            let _ = writeln!(text, "  {short}{:width$}  {}", flag.to_string(), flag.help);
        }
        for paragraph in [&[self.examples], self.notes].concat() {
            let _ = writeln!(text, "\n{paragraph}");
        }
        text
    }
}

/// What was given on a command line.
#[derive(Clone, Debug)]
pub struct Arguments {
    line: CommandLine,
    given: Vec<(&'static Flag, OsString)>,
}

impl Arguments {
    fn given(&self, long: &str) -> Option<&(&'static Flag, OsString)> {
        debug_assert!(self.line.flags().any(|flag| flag.long == long), "--{long} is missing in the table");
        self.given.iter().find(|(flag, _)| flag.long == long)
    }

    /// Whether the flag is there.
    pub fn has(&self, long: &str) -> bool {
        self.given(long).is_some()
    }

    /// Whether the flag may be given several times.
    pub fn is_repeated(&self, long: &str) -> bool {
        self.line.flags().any(|flag| flag.long == long && flag.repeated)
    }

    /// The flag's value as a path.
    pub fn path(&self, long: &str) -> Option<PathBuf> {
        self.given(long).map(|(_, value)| value.into())
    }

    /// The flag's value.
    pub fn value<T: FromStr<Err: Display>>(&self, long: &str) -> Result<Option<T>, Error> {
        self.value_with(long, T::from_str)
    }

    /// All values of a flag that may be given several times, as `parse` reads them.
    pub fn values_with<T, E: Display>(
        &self,
        long: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Vec<T>, Error> {
        let given = self.given.iter().filter(|(flag, _)| flag.long == long);
        given
            .map(|(flag, value)| {
                let bad = |why: &dyn Display| {
                    usage(format!("invalid value '{}' for '{flag}': {why}", value.display()))
                };
                parse(value.to_str().ok_or_else(|| bad(&"it is not UTF-8; write plain text"))?)
                    .map_err(|error| bad(&error))
            })
            .collect()
    }

    /// The flag's value, as `parse` reads it.
    pub fn value_with<T, E: Display>(
        &self,
        long: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, Error> {
        let Some((flag, value)) = self.given(long) else { return Ok(None) };
        let bad =
            |why: &dyn Display| usage(format!("invalid value '{}' for '{flag}': {why}", value.display()));
        let text = value.to_str().ok_or_else(|| bad(&"it is not UTF-8; write plain text"))?;
        parse(text).map(Some).map_err(|error| bad(&error))
    }

    /// Refuses flags that contradict each other.
    pub fn exclusive(&self, first: &str, second: &str) -> Result<(), Error> {
        if self.has(first) && self.has(second) {
            return Err(usage(format!("'--{first}' and '--{second}' exclude each other")));
        }
        Ok(())
    }

    /// Refuses the flag without the other.
    pub fn requires(&self, flag: &str, other: &str) -> Result<(), Error> {
        if self.has(flag) && !self.has(other) {
            return Err(usage(format!("'--{flag}' needs '--{other}' as well")));
        }
        Ok(())
    }
}

/// The error of a bad command line.
pub fn usage(error: impl Display) -> Error {
    Error::Usage(error.to_string())
}

/// How many characters have to be put in, taken out or replaced to make one text the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, to) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.chars().count()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    const LINE: CommandLine = CommandLine {
        program: "x",
        about: "About x",
        flags: &[&[
            Flag::with_value("count", "N", "How many").short('c'),
            Flag::switch("json", "As JSON"),
            Flag::switch("quiet", "Less").short('q'),
        ]],
        examples: "Example: x",
        notes: &["More about x"],
    };

    fn parse(args: &str) -> Result<Option<Arguments>, Error> {
        LINE.parse(args.split_whitespace().map(OsString::from))
    }

    #[test]
    fn values_come_in_every_usual_form() {
        for args in ["--count 3", "--count=3", "-c 3", "-c3", "-qc3"] {
            let arguments = parse(args).unwrap().unwrap();
            assert_eq!(arguments.value::<u32>("count"), Ok(Some(3)), "{args}");
            assert!(!arguments.has("json"));
        }
        assert!(parse("").unwrap().is_some_and(|arguments| !arguments.has("count")));
    }

    #[test]
    fn mistakes_are_one_line_with_the_flag() {
        for (args, reason) in [
            ("--cuont 3", "unknown flag '--cuont'; did you mean '--count'?"),
            ("--fast", "unknown flag '--fast'"),
            ("-x", "unknown flag '-x'"),
            ("extra", "unexpected argument 'extra'"),
            ("--count", "'--count <N>' needs a value"),
            ("-c 1 -c 2", "'--count <N>' is given twice"),
            ("--json=3", "unexpected argument for option '--json': \"3\""),
        ] {
            assert_eq!(parse(args).map(|_| ()), Err(usage(reason)), "{args}");
        }
        let arguments = parse("--count -3 --json -q").unwrap().unwrap();
        let error = arguments.value::<u32>("count").unwrap_err();
        assert_eq!(error, usage("invalid value '-3' for '--count <N>': invalid digit found in string"));
        let bytes = [OsString::from("--count"), OsString::from_vec(vec![b'3', 0xff])];
        let of_bytes = LINE.parse(bytes).unwrap().unwrap();
        let expected =
            usage("invalid value '3\u{fffd}' for '--count <N>': it is not UTF-8; write plain text");
        assert_eq!(of_bytes.value::<u32>("count"), Err(expected.clone()));
        assert_eq!(of_bytes.values_with("count", u32::from_str), Err(expected));
        assert_eq!(
            arguments.exclusive("json", "quiet"),
            Err(usage("'--json' and '--quiet' exclude each other"))
        );
        assert_eq!(
            parse("--json").unwrap().unwrap().requires("json", "count"),
            Err(usage("'--json' needs '--count' as well"))
        );
    }

    #[test]
    fn help_lists_every_flag() {
        assert!(parse("--help").unwrap().is_none() && parse("-h").unwrap().is_none());
        let expected = "About x\n\nUsage: x [OPTIONS]\n\nOptions:\n  \
            -c, --count <N>  How many\n      --json       As JSON\n  -q, --quiet      Less\n  \
            -h, --help       Print this text\n\nExample: x\n\nMore about x\n";
        assert_eq!(LINE.help(), expected);
    }

    #[test]
    fn distances_count_single_changes() {
        assert_eq!(
            ["count", "cuont", "coun", "counts", ""].map(|text| distance("count", text)),
            [0, 2, 1, 1, 5]
        );
    }
}
