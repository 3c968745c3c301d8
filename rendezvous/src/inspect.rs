//! A group as seen from outside, to debug a hang.

use crate::memory::layout::Layout;
use crate::memory::{LABEL, Memory};
use shared_memory::Region;
use std::os::fd::OwnedFd;

/// The groups that the process `pid` belongs to, each as a table of ranks, processes, phases and times. Empty
/// when it belongs to none.
///
/// Reads the group's memory through the process's own descriptor, which needs permission to inspect that
/// process.
pub fn groups_of(pid: u32) -> std::io::Result<Vec<String>> {
    let mut tables = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let named =
            std::fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().contains(LABEL));
        if !named {
            continue;
        }
        let file = std::fs::File::options().read(true).write(true).open(entry.path())?;
        tables.extend(open(file.into()).map(|memory| memory.table()));
    }
    Ok(tables)
}

/// Maps the control part of a group, whose size is only known from its own header, which is checked before it is used.
/// Extents are passed over: reading one would put memory behind its first page.
fn open(fd: OwnedFd) -> Option<Memory> {
    let len = nix::sys::stat::fstat(&fd).map_or(0, |stat| stat.st_size as usize);
    let control =
        (1..=64).filter_map(|nranks| Layout::new(nranks, 0)).any(|layout| layout.reserved().end == len);
    if !control {
        return None;
    }
    Memory::of_any_group(Region::attach(fd, LABEL, len).ok()?)
}
