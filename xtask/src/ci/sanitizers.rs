//! The sanitizer lanes: tests of processes and threads, built by the nightly compiler to check every access
//! to memory.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::cargo::{appended, nightly};
use crate::lane::{Outcome, Report, Setting};
use crate::tally::{SHOW_OUTPUT, Tally};

/// What a lane tests. CONTRIBUTING.md has the commands for more.
struct Scope {
    crates: &'static [&'static str],
    /// Of their test programs those that fit into three minutes, beside the unit tests.
    suites: &'static [&'static str],
    /// Tests whose name has one of these in it are left out.
    skips: &'static [&'static str],
}

/// Everything that shares memory between processes. C programs are left out: they are not instrumented.
const ADDRESSES: Scope = Scope {
    crates: &[
        "shared-memory",
        "child-process",
        "mailbox-atomics",
        "bootstrap-channel",
        "rendezvous",
        "comm-sim",
        "collectives",
        "chip-runtime",
        "chip-bootstrap",
        "worker-orch",
    ],
    suites: &[
        "proc_wait",
        "proc_fork",
        "proc_rendezvous",
        "proc_memory",
        "proc_domains",
        "proc_family",
        "proc_misuse",
        "random_graphs",
        "signals",
        "proc_bring_up",
        "proc_run",
        "proc_hostile",
    ],
    skips: &[
        // They count the mappings of the process, to which the sanitizer adds, or take minutes.
        "cs_4_thousands_of_cycles",
        "f16_a_thousand",
        // They limit memory or addresses, and the sanitizer's own count too.
        "f22_",
        "f75_addresses_that_were_asked_for",
        // It takes minutes with so many processes.
        "sixty_four_ranks_make_every_call",
        // It leaks a context on purpose; its fuzz target runs under this sanitizer.
        "whatever_an_orchestration_or_a_peer_says",
    ],
};

/// What threads of one process share; the sanitizer does not see what another process does.
const THREADS: Scope = Scope {
    crates: &[
        "shared-memory",
        "mailbox-atomics",
        "worker-errors",
        "bootstrap-channel",
        "rendezvous",
        "collectives",
        "chip-runtime",
    ],
    suites: &["channel", "wait_hook", "random_graphs", "signals"],
    skips: &[
        // They take minutes, on one thread.
        "kernels::",
        "schedule::",
    ],
};

/// The address sanitizer, with its search for leaks. The standard library need not be built anew.
pub(super) fn addresses(setting: &Setting<'_>) -> Result<Outcome> {
    let Some(compiler) = Compiler::nightly() else { return Ok(no_nightly()) };
    lane(setting, &compiler, &ADDRESSES, "asan", "-Zsanitizer=address", |_| ())
}

/// The thread sanitizer. It must see what the standard library does with locks and atomics, so that is
/// built anew.
pub(super) fn threads(setting: &Setting<'_>) -> Result<Outcome> {
    let Some(compiler) = Compiler::nightly() else { return Ok(no_nightly()) };
    if !Path::new(&compiler.sysroot).join("lib/rustlib/src/rust/library").is_dir() {
        let how = "the nightly toolchain has no sources of the standard library; to install: rustup +nightly component add rust-src";
        return Ok(Outcome::LeftOut(how.to_owned()));
    }
    lane(setting, &compiler, &THREADS, "tsan", "-Zsanitizer=thread --cfg tsan", |command| {
        // Tests fork from the threads of their harness; the children only go on with the one that forked.
        command.arg("-Zbuild-std").env("TSAN_OPTIONS", appended("TSAN_OPTIONS", "die_after_fork=0"));
    })
}

/// `cargo test` of a scope. The target is named although it is the host, so that build scripts and macros
/// stay as they are.
fn lane(
    setting: &Setting<'_>,
    compiler: &Compiler,
    scope: &Scope,
    folder: &str,
    flags: &str,
    adjust: impl FnOnce(&mut Command),
) -> Result<Outcome> {
    let mut command =
        nightly(&setting.ws.root, ["test", "--no-fail-fast", "--lib", "--target", &compiler.host]);
    command.arg("--target-dir").arg(setting.ws.target.join(folder));
    scope.crates.iter().for_each(|name| _ = command.args(["--package", setting.ws.package(name)]));
    scope.suites.iter().for_each(|name| _ = command.args(["--test", name]));
    command.env("RUSTFLAGS", appended("RUSTFLAGS", flags));
    adjust(&mut command);
    command.args(["--", SHOW_OUTPUT]);
    scope.skips.iter().for_each(|name| _ = command.args(["--skip", name]));
    let log = setting.console.run(&mut command)?;
    Ok(Outcome::Ran(Report::tests(Tally::of(&log.lines), log.failure)))
}

/// The nightly compiler.
#[derive(Debug, PartialEq)]
struct Compiler {
    host: String,
    sysroot: String,
}

impl Compiler {
    /// `None` where there is none.
    fn nightly() -> Option<Self> {
        let asked = ["+nightly", "--print", "sysroot", "--print", "host-tuple"];
        // A check must not change the machine: rustup would install a missing toolchain.
        let out = Command::new("rustc").args(asked).env("RUSTUP_AUTO_INSTALL", "0").output().ok()?;
        out.status.success().then(|| Self::parse(&String::from_utf8_lossy(&out.stdout))).flatten()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::to_owned);
        Some(Self { sysroot: lines.next()?, host: lines.next()? })
    }
}

fn no_nightly() -> Outcome {
    let how =
        "`rustc +nightly` does not answer; to install: rustup toolchain install nightly --component rust-src";
    Outcome::LeftOut(how.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::{Member, Workspace};

    #[test]
    fn a_compiler_says_where_it_is_and_for_what() {
        let compiler = Compiler::parse("/toolchains/nightly\nx86_64-unknown-linux-gnu\n").unwrap();
        assert_eq!(
            (compiler.sysroot.as_str(), compiler.host.as_str()),
            ("/toolchains/nightly", "x86_64-unknown-linux-gnu")
        );
        assert_eq!(Compiler::parse("/toolchains/nightly\n"), None);
    }

    #[test]
    fn every_crate_and_suite_is_there_and_every_skip_skips_something() {
        let ws = Workspace::load().unwrap();
        for scope in [&ADDRESSES, &THREADS] {
            let crates: Vec<&Member> = scope.crates.iter().map(|name| ws.member(name).expect(name)).collect();
            for suite in scope.suites {
                let held = |member: &&Member| member.targets_named("test", suite).any(|name| name == *suite);
                assert!(crates.iter().any(held), "no crate has tests/{suite}.rs");
            }
            let suites = crates.iter().flat_map(|member| {
                let folder = ws.root.join(&member.dir);
                let suites = scope.suites.iter().map(move |suite| format!("tests/{suite}.rs"));
                suites
                    .chain(["src/lib.rs", "src/fuzzing.rs"].map(str::to_owned))
                    .map(move |file| folder.join(file))
            });
            let tests: String = suites.filter_map(|file| std::fs::read_to_string(file).ok()).collect();
            for skip in scope.skips {
                // Some are names that a macro makes tests of, or modules.
                let module = skip.strip_suffix("::").map(|name| format!("mod {name};"));
                let names = |line: &str| line.trim_start().trim_start_matches("fn ").starts_with(skip);
                let is = |line: &str| {
                    names(line) || module.as_deref().is_some_and(|module| line.ends_with(module))
                };
                assert!(tests.lines().any(is), "no test is named {skip}");
            }
        }
    }
}
