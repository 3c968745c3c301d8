//! A look at a group from outside, for whoever debugs a hang.

use crate::layout::{Header, Layout, layout_hash};
use crate::memory::{LABEL, Memory};
use comm_context::comm::CommError;
use shared_memory::Region;
use std::os::fd::OwnedFd;

/// Where the groups are that the process `pid` belongs to, as tables of ranks, processes, phases and times. Empty when it belongs to none.
///
/// Reads the group's memory through the process's own descriptor, so it takes the right to look into that process.
pub fn groups_of(pid: u32) -> std::io::Result<Vec<String>> {
    let mut tables = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let named =
            std::fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().contains(LABEL));
        if !named {
            continue;
        }
        let file = std::fs::File::options().read(true).write(true).open(entry.path())?;
        if let Ok(memory) = open(file.into()) {
            tables.push(memory.table());
        }
    }
    Ok(tables)
}

/// Maps memory whose size is only known from its own header; everything read there is checked before it is used.
fn open(fd: OwnedFd) -> Result<Memory, CommError> {
    let region_error = crate::memory::region_error;
    let len = nix::sys::stat::fstat(&fd).map_or(0, |stat| stat.st_size as usize);
    let region = Region::attach(fd, LABEL, len).map_err(region_error)?;
    let header: &Header = region.words(0).map_err(region_error)?;
    let layout = u32::try_from(header.nranks.load())
        .ok()
        .filter(|nranks| (1..=64).contains(nranks) && header.hash.load() == layout_hash())
        .and_then(|nranks| Layout::new(nranks, header.extent.load() as usize))
        .filter(|layout| layout.total() == len);
    match layout {
        Some(layout) => Ok(Memory { region, layout }),
        None => Err(region_error(shared_memory::RegionError::WrongSize { expected: 0, found: len as u64 })),
    }
}
