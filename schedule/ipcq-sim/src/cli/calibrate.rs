//! `ipcq calibrate`.

use super::progress::Progress;
use super::{BadInput, Status, print_line};
use crate::calibrate::{SIZES, calibrate, yaml};
use crate::out;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(super) struct CalibrateArgs {
    /// Where to write the topology
    #[arg(long, value_name = "FILE", default_value = "host.yaml")]
    out: PathBuf,
}

pub(super) fn run(args: &CalibrateArgs) -> anyhow::Result<Status> {
    let mut progress = Progress::start("measuring memory".to_owned(), SIZES.len() as u64);
    let host = calibrate(|done| progress.set((done * SIZES.len() as f64) as u64));
    drop(progress);
    std::fs::write(&args.out, yaml(&host))
        .map_err(|error| BadInput(format!("--out {}: {error}", args.out.display())))?;
    print_line(&format!("signal {}, {} cores; GB/s:", out::duration(host.signal), host.cores))?;
    print_line(&format!("{:>10} {:>8} {:>8} {:>8}", "data", "stage", "take", "fold"))?;
    for level in host.levels() {
        let [stage, take, fold] = [level.stage, level.take, level.fold].map(|rate| rate.micro() as f64 / 1e6);
        print_line(&format!("{:>10} {stage:>8.1} {take:>8.1} {fold:>8.1}", out::size(level.bytes)))?;
    }
    let file = args.out.display();
    print_line(&format!("written to {file}; ipcq run --topology {file} predicts what windows do"))?;
    Ok(Status::Right)
}
