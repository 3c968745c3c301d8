//! The simulated machine.

use std::str::FromStr;

/// The machine of a session. The file holds `key = value` lines; `#` starts a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `devices`: how many the machine has (default 8).
    pub devices: u32,
    /// `memory`: MiB of a device; a single allocation of more is refused (default 16384).
    pub memory: u32,
    /// `physical-base`: physical id of visible device 0 (default 0).
    pub physical_base: u32,
    /// `acl-version`: what `aclrtGetVersion` returns (default 1.17.0).
    pub acl_version: [i32; 3],
    /// `fabric = on|off`: whether Fabric handles can be exported.
    pub fabric: bool,
    /// `shareable = on|off`: whether 64-bit handles can be exported.
    pub shareable: bool,
    /// `ipc = on|off`: whether IPC keys can be exported.
    pub ipc: bool,
    /// `peer-access = on|off`: whether devices can reach each other at all.
    pub peer_access: bool,
    /// `root-port = free|taken`: whether rank 0 can listen.
    pub root_port_free: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 8,
            memory: 16_384,
            physical_base: 0,
            acl_version: [1, 17, 0],
            fabric: true,
            shareable: true,
            ipc: true,
            peer_access: true,
            root_port_free: true,
        }
    }
}

/// A malformed line of `config`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("config line {line}: {text:?}: {why}")]
pub struct ConfigError {
    /// Counted from 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl FromStr for Config {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for (index, raw) in text.lines().enumerate() {
            let line = raw.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            config.set(line).map_err(|why| ConfigError { line: index + 1, text: raw.to_owned(), why })?;
        }
        Ok(config)
    }
}

impl Config {
    fn set(&mut self, line: &str) -> Result<(), &'static str> {
        let (key, value) = line.split_once('=').ok_or("expected `key = value`")?;
        let value = value.trim();
        match key.trim() {
            "devices" => self.devices = number(value)?,
            "memory" => self.memory = number(value)?,
            "physical-base" => self.physical_base = number(value)?,
            "acl-version" => self.acl_version = version(value)?,
            "fabric" => self.fabric = switch(value, "on", "off")?,
            "shareable" => self.shareable = switch(value, "on", "off")?,
            "ipc" => self.ipc = switch(value, "on", "off")?,
            "peer-access" => self.peer_access = switch(value, "on", "off")?,
            "root-port" => self.root_port_free = switch(value, "free", "taken")?,
            _ => return Err("unknown key"),
        }
        Ok(())
    }
}

fn number(value: &str) -> Result<u32, &'static str> {
    value.parse().map_err(|_| "expected a whole number")
}

fn version(value: &str) -> Result<[i32; 3], &'static str> {
    let parts: Vec<i32> = value
        .split('.')
        .map(|p| p.parse().map_err(|_| "expected major.minor.patch"))
        .collect::<Result<_, _>>()?;
    parts.try_into().map_err(|_| "expected major.minor.patch")
}

fn switch(value: &str, yes: &str, no: &str) -> Result<bool, &'static str> {
    match value {
        v if v == yes => Ok(true),
        v if v == no => Ok(false),
        _ => Err("expected one of the two words that this key accepts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read() {
        let text = "devices = 2 # a comment\nmemory = 32\nphysical-base=8\nacl-version = 1.9.0\nfabric = off\nshareable = off\nipc = off\n\
                    peer-access = off\nroot-port = taken\n";
        let expected = Config {
            devices: 2,
            memory: 32,
            physical_base: 8,
            acl_version: [1, 9, 0],
            fabric: false,
            shareable: false,
            ipc: false,
            peer_access: false,
            root_port_free: false,
        };
        assert_eq!(text.parse(), Ok(expected));
        assert_eq!("".parse(), Ok(Config::default()));
    }

    // CN-4
    #[test]
    fn an_unknown_word_is_refused_with_its_line() {
        for text in ["fabrik = off", "fabric = maybe", "devices = two", "acl-version = 1.9", "devices"] {
            let error = format!("\n{text}").parse::<Config>().expect_err(text);
            assert_eq!((error.line, error.text.as_str()), (2, text));
        }
    }
}
