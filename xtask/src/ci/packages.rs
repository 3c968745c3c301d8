//! The lane `packages`: what a stranger takes home. Every library builds from its own package, and a C program
//! finds the installed libraries by pkg-config and by CMake.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{answers, cargo};
use crate::install;
use crate::lane::{Outcome, Report, Setting};
use crate::workspace::Member;

/// Uses a call of each header and a type; without a group the calls are refused with a text, and need no peers.
const PROGRAM: &str = r#"
#include <comm.h>
#include <comm_coll.h>
#include <comm_context.h>
#include <stdio.h>
int main(void) {
    struct CommContext context;
    int refused = comm_coll_barrier(0) != COMM_SUCCESS;
    printf("%zu %s\n", sizeof context, comm_last_error());
    return refused && comm_last_error()[0] ? 0 : 1;
}
"#;
const CMAKE: &str = "cmake_minimum_required(VERSION 3.16)\nproject(user C)\nfind_package(chipcomm 0.1 REQUIRED)\n\
    foreach(library sim hccl)\n  add_executable(user-${library} user.c)\n\
    \x20 target_link_libraries(user-${library} chipcomm::${library})\nendforeach()\n";
/// What builds and runs it with each library: the tool that finds it, and the commands.
const USERS: [(&str, &str); 3] = [
    ("pkg-config", "cc user.c -o user-sim $(pkg-config --cflags --libs chipcomm-sim) && ./user-sim"),
    ("pkg-config", "cc user.c -o user-hccl $(pkg-config --cflags --libs chipcomm-hccl) && ./user-hccl"),
    (
        "cmake",
        "cmake -S . -B build -DCMAKE_PREFIX_PATH=$PWD/prefix && cmake --build build && ./build/user-sim && ./build/user-hccl",
    ),
];

pub(super) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    let packages: Vec<&Member> = setting.ws.members.iter().filter(|member| member.published).collect();
    let names = packages.iter().flat_map(|member| ["--package", member.package.as_str()]);
    // What is packaged is what git would commit, also before it is committed.
    let args = ["package", "--allow-dirty"].into_iter().chain(names);
    forget_unpacked(&packages, &setting.ws.version);
    let log = setting.console.run(&mut cargo(&setting.ws.root, args))?;
    forget_unpacked(&packages, &setting.ws.version);
    let mut failure = log.failure;
    let mut count = packages.len();
    if failure.is_none() {
        let build = ["build", "--release", "--package", "comm-sim-c", "--package", "comm-hccl-c"];
        failure = setting.console.run(&mut cargo(&setting.ws.root, build))?.failure;
    }
    if failure.is_none() {
        let (users, why) = users(setting)?;
        count += users;
        failure = why;
    }
    Ok(Outcome::Ran(Report::checks(count, "package", failure)))
}

/// Removes what cargo has unpacked of these packages. It does that once for each name and version in a folder for the path of the
/// workspace, and would build a package with the others as an earlier run has left them.
fn forget_unpacked(packages: &[&Member], version: &str) {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let registries = home.and_then(|home| std::fs::read_dir(home.join("registry/src")).ok());
    // Those without a host are folders of this machine.
    let is_local = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with('-');
    for registry in registries.into_iter().flatten().flatten().filter(is_local) {
        for package in packages {
            let unpacked = registry.path().join(format!("{}-{}", package.package, version));
            let _absent = std::fs::remove_dir_all(unpacked);
        }
        // Only one that nothing else is in.
        let _in_use = std::fs::remove_dir(registry.path());
    }
}

/// Programs outside the workspace: how many were built and ran, and why one did not.
fn users(setting: &Setting<'_>) -> Result<(usize, Option<String>)> {
    let scratch = setting.ws.target.join("installed");
    // What an earlier run left would hide a file that is missing now.
    let _absent = std::fs::remove_dir_all(&scratch);
    install::install(setting.ws, &scratch.join("prefix"))?;
    std::fs::write(scratch.join("user.c"), PROGRAM).context("no scratch folder")?;
    std::fs::write(scratch.join("CMakeLists.txt"), CMAKE)?;
    let mut count = 0;
    for (tool, script) in USERS {
        if !answers(version_of(tool)) {
            setting.console.not_run(&format!("{tool} is not installed"));
            continue;
        }
        count += 1;
        let log = setting.console.run(&mut shell(&scratch, script))?;
        if let Some(why) = log.failure {
            return Ok((count, Some(format!("a C program by {tool}: {why}"))));
        }
    }
    Ok((count, None))
}

fn version_of(tool: &str) -> Command {
    let mut command = Command::new(tool);
    command.arg("--version");
    command
}

fn shell(folder: &Path, script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(folder);
    command.env("PKG_CONFIG_PATH", folder.join("prefix/lib/pkgconfig"));
    command
}
