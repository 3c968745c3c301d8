//! What this process holds on to.
//!
//! # Safety
//! Asks the C library how much of its heap is in use.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io::Result;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What is sampled, and how far it may move without having grown. Memory comes and goes in pages and arenas
/// of the allocator; everything else is exact.
pub(crate) const FIGURES: [(&str, f64); 8] = [
    ("heap bytes", 8192.0),
    ("resident KiB", 256.0),
    ("private KiB", 256.0),
    ("shared memory KiB", 0.5),
    ("mappings", 0.5),
    ("descriptors", 0.5),
    ("processes", 0.5),
    ("files", 0.5),
];

/// The figures at one moment between two cycles, in the order of [`FIGURES`].
pub(crate) type Sample = [u64; FIGURES.len()];

pub(crate) fn take(folder: &Path) -> Result<Sample> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let kib = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    Ok([
        heap_bytes(),
        kib("Rss:"),
        kib("Private_Clean:") + kib("Private_Dirty:"),
        shared_bytes(&maps)? / 1024,
        maps.lines().count() as u64,
        // Without the folder that is being read.
        std::fs::read_dir("/proc/self/fd")?.count() as u64 - 1,
        crate::killer::children().len() as u64,
        std::fs::read_dir(folder)?.count() as u64,
    ])
}

/// Bytes that were allocated and not freed, in all arenas.
fn heap_bytes() -> u64 {
    // SAFETY: takes nothing and returns a struct of numbers.
    let info = unsafe { nix::libc::mallinfo2() };
    info.uordblks as u64
}

/// The memory behind every memfd that this process has open or mapped, each counted once, and behind our
/// files in `/dev/shm`.
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
