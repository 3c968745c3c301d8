//! `cargo xtask abi-check`: holds every vendor declaration of comm-hccl against the vendor's own headers.
//!
//! comm-hccl prints C++ with one static assertion a declaration (its example `abi_manifest`); g++ compiles
//! that against the headers. The same is then done with every declaration distorted, and every assertion must
//! fail: a check that cannot fail proves nothing. The headers come from `--cann-include` or from the newest
//! `torch-npu` wheel, kept under `target/`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::cargo;
use crate::lane::{Outcome, Report, Setting};
use crate::workspace::Workspace;

/// Where the headers are.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory with `acl/acl_rt.h` and `hccl/hccl.h`; without it, those of the newest torch-npu wheel
    /// (needs pip)
    #[arg(long, value_name = "DIR")]
    cann_include: Option<PathBuf>,
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let (origin, root) = match &args.cann_include {
        Some(dir) => (dir.display().to_string(), dir.clone()),
        None => wheel_headers(&ws.target.join("abi-check"))?,
    };
    println!("headers: {origin}");
    let checked = check(ws, &root)?;
    println!("compared {}: all agree", checked.what);
    println!("each of the {} checks fails when its declaration is distorted", checked.count);
    Ok(ExitCode::SUCCESS)
}

/// The same as a lane of `ci`. Where the headers cannot be had, it is left out; in CI that is a failure.
pub(crate) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    match wheel_headers(&setting.ws.target.join("abi-check")) {
        Ok((_, root)) => {
            let checked = check(setting.ws, &root)?;
            Ok(Outcome::Ran(Report::checks(checked.count, "check", None)))
        }
        Err(error) if std::env::var_os("CI").is_none() => {
            Ok(Outcome::LeftOut(format!("no vendor headers: {error:#}; where CI is set this is a failure")))
        }
        Err(error) => Err(error),
    }
}

/// What was compared.
struct Checked {
    what: String,
    count: usize,
}

/// Compares everything with the headers below `root`.
fn check(ws: &Workspace, root: &Path) -> Result<Checked> {
    let include = include_dirs(root)?;
    let declared = manifest(ws, None)?;
    let failures = compile(&declared, &include)?;
    for failure in &failures {
        println!("  {}: {}", failure.name, failure.message);
    }
    let wrong: BTreeSet<_> = failures.iter().map(|f| f.name.as_str()).collect();
    ensure!(wrong.is_empty(), "{} declaration(s) of comm-hccl differ from the headers", wrong.len());

    let all = check_names(&declared);
    ensure!(!all.is_empty(), "comm-hccl printed no check at all");
    let failures = compile(&manifest(ws, Some("--distorted"))?, &include)?;
    let seen: BTreeSet<_> = failures.iter().map(|f| f.name.as_str()).collect();
    let blind: Vec<_> = all.iter().filter(|name| !seen.contains(name.as_str())).collect();
    ensure!(blind.is_empty(), "checks that pass even when the declaration is wrong: {blind:?}");
    Ok(Checked { what: counts(&declared)?, count: all.len() })
}

/// A declaration that does not hold.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    name: String,
    message: String,
}

/// What comm-hccl declares, as C++.
fn manifest(ws: &Workspace, argument: Option<&str>) -> Result<String> {
    let mut command =
        cargo(&ws.root, ["run", "--quiet", "--package", "comm-hccl", "--example", "abi_manifest", "--"]);
    let output = command.args(argument).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "the example abi_manifest of comm-hccl failed");
    Ok(String::from_utf8(output.stdout)?)
}

/// Compiles a source and gives what does not hold. Anything else that the compiler dislikes is an error.
fn compile(source: &str, include: &[PathBuf]) -> Result<Vec<Failure>> {
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-fsyntax-only", "-fmax-errors=0", "-fno-diagnostics-show-caret", "-w"]);
    compiler.args(include.iter().map(|dir| format!("-I{}", dir.display()))).args(["-x", "c++", "-"]);
    compiler.env("LC_ALL", "C").stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = compiler.spawn().context("cannot start g++, which abi-check needs")?;
    child.stdin.take().context("g++ without standard input")?.write_all(source.as_bytes())?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let failures = failures(&text)?;
    ensure!(output.status.success() == failures.is_empty(), "g++ failed without saying where:\n{text}");
    Ok(failures)
}

/// Reads g++'s complaints. Each check has a `#line` that names it, so its complaint reads
/// `sys: NAME:LINE:COLUMN: error: …`.
fn failures(text: &str) -> Result<Vec<Failure>> {
    let mut failures = Vec::new();
    for line in text.lines() {
        let Some((place, message)) = line.split_once(" error: ") else { continue };
        match place.strip_prefix("sys: ").and_then(|rest| rest.split_once(':')) {
            Some((name, _)) => failures.push(Failure { name: name.to_owned(), message: message.to_owned() }),
            None => bail!("the headers do not compile: {line}"),
        }
    }
    Ok(failures)
}

fn check_names(source: &str) -> Vec<String> {
    let name = |line: &str| Some(line.strip_prefix("#line 1 \"sys: ")?.strip_suffix('"')?.to_owned());
    source.lines().filter_map(name).collect()
}

/// The first line of the source says what it holds.
fn counts(source: &str) -> Result<String> {
    let line = source
        .lines()
        .next()
        .and_then(|l| l.strip_prefix("// counts: "))
        .context("no counts in the source")?;
    let words: Vec<_> = line
        .split(' ')
        .map(|entry| entry.split_once('=').map(|(what, n)| format!("{n} {what}")))
        .collect::<Option<_>>()
        .context("counts of another form")?;
    Ok(words.join(", "))
}

/// The folders to include from, below a CANN installation's `include` or a torch-npu wheel's.
fn include_dirs(root: &Path) -> Result<Vec<PathBuf>> {
    let below = ["", "third_party/acl/inc", "third_party/hccl/inc"].map(|dir| root.join(dir));
    let dirs: Vec<_> = below.into_iter().filter(|dir| dir.is_dir()).collect();
    for header in ["acl/acl_rt.h", "hccl/hccl.h"] {
        let found = dirs.iter().any(|dir| dir.join(header).is_file());
        ensure!(
            found,
            "{} has no {header}; give the include directory of a CANN installation",
            root.display()
        );
    }
    Ok(dirs)
}

/// The headers of the newest torch-npu wheel, and its name. Without a network the newest one that is here is
/// used.
fn wheel_headers(cache: &Path) -> Result<(String, PathBuf)> {
    std::fs::create_dir_all(cache)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "torch-npu"]);
    let downloaded = pip.arg("--dest").arg(cache).stderr(Stdio::inherit()).status();
    let downloaded =
        downloaded.context("cannot start python3 -m pip; give --cann-include DIR instead")?.success();
    let wheel = newest_wheel(cache)?
        .context("pip could not download torch-npu and none is cached; give --cann-include DIR instead")?;
    let name = wheel.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if !downloaded {
        println!("pip could not look for a newer torch-npu; using the cached {name}");
    }
    let dir = cache.join(&name);
    if !dir.is_dir() {
        unpack(&wheel, &dir)?;
    }
    Ok((format!("wheel {name}"), dir.join("torch_npu/include")))
}

/// The wheel that was written last, which is the one that pip found newest.
fn newest_wheel(cache: &Path) -> Result<Option<PathBuf>> {
    let mut wheels = Vec::new();
    for entry in std::fs::read_dir(cache)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "whl") {
            wheels.push((path.metadata()?.modified()?, path));
        }
    }
    Ok(wheels.into_iter().max().map(|(_, path)| path))
}

/// Takes the vendor's headers out of a wheel; all at once or not at all, so that an interrupted run leaves no
/// half.
fn unpack(wheel: &Path, dir: &Path) -> Result<()> {
    const SCRIPT: &str = "import sys, zipfile\n\
        wheel = zipfile.ZipFile(sys.argv[1])\n\
        wanted = [n for n in wheel.namelist() if n.startswith('torch_npu/include/third_party/') and n.endswith('.h')]\n\
        wheel.extractall(sys.argv[2], wanted)\n";
    let partial = dir.with_extension("partial");
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).arg(wheel).arg(&partial);
    ensure!(python.status()?.success(), "cannot unpack {}", wheel.display());
    std::fs::rename(&partial, dir).with_context(|| format!("cannot move {}", partial.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "// counts: functions=1 structs=0\n\
        #line 1 \"sys: function f\"\nstatic_assert(sizeof(short) == 2, \"declared as 2\");\n\
        #line 1 \"sys: constant C\"\nstatic_assert(C == 3, \"declared as 3\");\n";

    #[test]
    fn what_does_not_hold_is_named() {
        let right = format!("constexpr int C = 3;\n{SOURCE}");
        assert_eq!(compile(&right, &[]).unwrap(), []);
        let wrong = format!("constexpr int C = 4;\n{SOURCE}");
        let found = compile(&wrong, &[]).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "constant C");
        assert!(found[0].message.contains("declared as 3"), "{}", found[0].message);
    }

    #[test]
    fn headers_that_do_not_compile_are_not_taken_for_a_wrong_declaration() {
        let error =
            compile(&format!("#include <no/such/header.h>\n{SOURCE}"), &[]).expect_err("a missing header");
        assert!(error.to_string().contains("no/such/header.h"), "{error}");
    }

    #[test]
    fn names_and_counts_come_from_the_source() {
        assert_eq!(check_names(SOURCE), ["function f", "constant C"]);
        assert_eq!(counts(SOURCE).unwrap(), "1 functions, 0 structs");
    }

    #[test]
    fn a_directory_without_the_headers_is_refused_by_name() {
        let error = include_dirs(Path::new("/nonexistent")).expect_err("no headers");
        assert!(error.to_string().contains("acl/acl_rt.h"), "{error}");
    }
}
