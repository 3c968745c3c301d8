//! The miri lane: the unit tests of the crates that the table of layers marks, where miri is installed.

use anyhow::Result;

use crate::cargo::{answers, nightly};
use crate::lane::{Outcome, Report, Setting};
use crate::layers::ROWS;
use crate::tally::Tally;

pub(super) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    let root = &setting.ws.root;
    if !answers(nightly(root, ["miri", "--version"])) {
        let how = "`cargo +nightly miri --version` does not answer; to install: rustup +nightly component add miri rust-src";
        return Ok(Outcome::LeftOut(how.to_owned()));
    }
    let (mut tests, mut failures) = (Tally::default(), Vec::new());
    for row in ROWS.iter().filter(|row| row.miri && setting.ws.member(row.name).is_some()) {
        let args = ["miri", "test", "--package", setting.ws.package(row.name), "--lib"];
        let log = setting.console.run(&mut nightly(root, args))?;
        let here = Tally::of(&log.lines);
        failures.extend(log.failure);
        if here.ran() == 0 {
            failures.push(format!("{} has no unit test that miri can run", row.name));
        }
        tests += here;
    }
    Ok(Outcome::Ran(Report::tests(tests, failures.into_iter().next())))
}
