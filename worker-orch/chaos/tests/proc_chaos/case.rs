//! One case: a scenario, and the fault in it.

use fault_points::{Action, Fault, Kind, LogLine, Plan};
use nix::errno::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A program that is run with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    /// A Worker that forks its children.
    Fork,
    /// A Worker that starts its children by exec.
    Exec,
    /// A Worker whose chips become a group when they need one.
    Plain,
    /// The same on the vendor double.
    Double,
    /// Runs in flight, what is cancelled, and memory that ends inside a run.
    Flight,
    /// A Worker whose chips run graphs that wait for each other.
    Graphs,
    /// A Worker of Workers.
    Levels,
    /// Ranks that rendezvous at a path, without a Worker.
    Ranks,
    /// Ranks that rendezvous at an address, as those on several hosts do.
    Hosts,
}

impl Scenario {
    const ALL: [Self; 9] = [
        Self::Fork,
        Self::Exec,
        Self::Plain,
        Self::Double,
        Self::Flight,
        Self::Graphs,
        Self::Levels,
        Self::Ranks,
        Self::Hosts,
    ];

    /// Those that can run: the double must have been built.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let double = std::env::var_os(DOUBLE_VARIABLE).is_some();
        Self::ALL.into_iter().filter(move |scenario| double || *scenario != Self::Double)
    }

    /// Whether its processes are ranks that no Worker has started.
    pub(crate) fn is_of_ranks(self) -> bool {
        matches!(self, Self::Ranks | Self::Hosts)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Exec => "exec",
            Self::Plain => "plain",
            Self::Double => "double",
            Self::Flight => "flight",
            Self::Graphs => "graphs",
            Self::Levels => "levels",
            Self::Ranks => "ranks",
            Self::Hosts => "hosts",
        }
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|scenario| scenario.name() == text)
            .ok_or(format!("unknown scenario {text:?}; there are {known}"))
    }
}

/// The variable that says where the double's libraries are.
const DOUBLE_VARIABLE: &str = "CHIPCOMM_CANN_LIB_DIR";

/// The number under which faults in a scenario's first process are planned; no child has it.
pub(crate) const PARENT: u32 = 999;

/// How long a paused process is stopped, and a delayed one sleeps.
pub(crate) const PAUSE: Duration = Duration::from_millis(250);

/// A scenario with a fault. As text `scenario:point@rank#hit=action`; the action `pause` is a stop that is
/// resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) scenario: Scenario,
    pub(crate) fault: Fault,
    /// A stopped process goes on after [`PAUSE`].
    pub(crate) resumed: bool,
}

impl Case {
    /// The fault plan of the scenario's processes.
    pub(crate) fn plan(&self) -> String {
        Plan { faults: vec![self.fault.clone()] }.to_string()
    }

    /// Only a deadline can end a wait for a process that is stopped for ever.
    pub(crate) fn needs_deadline(&self) -> bool {
        self.fault.action == Action::Stop && !self.resumed
    }

    /// Whether the fault ends its process.
    pub(crate) fn ends_process(&self) -> bool {
        matches!(self.fault.action, Action::Kill | Action::Term | Action::Exit(_))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}:{}", self.scenario.name(), self.fault);
        match (self.resumed, text.strip_suffix("=stop")) {
            (true, Some(place)) => write!(f, "{place}=pause"),
            _ => f.write_str(&text),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scenario, fault) = text
            .split_once(':')
            .ok_or_else(|| format!("malformed case {text:?}; write scenario:point@rank#hit=action"))?;
        let paused = fault.strip_suffix("=pause").map(|place| format!("{place}=stop"));
        let resumed = paused.is_some();
        let fault = paused.as_deref().unwrap_or(fault).parse::<Fault>().map_err(|error| error.to_string())?;
        Ok(Self { scenario: scenario.parse()?, fault, resumed })
    }
}

/// The points of graphs begin with this.
const IN_GRAPHS: [&str; 2] = ["graph.", "worker.graph."];

/// What a call at this point fails with when a machine is short of something.
fn errnos(point: &str) -> &'static [i32] {
    const EAGAIN: i32 = Errno::EAGAIN as i32;
    const ENOMEM: i32 = Errno::ENOMEM as i32;
    const EACCES: i32 = Errno::EACCES as i32;
    const ENFILE: i32 = Errno::ENFILE as i32;
    const EMFILE: i32 = Errno::EMFILE as i32;
    const ENOSPC: i32 = Errno::ENOSPC as i32;
    match point {
        "region.create" => &[EMFILE, ENFILE, ENOMEM],
        "region.map" => &[ENOMEM, EAGAIN],
        "region.reserve" => &[ENOSPC, ENOMEM],
        "process.fork" | "process.spawn" => &[EAGAIN, ENOMEM],
        "rendezvous.bind" | "hosts.leader.listen" => &[EACCES, EMFILE],
        _ => &[EMFILE, ENOMEM],
    }
}

/// Every case of a scenario whose processes pass the points of `log`. Of a point that a process passes often,
/// the first two times and the last.
pub(crate) fn cases(scenario: Scenario, log: &[LogLine]) -> Vec<Case> {
    let mut passes: BTreeMap<(Option<u32>, &str), (Kind, u64)> = BTreeMap::new();
    for line in log {
        let last = passes.entry((line.rank, &line.point)).or_insert((line.kind, 0));
        last.1 = last.1.max(line.hit);
    }
    let by_parent: BTreeSet<&str> =
        passes.keys().filter(|(rank, _)| *rank == Some(PARENT)).map(|(_, point)| *point).collect();
    let mut cases = Vec::new();
    for ((rank, point), (kind, last)) in &passes {
        // A process that does not know its number yet is only reached by a fault for all, unless the parent
        // passes the point too.
        let meant_for_more = rank.is_none() && by_parent.contains(point);
        // The process that starts the ranks is not under test.
        let starter = scenario.is_of_ranks() && rank.is_none_or(|rank| rank == PARENT);
        // What its Worker does besides is the business of the others.
        let elsewhere = scenario == Scenario::Graphs && !IN_GRAPHS.iter().any(|of| point.starts_with(of));
        if meant_for_more || starter || elsewhere {
            continue;
        }
        for hit in BTreeSet::from([1, 2.min(*last), *last]) {
            for (action, resumed) in actions(point, *kind) {
                let fault = Fault { point: (*point).to_owned(), rank: *rank, hit, action };
                cases.push(Case { scenario, fault, resumed });
            }
        }
    }
    cases
}

fn actions(point: &str, kind: Kind) -> Vec<(Action, bool)> {
    let mut actions = vec![
        (Action::Kill, false),
        (Action::Term, false),
        (Action::Exit(7), false),
        (Action::Panic, false),
        (Action::Stop, false),
        (Action::Stop, true),
        (Action::Delay(PAUSE), false),
    ];
    if kind == Kind::Call {
        actions.extend(errnos(point).iter().map(|errno| (Action::Error(*errno), false)));
    }
    actions
}
