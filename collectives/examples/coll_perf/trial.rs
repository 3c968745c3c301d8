//! One form of a call, by a table of its own, or a schedule: what predictions are held against, and what tables are tuned by.

use crate::args::Args;
use crate::{Lines, Outcome, schedule};
use collectives::{Kind, Passing, Table};
use std::process::{Child, Command, Stdio};

/// Microseconds of a call for each of some sizes.
pub(crate) type Times = Vec<(usize, f64)>;

/// A call by a table, or a schedule.
pub(crate) struct Trial<'a> {
    pub(crate) kind: Kind,
    pub(crate) window: bool,
    pub(crate) table: Table,
    /// Instead of the call, the schedule of this name, and how it passes data.
    pub(crate) schedule: Option<(&'a str, Passing)>,
}

impl Trial<'_> {
    /// Measures the sizes of the command line, as often as it says.
    pub(crate) fn measure(&self, args: &Args) -> Outcome<Times> {
        let mut lines = Lines::default();
        for _ in 0..if args.quick { 1 } else { args.runs } {
            lines.add(&self.once(args)?, 0.0);
        }
        // A broadcast has one buffer.
        let in_place = self.kind == Kind::Broadcast && self.schedule.is_none();
        let time = |size| Some((size, lines.median((size, in_place), |line| line.time_us)?));
        Ok(args.sizes().into_iter().filter_map(time).collect())
    }

    fn once(&self, args: &Args) -> Outcome<String> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("table");
        std::fs::write(&file, self.table.to_string())?;
        let (path, program) = (folder.path().join("ranks"), std::env::current_exe()?);
        let text = [
            ("--kind", self.kind.to_string()),
            ("--mode", args.mode.name().to_owned()),
            ("--from", args.from.to_string()),
            ("--to", args.to.to_string()),
            ("--factor", args.factor.to_string()),
            ("--ranks", args.ranks.to_string()),
            ("--path", path.display().to_string()),
        ];
        let schedule = self.schedule.map(|(name, passing)| {
            let passing = schedule::name(passing);
            ["--run-schedule", "--schedule", name, "--passing", &passing].map(str::to_owned)
        });
        let output = tempfile::NamedTempFile::new()?;
        let start = |rank: u32| {
            let mut command = Command::new(&program);
            command
                .args(text.iter().flat_map(|(name, value)| [*name, value]))
                .args(self.window.then_some("--window"))
                .args(schedule.iter().flatten());
            command.args(["--rank", &rank.to_string()]).env(Table::VARIABLE, &file);
            command.stdin(Stdio::null()).stdout(output.reopen()?).spawn()
        };
        let ranks: Vec<Child> = (0..args.ranks).map(start).collect::<Result<_, _>>()?;
        let mut failed = false;
        for mut rank in ranks {
            failed |= !rank.wait()?.success();
        }
        if failed { Err("a rank failed".into()) } else { Ok(std::fs::read_to_string(output.path())?) }
    }
}

/// The default table with other entries.
pub(crate) fn table(entries: &[(&str, u32)]) -> Outcome<Table> {
    let mut table = Table::default();
    for (name, value) in entries {
        table = table.with(name, *value)?;
    }
    Ok(table)
}
