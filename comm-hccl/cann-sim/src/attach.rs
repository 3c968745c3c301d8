//! A process's place in the session, and the gate that every vendor function goes through.
//!
//! Counters are relaxed: a test reads them after the process has ended, and nothing else depends on them.

use crate::config::Config;
use crate::control::{ControlFile, ControlLock, ProcessSlot};
use crate::faults::{Effect, Script};
use crate::objects::Kind;
use crate::session::SessionError;
use crate::shared::{kill_self, process_start};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Names the session's directory.
pub(crate) const ENV_DIR: &str = "CANN_SIM_DIR";
/// The process's rank.
pub(crate) const ENV_RANK: &str = "CANN_SIM_RANK";
/// More fault rules for this process.
const ENV_FAULTS: &str = "CANN_SIM_FAULTS";

/// How the gate answers a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Do it.
    Proceed,
    /// Return this code and do nothing.
    Return(i32),
}

/// This process in its session. Each of the two libraries has one; the slot in the control file is the same.
#[derive(Debug)]
pub struct Attachment {
    dir: PathBuf,
    config: Config,
    script: Script,
    control: ControlFile,
    slot: usize,
    pid: i32,
    host: u64,
    calls: Mutex<HashMap<&'static str, u64>>,
}

/// The attachment of this process, made at the first vendor call.
///
/// # Errors
/// Without a session, or with a malformed one. The error is also printed on standard error, once.
pub fn attach() -> Result<&'static Attachment, &'static AttachError> {
    static ATTACHMENT: OnceLock<Result<Attachment, AttachError>> = OnceLock::new();
    ATTACHMENT
        .get_or_init(|| {
            let made = Attachment::new();
            match &made {
                Ok(a) => log(&format!(
                    "test double of the Ascend libraries, no hardware; session {}",
                    a.dir.display()
                )),
                Err(error) => log(&error.to_string()),
            }
            made
        })
        .as_ref()
}

/// Why a process cannot take part in a session.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No session is named.
    #[error("{ENV_DIR} is not set; it names the session's directory")]
    NoSession,
    /// The rank is malformed.
    #[error("{ENV_RANK}={text:?} is not a number")]
    Rank {
        /// The value.
        text: String,
    },
    /// The session cannot be read.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// `/proc` does not show when this process started.
    #[error("the start time of this process cannot be read from /proc")]
    NoStartTime,
    /// All slots are taken.
    #[error("the session has no slot for another process; start a new session")]
    Full,
}

/// Prints a line of the double on standard error.
pub fn log(text: &str) {
    eprintln!("cann-sim[{}]: {text}", std::process::id());
}

impl Attachment {
    fn new() -> Result<Self, AttachError> {
        let dir = std::env::var_os(ENV_DIR).map(PathBuf::from).ok_or(AttachError::NoSession)?;
        let read = |name: &str| read_optional(&dir.join(name));
        let config = read("config")?.parse().map_err(SessionError::from)?;
        let mut script: Script = read("faults")?.parse().map_err(SessionError::from)?;
        if let Ok(more) = std::env::var(ENV_FAULTS) {
            script.extend(more.parse().map_err(SessionError::from)?);
        }
        let control = ControlFile::open(&dir).map_err(|source| control_error(&dir, source))?;
        let pid = std::process::id() as i32;
        let slot = claim_slot(&control, &dir, pid)?;
        // Without namespaces every process is on one host.
        let host = std::fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino());
        let this = Self { dir, config, script, control, slot, pid, host, calls: Mutex::default() };
        if let Ok(text) = std::env::var(ENV_RANK) {
            let rank = text.parse().map_err(|_| AttachError::Rank { text })?;
            this.process().rank.store(rank, Relaxed);
        }
        Ok(this)
    }

    /// What the machine is like.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// This process's slot.
    pub fn process(&self) -> &ProcessSlot {
        &self.control.control().processes[self.slot]
    }

    /// This process's pid, as it was when it attached.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The host of this process: its network namespace.
    pub fn host(&self) -> u64 {
        self.host
    }

    /// Whether this process is a child that was forked after the parent attached.
    pub fn is_forked(&self) -> bool {
        self.pid != std::process::id() as i32
    }

    /// The session's shared tables, locked.
    pub fn lock(&self) -> std::io::Result<ControlLock<'_>> {
        self.control.lock()
    }

    /// The session's shared tables without the lock, for the words that ranks wait on.
    pub fn tables(&self) -> &crate::control::Control {
        self.control.control()
    }

    /// Uses the device id as the rank unless the environment has set one.
    pub fn device_is_rank(&self, device: i32) {
        let _ = self.process().rank.compare_exchange(-1, device, Relaxed, Relaxed);
    }

    /// Counts the call and applies the script. A call that hangs or dies by the script does not return.
    pub fn enter(&self, function: &'static str) -> Entry {
        self.process().calls.fetch_add(1, Relaxed);
        let call = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let count = calls.entry(function).or_default();
            *count += 1;
            *count
        };
        let rank = u32::try_from(self.process().rank.load(Relaxed)).ok();
        let Some(effect) = self.script.effect(rank, function, call) else {
            return Entry::Proceed;
        };
        log(&format!("fault: call {call} of {function}: {effect:?}"));
        match effect {
            Effect::Return(code) => Entry::Return(code),
            Effect::Hang => loop {
                std::thread::park();
            },
            Effect::Kill => {
                kill_self();
                // The signal may arrive a moment later.
                loop {
                    std::thread::park();
                }
            }
            Effect::Abort => std::process::abort(),
        }
    }

    /// An object of this kind now exists.
    pub fn created(&self, kind: Kind) {
        self.process().live[kind as usize].fetch_add(1, Relaxed);
    }

    /// An object of this kind was destroyed by its own call.
    pub fn destroyed(&self, kind: Kind) {
        self.process().live[kind as usize].fetch_sub(1, Relaxed);
    }

    /// All objects of this kind, which the sibling library made, were cleaned up by a reset or the end of the runtime.
    pub fn reclaimed_all(&self, kind: Kind) {
        let count = self.process().live[kind as usize].swap(0, Relaxed);
        self.process().reclaimed[kind as usize].fetch_add(count, Relaxed);
    }

    /// An object of this kind was cleaned up by a reset or the end of the runtime.
    pub fn reclaimed(&self, kind: Kind) {
        self.destroyed(kind);
        self.process().reclaimed[kind as usize].fetch_add(1, Relaxed);
    }
}

fn read_optional(path: &Path) -> Result<String, SessionError> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        other => other.map_err(|source| SessionError::File { path: path.to_owned(), source }),
    }
}

fn control_error(dir: &Path, source: std::io::Error) -> SessionError {
    SessionError::File { path: dir.join("control"), source }
}

/// The slot of this process: the one that the sibling library took, or the first free one.
fn claim_slot(control: &ControlFile, dir: &Path, pid: i32) -> Result<usize, AttachError> {
    let start = process_start(pid).ok_or(AttachError::NoStartTime)?;
    let lock = control.lock().map_err(|source| control_error(dir, source))?;
    for (index, slot) in lock.control().processes.iter().enumerate() {
        match slot.pid.load(Relaxed) {
            0 => {
                slot.rank.store(-1, Relaxed);
                slot.start.store(start, Relaxed);
                slot.pid.store(pid, Relaxed);
                return Ok(index);
            }
            taken if taken == pid && slot.start.load(Relaxed) == start => return Ok(index),
            _ => {}
        }
    }
    Err(AttachError::Full)
}
