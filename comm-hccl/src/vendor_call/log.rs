//! A log of vendor calls, for the report of a failure on a machine that the reader of the report does not have.
//!
//! It is written where [`ENV_LOG`] names a file. Every call has a line when it starts, so that the last line of a thread
//! shows the call that hangs, and a line when it returns:
//!
//! ```text
//! 1763371234.120551 pid 4711 thread 4713 aclrtMalloc
//! 1763371234.120590 pid 4711 thread 4713 aclrtMalloc = 0 after 0.000039 s
//! ```

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// Names the file to which every vendor call of every process is appended.
pub const ENV_LOG: &str = "CHIPCOMM_VENDOR_LOG";

/// What a vendor call returns.
pub(crate) trait Answer {
    /// As it stands in the log: the code, or the text.
    fn in_log(&self) -> String;
}

impl Answer for i32 {
    fn in_log(&self) -> String {
        self.to_string()
    }
}

impl Answer for String {
    fn in_log(&self) -> String {
        format!("{self:?}")
    }
}

/// Makes a call, and logs it where the user asks for that.
pub(super) fn logged<T: Answer>(function: &str, call: impl FnOnce() -> T) -> T {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    match FILE.get_or_init(|| std::env::var_os(ENV_LOG).map(PathBuf::from)) {
        None => call(),
        Some(file) => log_to(file, function, call),
    }
}

fn log_to<T: Answer>(file: &Path, function: &str, call: impl FnOnce() -> T) -> T {
    append(file, function);
    let start = Instant::now();
    let answer = call();
    let took = start.elapsed().as_secs_f64();
    append(file, &format!("{function} = {} after {took:.6} s", answer.in_log()));
    answer
}

/// Appends one line. The file is opened for each line: a descriptor that is kept would be lost in a forked child, which
/// closes what it does not know. A log that cannot be written changes nothing for the program.
fn append(file: &Path, what: &str) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (seconds, micros, pid) = (now.as_secs(), now.subsec_micros(), std::process::id());
    let line = format!("{seconds}.{micros:06} pid {pid} thread {} {what}\n", thread());
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(file);
    let _ = opened.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// The number of the calling thread, as debuggers and the vendor's own logs show it.
fn thread() -> String {
    let link = std::fs::read_link("/proc/thread-self").unwrap_or_default();
    link.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_has_not_returned_is_in_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log");
        let during = log_to(&file, "aclInit", || std::fs::read_to_string(&file).unwrap());
        assert!(during.ends_with(" aclInit\n") && during.lines().count() == 1, "{during}");
        assert_eq!(log_to(&file, "aclrtMalloc", || 207001), 207001);
        let all = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = all.lines().collect();
        let here = format!("pid {} thread ", std::process::id());
        assert!(lines.len() == 4 && lines.iter().all(|line| line.contains(&here)), "{all}");
        assert!(lines[3].contains("aclrtMalloc = 207001 after 0."), "{all}");
    }

    #[test]
    fn a_log_that_cannot_be_written_changes_nothing() {
        assert_eq!(log_to(Path::new("/proc/no/such/file"), "aclInit", || 7), 7);
    }
}
