//! What a scenario observed, for the watcher.

use deadline::monotonic_ns;
use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, waitpid};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::time::Duration;
use worker_errors::Failure;

/// One call of a scenario's program, or everything that one rank does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    /// 1 with the fault, 2 for the round after it.
    pub(crate) round: u32,
    pub(crate) name: String,
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
    /// How long it may take; one that has nothing to wait for has no limit.
    pub(crate) limit_ms: Option<u64>,
    pub(crate) error: Option<ErrorReport>,
}

/// An error as the caller got it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ErrorReport {
    pub(crate) code: String,
    pub(crate) text: String,
}

/// Everything.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) calls: Vec<Call>,
    /// The message of a panic that came out of a call.
    pub(crate) panicked: Option<String>,
    /// What was there after the last round and not before the first.
    pub(crate) left: Vec<String>,
}

impl From<&Failure> for ErrorReport {
    fn from(failure: &Failure) -> Self {
        Self { code: format!("{:?}", failure.root_cause().code), text: failure.to_string() }
    }
}

/// The calls so far.
#[derive(Debug, Default)]
pub(crate) struct CallLog {
    pub(crate) round: Cell<u32>,
    pub(crate) calls: RefCell<Vec<Call>>,
}

impl CallLog {
    /// Makes a call and logs how it went.
    pub(crate) fn call<T>(
        &self,
        name: &str,
        limit: Option<Duration>,
        call: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let begin_ns = monotonic_ns();
        let result = call();
        self.calls.borrow_mut().push(Call {
            round: self.round.get(),
            name: name.to_owned(),
            begin_ns,
            end_ns: monotonic_ns(),
            limit_ms: limit.map(|limit| limit.as_millis() as u64),
            error: result.as_ref().err().map(ErrorReport::from),
        });
        result
    }
}

/// What a process holds: descriptors, shared mappings, children.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    descriptors: Vec<String>,
    /// A kernel's library is not among them: the C++ in it may forbid the loader to unload it.
    shared_mappings: Vec<String>,
    children: bool,
}

impl Holdings {
    pub(crate) fn now() -> Self {
        let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let mut descriptors: Vec<String> = entries
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .map(|target| target.to_string_lossy().into_owned())
            // The folder that is being read.
            .filter(|target| !target.ends_with("/fd"))
            .collect();
        descriptors.sort();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let shared = |line: &&str| line.split(' ').nth(1).is_some_and(|rights| rights.ends_with('s'));
        let name = |line: &str| line.split_ascii_whitespace().last().unwrap_or_default().to_owned();
        let shared_mappings = maps.lines().filter(shared).map(name).collect();
        let none = waitpid(None, Some(WaitPidFlag::WNOHANG)) == Err(Errno::ECHILD);
        Self { descriptors, shared_mappings, children: !none }
    }

    /// What `self` has more than `before`, in words.
    pub(crate) fn beyond(&self, before: &Self) -> Vec<String> {
        let mut left = Vec::new();
        let mut more = |what: &str, now: &[String], then: &[String]| {
            if now.len() > then.len() {
                left.push(format!("{} {what} of {now:?}", now.len() - then.len()));
            }
        };
        more("descriptors", &self.descriptors, &before.descriptors);
        more("shared mappings", &self.shared_mappings, &before.shared_mappings);
        if self.children && !before.children {
            left.push("a child process".to_owned());
        }
        left
    }
}
