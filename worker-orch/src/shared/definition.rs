//! What a program is, and its wire form.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use worker_errors::cursor::{Reader, Writer};

/// The symbol of a kernel that is registered by its file alone.
pub(crate) const DEFAULT_SYMBOL: &str = "kernel_entry";

/// What a program is; the same in parent and child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Definition {
    Kernel {
        path: PathBuf,
        symbol: String,
    },
    Function {
        name: String,
        index: u32,
    },
    Orchestration {
        name: String,
        index: u32,
    },
    /// A function with what it captured, which a child has by fork alone.
    Closure {
        name: String,
        index: u32,
    },
    /// A program that was unregistered.
    Removed {
        name: String,
    },
}

impl Definition {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Kernel { path, symbol } => {
                let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
                if symbol == DEFAULT_SYMBOL { file } else { format!("{file}:{symbol}") }
            }
            Self::Function { name, .. }
            | Self::Orchestration { name, .. }
            | Self::Closure { name, .. }
            | Self::Removed { name } => name.clone(),
        }
    }

    /// The blob of a `Register` frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Kernel { path, symbol } => to.u8(1).bytes(path.as_os_str().as_bytes()).text(symbol),
            Self::Function { name, index } => to.u8(2).u32(*index).text(name),
            Self::Orchestration { name, index } => to.u8(3).u32(*index).text(name),
            Self::Closure { name, index } => to.u8(4).u32(*index).text(name),
            Self::Removed { name } => to.u8(5).text(name),
        };
        to.into_bytes()
    }

    /// `None` unless the bytes are one definition from the first to the last.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        let definition = match from.u8()? {
            1 => Self::Kernel {
                path: OsStr::from_bytes(from.bytes()?).into(),
                symbol: from.text()?.to_owned(),
            },
            2 => Self::Function { index: from.u32()?, name: from.text()?.to_owned() },
            3 => Self::Orchestration { index: from.u32()?, name: from.text()?.to_owned() },
            4 => Self::Closure { index: from.u32()?, name: from.text()?.to_owned() },
            5 => Self::Removed { name: from.text()?.to_owned() },
            _ => return None,
        };
        from.end(definition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_survive_the_frame_and_malformed_ones_are_refused() {
        for definition in [
            Definition::Kernel { path: "/a/b.so".into(), symbol: "entry".into() },
            Definition::Function { name: "nothing".into(), index: 7 },
            Definition::Orchestration { name: "fan_out".into(), index: u32::MAX },
            Definition::Closure { name: "add".into(), index: 1 },
            Definition::Removed { name: "gone".into() },
        ] {
            let bytes = definition.encode();
            assert_eq!(Definition::decode(&bytes).as_ref(), Some(&definition));
            for len in 0..bytes.len() {
                assert_eq!(Definition::decode(&bytes[..len]), None);
            }
            assert_eq!(Definition::decode(&[&bytes[..], &[0]].concat()), None);
        }
        for malformed in [&[][..], &[1], &[9, 0, 0], &[1, 255, 255, 0], &[2, 1, 0, 7]] {
            assert_eq!(Definition::decode(malformed), None);
        }
    }
}
