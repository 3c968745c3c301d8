//! A running Worker as seen from outside, to debug a hang.
//!
//! A Worker (crate worker-orch, which is not known here) keeps its words in anonymous memory of this name. A legend in it says where the few
//! words are that are shown here. They are read as bytes of a file, and nothing in them is believed.

use deadline::monotonic_ns;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

const LABEL: &str = "memfd:chipcomm-worker";
const LEGEND_AT: u64 = 256;
const MAGIC: u64 = u64::from_le_bytes(*b"CHIPWORK");
const VERSION: u32 = 1;
/// The most children, and the most slots, that are shown.
const MOST: u32 = 1024;
const NAME_BYTES: usize = 28;
/// A task that another waits for is one word: the child above these bits, the task's number in them.
const NEED_BITS: u32 = 48;

/// The Workers of the process `pid`, and the one that it is a child of. Each as a table with a line for each child: what it does, for how long, and how many of
/// its tasks are done. Empty when there is none.
///
/// Reads the memory through the descriptor of the Worker's process, which needs permission to inspect that process.
pub fn workers_of(pid: u32) -> std::io::Result<Vec<String>> {
    let mut tables = tables_of(pid)?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    // Children have the memory mapped and no descriptor of it. The parent may be anybody's.
    let above = parent.map_or(Ok(Vec::new()), tables_of).unwrap_or_default();
    tables.extend(above.into_iter().filter(|table| table.contains(&format!(" pid {pid:<8} "))));
    Ok(tables)
}

fn tables_of(pid: u32) -> std::io::Result<Vec<String>> {
    let (mut tables, mut seen) = (Vec::new(), BTreeSet::new());
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if !target.to_string_lossy().contains(LABEL) {
            continue;
        }
        let file = File::open(entry.path())?;
        // It may be open twice.
        if seen.insert(file.metadata()?.ino()) {
            tables.extend(Block { file }.table());
        }
    }
    Ok(tables)
}

/// The words of one Worker.
struct Block {
    file: File,
}

/// What a Worker says of its layout.
struct Legend {
    parent_pid: u32,
    children: u32,
    children_at: u64,
    child_bytes: u64,
    about_at: u64,
    done_at: u64,
    activity_at: u64,
    slots_at: u64,
    slot_bytes: u64,
    slots: u32,
}

impl Block {
    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
    }

    fn u64(&self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    /// `None` when it is not a Worker's, or of another version.
    fn legend(&self) -> Option<Legend> {
        let words: [u8; 56] = self.bytes(LEGEND_AT)?;
        let mut numbers =
            words[8..].chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_le_bytes));
        let mut next = || numbers.next().unwrap_or(0);
        if self.u64(LEGEND_AT)? != MAGIC || next() != VERSION {
            return None;
        }
        let (parent_pid, children) = (next(), next().min(MOST));
        let mut offset = || u64::from(next());
        let (children_at, child_bytes) = (offset(), offset());
        let (about_at, done_at, activity_at) = (offset(), offset(), offset());
        let (slots_at, slot_bytes) = (offset(), offset());
        let slots = next().min(MOST);
        Some(Legend {
            parent_pid,
            children,
            children_at,
            child_bytes,
            about_at,
            done_at,
            activity_at,
            slots_at,
            slot_bytes,
            slots,
        })
    }

    fn table(&self) -> Option<String> {
        let legend = self.legend()?;
        let mut table = format!("Worker of process {}:\n", legend.parent_pid);
        for child in 0..legend.children {
            let line = self.line(&legend, child).unwrap_or_else(|| "not readable".to_owned());
            let _ = writeln!(table, "  {line}");
        }
        Some(table)
    }

    fn line(&self, legend: &Legend, child: u32) -> Option<String> {
        let at = legend.children_at + u64::from(child) * legend.child_bytes;
        let pid = u32::from_le_bytes(self.bytes(at + legend.about_at)?);
        if pid == 0 {
            return Some("not started yet".to_owned());
        }
        let done = self.u64(at + legend.done_at)?;
        let slots = (0..legend.slots).map(|slot| at + legend.slots_at + u64::from(slot) * legend.slot_bytes);
        let sent = slots.filter_map(|slot| self.u64(slot)).max().unwrap_or(0);
        let [task, since, need] = [0, 8, 16].map(|word| self.u64(at + legend.activity_at + word));
        let doing = match (task?, need?) {
            (0, _) => "idle".to_owned(),
            (task, need) => {
                let since = Duration::from_nanos(monotonic_ns().saturating_sub(since?));
                let need = if need == 0 { String::new() } else { self.need(legend, need) };
                format!("in task {task} for {since:.1?}{need}")
            }
        };
        Some(format!("{:<12} pid {pid:<8} {doing}, {done} of {sent} done", self.name(legend, child)?))
    }

    /// `, waits for task 3 of chip 0 before`.
    fn need(&self, legend: &Legend, need: u64) -> String {
        let (child, task) = ((need >> NEED_BITS) as u32, need & ((1 << NEED_BITS) - 1));
        let name =
            Some(child).filter(|child| *child < legend.children).and_then(|child| self.name(legend, child));
        format!(", waits for task {task} of {} before", name.unwrap_or_else(|| "?".to_owned()))
    }

    fn name(&self, legend: &Legend, child: u32) -> Option<String> {
        let at = legend.children_at + u64::from(child) * legend.child_bytes + legend.about_at + 4;
        let bytes: [u8; NAME_BYTES] = self.bytes(at)?;
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(name).chars().filter(|c| !c.is_control()).collect())
    }
}
