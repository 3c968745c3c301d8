//! The files and the environment of a machine. A test has one in a folder of its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where files are looked for, and the environment.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// `/`, or the folder that stands for it.
    pub(crate) root: PathBuf,
    pub(crate) environment: BTreeMap<String, OsString>,
}

impl Machine {
    /// The machine that this runs on.
    pub(crate) fn this() -> Self {
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self { root: "/".into(), environment: variables.collect() }
    }

    /// A file of the machine, by its absolute path.
    pub(crate) fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// The text of a file.
    pub(crate) fn read(&self, absolute: impl AsRef<Path>) -> Option<String> {
        let bytes = std::fs::read(self.path(absolute)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The first line of a file, without spaces around it.
    pub(crate) fn line(&self, absolute: impl AsRef<Path>) -> Option<String> {
        Some(self.read(absolute)?.lines().next()?.trim().to_owned())
    }

    /// `NAME: value` or `NAME=value` of a file.
    pub(crate) fn field(&self, absolute: impl AsRef<Path>, name: &str) -> Option<String> {
        let text = self.read(absolute)?;
        let value = |line: &str| {
            let rest = line.trim_start().strip_prefix(name)?.trim_start();
            Some(rest.strip_prefix([':', '='])?.trim().to_owned())
        };
        text.lines().find_map(value)
    }

    /// The names in a folder, sorted.
    pub(crate) fn list(&self, absolute: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(absolute)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        self.environment.get(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// A program on the search path.
    pub(crate) fn program(&self, name: &str) -> Option<PathBuf> {
        let path = self.environment.get("PATH")?;
        let candidates = std::env::split_paths(path).map(|folder| folder.join(name));
        candidates.into_iter().find(|file| self.path(file).is_file())
    }
}
