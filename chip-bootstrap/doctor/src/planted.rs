//! Machines and trials of tests.

use crate::finding::{Finding, State};
use crate::machine::Machine;
use crate::trials::{Trials, VendorAnswer};

/// A machine in a folder, removed when the test ends.
pub(crate) struct Planted {
    folder: tempfile::TempDir,
    machine: Machine,
}

impl Planted {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine { root: folder.path().to_owned(), environment: Default::default() };
        Self { folder, machine }
    }

    pub(crate) fn file(self, absolute: &str, text: &str) -> Self {
        let path = self.machine.path(absolute);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.machine.environment.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn machine(self) -> Kept {
        Kept { _folder: self.folder, machine: self.machine }
    }
}

/// A machine with its folder.
pub(crate) struct Kept {
    _folder: tempfile::TempDir,
    machine: Machine,
}

impl std::ops::Deref for Kept {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

/// Trials that succeed.
pub(crate) fn good() -> Trials {
    let works = || Ok("works".to_owned());
    Trials { shared_memory: works, pidfd: works, two_ranks: works, vendor: answers }
}

/// Trials that fail.
pub(crate) fn failing() -> Trials {
    let fails = || Err("refused".to_owned());
    Trials {
        shared_memory: fails,
        pidfd: fails,
        two_ranks: fails,
        vendor: || Err("libascendcl.so was not found".into()),
    }
}

fn answers() -> Result<VendorAnswer, String> {
    Ok(VendorAnswer { libraries: "ACL interface 1.17.0".into(), soc: "Ascend910B2".into(), devices: 2 })
}

/// How good one of the findings is.
pub(crate) fn state(findings: &[Finding], what: &str) -> State {
    let found = findings.iter().find(|finding| finding.what == what);
    found.unwrap_or_else(|| panic!("nothing about {what} in {findings:?}")).state
}
