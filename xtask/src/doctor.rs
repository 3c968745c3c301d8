//! `cargo xtask doctor`: what this machine has and lacks. The program is `chipcomm-doctor`, which users without the source
//! get as it is.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::cargo::cargo;
use crate::workspace::Workspace;

/// How it is shown.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let mut command = cargo(&ws.root, ["run", "--quiet", "--package", "chipcomm-doctor", "--"]);
    let status = command.args(args.json.then_some("--json")).status().context("cannot start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
