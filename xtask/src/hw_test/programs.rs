//! Test programs: which a layer has, how they are built, and one test of them at a time.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::Layer;
use super::double::{ANY_PLATFORM, OWN_SESSIONS, fresh_session};
use crate::cargo::cargo;
use crate::console::{Console, Log};
use crate::kernels::{self, Platform, Toolchain};
use crate::lane::{Outcome, Report};
use crate::tally::Tally;
use crate::workspace::{Member, Workspace};

/// A test that takes longer hangs. The one of every fault of every vendor call takes some minutes.
const LONGEST: Duration = Duration::from_secs(20 * 60);

/// One test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) package: String,
    /// The folder of its crate.
    dir: PathBuf,
    name: String,
    kind: Kind,
}

/// Which of its tests run, and what they need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All that are ignored; each must make vendor calls.
    Device,
    /// All that are ignored; none needs a device.
    Processor,
    /// All that are not ignored, on the simulation of this host.
    Simulation,
    /// All that are not ignored, on the double.
    AnyPlatform,
    /// This one, which makes sessions of the double itself.
    OwnSession(&'static str),
}

impl Program {
    fn new(ws: &Workspace, member: &Member, name: &str, kind: Kind) -> Self {
        let dir = ws.root.join(&member.dir);
        Self { package: member.package.clone(), dir, name: name.to_owned(), kind }
    }

    /// Whether it is a test of hardware, rather than a suite of another kind that fits the layer.
    pub(super) fn is_hardware(&self) -> bool {
        matches!(self.kind, Kind::Device | Kind::Processor)
    }

    /// Whether `ci` runs it on the double: tests of hardware, and suites that run anywhere. What makes sessions itself is
    /// left to `hw-test`, and a part of it to the lane `slow`.
    pub(super) fn is_in_ci(&self) -> bool {
        self.is_hardware() || self.kind == Kind::AnyPlatform
    }
}

/// The programs of a layer.
pub(super) fn of_layer(ws: &Workspace, layer: Layer, double: bool) -> Result<Vec<Program>> {
    let kind = if layer.calls_the_vendor() { Kind::Device } else { Kind::Processor };
    let file = layer.file();
    let has = |member: &&Member| member.targets_named("test", &file).any(|name| name == file);
    let mut programs: Vec<Program> =
        ws.members.iter().filter(has).map(|member| Program::new(ws, member, &file, kind)).collect();
    ensure!(!programs.is_empty(), "no crate has tests/{file}.rs, and a run of nothing is a failure");
    let mut add = |package: &str, name: &str, kind| {
        let member = ws.member(package).with_context(|| format!("there is no crate {package}"))?;
        programs.push(Program::new(ws, member, name, kind));
        anyhow::Ok(())
    };
    if layer == Layer::Comm {
        add("comm-sim", "conformance_sim", Kind::Simulation)?;
    }
    if double {
        for (of, package, name) in ANY_PLATFORM {
            if *of == layer {
                add(package, name, Kind::AnyPlatform)?;
            }
        }
        for (of, package, name, test) in OWN_SESSIONS {
            if *of == layer {
                add(package, name, Kind::OwnSession(test))?;
            }
        }
    }
    Ok(programs)
}

/// What the tests run on.
pub(super) struct Target<'a> {
    pub(super) ws: &'a Workspace,
    pub(super) platform: Platform,
    pub(super) devices: String,
    /// The folder of the double's libraries; `None` on devices.
    pub(super) libraries: Option<PathBuf>,
}

/// One test that ran.
#[derive(Debug)]
pub(super) struct TestRun {
    pub(super) layer: Layer,
    pub(super) program: String,
    pub(super) test: String,
    pub(super) took: Duration,
    /// Vendor calls, where they are counted.
    pub(super) calls: Option<usize>,
    /// Why it failed, and what it printed.
    pub(super) failure: Option<(String, Vec<String>)>,
}

impl Target<'_> {
    /// For the summary and the report.
    pub(super) fn in_words(&self) -> String {
        let (platform, devices) = (self.platform.name(), &self.devices);
        match self.libraries {
            Some(_) => format!(
                "ran on the vendor double (cann-sim) as {platform}, devices {devices}; no hardware was involved"
            ),
            None => format!("ran on hardware: {platform}, devices {devices}"),
        }
    }

    /// Builds the programs and their kernels, and runs every test.
    pub(super) fn run_layer(
        &self,
        console: &Console,
        layer: Layer,
        programs: &[Program],
        results: &RefCell<Vec<TestRun>>,
    ) -> Result<Outcome> {
        let executables = self.build(console, programs)?;
        let mut tally = Tally::default();
        for (program, executable) in programs.iter().zip(&executables) {
            let kernels = self.build_kernels(program)?;
            let mut tests = tests_of(program, executable)?;
            // A program that is its own harness lists nothing, and runs as one.
            if tests.is_empty() && program.kind == Kind::AnyPlatform {
                tests.push(String::new());
            }
            ensure!(!tests.is_empty(), "{} of {} has no test to run", program.name, program.package);
            for test in tests {
                let run = self.run_test(console, layer, program, executable, kernels.as_deref(), &test)?;
                console.line(&run.in_words());
                let failed = u64::from(run.failure.is_some());
                tally += Tally { passed: 1 - failed, failed, ignored: 0 };
                results.borrow_mut().push(run);
            }
        }
        Ok(Outcome::Ran(Report::tests(tally, None)))
    }

    /// The executables, in the order of the programs.
    fn build(&self, console: &Console, programs: &[Program]) -> Result<Vec<PathBuf>> {
        let mut command =
            cargo(&self.ws.root, ["test", "--no-run", "--message-format=json-render-diagnostics"]);
        for program in programs {
            command.args(["--package", &program.package, "--test", &program.name]);
        }
        let log = console.run_unseen(&mut command)?;
        if let Some(failure) = log.failure {
            bail!("the tests do not build: {failure}");
        }
        let built: Vec<Artifact> =
            log.lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        programs.iter().map(|program| executable_of(program, &built)).collect()
    }

    /// The folder of the compiled kernels of a program's crate, if it has some.
    fn build_kernels(&self, program: &Program) -> Result<Option<PathBuf>> {
        let own = program.dir.join("tests/hw_kernels");
        let from = match program.package.as_str() {
            "chipcomm-examples" => self.ws.root.join(kernels::EXAMPLES),
            _ if own.is_dir() => own,
            _ => return Ok(None),
        };
        if !program.is_hardware() {
            return Ok(None);
        }
        let (toolchain, name) = match self.libraries {
            Some(_) => (Toolchain::Host, "double"),
            None => (Toolchain::vendor(self.platform)?, self.platform.name()),
        };
        let out = self.ws.target.join("hw-test/kernels").join(name).join(&program.package);
        toolchain.build(&self.ws.root, &kernels::sources(&from)?, &out)?;
        Ok(Some(out))
    }

    fn run_test(
        &self,
        console: &Console,
        layer: Layer,
        program: &Program,
        executable: &Path,
        kernels: Option<&Path>,
        test: &str,
    ) -> Result<TestRun> {
        let mut command = Command::new(executable);
        command.current_dir(&program.dir).arg("--test-threads=1");
        if !test.is_empty() {
            command.args([test, "--exact"]);
        }
        if !matches!(program.kind, Kind::Simulation | Kind::AnyPlatform) {
            command.arg("--ignored");
        }
        let folder = self.ws.target.join("hw-test");
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let calls = folder.join("calls.log");
        let _ = std::fs::remove_file(&calls);
        let counted = matches!(program.kind, Kind::Device | Kind::AnyPlatform);
        if counted {
            command.env("CHIPCOMM_PLATFORM", self.platform.name()).env("CHIPCOMM_DEVICES", &self.devices);
            command.env("CHIPCOMM_VENDOR_LOG", &calls);
            if let Some(libraries) = &self.libraries {
                command.env("CHIPCOMM_CANN_LIB_DIR", libraries).env("CANN_SIM_DIR", fresh_session(self.ws)?);
            }
        }
        if let Some(kernels) = kernels {
            command.env("CHIPCOMM_HW_KERNELS", kernels).env("CHIPCOMM_KERNEL_DIR", kernels);
        }
        let start = Instant::now();
        let log = console.run_unseen_at_most(&mut command, LONGEST)?;
        let took = start.elapsed();
        let made = counted.then(|| calls_in(&std::fs::read_to_string(&calls).unwrap_or_default()));
        let whole = test.is_empty();
        let failure = judged(&log, whole, made.filter(|_| program.kind == Kind::Device));
        if failure.is_some() && made.is_some_and(|made| made > 0) {
            // Each failure keeps its log: the last line of a thread is the call that did not return.
            let kept = folder.join(format!("{}.{}.calls.log", program.name, test.replace("::", ".")));
            std::fs::rename(&calls, &kept).with_context(|| format!("cannot keep {}", kept.display()))?;
        }
        let failure = failure.map(|why| (why, log.lines));
        Ok(TestRun {
            layer,
            program: program.name.clone(),
            test: test.to_owned(),
            took,
            calls: made,
            failure,
        })
    }
}

impl TestRun {
    pub(super) fn in_words(&self) -> String {
        let calls = self.calls.map_or(String::new(), |calls| format!(", {calls} vendor calls"));
        let (status, why) = match &self.failure {
            None => ("ok", String::new()),
            Some((why, _)) => ("FAILED", format!("; {why}")),
        };
        format!("  {status:<6} {:>7.2} s  {}{calls}{why}", self.took.as_secs_f64(), self.test)
    }
}

/// Why a test that ran has failed. `calls` counts those of a test that must make some.
fn judged(log: &Log, whole: bool, calls: Option<usize>) -> Option<String> {
    let tally = Tally::of(&log.lines);
    match (&log.failure, calls) {
        (Some(failure), _) => Some(failure.clone()),
        (None, _) if tally.passed == 0 || !whole && tally.passed != 1 => {
            Some(format!("{} tests ran instead of one", tally.ran()))
        }
        (None, Some(0)) => Some("it made no vendor call, so it has tested nothing".to_owned()),
        (None, _) => None,
    }
}

/// How many vendor calls a log has: the lines of their starts.
fn calls_in(log: &str) -> usize {
    log.lines().filter(|line| line.contains(" thread ") && !line.contains(" = ")).count()
}

/// The names of the tests that run.
fn tests_of(program: &Program, executable: &Path) -> Result<Vec<String>> {
    if let Kind::OwnSession(test) = program.kind {
        return Ok(vec![test.to_owned()]);
    }
    let mut command = Command::new(executable);
    command.current_dir(&program.dir).args(["--list", "--format", "terse"]);
    if program.is_hardware() {
        command.arg("--ignored");
    }
    let listed = command.output().with_context(|| format!("cannot start {}", executable.display()))?;
    ensure!(listed.status.success(), "{} does not list its tests", executable.display());
    let all = names(&String::from_utf8_lossy(&listed.stdout));
    if program.is_hardware() {
        return Ok(all);
    }
    let ignored = command.arg("--ignored").output()?;
    let ignored = names(&String::from_utf8_lossy(&ignored.stdout));
    Ok(all.into_iter().filter(|test| !ignored.contains(test)).collect())
}

fn names(listed: &str) -> Vec<String> {
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// What cargo says of something that it built.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Built,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Built {
    name: String,
}

fn executable_of(program: &Program, built: &[Artifact]) -> Result<PathBuf> {
    let is_it = |artifact: &&Artifact| {
        artifact.manifest_path.parent() == Some(&program.dir) && artifact.target.name == program.name
    };
    let found = built.iter().find(is_it).and_then(|artifact| artifact.executable.clone());
    found.with_context(|| format!("cargo did not build {} of {}", program.name, program.package))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_layer_has_hardware_tests_and_every_such_program_is_of_a_layer() {
        let ws = Workspace::load().unwrap();
        let layers = Layer::value_variants();
        for layer in layers {
            let programs = of_layer(&ws, *layer, false).unwrap();
            assert!(programs.iter().any(Program::is_hardware), "{layer:?}: {programs:?}");
        }
        let known: Vec<String> = layers.iter().map(|layer| layer.file()).collect();
        for member in &ws.members {
            for name in member.targets_named("test", "hw_") {
                assert!(known.iter().any(|known| known == name), "{}: {name} is of no layer", member.name);
            }
        }
    }

    #[test]
    fn a_layer_without_hardware_tests_is_an_error() {
        let ws = Workspace::default();
        let error = of_layer(&ws, Layer::Bootstrap, true).unwrap_err().to_string();
        assert!(error.contains("hw_bootstrap"), "{error}");
    }

    fn log(text: &str, failure: Option<&str>) -> Log {
        Log { lines: text.lines().map(str::to_owned).collect(), failure: failure.map(str::to_owned) }
    }

    const PASSED: &str = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";

    #[test]
    fn a_test_of_a_device_that_made_no_vendor_call_has_failed() {
        assert_eq!(judged(&log(PASSED, None), false, Some(3)), None);
        assert!(judged(&log(PASSED, None), false, Some(0)).unwrap().contains("no vendor call"));
        assert_eq!(judged(&log(PASSED, None), false, None), None);
        assert_eq!(judged(&log(PASSED, Some("exit code 101")), false, Some(3)).unwrap(), "exit code 101");
        let nothing = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out";
        assert!(judged(&log(nothing, None), false, Some(3)).unwrap().contains("0 tests"));
    }

    #[test]
    fn calls_are_counted_when_they_start() {
        let log = "1.0 pid 1 thread 2 aclInit\n1.1 pid 1 thread 2 aclInit = 0 after 0.1 s\n\
                   1.2 pid 1 thread 2 aclrtMalloc\n";
        assert_eq!((calls_in(log), calls_in("")), (2, 0));
    }

    #[test]
    fn tests_and_executables_are_found_in_what_cargo_prints() {
        assert_eq!(names("a::b: test\nc: benchmark\nd: test\n\n2 tests, 0 benchmarks\n"), ["a::b", "d"]);
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/x/Cargo.toml",
            "target":{"name":"hw_comm","kind":["test"]},"executable":"/w/t/hw_comm-1"}"#;
        let built = [serde_json::from_str::<Artifact>(line).unwrap()];
        let program = |dir: &str| Program {
            package: "x".into(),
            dir: dir.into(),
            name: "hw_comm".into(),
            kind: Kind::Device,
        };
        assert_eq!(executable_of(&program("/w/x"), &built).unwrap(), Path::new("/w/t/hw_comm-1"));
        assert!(executable_of(&program("/w/y"), &built).is_err());
    }
}
