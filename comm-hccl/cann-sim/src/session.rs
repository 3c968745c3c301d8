//! The test's side of a session: make one, script it, start ranks in it, and report what is left.
//!
//! Counters are read relaxed: a figure of a process that still runs is a snapshot anyway.

use crate::attach::{ENV_DIR, ENV_RANK};
use crate::config::{Config, ConfigError};
use crate::control::ControlFile;
use crate::faults::{Script, ScriptError};
use crate::objects::Kind;
use crate::shared::process_start;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

/// A session's directory.
#[derive(Debug)]
pub struct Session {
    dir: PathBuf,
}

/// Why a session cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A file of the session.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The description of the machine is malformed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The script of faults is malformed.
    #[error(transparent)]
    Script(#[from] ScriptError),
}

/// One process of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessReport {
    /// Its pid.
    pub pid: i32,
    /// Its rank, if it had one.
    pub rank: Option<u32>,
    /// Whether it still runs.
    pub running: bool,
    /// Vendor calls that it made.
    pub calls: u64,
    /// Objects that it holds, or held when it ended, by kind; kinds with none are left out.
    pub live: Vec<(Kind, i64)>,
    /// Objects that a reset or the end of the runtime had to clean up.
    pub reclaimed: Vec<(Kind, i64)>,
}

/// All processes that ever attached, in that order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionReport {
    /// One entry for each process.
    pub processes: Vec<ProcessReport>,
}

impl Session {
    /// A session in an existing directory.
    pub fn create(dir: &Path) -> Result<Self, SessionError> {
        let dir = dir.canonicalize().map_err(|source| SessionError::File { path: dir.to_owned(), source })?;
        let session = Self { dir };
        session.control()?;
        Ok(session)
    }

    /// Sets what the machine is like, for processes that start later.
    pub fn configure(&self, config: &str) -> Result<(), SessionError> {
        config.parse::<Config>()?;
        self.write("config", config)
    }

    /// Sets the script of faults, for processes that start later.
    pub fn script(&self, faults: &str) -> Result<(), SessionError> {
        faults.parse::<Script>()?;
        self.write("faults", faults)
    }

    /// Prepares a program, and what it starts, to run in this session, with the double's libraries as its
    /// vendor libraries. For the faults, a process's rank is then the device that it opens.
    pub fn enlist<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env(ENV_DIR, &self.dir)
            .env(comm_hccl::ENV_LIB_DIR, library_dir())
            .env_remove(ENV_RANK)
            .env_remove(comm_hccl::VisibleDevices::VARIABLE)
    }

    /// The same for a program that is one rank.
    pub fn enlist_as<'a>(&self, command: &'a mut Command, rank: u32) -> &'a mut Command {
        self.enlist(command).env(ENV_RANK, rank.to_string())
    }

    /// What every process of the session holds.
    pub fn report(&self) -> Result<SessionReport, SessionError> {
        let file = self.control()?;
        let processes = file
            .control()
            .processes
            .iter()
            .take_while(|slot| slot.pid.load(Relaxed) != 0)
            .map(|slot| {
                let pid = slot.pid.load(Relaxed);
                let count = |words: &[std::sync::atomic::AtomicI64]| {
                    Kind::ALL
                        .into_iter()
                        .map(|kind| (kind, words[kind as usize].load(Relaxed)))
                        .filter(|(_, n)| *n != 0)
                        .collect()
                };
                ProcessReport {
                    pid,
                    rank: u32::try_from(slot.rank.load(Relaxed)).ok(),
                    running: process_start(pid) == Some(slot.start.load(Relaxed)),
                    calls: slot.calls.load(Relaxed),
                    live: count(&slot.live),
                    reclaimed: count(&slot.reclaimed),
                }
            })
            .collect();
        Ok(SessionReport { processes })
    }

    fn control(&self) -> Result<ControlFile, SessionError> {
        ControlFile::open(&self.dir)
            .map_err(|source| SessionError::File { path: self.dir.join("control"), source })
    }

    fn write(&self, name: &str, text: &str) -> Result<(), SessionError> {
        let path = self.dir.join(name);
        std::fs::write(&path, text).map_err(|source| SessionError::File { path, source })
    }
}

impl ProcessReport {
    /// No object is alive, and a reset or the end of the runtime had none to clean up.
    pub fn is_clean(&self) -> bool {
        self.live.is_empty() && self.reclaimed.is_empty()
    }
}

impl SessionReport {
    /// Every process released everything that it made, itself.
    pub fn is_clean(&self) -> bool {
        self.processes.iter().all(ProcessReport::is_clean)
    }

    /// Objects that exist now: those of processes that still run. The objects of a dead process are gone.
    pub fn live_now(&self) -> i64 {
        self.processes.iter().filter(|p| p.running).flat_map(|p| &p.live).map(|(_, n)| n).sum()
    }
}

impl fmt::Display for SessionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |objects: &[(Kind, i64)]| match objects {
            [] => "nothing".to_owned(),
            some => {
                some.iter().map(|(kind, n)| format!("{} {n}", kind.name())).collect::<Vec<_>>().join(", ")
            }
        };
        writeln!(f, "cann-sim session (test double): {} processes", self.processes.len())?;
        for p in &self.processes {
            let rank = p.rank.map_or("no rank".to_owned(), |r| format!("rank {r}"));
            let holds = if p.running { "holds" } else { "is gone; at its end it held" };
            writeln!(f, "  pid {} ({rank}, {} calls) {holds} {}", p.pid, p.calls, list(&p.live))?;
            if !p.reclaimed.is_empty() {
                writeln!(
                    f,
                    "    not released by the program but by reset or finalize: {}",
                    list(&p.reclaimed)
                )?;
            }
        }
        Ok(())
    }
}

/// Where cargo put `libascendcl.so` and `libhccl.so` for the running test, example or binary.
pub fn library_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let holds = |dir: &&Path| dir.join("libascendcl.so").exists() && dir.join("libhccl.so").exists();
    let found = exe.ancestors().skip(1).take(3).find_map(|dir| {
        [dir.join("deps"), dir.to_owned()].iter().map(PathBuf::as_path).find(holds).map(Path::to_owned)
    });
    found.unwrap_or_else(|| exe.parent().unwrap_or(Path::new("/")).to_owned())
}
