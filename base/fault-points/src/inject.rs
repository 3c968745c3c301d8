//! What a point does when a plan is armed. Compiled in with the feature `inject` only.

mod log;
mod plan;
mod state;

pub use log::{LOG_VARIABLE, LogLine};
pub use plan::{Action, Fault, Plan, PlanError};
pub use state::{
    Kind, PLAN_VARIABLE, Pass, arm, ask_environment_again, call, disarm, passed, record, set_child, set_rank,
    step,
};
