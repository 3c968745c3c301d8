//! The process that holds a name, for errors.

use std::os::unix::fs::MetadataExt;

/// The process that holds the socket `name`, as text for users. `None` when nobody does.
pub(super) fn describe(name: &str) -> Option<String> {
    let inode = inode_of(&std::fs::read_to_string("/proc/net/unix").ok()?, name)?;
    let link = format!("socket:[{inode}]");
    let holder = std::fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let mut open = std::fs::read_dir(process.path().join("fd")).ok()?.flatten();
        open.any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target.as_os_str() == link.as_str()))
            .then_some(pid)
    });
    Some(holder.map_or_else(|| "a process that is not visible from here".to_owned(), process))
}

/// A process by pid, program and user.
pub(super) fn process(pid: u32) -> String {
    let at = format!("/proc/{pid}");
    let comm = std::fs::read_to_string(format!("{at}/comm")).unwrap_or_default();
    let uid = std::fs::metadata(at).map_or("unknown".to_owned(), |found| found.uid().to_string());
    format!("pid {pid} (`{}`, uid {uid})", worker_errors::escape(comm.trim_end(), 64))
}

/// The inode of the socket that is bound to `name` and not connected, from the system's list of sockets.
fn inode_of(sockets: &str, name: &str) -> Option<u64> {
    sockets.lines().find_map(|line| {
        // Num RefCount Protocol Flags Type St Inode Path
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [.., state, inode, path] = fields[..] else { return None };
        (state == "01" && path.strip_prefix('@') == Some(name)).then(|| inode.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_that_is_bound_is_found_among_its_connections() {
        let sockets = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000003 00000000 00000000 0005 03 111 @chipcomm/0/x\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 112 @chipcomm/0/xy\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 113 @chipcomm/0/x\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 114\n";
        assert_eq!(inode_of(sockets, "chipcomm/0/x"), Some(113));
        assert_eq!(inode_of(sockets, "chipcomm/0"), None);
        assert_eq!(inode_of("", "x"), None);
    }
}
