//! What a point does in this process.
//!
//! `MODE` is relaxed everywhere: it is a hint that saves the lock, and nothing is published by it.

use super::log::Log;
use super::plan::{Action, Fault, Plan};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The variable from which a process takes its plan when it passes its first point.
pub const PLAN_VARIABLE: &str = "CHIPCOMM_FAULT_PLAN";

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
    /// What follows it.
    pub kind: Kind,
    /// Which pass of this point in this process it is, from 1.
    pub hit: u64,
}

struct State {
    plan: Plan,
    rank: Option<u32>,
    /// The number as a Worker's child, which takes precedence over the rank.
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

/// What a point checks first.
static MODE: AtomicU8 = AtomicU8::new(READ_ENVIRONMENT);
const READ_ENVIRONMENT: u8 = 0;
const IDLE: u8 = 1;
const ARMED: u8 = 2;

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Arms `plan` in this process and restarts the count of passes. The environment is no longer read.
pub fn arm(plan: Plan) {
    let mut state = state();
    state.plan = plan;
    state.hits.clear();
    MODE.store(ARMED, Ordering::Relaxed);
}

/// Drops what was armed, and reads the environment again at the next point: for a forked child whose
/// parent has read it before.
pub fn ask_environment_again() {
    let mut state = state();
    state.plan = Plan::default();
    state.hits.clear();
    MODE.store(READ_ENVIRONMENT, Ordering::Relaxed);
}

/// From here on nothing happens and nothing is logged, in this process and in those that it forks.
pub fn disarm() {
    let mut state = state();
    state.plan = Plan::default();
    state.log = None;
    MODE.store(if state.record.is_some() { ARMED } else { IDLE }, Ordering::Relaxed);
}

/// Starts a list of the points that this process passes, and restarts the count of passes.
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

/// Sets the rank of this process, for plans that name one; a [child of a Worker](set_child) has its
/// number instead.
pub fn set_rank(rank: u32) {
    state().rank = Some(rank);
}

/// Sets the number of this process as a Worker's child, first thing in it. Plans that name a rank then
/// mean this number, and the count of passes restarts. Child `n` of a Worker that is itself child `w`
/// is number `100 * (w + 1) + n`.
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
        panic!("fault plan: no call follows {point} that could fail with errno {errno}");
    }
}

/// Passes a point before a system call. Called by [`fault_call!`](crate::fault_call).
#[inline]
pub fn call(point: &'static str) -> Result<(), i32> {
    if MODE.load(Ordering::Relaxed) == IDLE {
        return Ok(());
    }
    pass(point, Kind::Call).map_or(Ok(()), Err)
}

#[cold]
fn pass(point: &'static str, kind: Kind) -> Option<i32> {
    let mut state = state();
    if MODE.load(Ordering::Relaxed) == READ_ENVIRONMENT {
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
    // Other threads pass points while this one sleeps, and a panic must not poison the lock.
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

/// Ends the process if the plan is malformed: it must not pass for one under which nothing went wrong.
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
    // To the process and not the thread, as from outside; SIGKILL does not return.
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
