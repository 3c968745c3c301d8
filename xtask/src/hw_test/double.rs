//! The vendor double, which takes the place of devices, and what only it can run.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use super::Layer;
use crate::cargo::cargo;
use crate::console::Console;
use crate::workspace::Workspace;

/// Ignored tests that create sessions of the double themselves: every number of ranks, every share mode of windows, every
/// fault. Layer, crate, program, test.
pub(super) const OWN_SESSIONS: &[(Layer, &str, &str, &str)] = &[
    (Layer::Comm, "comm-hccl", "conformance_double", "all_sizes_and_share_modes"),
    (Layer::Comm, "comm-hccl", "proc_comm_faults", "f11_every_vendor_call_fails_hangs_and_kills"),
];

/// Suites whose Workers run on the platform that `CHIPCOMM_PLATFORM` names: layer, crate, program. They need up to 49
/// devices and kernels that g++ builds, which only the double accepts.
pub(super) const ANY_PLATFORM: &[(Layer, &str, &str)] = &[
    (Layer::Worker, "worker-orch", "proc_run"),
    (Layer::Worker, "worker-orch", "proc_cancelled"),
    (Layer::Worker, "worker-orch", "proc_collectives"),
    (Layer::Worker, "worker-orch", "proc_death"),
    (Layer::Worker, "worker-orch", "proc_limits"),
    (Layer::Worker, "worker-orch", "proc_exec"),
];

/// An empty folder for a session of the double. It has the devices that tests need, and not device 63, which tests miss.
pub(super) fn fresh_session(ws: &Workspace) -> Result<PathBuf> {
    let folder = ws.target.join("hw-test/double");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let made = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("config"), "devices = 56\n"));
    made.with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Builds the vendor double and returns the folder that holds its libraries.
pub(crate) fn build_double(ws: &Workspace, console: &Console) -> Result<PathBuf> {
    let parts: Vec<&str> = ws
        .members
        .iter()
        .filter(|member| member.dir.starts_with("comm-hccl/cann-sim"))
        .map(|member| member.package.as_str())
        .collect();
    ensure!(!parts.is_empty(), "the vendor double, comm-hccl/cann-sim, is not part of this workspace");
    let mut command = cargo(&ws.root, ["build"]);
    parts.iter().for_each(|name| {
        command.args(["--package", name]);
    });
    console.begin("double", "building the vendor double");
    let log = console.run(&mut command)?;
    console.end();
    if let Some(failure) = log.failure {
        bail!("the vendor double does not build: {failure}");
    }
    Ok(ws.target.join("debug"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_that_is_named_here_exists() {
        let ws = Workspace::load().unwrap();
        let file = |name: &str, program: &str| {
            let member = ws.member(name).expect(name);
            std::fs::read_to_string(ws.root.join(&member.dir).join(format!("tests/{program}.rs")))
                .expect(program)
        };
        for (_, name, program, test) in OWN_SESSIONS {
            assert!(file(name, program).contains(&format!("fn {test}()")), "{program} has no test {test}");
        }
        ANY_PLATFORM.iter().for_each(|(_, name, program)| assert!(!file(name, program).is_empty()));
    }
}
