//! `ipcq lint`.

use super::{BadInput, Inputs, Status, bad_plan, print_line, settings};
use crate::config::{Config, CreditAt, Topology};
use crate::plan::Plan;
use crate::sim::build;
use ccl_schedule::{Land, Op, Program, completes};

/// Above this many messages an entry's deadlock check is left to `verify`.
const CHECKED: u64 = 50_000_000;

pub(super) fn lint(inputs: &Inputs) -> anyhow::Result<Status> {
    let (config, topology) = inputs.load()?;
    print_line(&format!(
        "{}: {} SIPs x {} cubes x {} PEs = {} PEs",
        config.topology.file().display(),
        topology.sips.len(),
        topology.cubes.len(),
        topology.pes,
        topology.pe_count()
    ))?;
    let names: Vec<String> = config.ccl.names().map(str::to_owned).collect();
    let mut mistakes = Vec::new();
    for name in &names {
        match entry(&config, &topology, name) {
            Ok(text) => print_line(&format!("{}: {name}: {text}", config.ccl.file().display()))?,
            Err(error) => mistakes.push(format!("{error:#}")),
        }
    }
    if names.is_empty() {
        mistakes.push(format!("{}: algorithms: no entry", config.ccl.file().display()));
    }
    if let Err(error) = settings(&config, config.ccl.default_name()) {
        mistakes.push(error.to_string());
    }
    if mistakes.is_empty() {
        return Ok(Status::Right);
    }
    Err(BadInput(mistakes.join("\nipcq: ")).into())
}

fn entry(config: &Config, topology: &Topology, name: &str) -> anyhow::Result<String> {
    let settings = settings(config, name)?;
    let program = build(&settings, topology).map_err(|error| bad_plan(config, name, error))?;
    Plan::new(&*program, topology, &settings, u64::MAX).map_err(|error| bad_plan(config, name, error))?;
    let mut text = format!("{} ranks, {} messages", program.ranks(), program.messages());
    if program.messages() <= CHECKED {
        if !completes(&*program, settings.n_slots, settings.credit_point())? {
            let why =
                format!("n_slots = {}: the schedule deadlocks; `ipcq verify` reports why", settings.n_slots);
            return Err(super::bad(config, name, "n_slots", why));
        }
        text.push_str(", no deadlock");
    }
    if settings.credit_at == CreditAt::Recv && forwards(&*program) {
        text.push_str("; warning: credit_at: recv frees forwarded slots while they are in use");
    }
    Ok(text)
}

fn forwards(program: &dyn Program) -> bool {
    (0..).map_while(|step| program.op(0, step)).any(|op| matches!(op, Op::Recv { land: Land::Forward, .. }))
}
