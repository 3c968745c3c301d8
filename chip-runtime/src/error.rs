//! Why a graph failed: what happened, and at which task, kernel and place of the orchestration.

use crate::task::{KernelId, Site, TaskId};
use comm_context::abi::{AbiError, DType};
use shared_memory::Limit;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use worker_errors::ErrorCode;

/// A failure of a graph: what happened, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeError {
    /// What happened.
    pub kind: ErrorKind,
    /// Where.
    pub at: At,
}

/// The task, the kernel and the place in the orchestration that an error is about, as far as there are any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// The task.
    pub task: Option<TaskId>,
    /// Its kernel: the number, and the name that it was registered with.
    pub kernel: Option<(KernelId, Arc<str>)>,
    /// Where the task was submitted; without a task, the call that failed.
    pub site: Option<Site>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A limit was set to something that cannot be.
    #[error("the limit `{limit}` cannot be {value}; set it to {allowed}")]
    Limit {
        /// Its name.
        limit: &'static str,
        /// What was asked for.
        value: u64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Scopes are nested deeper than the limit.
    #[error("scopes are nested {limit} deep, which is the limit; close some first, or raise `scope_depth`")]
    ScopeDepth {
        /// The limit.
        limit: usize,
    },
    /// A scope was closed that was not open, or was still open at the end.
    #[error("{open} scopes are open at the end of the orchestration; close each scope that it opens")]
    OpenScopes {
        /// How many, without the outer one.
        open: usize,
        /// Where the last of them was opened.
        scope: Option<Site>,
    },
    /// `scope_end` without `scope_begin`.
    #[error("scope_end without a scope_begin; close each scope once")]
    NoScope,
    /// A ring has no free slot, and waiting for one can never end.
    #[error(
        "ring {ring} has {slots} slots and all are taken by tasks of the scope that is still open: they are freed \
         when it closes; close it earlier, use an inner scope, or raise `slots`"
    )]
    SlotsFull {
        /// The ring.
        ring: usize,
        /// Its slots.
        slots: usize,
        /// Where the scope was opened that holds them.
        scope: Option<Site>,
    },
    /// A ring's heap has no room, and waiting for it can never end.
    #[error(
        "the heap of ring {ring} has {bytes} bytes, and {need} more do not fit beside what the scope that is still open \
         holds; close it earlier, use an inner scope, or raise `heap`"
    )]
    HeapFull {
        /// The ring.
        ring: usize,
        /// The size of its heap.
        bytes: u64,
        /// What was asked for.
        need: u64,
        /// Where the scope was opened that holds it.
        scope: Option<Site>,
    },
    /// The heap of a ring is large enough, but there is no memory for it.
    #[error(
        "the heap of a ring needs {need} bytes of memory, and there are {have}: {limit}, or set a lower `heap`"
    )]
    HeapMemory {
        /// What it needs.
        need: u64,
        /// What is there.
        have: u64,
        /// What allows no more.
        limit: Limit,
    },
    /// More edges than the limit.
    #[error(
        "{limit} edges between unfinished tasks are the limit, and none of these tasks can end; publish tasks earlier, or \
         raise `edges`"
    )]
    EdgesFull {
        /// The limit.
        limit: usize,
    },
    /// The task's arguments cannot be.
    #[error("{0}")]
    Argument(#[from] ArgumentError),
    /// A `sync_start` task can never have all its cores at once.
    #[error(
        "{blocks} blocks that start together need {need} {cores} cores, and the chip has {have}; use fewer blocks, or leave \
         `sync_start` out"
    )]
    SyncStart {
        /// The blocks.
        blocks: u32,
        /// Cores that they need.
        need: u32,
        /// Which kind.
        cores: &'static str,
        /// Cores that there are.
        have: u32,
    },
    /// The data of a tensor cannot be read or written now.
    #[error("{0}")]
    DataAccess(&'static str),
    /// The orchestration reported a failure of its own.
    #[error("{text} (code {code}, reported by the orchestration)")]
    Reported {
        /// Its code.
        code: i32,
        /// Its text.
        text: String,
    },
    /// The orchestration panicked or threw.
    #[error("the orchestration ended abruptly: {0}")]
    Orchestration(String),
    /// A kernel returned an error, panicked, threw, or set the error word of its context.
    #[error("the kernel failed: {text}")]
    Kernel {
        /// What it said.
        text: String,
        /// The block.
        block: u32,
    },
    /// Nothing runs, nothing is ready and no wait is armed, but tasks are left: none of them can ever start.
    #[error(
        "nothing can complete: {left} tasks are left, each waits for another one{}; take an edge between them out",
        cycle_text(.cycle)
    )]
    NothingCompletes {
        /// Tasks that are left.
        left: usize,
        /// Some of them, each waiting for the next, the last for the first; empty where there is no cycle.
        cycle: Vec<TaskId>,
    },
    /// A dependency would close a cycle.
    #[error(
        "the edge from {before} to {after} closes a cycle: {after} comes before {before} already; leave one of the two out"
    )]
    Cycle {
        /// What should come first.
        before: TaskId,
        /// What should come after.
        after: TaskId,
    },
    /// The deadline passed.
    #[error("the graph did not end within {limit:?}; give it more time, or see what it was doing: {table}")]
    TimedOut {
        /// What it was given.
        limit: Duration,
        /// What ran and what waited.
        table: String,
    },
    /// The deadline passed while the orchestration waited for the data of a tensor. The error is at a task that uses it.
    #[error(
        "the orchestration waits for its tensor, and it has not ended within {limit:?}; give it more time, or see what the \
         graph was doing: {table}"
    )]
    DataTimedOut {
        /// What the graph was given.
        limit: Duration,
        /// What ran and what waited.
        table: String,
    },
    /// The orchestration neither returned nor called its graph before the deadline. Only who owns its process can end it.
    #[error(
        "the orchestration has not returned in {limit:?}{}; code that does not return cannot be stopped, its process \
         can: {table}",
        last_text(*.submitted)
    )]
    NotReturned {
        /// What it was given.
        limit: Duration,
        /// How many tasks it submitted. The error is at the last of them.
        submitted: u64,
        /// What ran and what waited.
        table: String,
    },
    /// A panic that no kernel and no orchestration caused.
    #[error("the runtime panicked, please report it: {0}")]
    Panicked(String),
    /// A kernel of an earlier run has not returned.
    #[error(
        "a kernel of an earlier run has not returned, and nothing else can run before; wait with `await_kernels`, or end \
         this process: {table}"
    )]
    StillRunning {
        /// Which kernels.
        table: String,
    },
    /// A wait or signal between chips.
    #[error("{text}")]
    Signal {
        /// 101 to 103.
        code: i32,
        /// The kind of failure, for those who compare it with failures of other processes.
        cause: ErrorCode,
        /// What happened.
        text: String,
    },
    /// The front end does not have this call.
    #[error("{call} is not a call of the front end `{front_end}`: {instead}")]
    NotHere {
        /// The call.
        call: &'static str,
        /// The front end.
        front_end: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// The system refused memory or a thread.
    #[error("the system refused {what}: {why}; set lower limits, or see those of this process and container")]
    System {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        why: String,
    },
}

/// What is wrong with the arguments of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// Too many tensors or scalars.
    #[error(
        "a task or an entry has at most {most} {what}, not {given}; join tensors that lie side by side, or pass scalars in a \
         tensor"
    )]
    TooMany {
        /// `tensors` or `scalars`.
        what: &'static str,
        /// The limit.
        most: usize,
        /// What was given.
        given: usize,
    },
    /// A kernel that nobody registered.
    #[error("kernel {0} is not registered; register it with the runtime before the run")]
    UnknownKernel(KernelId),
    /// No kernel at all.
    #[error("the task has no kernel; submit it as a dummy task if it only orders others")]
    NoKernel,
    /// The descriptor of a tensor is malformed.
    #[error("tensor {index}: {source}")]
    Tensor {
        /// Its place among the tensors of the task.
        index: usize,
        /// What is wrong.
        source: AbiError,
    },
    /// A tensor lies in memory that the graph does not know.
    #[error(
        "tensor {index}: {bytes} bytes at {addr:#x} lie in no buffer that was given to the graph; import the buffer first, or \
         pass it to the entry"
    )]
    UnknownMemory {
        /// Its place.
        index: usize,
        /// Where it starts.
        addr: u64,
        /// The size of its buffer.
        bytes: u64,
    },
    /// A tensor is used whose scope has ended.
    #[error(
        "tensor {index} is an output of {owner}, whose scope has ended, and the tensor with it; use it inside, or allocate it \
         outside"
    )]
    ScopeEnded {
        /// Its place.
        index: usize,
        /// The task that made it.
        owner: TaskId,
    },
    /// An owner that is not a task of this graph, or not of that memory.
    #[error(
        "tensor {index} says that {owner} made it, which did not make a tensor there; take it from what submit returned"
    )]
    NotOwner {
        /// Its place.
        index: usize,
        /// The task that it names.
        owner: TaskId,
    },
    /// A dependency on a task that does not exist.
    #[error("{0} is not a task that was submitted to this graph; take its id from what submit returned")]
    UnknownTask(TaskId),
    /// A dependency is added to a task that may run already.
    #[error("{0} is published already; add its dependencies before")]
    Published(TaskId),
    /// A number of blocks that cannot be.
    #[error("a task with {0} blocks; it has 1 to 65535: give each block more of the work")]
    Blocks(u32),
    /// An index outside the tensor.
    #[error(
        "the index {index:?} is outside a tensor of shape {shape:?}; give one number for each dimension, counted from 0"
    )]
    Index {
        /// The index.
        index: Vec<u32>,
        /// The shape.
        shape: Vec<u32>,
    },
    /// Elements of this type cannot be compared or accessed one by one.
    #[error("elements of type {} cannot be accessed one by one; use a kernel", type_name(*.0))]
    ElementType(u8),
    /// A typed tensor of another type.
    #[error(
        "the tensor has elements of type {}, and the call is for {}; use the type of the tensor",
        type_name(*.found),
        type_name(*.wanted)
    )]
    OtherType {
        /// What it has.
        found: u8,
        /// What was asked for.
        wanted: u8,
    },
    /// There are fewer arguments.
    #[error("there is no argument {index}; there are {have}, counted from 0")]
    NoSuchArgument {
        /// The place.
        index: usize,
        /// How many there are.
        have: usize,
    },
    /// More elements than there is room for.
    #[error("elements up to {end} do not fit into {have}; access fewer, or make it longer")]
    TooLong {
        /// Where they end.
        end: usize,
        /// How many there is room for.
        have: usize,
    },
    /// A kernel writes a tensor that its task only reads.
    #[error("the task only reads this tensor; name it as inout or output to write it")]
    ReadOnly,
    /// A list of arguments that C++ could not make, or that cannot be read.
    #[error("{0}")]
    Malformed(String),
    /// A buffer that an earlier graph may still write.
    #[error("the buffer is in use by a kernel that has not returned; wait for it with `await_kernels`")]
    BufferInUse,
}

impl RuntimeError {
    /// The code for C callers: that of the limit or condition that was hit.
    ///
    /// 1 scopes, 2 the heap, 3 slots, 4 edges, 5 arguments and calls, 7 `sync_start`, 8 data of a tensor, 9 the user's own
    /// code, 100 nothing completes, or not in time, or the system refuses, 101 to 103 [signals](crate::signals::SignalError::code).
    /// Two codes that other runtimes have do not occur: 10, a full list of the tasks of a scope, since that list grows with
    /// the slots, and 11, a full map of tensors, since that grows with what unfinished tasks use.
    pub fn code(&self) -> i32 {
        use ErrorKind::*;
        match &self.kind {
            ScopeDepth { .. } | OpenScopes { .. } | NoScope => 1,
            HeapFull { .. } | HeapMemory { .. } => 2,
            SlotsFull { .. } => 3,
            EdgesFull { .. } => 4,
            Limit { .. } | Argument(_) | Cycle { .. } | NotHere { .. } => 5,
            SyncStart { .. } => 7,
            DataAccess(_) | DataTimedOut { .. } => 8,
            Reported { .. } | Orchestration(_) | Kernel { .. } => 9,
            NothingCompletes { .. }
            | TimedOut { .. }
            | NotReturned { .. }
            | Panicked(_)
            | StillRunning { .. }
            | System { .. } => 100,
            Signal { code, .. } => *code,
        }
    }

    /// Adds where it happened, unless that is known.
    pub(crate) fn at_site(mut self, site: Option<Site>) -> Self {
        self.at.site = self.at.site.or(site);
        self
    }

    /// Where the scope was opened that it is about, if it is about one.
    pub fn scope(&self) -> Option<Site> {
        match &self.kind {
            ErrorKind::OpenScopes { scope, .. }
            | ErrorKind::SlotsFull { scope, .. }
            | ErrorKind::HeapFull { scope, .. } => *scope,
            _ => None,
        }
    }
}

impl From<ErrorKind> for RuntimeError {
    fn from(kind: ErrorKind) -> Self {
        Self { kind, at: At::default() }
    }
}

impl From<ArgumentError> for RuntimeError {
    fn from(error: ArgumentError) -> Self {
        ErrorKind::Argument(error).into()
    }
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At { task, kernel, site } = &self.at;
        if let Some(task) = task {
            write!(f, "{task}")?;
            if let Some((id, name)) = kernel {
                write!(f, ", kernel {id} `{name}`")?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{}", self.kind)?;
        let place = match (site, task) {
            (Some(site), Some(_)) => Some(format!("submitted at {site}")),
            (Some(site), None) => Some(format!("at {site}")),
            (None, _) => None,
        };
        let scope = self.scope().map(|opened| format!("scope opened at {opened}"));
        let places: Vec<String> = place.into_iter().chain(scope).collect();
        if places.is_empty() { Ok(()) } else { write!(f, " ({})", places.join("; ")) }
    }
}

impl std::error::Error for RuntimeError {}

fn type_name(code: u8) -> String {
    DType::from_code(code).map_or_else(|_| format!("{code} (unknown)"), |dtype| format!("{dtype:?}"))
}

fn last_text(submitted: u64) -> String {
    match submitted {
        0 => " and has submitted nothing".to_owned(),
        _ => format!(", and this is the last of {submitted} tasks that it submitted"),
    }
}

fn cycle_text(cycle: &[TaskId]) -> String {
    if cycle.is_empty() {
        return String::new();
    }
    let names: Vec<String> = cycle.iter().map(TaskId::to_string).collect();
    format!(" ({}, and so on)", names.join(" waits for "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_task_kernel_and_site() {
        let error = RuntimeError {
            kind: ErrorKind::Kernel { text: "overflow".into(), block: 0 },
            at: At {
                task: Some(TaskId(1 << 32 | 7)),
                kernel: Some((KernelId(3), "scale".into())),
                site: Some(Site { file: "orch.cpp", line: 12 }),
            },
        };
        assert_eq!(
            error.to_string(),
            "task 1.7, kernel 3 `scale`: the kernel failed: overflow (submitted at orch.cpp:12)"
        );
        assert_eq!(error.code(), 9);
        let scope = Some(Site { file: "orch.cpp", line: 7 });
        let error = RuntimeError::from(ErrorKind::OpenScopes { open: 1, scope });
        assert!(error.to_string().ends_with(" (scope opened at orch.cpp:7)"), "{error}");
    }
}
