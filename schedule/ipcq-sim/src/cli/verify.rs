//! `ipcq verify`.

use super::progress::Progress;
use super::{BadInput, Inputs, Selection, Status, bad_plan, malformed, print_line, settings};
use crate::config::CreditAt;
use crate::sim::build;
use anyhow::Context;
use ccl_schedule::{CreditPoint, Program, prove, smallest_slots};
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
    /// Write the schedule out as JSON
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Print one JSON object per schedule
    #[arg(long)]
    json: bool,
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
        drop(progress);
        let value = match &proof {
            Ok(proof) => {
                let chunks =
                    if proof.chunks == 1 { "1 chunk".to_owned() } else { format!("{} chunks", proof.chunks) };
                let text = format!(
                    "{label}: {} ranks, {chunks}, {} messages: every contribution exactly once ({}); no deadlock with \
                     n_slots = {} (smallest {})",
                    proof.ranks,
                    proof.messages,
                    proof.method,
                    base.n_slots,
                    smallest.unwrap_or(0)
                );
                (
                    text,
                    serde_json::json!({
                        "schedule": label, "ok": true, "ranks": proof.ranks, "chunks": proof.chunks,
                        "messages": proof.messages, "method": proof.method.to_string(), "n_slots": base.n_slots,
                        "smallest_n_slots": smallest,
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
            ccl_schedule::dump(&*program, &mut out).and_then(|()| out.flush()).context("--dump")?;
        }
    }
    Ok(status)
}
