//! The process in which the kernels of a device run. It maps device memory at device addresses and nothing of the host.
//!
//! It starts with the first kernel that is loaded, and ends with the reset of the device or with this process.
//!
//! # Safety
//! Waits on a descriptor that it owns.
#![allow(unsafe_code)]

use crate::view::View;
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The program; `build.rs` compiles it.
const PROGRAM: &str = concat!(env!("OUT_DIR"), "/cann-sim-device");

/// A device's process.
pub(crate) struct DeviceProcess {
    child: Child,
    commands: UnixStream,
    answers: BufReader<UnixStream>,
}

/// A kernel that runs.
pub(crate) struct Running {
    /// The pipe that tells its end, and how that was, once it is known.
    done: Mutex<(PipeReader, Option<Ended>)>,
    until: Option<Instant>,
}

/// How a kernel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Returned,
    /// The device's process is gone.
    Crashed,
    /// The launch's limit passed.
    TooLate,
}

impl DeviceProcess {
    pub(crate) fn start() -> io::Result<Self> {
        let (commands, theirs) = UnixStream::pair()?;
        let child = Command::new(PROGRAM).stdin(OwnedFd::from(theirs)).spawn()?;
        let answers = BufReader::new(commands.try_clone()?);
        Ok(Self { child, commands, answers })
    }

    /// Maps memory at a device address.
    pub(crate) fn map(&mut self, base: usize, view: &View) -> Result<(), String> {
        let (size, pid, fd) = (view.size(), std::process::id(), view.memory().raw_fd());
        self.command(&format!("map {base} {size} {pid} {fd}")).map(drop)
    }

    pub(crate) fn unmap(&mut self, base: usize, size: usize) -> Result<(), String> {
        self.command(&format!("unmap {base} {size}")).map(drop)
    }

    /// Loads a kernel binary. Returns its number.
    pub(crate) fn load(&mut self, path: &str) -> Result<usize, String> {
        self.command(&format!("load {path}"))
    }

    /// Finds a function. Returns its number.
    pub(crate) fn find(&mut self, library: usize, name: &str) -> Result<usize, String> {
        self.command(&format!("find {library} {name}"))
    }

    pub(crate) fn unload(&mut self, library: usize) -> Result<(), String> {
        self.command(&format!("unload {library}")).map(drop)
    }

    /// Starts a kernel on so many blocks, each with these words as its parameters.
    pub(crate) fn run(
        &mut self,
        function: usize,
        blocks: u32,
        words: &[u64],
        limit: Option<Duration>,
    ) -> Result<Running, String> {
        let (done, end) = io::pipe().map_err(|error| error.to_string())?;
        let words: String = words.iter().map(|word| format!(" {word}")).collect();
        let (pid, fd) = (std::process::id(), end.as_raw_fd());
        let answer = self.ask(&format!("run {function} {blocks} {pid} {fd}{words}"));
        // Only the kernel's thread holds this end now: the end of its process shows.
        drop(end);
        // A kernel may fault before its process has answered. It was launched all the same; that it crashed shows in the pipe.
        if let Some(text) = answer.unwrap_or_default().strip_prefix("error ") {
            return Err(text.to_owned());
        }
        let done = Mutex::new((done, None));
        Ok(Running { done, until: limit.and_then(|limit| Instant::now().checked_add(limit)) })
    }

    fn command(&mut self, line: &str) -> Result<usize, String> {
        if line.contains('\n') {
            return Err("a line break in a name".to_owned());
        }
        let answer = self.ask(line).map_err(|error| format!("the device's process is gone: {error}"))?;
        match answer.split_once(' ') {
            Some(("ok", number)) => number.parse().map_err(|_| format!("malformed answer {answer:?}")),
            Some(("error", text)) => Err(text.to_owned()),
            _ => Err("the device's process is gone".to_owned()),
        }
    }

    /// Sends a line and returns the one that answers, which is empty where the process is gone.
    fn ask(&mut self, line: &str) -> io::Result<String> {
        self.commands.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }

    /// Ends it. Returns how it had ended by itself, if it had.
    pub(crate) fn end(mut self) -> Option<String> {
        let by_itself = self.child.try_wait().ok().flatten();
        let _ = self.child.kill();
        let _ = self.child.wait();
        by_itself.map(|status| match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("{status}"),
        })
    }

    /// Waits until the process has ended by itself, for a moment: its pipes close before it can be waited for.
    pub(crate) fn settle(&mut self) {
        let until = Instant::now() + Duration::from_secs(5);
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Running {
    /// Waits for the kernel's end.
    pub(crate) fn wait(&self) -> Ended {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // At most half a minute a turn, rounded up so that the last turn does not spin.
            let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
            let millis = left.map_or(30_000, |left| (left.as_millis() + 1).min(30_000) as i32);
            if let Some(ended) = self.look(&mut done, millis) {
                return ended;
            }
        }
    }

    /// How the kernel has ended, if it has by now.
    pub(crate) fn ended(&self) -> Option<Ended> {
        match self.done.try_lock() {
            Ok(mut done) => self.look(&mut done, 0),
            Err(TryLockError::Poisoned(done)) => self.look(&mut done.into_inner(), 0),
            // Somebody waits for it.
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn look(&self, (done, known): &mut (PipeReader, Option<Ended>), millis: i32) -> Option<Ended> {
        if known.is_some() {
            return *known;
        }
        let mut poll = libc::pollfd { fd: done.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid structure, for a descriptor that `self` owns.
        if unsafe { libc::poll(&mut poll, 1, millis) } > 0 {
            let ended = done.read(&mut [0]);
            let returned = ended.is_ok_and(|count| count == 1);
            *known = Some(if returned { Ended::Returned } else { Ended::Crashed });
        } else if self.until.is_some_and(|until| Instant::now() >= until) {
            *known = Some(Ended::TooLate);
        }
        *known
    }
}
