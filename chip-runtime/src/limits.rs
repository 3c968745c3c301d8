//! How large a runtime is, and which front end a graph has.

use crate::error::{ErrorKind, RuntimeError};

/// The sizes of a runtime. Each is reported by its name when it is hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clusters of one cube core and two vector cores.
    pub clusters: usize,
    /// Slots of each ring: tasks that were submitted and are not reclaimed.
    pub slots: usize,
    /// Bytes of each ring's heap, for the tensors that tasks make. From the first of them on, all of it counts as promised to the
    /// process; memory is committed where it is used, after a look at what the machine and the control group have.
    pub heap: u64,
    /// Scopes inside each other.
    pub scope_depth: usize,
    /// Edges between tasks that have not ended.
    pub edges: usize,
}

/// Tensors of a task.
pub const MAX_TENSORS: usize = 32;
/// Scalars of a task.
pub const MAX_SCALARS: usize = 16;
/// Rings of slots and heap. A scope's tasks are in the ring of its depth, those of deeper scopes in the last.
pub const RINGS: usize = 4;
/// The size of an output is rounded up to a multiple of this.
pub const OUTPUT_ALIGN: u64 = 1024;

impl Default for Limits {
    fn default() -> Self {
        Self { clusters: 8, slots: 16_384, heap: 256 << 20, scope_depth: 64, edges: 1 << 20 }
    }
}

impl Limits {
    /// Those of the platform of this name: `a2a3sim` has 24 clusters, `a5sim` 36, every other one 8.
    pub fn of_platform(name: &str) -> Self {
        let clusters = match name {
            "a2a3" | "a2a3sim" => 24,
            "a5" | "a5sim" => 36,
            _ => 8,
        };
        Self { clusters, ..Self::default() }
    }

    pub(crate) fn check(&self) -> Result<(), RuntimeError> {
        let range = |limit, value: u64, least: u64, most: u64, allowed| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(RuntimeError::from(ErrorKind::Limit { limit, value, allowed }))
        };
        range("clusters", self.clusters as u64, 1, 64, "1 to 64")?;
        range("slots", self.slots as u64, 1, 1 << 24, "1 to 16777216")?;
        range("heap", self.heap, OUTPUT_ALIGN, 1 << 40, "1 KiB to 1 TiB")?;
        range("scope_depth", self.scope_depth as u64, 1, 4096, "1 to 4096")?;
        range("edges", self.edges as u64, 1, 1 << 31, "1 to 2147483648")
    }
}

/// Who builds a graph, when its tasks may run, and where its edges come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrontEnd {
    /// The orchestration runs to its end before any task starts. Edges are inferred from tensors, or added.
    /// Slots and heap are not used again: a full one is an error.
    Prebuilt,
    /// Tasks run while the graph is built. Edges are added; a task may run when it is published, or its scope
    /// closed.
    Explicit,
    /// Tasks run while the graph is built, from their submit on. Edges are inferred from tensors, or given with
    /// the task.
    Inferred,
}

impl FrontEnd {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Prebuilt, Self::Explicit, Self::Inferred];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prebuilt => "prebuilt",
            Self::Explicit => "explicit",
            Self::Inferred => "inferred",
        }
    }

    /// By its name, or by the one that the runtime of this kind has elsewhere.
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "prebuilt" | "host_build_graph" => Self::Prebuilt,
            "explicit" | "aicpu_build_graph" => Self::Explicit,
            "inferred" | "tensormap_and_ringbuffer" => Self::Inferred,
            _ => return None,
        })
    }

    pub(crate) fn infers(self) -> bool {
        self != Self::Explicit
    }

    pub(crate) fn publishes_at_submit(self) -> bool {
        self == Self::Inferred
    }
}

/// Whether dependencies between the tasks of a scope are inferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScopeMode {
    /// From their tensors, where the front end infers.
    #[default]
    Auto,
    /// Not at all: the orchestration names them.
    Manual,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Runtime, RuntimeError, TaskArgs};
    use deadline::Deadline;
    use std::time::Duration;

    #[test]
    fn cr_1_impossible_limits_are_refused_by_name() {
        assert_eq!(Limits::default().check(), Ok(()));
        let error = Limits { slots: 0, ..Limits::default() }.check().unwrap_err();
        assert!(error.to_string().contains("`slots` cannot be 0"), "{error}");
    }

    #[test]
    fn front_ends_have_two_names_each() {
        for front_end in FrontEnd::ALL {
            assert_eq!(FrontEnd::by_name(front_end.name()), Some(front_end));
        }
        assert_eq!(FrontEnd::by_name("tensormap_and_ringbuffer"), Some(FrontEnd::Inferred));
        assert_eq!(FrontEnd::by_name("other"), None);
        assert_eq!(Limits::of_platform("a5sim").clusters, 36);
    }

    #[test]
    fn f88_a_scope_that_fills_its_ring_ends_the_run_and_names_the_limit() {
        let mut runtime = Runtime::new(Limits { slots: 8, ..Limits::default() }).unwrap();
        let deadline = Deadline::after(Duration::from_secs(60)).unwrap();
        let endless = runtime.run(FrontEnd::Inferred, deadline, |graph| {
            graph.scope(ScopeMode::Auto, |graph| -> Result<(), RuntimeError> {
                loop {
                    graph.submit_dummy(&TaskArgs::new())?;
                }
            })
        });
        let text = endless.unwrap_err().to_string();
        assert!(text.contains("8 slots") && text.contains("`slots`"), "{text}");
    }
}
