//! The two configuration files: unknown keys are refused, errors name file, line, key and value.

mod ccl;
mod host;
mod topology;

pub use ccl::{
    Backpressure, BufferKind, CclFile, CreditAt, CreditLatency, CreditWait, DType, Flow, Overrides, Settings,
    Skew,
};
pub use host::{Host, HostCosts, Level, MOST_LEVELS, Passing};
pub use topology::{Fabric, Grid, Memory, SipLinks, Topology, TopologyFile};

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};
use serde_saphyr::Spanned;
use std::fmt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A value of a configuration file and its line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf<T> {
    pub(crate) value: T,
    /// The line, `None` when the value was given on the command line.
    pub(crate) line: Option<u64>,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Leaf<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<T>::deserialize(deserializer)?;
        Ok(Leaf { value: spanned.value, line: Some(spanned.referenced.line()) })
    }
}

/// Where a value came from, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file.
    Line(PathBuf, u64),
    /// A file, as a whole.
    File(PathBuf),
    /// `--set` or another option of the command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line(file, line) => write!(f, "{}:{line}", file.display()),
            Origin::File(file) => write!(f, "{}", file.display()),
            Origin::CommandLine => f.write_str("command line"),
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("{}: cannot be read: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is malformed: bad YAML, an unknown key, a value of the wrong type.
    #[error("{origin}: {text}")]
    Malformed {
        /// Where.
        origin: Origin,
        /// The parser's message.
        text: String,
    },
    /// An invalid value.
    #[error("{origin}: {key} = {value}: {why}")]
    Value {
        /// Where the value came from.
        origin: Origin,
        /// Its key.
        key: String,
        /// The value.
        value: String,
        /// What is wrong with it, and what is valid.
        why: String,
    },
    /// `--set` without `=` or with a key that no file has.
    #[error("--set {text}: {why}")]
    BadSet {
        /// What was given.
        text: String,
        /// What is wrong.
        why: String,
    },
}

/// Both files, with the command line's overrides.
#[derive(Clone, Debug)]
pub struct Config {
    /// `ccl.yaml`.
    pub ccl: CclFile,
    /// `topology.yaml`.
    pub topology: TopologyFile,
}

/// The files that ship with the programs; they hold every key with its built-in value.
pub const SHIPPED_CCL: &str = include_str!("../../configs/ccl.yaml");
/// See [`SHIPPED_CCL`].
pub const SHIPPED_TOPOLOGY: &str = include_str!("../../configs/topology.yaml");

impl Config {
    /// Reads both files; one that is not given is the shipped one.
    pub fn load(ccl: Option<&Path>, topology: Option<&Path>) -> Result<Config, ConfigError> {
        Ok(Config {
            ccl: match ccl {
                Some(file) => CclFile::load(file)?,
                None => CclFile::parse(SHIPPED_CCL, Path::new("shipped ccl.yaml"))?,
            },
            topology: match topology {
                Some(file) => TopologyFile::load(file)?,
                None => TopologyFile::parse(SHIPPED_TOPOLOGY, Path::new("shipped topology.yaml"))?,
            },
        })
    }

    /// Overrides one key, `key=value`, of the file that has it; see `--set`.
    pub fn set(&mut self, text: &str) -> Result<(), ConfigError> {
        let bad = |why: &str| ConfigError::BadSet { text: text.to_owned(), why: why.to_owned() };
        let (path, value) = text.split_once('=').ok_or_else(|| bad("write key=value"))?;
        let (path, value) = (path.trim(), value.trim());
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.-+".contains(c);
        if path.is_empty() || value.is_empty() || !path.chars().chain(value.chars()).all(plain) {
            return Err(bad("key and value must be plain words or numbers"));
        }
        let first = path.split('.').next().unwrap_or_default();
        if TopologyFile::has(first) { self.topology.set(path, value) } else { self.ccl.set(path, value) }
    }
}

/// Parses a document; `origin` is the file that errors name.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, file: &Path) -> Result<T, ConfigError> {
    serde_saphyr::from_str(text).map_err(|error| {
        let origin = match error.location() {
            Some(at) => Origin::Line(file.to_owned(), at.line()),
            None => Origin::File(file.to_owned()),
        };
        ConfigError::Malformed { origin, text: plain(&error) }
    })
}

/// The parser's message without its position and snippet.
fn plain(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let text = text.lines().next().unwrap_or_default();
    let text = text.split_once(" at line ").map_or(text, |(text, _)| text);
    text.strip_prefix("error: ").unwrap_or(text).to_owned()
}

/// `a.b=v` as the YAML document `a: {b: v}`.
pub(crate) fn nested(path: &str, value: &str) -> String {
    let mut keys: Vec<&str> = path.split('.').collect();
    let last = keys.pop().unwrap_or_default();
    let open: String = keys.iter().map(|key| format!("{{{key}: ")).collect();
    format!("{open}{{{last}: {value}}}{}", "}".repeat(keys.len()))
}

/// Reads a file that is not larger than a configuration can be.
pub(crate) fn read(file: &Path) -> Result<String, ConfigError> {
    let error = |source| ConfigError::Unreadable { file: file.to_owned(), source };
    let size = std::fs::metadata(file).map_err(error)?.len();
    if size > 1 << 20 {
        return Err(error(std::io::Error::other(format!("{size} bytes is more than the 1 MiB allowed"))));
    }
    std::fs::read_to_string(file).map_err(error)
}

/// Declares a mapping whose keys are all optional and which can be merged into another; unknown keys are
/// refused.
macro_rules! mapping {
    ($(#[$doc:meta])* $name:ident { $($leaf:ident: $type:ty,)* } groups { $($group:ident: $inner:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct $name {
            $(pub(crate) $leaf: Option<$crate::config::Leaf<$type>>,)*
            $(pub(crate) $group: Option<$inner>,)*
        }

        #[allow(dead_code, unused_variables)] // not every mapping is merged into another
        impl $name {
            /// Every value that `over` has replaces this one's.
            pub(crate) fn merge(&mut self, over: $name) {
                $(if over.$leaf.is_some() { self.$leaf = over.$leaf; })*
                $(if let Some(inner) = over.$group { self.$group.get_or_insert_default().merge(inner); })*
            }

            /// Marks every value as given on the command line.
            pub(crate) fn forget_lines(&mut self) {
                $(if let Some(leaf) = &mut self.$leaf { leaf.line = None; })*
                $(if let Some(inner) = &mut self.$group { inner.forget_lines(); })*
            }
        }
    };
}
pub(crate) use mapping;
