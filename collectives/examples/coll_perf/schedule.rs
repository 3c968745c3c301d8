//! Schedules as contestants: from the library, or from a file in the form of `ccl_schedule::dump`.

use crate::args::Args;
use ccl_schedule::Goal;
use collectives::{Kind, Passing, Plan, Sums};
use ipcq_sim::schedule_file;
use std::path::Path;

/// The plan that the command line asks for, proved.
pub(crate) fn plan(args: &Args) -> Result<Option<Plan>, Box<dyn std::error::Error>> {
    let Some(name) = &args.schedule else { return Ok(None) };
    let plan = if name.ends_with(".json") {
        Plan::new(&schedule_file::load(Path::new(name))?, args.passing, Sums::RoundedOnce)?
    } else {
        Plan::named(name, args.ranks, args.passing)?
    };
    if plan.ranks() != args.ranks as usize {
        return Err(format!("{name} is for {0} ranks; pass --ranks {0}", plan.ranks()).into());
    }
    if plan.goal() == Goal::Any {
        return Err(
            format!("{name} has the goal `any`, so that no element can be checked; give it one").into()
        );
    }
    Ok(Some(plan))
}

/// The call that does what a schedule does, if there is one.
pub(crate) fn kind(goal: Goal) -> Option<Kind> {
    Some(match goal {
        Goal::AllReduce => Kind::AllReduce,
        Goal::ReduceScatter { .. } => Kind::ReduceScatter,
        Goal::AllGather { .. } => Kind::AllGather,
        Goal::Broadcast { root: 0 } => Kind::Broadcast,
        Goal::Reduce { root: 0 } => Kind::Reduce,
        Goal::Gather { root: 0, .. } => Kind::Gather,
        Goal::Scatter { root: 0, .. } => Kind::Scatter,
        Goal::AllToAll => Kind::AllToAll,
        _ => return None,
    })
}

/// `reference`, `value` with four slots, or `value:SLOTS`.
pub(crate) fn passing(text: &str) -> Result<Passing, String> {
    match text.split_once(':') {
        None if text == "reference" => Ok(Passing::Reference),
        None if text == "value" => Ok(Passing::Value { slots: 4 }),
        Some(("value", slots)) => slots
            .parse()
            .map(|slots| Passing::Value { slots })
            .map_err(|_| "a number of slots such as value:2 is needed".to_owned()),
        _ => Err("reference, value or value:SLOTS is needed".to_owned()),
    }
}

/// The same as an argument.
pub(crate) fn name(passing: Passing) -> String {
    match passing {
        Passing::Reference => "reference".to_owned(),
        Passing::Value { slots } => format!("value:{slots}"),
    }
}
