//! The lane `workflows`: the files of hosted CI, which cannot run here, have the form that they must have (check-jsonschema, with the
//! schema that it ships), and none of the weaknesses that zizmor knows: tokens that stay on disk, actions by a name that can move,
//! text of a stranger in a command. Both tools come from PyPI, into an environment below `target`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::answers;
use crate::lane::{Outcome, Report, Setting};
use crate::python;

const FOLDER: &str = ".github/workflows";
const TOOLS: [&str; 2] = ["check-jsonschema>=0.30,<1", "zizmor>=1.10,<2"];

pub(super) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    let env = setting.ws.target.join("workflows");
    if let Some(why) = prepare(setting, &env)? {
        return Ok(Outcome::LeftOut(why));
    }
    let folder = setting.ws.root.join(FOLDER);
    let files = std::fs::read_dir(&folder).with_context(|| format!("cannot list {FOLDER}"))?;
    let mut files: Vec<_> = files.flatten().map(|file| file.path()).collect();
    files.sort();
    let program = |name: &str| {
        let mut command = Command::new(env.join("bin").join(name));
        command.current_dir(&setting.ws.root);
        command
    };
    let mut form = program("check-jsonschema");
    form.args(["--builtin-schema", "vendor.github-workflows"]).args(&files);
    let mut weaknesses = program("zizmor");
    weaknesses.args(["--offline", "--no-progress", "--strict-collection", FOLDER]);
    let mut failure = None;
    for (tool, command) in [("check-jsonschema", &mut form), ("zizmor", &mut weaknesses)] {
        let found = setting.console.run(command)?.failure;
        failure = failure.or(found.map(|why| format!("{tool}: {why}")));
    }
    Ok(Outcome::Ran(Report::checks(files.len(), "workflow", failure)))
}

/// Makes the environment with both tools. Why it cannot be, if so.
fn prepare(setting: &Setting<'_>, env: &Path) -> Result<Option<String>> {
    let has = |name: &str| {
        let mut tool = Command::new(env.join("bin").join(name));
        tool.arg("--version");
        answers(tool)
    };
    if has("check-jsonschema") && has("zizmor") {
        return Ok(None);
    }
    let Some(interpreter) = python::interpreter() else {
        return Ok(Some(format!("there is no {}", python::NEEDED)));
    };
    let mut venv = Command::new(interpreter);
    let made = setting.console.run_unseen(venv.args(["-m", "venv"]).arg(env))?;
    let mut pip = Command::new(env.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--no-cache-dir"]).args(TOOLS);
    let failure = match made.failure {
        None => setting.console.run_unseen(&mut pip)?.failure,
        failed => failed,
    };
    Ok(failure.map(|why| format!("pip could not install {}: {why}", TOOLS.join(", "))))
}
