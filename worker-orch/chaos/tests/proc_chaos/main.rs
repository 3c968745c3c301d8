//! A Worker's whole life with a fault at every point (F01 to F03, F20, F21, F33, F38, F39).
//!
//! One program in several roles. As a *scene* it is a program that uses a Worker, or ranks that meet; as a *watcher* it starts one scene with one fault
//! and judges from outside what came of it; as a test it lets every process of a Worker die at a sample of its points. `cargo xtask chaos` runs the watcher
//! over all of them, with every action.
//!
//! - `proc_chaos cases [SCENE]` records which points the scene's processes pass, and prints every case, one a line;
//! - `proc_chaos watch CASE` runs one case and prints its verdict as a line of JSON;
//! - `proc_chaos scene SCENE LIMITS REPORT` is the scene itself.
//!
//! A folder for what scenes share, their kernel, is expected in `CHAOS_FOLDER`.
#![allow(missing_docs)]

mod case;
mod chips;
mod judge;
mod levels;
mod life;
mod plain;
mod ranks;
mod report;
mod sweep;
mod watch;

use case::{PARENT, Scene};
use chips::Chips;
use levels::Levels;
use life::Limits;
use plain::Plain;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use worker_orch::{Platform, Start, serve_if_child};

/// Where the scenes' kernel is.
pub(crate) const FOLDER: &str = "CHAOS_FOLDER";

fn main() -> ExitCode {
    serve_if_child(chips::FUNCTIONS);
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["cases"] => Scene::all().try_for_each(print_cases),
        ["cases", scene] => scene.parse().and_then(print_cases),
        ["watch", case] => case.parse().and_then(|case| watch::watch(&case)).map(|verdict| {
            println!("{}", serde_json::to_string(&verdict).unwrap_or_default());
        }),
        ["scene", scene, limits, report] => scene.parse().and_then(|scene| {
            let limits = if limits == "short" { Limits::SHORT } else { Limits::PATIENT };
            play(scene, limits, Path::new(report))
        }),
        _ => return sweep::tests(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

fn print_cases(scene: Scene) -> Result<(), String> {
    watch::cases(scene)?.iter().for_each(|case| println!("{case}"));
    Ok(())
}

/// The scene, in this process; what it saw goes to the file `report`.
fn play(scene: Scene, limits: Limits, report: &Path) -> Result<(), String> {
    fault_points::set_rank(PARENT);
    let folder = std::env::var_os(FOLDER).map(PathBuf::from).ok_or(format!("{FOLDER} is not set"))?;
    let kernel = chips::kernel(&folder);
    let seen = match scene {
        Scene::Fork => {
            life::two_lives(limits, &|diary, limits| Chips::build(Start::Fork, limits, &kernel, diary))
        }
        Scene::Exec => {
            life::two_lives(limits, &|diary, limits| Chips::build(Start::Exec, limits, &kernel, diary))
        }
        Scene::Plain => life::two_lives(limits, &|diary, limits| Plain::build(Platform::Sim, limits, diary)),
        Scene::Double => {
            life::two_lives(limits, &|diary, limits| Plain::build(Platform::A2a3, limits, diary))
        }
        Scene::Levels => life::two_lives(limits, &|diary, limits| Levels::build(limits, diary)),
        Scene::Ranks => ranks::two_lives(limits),
    };
    let text = serde_json::to_string(&seen).map_err(|error| error.to_string())?;
    std::fs::write(report, text).map_err(|error| format!("{}: {error}", report.display()))
}
