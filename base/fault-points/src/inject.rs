//! What a point does when a plan is armed. Compiled in with the feature `inject` only.

mod log;

pub use log::LogLine;

use log::Log;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The variable from which a process takes its plan when it passes its first point.
pub const PLAN_VARIABLE: &str = "CHIPCOMM_FAULT_PLAN";

/// The variable that names a file for whoever watches a program and all processes that it starts. With a plan, each fault is
/// appended to it just before it happens; without one, each pass of a point. Every line is a [`LogLine`].
pub const LOG_VARIABLE: &str = "CHIPCOMM_FAULT_LOG";

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The system call that follows fails with this errno, without being made.
    Error(i32),
    /// A panic.
    Panic,
    /// The process ends with this code, at once.
    Exit(i32),
    /// SIGKILL.
    Kill,
    /// SIGSTOP: the process goes on when somebody sends SIGCONT.
    Stop,
    /// SIGTERM.
    Term,
    /// The process sleeps.
    Delay(Duration),
}

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The name of the point.
    pub point: String,
    /// In which rank; in any where `None`.
    pub rank: Option<u32>,
    /// At which pass of the point, from 1.
    pub hit: u64,
    /// What happens.
    pub action: Action,
}

/// What goes wrong in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In no order; of two for the same pass of the same point the first counts.
    pub faults: Vec<Fault>,
}

/// A text that is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{entry:?} is no fault ({problem}); write point@rank#hit=action, such as rendezvous.accepted@1#2=kill"
)]
pub struct PlanError {
    /// The entry.
    pub entry: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl Plan {
    /// One fault.
    pub fn one(point: &str, rank: u32, hit: u64, action: Action) -> Self {
        Self { faults: vec![Fault { point: point.to_owned(), rank: Some(rank), hit, action }] }
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        text.split(';').map(str::parse).collect::<Result<_, _>>().map(|faults| Self { faults })
    }
}

impl FromStr for Fault {
    type Err = PlanError;

    fn from_str(entry: &str) -> Result<Self, PlanError> {
        let wrong = |problem| PlanError { entry: entry.to_owned(), problem };
        let (place, action) = entry.split_once('=').ok_or(wrong("it has no `=`"))?;
        let (place, hit) = place.split_once('#').map_or((place, None), |(place, hit)| (place, Some(hit)));
        let (point, rank) = place.split_once('@').map_or((place, None), |(point, rank)| (point, Some(rank)));
        let named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_');
        if point.is_empty() || !point.chars().all(named) {
            return Err(wrong("a point is named like rendezvous.accepted"));
        }
        let rank = rank.map(str::parse).transpose().map_err(|_| wrong("the rank is no number"))?;
        let hit = hit.map_or(Ok(1), str::parse).ok().filter(|hit| *hit > 0);
        let hit = hit.ok_or(wrong("the hit is no number from 1"))?;
        let (name, number) =
            action.split_once(':').map_or((action, None), |(name, number)| (name, Some(number)));
        let number =
            number.map(str::parse::<u16>).transpose().map_err(|_| wrong("after `:` is no number"))?;
        let action = match (name, number) {
            ("error", Some(errno)) if errno > 0 => Action::Error(errno.into()),
            ("panic", None) => Action::Panic,
            ("exit", Some(code @ 0..=255)) => Action::Exit(code.into()),
            ("kill", None) => Action::Kill,
            ("stop", None) => Action::Stop,
            ("term", None) => Action::Term,
            ("delay", Some(ms)) => Action::Delay(Duration::from_millis(ms.into())),
            _ => {
                return Err(wrong(
                    "actions are error:ERRNO, panic, exit:CODE, kill, stop, term, delay:MILLISECONDS",
                ));
            }
        };
        Ok(Self { point: point.to_owned(), rank, hit, action })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { point, rank, hit, action } = self;
        f.write_str(point)?;
        if let Some(rank) = rank {
            write!(f, "@{rank}")?;
        }
        write!(f, "#{hit}=")?;
        match action {
            Action::Error(errno) => write!(f, "error:{errno}"),
            Action::Panic => f.write_str("panic"),
            Action::Exit(code) => write!(f, "exit:{code}"),
            Action::Kill => f.write_str("kill"),
            Action::Stop => f.write_str("stop"),
            Action::Term => f.write_str("term"),
            Action::Delay(time) => write!(f, "delay:{}", time.as_millis()),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.faults.iter().enumerate() {
            write!(f, "{}{fault}", if at == 0 { "" } else { ";" })?;
        }
        Ok(())
    }
}

/// Whether a point can make a call fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Between two steps.
    Step,
    /// Before a system call: takes [`Action::Error`] as well.
    Call,
}

/// One pass of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The point.
    pub point: &'static str,
    /// What it stands before.
    pub kind: Kind,
    /// Which pass of this point in this process it is, from 1.
    pub hit: u64,
}

struct State {
    plan: Plan,
    rank: Option<u32>,
    /// Counts instead of the rank, in a process that is one.
    child: Option<u32>,
    hits: BTreeMap<&'static str, u64>,
    record: Option<Vec<Pass>>,
    log: Option<Log>,
}

static STATE: Mutex<State> = Mutex::new(State {
    plan: Plan { faults: Vec::new() },
    rank: None,
    child: None,
    hits: BTreeMap::new(),
    record: None,
    log: None,
});

/// What a point does before it looks any further: a hint about `STATE`.
static MODE: AtomicU8 = AtomicU8::new(ASK_ENVIRONMENT);
const ASK_ENVIRONMENT: u8 = 0;
const IDLE: u8 = 1;
const ARMED: u8 = 2;

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Arms `plan` in this process and starts to count passes anew. The environment is not asked any more.
pub fn arm(plan: Plan) {
    let mut state = state();
    state.plan = plan;
    state.hits.clear();
    MODE.store(ARMED, Ordering::Relaxed);
}

/// Forgets what was armed, and asks the environment again at the next point: for a forked child whose parent had asked before.
pub fn ask_environment_again() {
    let mut state = state();
    state.plan = Plan::default();
    state.hits.clear();
    // Relaxed: as in `arm`.
    MODE.store(ASK_ENVIRONMENT, Ordering::Relaxed);
}

/// From here on nothing happens and nothing is logged, in this process and in those that it forks.
pub fn disarm() {
    let mut state = state();
    state.plan = Plan::default();
    state.log = None;
    // Relaxed: as in `arm`.
    MODE.store(if state.record.is_some() { ARMED } else { IDLE }, Ordering::Relaxed);
}

/// Starts a list of the points that this process passes, and to count passes anew.
pub fn record() {
    let mut state = state();
    state.hits.clear();
    state.record = Some(Vec::new());
    MODE.store(ARMED, Ordering::Relaxed);
}

/// The passes since [`record`], in order.
pub fn passed() -> Vec<Pass> {
    state().record.clone().unwrap_or_default()
}

/// Says which rank this process is; plans that name a rank mean it, unless it is a [child of a Worker](set_child).
pub fn set_rank(rank: u32) {
    state().rank = Some(rank);
}

/// Says which child of a Worker this process is, first thing in it; plans that name a rank then mean this number, and passes count
/// anew. Child `n` of a Worker that is itself child `w` is number `100 * (w + 1) + n`.
pub fn set_child(number: u32) {
    let mut state = state();
    state.child = Some(state.child.map_or(number, |above| 100 * (above + 1) + number));
    state.hits.clear();
}

/// Passes a point between two steps. Called by [`fault_point!`](crate::fault_point).
#[inline]
pub fn step(point: &'static str) {
    if MODE.load(Ordering::Relaxed) != IDLE
        && let Some(errno) = pass(point, Kind::Step)
    {
        panic!("fault plan: no call stands behind {point} that could fail with errno {errno}");
    }
}

/// Passes a point before a system call. Called by [`fault_call!`](crate::fault_call).
#[inline]
pub fn call(point: &'static str) -> nix::Result<()> {
    if MODE.load(Ordering::Relaxed) == IDLE {
        return Ok(());
    }
    pass(point, Kind::Call).map_or(Ok(()), |errno| Err(Errno::from_raw(errno)))
}

#[cold]
fn pass(point: &'static str, kind: Kind) -> Option<i32> {
    let mut state = state();
    if MODE.load(Ordering::Relaxed) == ASK_ENVIRONMENT {
        state.plan = from_environment();
        state.log = Log::from_environment(&state.plan);
        let idle = state.plan.faults.is_empty() && state.log.is_none();
        MODE.store(if idle { IDLE } else { ARMED }, Ordering::Relaxed);
    }
    let hits = state.hits.entry(point).or_default();
    *hits += 1;
    let hit = *hits;
    if let Some(record) = &mut state.record {
        record.push(Pass { point, kind, hit });
    }
    let me = state.child.or(state.rank);
    let meant = |fault: &&Fault| {
        fault.point == point && fault.hit == hit && fault.rank.is_none_or(|rank| Some(rank) == me)
    };
    let action = state.plan.faults.iter().find(meant).map(|fault| fault.action);
    if let Some(log) = state.log.as_ref().filter(|log| log.passes || action.is_some()) {
        log.append(me, Pass { point, kind, hit });
    }
    let action = action?;
    // Other threads of the process pass points while this one sleeps, and a panic must not poison.
    drop(state);
    match action {
        Action::Error(errno) => return Some(errno),
        Action::Panic => panic!("fault plan: panic at {point}"),
        Action::Exit(code) => exit(code),
        Action::Kill => signal(Signal::SIGKILL),
        Action::Stop => signal(Signal::SIGSTOP),
        Action::Term => signal(Signal::SIGTERM),
        Action::Delay(time) => std::thread::sleep(time),
    }
    None
}

/// A plan that cannot be read must not look like one under which nothing went wrong.
fn from_environment() -> Plan {
    match std::env::var_os(PLAN_VARIABLE) {
        None => Plan::default(),
        Some(text) => match text.to_string_lossy().parse() {
            Ok(plan) => plan,
            Err(error) => {
                eprintln!("{PLAN_VARIABLE}: {error}");
                exit(2)
            }
        },
    }
}

fn signal(signal: Signal) {
    // To the process and not the thread, as a killer from outside does; SIGKILL does not come back.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), signal);
}

fn exit(code: i32) -> ! {
    mod now {
        //! # Safety
        //! One call that does not return.
        #![allow(unsafe_code)]

        pub(super) fn exit(code: i32) -> ! {
            // SAFETY: ends the process at once; nothing of it is used afterwards.
            unsafe { libc::_exit(code) }
        }
    }
    now::exit(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_text() {
        let text = "a.b@3#2=kill;a.c#1=error:12;d@0#7=delay:250;e#1=exit:3;f#1=panic;g#1=stop;h-i_2#1=term";
        let plan: Plan = text.parse().unwrap();
        assert_eq!(plan.faults.len(), 7);
        assert_eq!(plan.to_string(), text);
        assert_eq!("a=kill".parse::<Plan>().unwrap().to_string(), "a#1=kill");
    }

    #[test]
    fn malformed_plans_are_refused() {
        for text in [
            "",
            "a",
            "a=",
            "=kill",
            "a=kill;",
            "a@=kill",
            "a@-1=kill",
            "a@x=kill",
            "a#0=kill",
            "a#=kill",
            "a b=kill",
            "A=kill",
            "a=KILL",
            "a=kill:1",
            "a=exit",
            "a=exit:256",
            "a=error",
            "a=error:0",
            "a=error:-1",
            "a=error:ENOMEM",
            "a=delay:1s",
            "a=delay:99999",
        ] {
            let told = text.parse::<Plan>();
            assert!(
                told.as_ref().is_err_and(|error| error.to_string().contains("write point@")),
                "{text:?}: {told:?}"
            );
        }
    }
}
