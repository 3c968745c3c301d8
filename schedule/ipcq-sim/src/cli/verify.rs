//! `ipcq verify`.

use super::progress::Progress;
use super::{BadInput, Inputs, Selection, Status, bad_plan, malformed, print_line, settings};
use crate::config::CreditAt;
use crate::sim::build;
use anyhow::Context;
use ccl_schedule::{
    CreditPoint, Goal, OrderError, Program, ProofError, prove, prove_rank_order, smallest_slots,
};
use clap::Args;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

#[derive(Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    selection: Selection,
    /// Write the schedule out as JSON, or as tables in C where the name ends in .h or .c
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Print one JSON object per schedule
    #[arg(long)]
    json: bool,
}

/// The order in which a schedule adds.
enum Order {
    /// It makes no sums of all ranks.
    NoSums,
    /// The order of the ranks, on every rank and chunk.
    Ranks,
    /// Another; the first rank and chunk, and its sum.
    Other(String),
    /// Too large for the proof.
    Unknown(String),
}

impl Order {
    fn text(&self) -> String {
        match self {
            Order::NoSums => String::new(),
            Order::Ranks => "; every sum is added in the order of the ranks".to_owned(),
            Order::Other(first) => format!("; not in rank order: {first}"),
            Order::Unknown(why) => format!("; the order of additions is not proved: {why}"),
        }
    }

    fn json(&self) -> serde_json::Value {
        match self {
            Order::NoSums => serde_json::Value::Null,
            Order::Ranks => true.into(),
            Order::Other(text) | Order::Unknown(text) => text.as_str().into(),
        }
    }
}

/// Proves the order of the additions of a schedule that is right.
fn rank_order(program: &dyn Program, slots: u32, point: CreditPoint) -> anyhow::Result<Order> {
    if !matches!(program.goal(), Goal::AllReduce | Goal::ReduceScatter { .. } | Goal::Reduce { .. }) {
        return Ok(Order::NoSums);
    }
    Ok(match prove_rank_order(program, slots, point) {
        Ok(()) => Order::Ranks,
        Err(OrderError::Order(other)) => Order::Other(other.to_string()),
        Err(OrderError::Proof(error @ ProofError::TooLarge { .. })) => Order::Unknown(error.to_string()),
        Err(error) => return Err(error.into()),
    })
}

pub(super) fn verify(args: &VerifyArgs) -> anyhow::Result<Status> {
    let (config, topology) = args.inputs.load()?;
    let (names, listed) = args.selection.load(&config)?;
    if args.dump.is_some() && names.len() > 1 {
        return Err(BadInput("--dump: choose one algorithm".to_owned()).into());
    }
    let mut status = Status::Right;
    for name in &names {
        let base = settings(&config, if listed.is_some() { config.ccl.default_name() } else { name })?;
        let program: Box<dyn Program> = match &listed {
            Some(file) => Box::new(file.clone()),
            None => build(&base, &topology).map_err(|error| bad_plan(&config, name, error))?,
        };
        let point =
            if base.credit_at == CreditAt::LastUse { CreditPoint::LastUse } else { CreditPoint::Recv };
        let label =
            args.selection.schedule.as_ref().map_or_else(|| name.clone(), |file| file.display().to_string());
        let progress = Progress::start(format!("{label}: proving"), 0);
        let proof = prove(&*program, base.n_slots, point);
        let smallest = match &proof {
            Ok(_) => smallest_slots(&*program, point)?,
            Err(_) => None,
        };
        let order = if proof.is_ok() { rank_order(&*program, base.n_slots, point)? } else { Order::NoSums };
        drop(progress);
        let value = match &proof {
            Ok(proof) => {
                let chunks =
                    if proof.chunks == 1 { "1 chunk".to_owned() } else { format!("{} chunks", proof.chunks) };
                let text = format!(
                    "{label}: {} ranks, {chunks}, {} messages: every contribution exactly once ({}); no deadlock with \
                     n_slots = {} (the smallest n_slots without deadlock is {}){}",
                    proof.ranks,
                    proof.messages,
                    proof.method,
                    base.n_slots,
                    smallest.unwrap_or(base.n_slots),
                    order.text()
                );
                (
                    text,
                    serde_json::json!({
                        "schedule": label, "ok": true, "ranks": proof.ranks, "chunks": proof.chunks,
                        "messages": proof.messages, "method": proof.method.to_string(), "n_slots": base.n_slots,
                        "smallest_n_slots": smallest, "rank_order": order.json(),
                    }),
                )
            }
            Err(error) if malformed(error) => return Err(BadInput(format!("{label}: {error}")).into()),
            Err(error) => {
                status = Status::Wrong;
                let value = serde_json::json!({"schedule": label, "ok": false, "error": error.to_string()});
                (format!("{label}: WRONG: {error}"), value)
            }
        };
        print_line(&if args.json { value.1.to_string() } else { value.0 })?;
        if let Some(file) = &args.dump {
            let out = File::create(file)
                .map_err(|error| BadInput(format!("--dump {}: {error}", file.display())))?;
            let mut out = BufWriter::new(out);
            let in_c = file.extension().is_some_and(|extension| extension == "h" || extension == "c");
            let dump = if in_c { ccl_schedule::dump_c } else { ccl_schedule::dump };
            dump(&*program, &mut out).and_then(|()| out.flush()).context("--dump")?;
        }
    }
    Ok(status)
}
