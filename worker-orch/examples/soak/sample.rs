//! What this process holds on to.
//!
//! # Safety
//! Asks the C library how much of its heap is in use.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::Result;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::cycle::Tally;

/// The figures at one moment between two cycles, by name.
pub(crate) struct Sample(Vec<(&'static str, u64)>);

pub(crate) fn take(folder: &Path) -> Result<Sample> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let kib = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    Ok(Sample(vec![
        ("heap bytes", heap_bytes()),
        ("resident KiB", kib("Rss:")),
        ("private KiB", kib("Private_Clean:") + kib("Private_Dirty:")),
        // Without the folder that is being read.
        ("descriptors", std::fs::read_dir("/proc/self/fd")?.count() as u64 - 1),
        ("mappings", maps.lines().count() as u64),
        ("processes", crate::killer::children().len() as u64),
        ("shared memory KiB", shared_bytes(&maps)? / 1024),
        ("files", std::fs::read_dir(folder)?.count() as u64),
    ]))
}

/// Bytes that were allocated and not freed, in all arenas.
fn heap_bytes() -> u64 {
    // SAFETY: takes nothing and returns a struct of numbers.
    let info = unsafe { nix::libc::mallinfo2() };
    info.uordblks as u64
}

/// The memory behind every memfd that this process has open or mapped, each counted once, and behind files in `/dev/shm` with our name.
fn shared_bytes(maps: &str) -> Result<u64> {
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
        let memfd =
            std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:"));
        if let Some(meta) = std::fs::metadata(entry.path()).ok().filter(|_| memfd)
            && seen.insert(meta.ino())
        {
            bytes += meta.blocks() * 512;
        }
    }
    for line in maps.lines().filter(|line| line.contains("/memfd:")) {
        let mut fields = line.split_ascii_whitespace();
        let (range, inode) = (fields.next().unwrap_or_default(), fields.nth(3).unwrap_or_default());
        let ends: Vec<u64> = range.split('-').filter_map(|end| u64::from_str_radix(end, 16).ok()).collect();
        if let ([start, end], Ok(inode)) = (&ends[..], inode.parse())
            && seen.insert(inode)
        {
            bytes += end - start;
        }
    }
    for entry in std::fs::read_dir("/dev/shm")?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("chipcomm") {
            bytes += entry.metadata().map_or(0, |meta| meta.blocks() * 512);
        }
    }
    Ok(bytes)
}

impl Sample {
    pub(crate) fn json(&self, cycle: u64, tally: &Tally) -> String {
        let mut values = String::new();
        for (name, value) in &self.0 {
            let _ = write!(values, "{}{}: {value}", if values.is_empty() { "" } else { ", " }, quoted(name));
        }
        let kills = tally.kills();
        format!(r#"{{"event": "sample", "cycle": {cycle}, "kills": {kills}, "values": {{{values}}}}}"#)
    }
}

/// A text as JSON has it.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
