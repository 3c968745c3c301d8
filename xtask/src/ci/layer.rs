//! `cargo xtask ci --layer CRATE`: what a reviewer of one layer needs, over that crate and the members in its folder. Lanes
//! that it has nothing for (a crate without loom models or hardware tests) are not run, rather than left out.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::lane::{self, Lane, LeftOut, Outcome, Report, Setting};
use crate::workspace::{Member, Workspace};
use crate::{hw_test, test};

pub(super) fn run(left_out: LeftOut, setting: &Setting<'_>, name: &str) -> Result<ExitCode> {
    let members = members_of(setting.ws, name)?;
    let names: Vec<String> = members.iter().map(|member| member.name.clone()).collect();
    let which: Vec<&str> = members.iter().flat_map(|member| ["--package", member.package.as_str()]).collect();
    let over = |setting: &Setting<'_>, mut command: Command| {
        let log = setting.console.run(&mut command)?;
        Ok(Outcome::Ran(Report::checks(members.len(), "crate", log.failure)))
    };
    let clippy = |setting: &Setting<'_>| over(setting, super::clippy_of(setting, &which));
    let docs = |setting: &Setting<'_>| over(setting, super::docs_of(setting, &which));
    let tests = |setting: &Setting<'_>| test::lane(setting, &test::Args::of(&names));
    let loom = |setting: &Setting<'_>| super::loom::of(setting, &members);
    let double = |setting: &Setting<'_>| hw_test::double_lane_of(setting, &members);
    let mut lanes = vec![
        Lane { name: "clippy", about: "no warning from rustc or clippy", run: &clippy },
        Lane { name: "tests", about: "its tests, but for the slow ones", run: &tests },
        Lane { name: "docs", about: "no warning from rustdoc", run: &docs },
    ];
    if members.iter().any(|member| super::loom::has_models(member)) {
        lanes.push(Lane { name: "loom", about: "its models hold, its mutants are rejected", run: &loom });
    }
    if members.iter().any(|member| hw_test::in_double_lane(member)) {
        lanes.push(Lane { name: "double", about: "its hardware tests, on the vendor double", run: &double });
    }
    Ok(lane::run_all_or(left_out, setting, &lanes, &[]))
}

/// The crate of this name and the members in its folder.
fn members_of<'a>(ws: &'a Workspace, name: &str) -> Result<Vec<&'a Member>> {
    let layer = ws.member(name).with_context(|| {
        let names: Vec<&str> = ws.members.iter().map(|member| member.name.as_str()).collect();
        format!("no crate `{name}` in this workspace; there are: {}", names.join(", "))
    })?;
    let inside = format!("{}/", layer.dir);
    Ok(ws
        .members
        .iter()
        .filter(|member| member.name == layer.name || member.dir.starts_with(&inside))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_a_crate_with_what_lies_in_its_folder() {
        let ws = Workspace::load().unwrap();
        let names =
            |layer: &str| members_of(&ws, layer).unwrap().iter().map(|m| m.name.clone()).collect::<Vec<_>>();
        assert!(names("comm-sim").contains(&"comm-sim-c".to_owned()));
        assert_eq!(names("worker-errors"), ["worker-errors"]);
    }

    #[test]
    fn every_crate_of_the_readme_is_a_layer() {
        let ws = Workspace::load().unwrap();
        let rows = include_str!("../../../README.md").lines().filter_map(|line| line.strip_prefix("| "));
        let names: Vec<&str> =
            rows.filter_map(|row| row.split(" | ").nth(1)?.strip_prefix('`')?.strip_suffix('`')).collect();
        assert!(names.len() > 15, "{names:?}");
        for name in names {
            assert!(members_of(&ws, name).is_ok(), "{name}");
        }
    }

    #[test]
    fn an_unknown_layer_is_told_with_those_that_exist() {
        let error = members_of(&Workspace::load().unwrap(), "L9").unwrap_err().to_string();
        assert!(error.contains("`L9`") && error.contains("comm-sim"), "{error}");
    }
}
