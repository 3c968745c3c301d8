//! The sizes at which one way of doing things gives way to another: data, all in one place.
//!
//! The numbers of [`Table::default`] were measured, and depend on who made the processor. `coll_perf --tune` measures others on a machine and
//! writes them to a file; a group takes them from [`Options::table`](crate::Options::table), or from the file that [`Table::VARIABLE`]
//! names. All ranks of a group use the same table: it stands in every window, and is compared when the group is made. Results do not
//! depend on it.

use crate::error::BadArgument;
use crate::kernels::readers_take_lines;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

macro_rules! table {
    ($($(#[doc = $doc:literal])+ $name:ident: $unit:ident, $default:expr, $range:expr;)+) => {
        /// What a group chooses its algorithms by. In files, a line `name: value` for each entry that is not the default.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct Table {
            $($(#[doc = $doc])+ pub(crate) $name: u32,)+
        }

        impl Table {
            /// The default but for what depends on the processor.
            pub(crate) const BASE: Self = Self { $($name: $default,)+ };

            const ENTRIES: [Entry; Self::WORDS] = [$(Entry {
                name: stringify!($name),
                text: concat!($($doc,)+),
                unit: Unit::$unit,
                least: $range.0,
                most: $range.1,
            },)+];

            /// How many entries a table has.
            pub(crate) const WORDS: usize = [$(stringify!($name)),+].len();

            /// The entries as they stand in a window.
            pub(crate) const fn to_words(self) -> [u32; Self::WORDS] {
                [$(self.$name),+]
            }

            /// What [`to_words`](Self::to_words) made; nobody checked the numbers.
            const fn of_words(words: [u32; Self::WORDS]) -> Self {
                let [$($name),+] = words;
                Self { $($name),+ }
            }
        }
    };
}

/// No limit.
pub(crate) const ANY: u32 = u32::MAX;

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

table! {
    /// Below this, a tensor in the window is treated like any other memory: that takes one step and not two. On AMD it is 32 KiB. On
    /// Intel 16 KiB take a quarter less from window to window, and 8 KiB are the same.
    window_min: Bytes, 16 * KIB, (64, 256 * KIB);
    /// From so many bytes on, input in the window is read where it stands, and not staged.
    by_reference_min: Bytes, 32 * KIB, (64, ANY);
    /// From so many staged bytes of one call on, it goes in pieces, so that what is staged is still in the cache when it is read.
    pieces_from: Bytes, MIB, (4 * KIB, ANY);
    /// Bytes of such a piece. On AMD 256 KiB.
    piece: Bytes, MIB, (4 * KIB, ANY);
    /// Bytes of a piece where one rank stages for the others or the others for one: it stages the next one while they read the last.
    rooted_piece: Bytes, 64 * KIB, (4 * KIB, 256 * KIB);
    /// Two ranks both read everything as long as it is at most so many bytes; beyond, each reduces a slice. On AMD it is any. On Intel
    /// slices of pieces of 1 MiB take a tenth less from 2 MiB to 16 MiB, and a fifth less at 32 MiB.
    pair_one_shot: Bytes, MIB, (0, ANY);
    /// With more ranks every rank reads what all staged as long as that is at most so many bytes; beyond, each reduces a slice.
    one_shot_reads: Bytes, 32 * KIB, (0, ANY);
    /// The same for a reduction to one rank.
    reduce_reads: Bytes, 64 * KIB, (0, ANY);
    /// A piece of at least so many bytes is worth waking others before it is read.
    notify_first: Bytes, 2 * KIB, (0, ANY);
    /// A call that staged at most so many bytes asks for the next half while its caller computes: 64 B to 1 KiB take a quarter less
    /// for it, 16 KiB a tenth, and from 64 KiB on it is in the way.
    prefetch: Bytes, 16 * KIB, (0, 256 * KIB);
    /// A rank that alone reads a piece of 1 KiB or more takes its lines over, up to so many bytes. On AMD, where a
    /// store to a line that another processor has read is what takes longest, it is any: 2 KiB to 256 KiB take half as long for it
    /// where the processors share a cache, and up to 1 MiB a fifth less where they do not. On Intel 1 KiB to 4 MiB take a sixth to
    /// a half more for it. Where copies are strings, only up to the smallest of those.
    take_over: Bytes, 0, (0, ANY);
    /// From so many bytes on, a rank that alone reads a piece asks for its lines before it comes to them. On AMD, where it is 64 KiB,
    /// it asks for them as for ones to be written: 256 KiB to 2 MiB take a tenth less where processors share no cache, and 2 % more
    /// where they share one. On Intel, where 64 KiB to 4 MiB take a tenth more that way, it asks for them to read them.
    ask_from: Bytes, 256 * KIB, (64, ANY);
    /// So many bytes before it comes to them, a rank asks for the lines of the others' tensors, to write them. On AMD it is 4 KiB: with a
    /// quarter of it, 64 KiB to 256 KiB take a seventh more where processors share no cache, and up to 8 % less where they do. On
    /// Intel, with eight times as much, 16 KiB to 512 KiB take a tenth more, and with a quarter as much as well. For what is staged it is
    /// at most 1 KiB.
    ask_ahead: Bytes, KIB, (64, 64 * KIB);
    /// While it polls for what the other of two ranks staged, a rank asks for its lines with every look, up to so many bytes: they come
    /// with the line that announces them, and not after it. On Intel 64 B to 256 B take a tenth to a quarter less for it, and 1 KiB half
    /// as much again. On AMD, where it is 0, up to 256 B gain nothing, and 512 B to 2 KiB take a tenth to a third more where processors
    /// share no cache.
    ask_polling: Bytes, 256, (0, 64 * KIB);
    /// From so many bytes on, a copy is one string instruction, on processors that are fast at it. On Intel vectors take as long.
    strings_from: Bytes, 16 * KIB, (1, ANY);
    /// How many times a rank with a core of its own polls for a step before it waits through the communicator, which takes a clock and
    /// a phase: some microseconds.
    polls: Times, 1000, (1, 1_000_000);
    /// How many times a rank without one yields its core, before it takes a clock and a phase. Every turn lets the others make their
    /// step.
    yields: Times, 16, (0, 10_000);
    /// How many times it polls before it yields where everybody on its core has come: as long as a yield takes, a microsecond.
    spins: Times, 75, (0, 1_000_000);
}

struct Entry {
    name: &'static str,
    text: &'static str,
    unit: Unit,
    least: u32,
    most: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Bytes,
    Times,
}

impl Table {
    /// The environment variable with the path of a table, for groups that are given none.
    pub const VARIABLE: &'static str = "CHIPCOMM_COLL_TABLE";

    /// The names of all entries.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ENTRIES.iter().map(|entry| entry.name)
    }

    /// An entry: bytes, or a number of times. `None` where there is none of this name.
    pub fn get(&self, name: &str) -> Option<u32> {
        Some(self.to_words()[Self::ENTRIES.iter().position(|entry| entry.name == name)?])
    }

    /// The table with another value for an entry; [`u32::MAX`] stands for any.
    pub fn with(self, name: &str, value: u32) -> Result<Self, BadArgument> {
        let bad = |text: String| BadArgument::Table { text };
        let Some(at) = Self::ENTRIES.iter().position(|entry| entry.name == name) else {
            let known: Vec<_> = Self::names().collect();
            return Err(bad(format!("there is no entry {name:?}; there are {}", known.join(", "))));
        };
        let Entry { least, most, .. } = Self::ENTRIES[at];
        if !(least..=most).contains(&value) {
            let most = if most == ANY { "any".to_owned() } else { most.to_string() };
            return Err(bad(format!("{name} is {value}; give {least} to {most}")));
        }
        let mut words = self.to_words();
        words[at] = value;
        Ok(Self::of_words(words))
    }

    /// Reads a file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, BadArgument> {
        let path = path.as_ref();
        let at = |text: String| BadArgument::Table { text: format!("{}: {text}", path.display()) };
        let text = std::fs::read_to_string(path).map_err(|error| at(error.to_string()))?;
        text.parse().map_err(|error| located(error, &path.display()))
    }

    /// The table of the file that [`VARIABLE`](Self::VARIABLE) names; the default where it names none.
    pub fn from_environment() -> Result<Self, BadArgument> {
        match std::env::var_os(Self::VARIABLE) {
            Some(path) if !path.is_empty() => Self::read(path),
            _ => Ok(Self::default()),
        }
    }

    /// Numbers that come from elsewhere; `None` where one is out of range.
    pub(crate) fn from_words(words: [u32; Self::WORDS]) -> Option<Self> {
        let fits = |(entry, word): (&Entry, &u32)| (entry.least..=entry.most).contains(word);
        Self::ENTRIES.iter().zip(&words).all(fits).then(|| Self::of_words(words))
    }

    /// Where this table, of rank `mine`, and the words of rank `theirs` differ.
    pub(crate) fn differences(self, mine: usize, theirs: usize, words: [u32; Self::WORDS]) -> String {
        let pairs = Self::ENTRIES.iter().zip(self.to_words().into_iter().zip(words));
        let different = pairs.filter(|(_, (here, there))| here != there).map(|(entry, (here, there))| {
            let [here, there] = [here, there].map(|value| entry.value(value));
            format!("{} is {here} on rank {mine} and {there} on rank {theirs}", entry.name)
        });
        different.collect::<Vec<_>>().join(", ")
    }
}

/// What is wrong with a table, with the place.
fn located(error: BadArgument, place: &dyn fmt::Display) -> BadArgument {
    match error {
        BadArgument::Table { text } => BadArgument::Table { text: format!("{place}: {text}") },
        other => other,
    }
}

/// The table of a group that is given none.
impl Default for Table {
    fn default() -> Self {
        if readers_take_lines() {
            Self {
                window_min: 32 * KIB,
                piece: 256 * KIB,
                pair_one_shot: ANY,
                take_over: ANY,
                ask_from: 64 * KIB,
                ask_ahead: 4 * KIB,
                ask_polling: 0,
                ..Self::BASE
            }
        } else {
            Self::BASE
        }
    }
}

impl Entry {
    fn value(&self, value: u32) -> String {
        match (self.unit, value) {
            (Unit::Bytes, ANY) => "any".to_owned(),
            (Unit::Bytes, value) if value >= MIB && value.is_multiple_of(MIB) => {
                format!("{} MiB", value / MIB)
            }
            (Unit::Bytes, value) if value >= KIB && value.is_multiple_of(KIB) => {
                format!("{} KiB", value / KIB)
            }
            (_, value) => value.to_string(),
        }
    }

    fn parse(&self, text: &str) -> Option<u32> {
        if text == "any" {
            return Some(ANY);
        }
        let units = [("KiB", KIB), ("MiB", MIB)];
        let (number, factor) = units
            .iter()
            .filter(|_| self.unit == Unit::Bytes)
            .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?.trim_end(), *factor)))
            .unwrap_or((text, 1));
        number.parse::<u32>().ok()?.checked_mul(factor)
    }
}

/// As in a file: every entry, with what it says.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (entry, value) in Self::ENTRIES.iter().zip(self.to_words()) {
            writeln!(f, "#{}\n{}: {}", entry.text, entry.name, entry.value(value))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(Self::names().zip(self.to_words())).finish()
    }
}

impl FromStr for Table {
    type Err = BadArgument;

    fn from_str(text: &str) -> Result<Self, BadArgument> {
        let (mut table, mut named) = (Self::default(), Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let bad = |text: String| BadArgument::Table { text: format!("line {number}: {text}") };
            let (name, value) =
                line.split_once(':').ok_or_else(|| bad(format!("{line:?} is not \"name: value\"")))?;
            let (name, value) = (name.trim(), value.trim());
            let entry = Self::ENTRIES.iter().find(|entry| entry.name == name);
            let parsed = entry.map_or(Some(0), |entry| entry.parse(value));
            let parsed = parsed.ok_or_else(|| {
                bad(format!("{name} is {value:?}; give a number such as 4096, 64 KiB or any"))
            })?;
            table = table.with(name, parsed).map_err(|error| located(error, &format!("line {number}")))?;
            if named.contains(&name) {
                return Err(bad(format!("{name} is given twice; give it once")));
            }
            named.push(name);
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_survives_as_text_and_as_words() {
        let table =
            Table::default().with("one_shot_reads", 5000).unwrap().with("pair_one_shot", 3 * MIB).unwrap();
        assert_eq!(table.to_string().parse::<Table>().unwrap(), table);
        assert_eq!(Table::from_words(table.to_words()), Some(table));
        assert_eq!(Table::default().to_string().parse::<Table>().unwrap(), Table::default());
        assert_eq!("# nothing\n\n".parse::<Table>().unwrap(), Table::default());
        assert_eq!("piece: 12 KiB # small".parse::<Table>().unwrap().get("piece"), Some(12 << 10));
        assert_eq!(Table::default().get("peace"), None);
    }

    #[test]
    fn the_default_is_in_range() {
        assert_eq!(Table::from_words(Table::default().to_words()), Some(Table::default()));
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, said) in [
            ("piece 12", "line 1: \"piece 12\" is not \"name: value\""),
            ("\npeace: 12", "line 2: there is no entry \"peace\"; there are window_min, "),
            ("piece: lots", "line 1: piece is \"lots\"; give a number"),
            ("polls: 3 KiB", "line 1: polls is \"3 KiB\""),
            ("piece: 4000 MiB\npiece: 4096 MiB", "line 2: piece is \"4096 MiB\""),
            ("piece: 12", "line 1: piece is 12; give 4096 to any"),
            ("piece: 8 KiB\npiece: 8 KiB", "line 2: piece is given twice; give it once"),
        ] {
            let error = text.parse::<Table>().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let error = Table::read("/there/is/none").unwrap_err().to_string();
        assert!(error.contains("/there/is/none"), "{error}");
    }

    #[test]
    fn differences_name_both_values() {
        let other = Table { piece: 12 * KIB, ..Table::BASE };
        assert_eq!(
            Table { piece: MIB, ..Table::BASE }.differences(0, 3, other.to_words()),
            "piece is 1 MiB on rank 0 and 12 KiB on rank 3"
        );
    }
}
