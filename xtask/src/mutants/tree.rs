//! A copy of the sources that mutants are applied to, with a target folder of its own that is kept from one to the next.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::cargo;
use crate::mutants::list::Mutant;
use crate::workspace::Workspace;

pub(super) struct SourceTree {
    root: PathBuf,
    build: PathBuf,
    log: PathBuf,
    /// Held as long as this lives: two at once would put their mutants into one copy.
    _alone: File,
}

/// A command that has ended.
pub(super) struct Ended {
    pub(super) success: bool,
    pub(super) lines: Vec<String>,
}

impl SourceTree {
    /// Makes the copy what git knows, or would add. Files that are the same keep their times, so that cargo
    /// builds only what is not.
    pub(super) fn copy(ws: &Workspace) -> Result<Self> {
        let folder = ws.target.join("mutants");
        let alone = alone(&folder)?;
        let [root, build, log] = ["tree", "build", "log"].map(|name| folder.join(name));
        let tree = Self { root, build, log, _alone: alone };
        let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let out =
            Command::new("git").current_dir(&ws.root).args(list).output().context("cannot start git")?;
        ensure!(out.status.success(), "`git ls-files` failed:\n{}", String::from_utf8_lossy(&out.stderr));
        let names = String::from_utf8(out.stdout).context("a file whose name is not UTF-8")?;
        let mut wanted = BTreeSet::new();
        for name in names.split_terminator('\0') {
            // One that was deleted and not committed yet is still known.
            let Ok(bytes) = fs::read(ws.root.join(name)) else { continue };
            let to = tree.root.join(name);
            if fs::read(&to).ok().is_none_or(|there| there != bytes) {
                fs::create_dir_all(to.parent().unwrap_or(&tree.root))?;
                fs::copy(ws.root.join(name), &to)
                    .with_context(|| format!("cannot write {}", to.display()))?;
            }
            wanted.insert(to);
        }
        remove_others(&tree.root, &wanted)?;
        Ok(tree)
    }

    /// Does something while the mutant is in the copy.
    pub(super) fn with<T>(&self, mutant: &Mutant, then: impl FnOnce() -> Result<T>) -> Result<T> {
        let path = self.root.join(&mutant.file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", mutant.file))?;
        let broken = mutant.applied(&text);
        let broken = broken.map_err(|count| {
            anyhow::anyhow!(
                "{}: {} has its text {count} times; `cargo xtask tidy` lists all such",
                mutant.title(),
                mutant.file
            )
        })?;
        fs::write(&path, broken)?;
        let done = then();
        fs::write(&path, text)?;
        done
    }

    /// Where the copy is.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A folder for what else is built from it.
    pub(super) fn folder(&self, name: &str) -> PathBuf {
        self.root.with_file_name(name)
    }

    /// Runs cargo in the copy; within so many seconds, where a number is given.
    pub(super) fn cargo(&self, args: &[&str], seconds: Option<u32>) -> Result<Ended> {
        let mut plain = cargo(&self.root, args.iter().copied());
        plain.env("CARGO_TARGET_DIR", &self.build);
        self.run(&plain, seconds)
    }

    /// Runs a command, within so many seconds, where a number is given, and ends all that it started.
    pub(super) fn run(&self, plain: &Command, seconds: Option<u32>) -> Result<Ended> {
        // Its own group of processes, which a mutant may leave members of behind.
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &seconds.unwrap_or(0).to_string()]);
        command.arg(plain.get_program()).args(plain.get_args());
        command.current_dir(plain.get_current_dir().unwrap_or(&self.root));
        for (key, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        command.stdin(Stdio::null());
        // A file and not a pipe: what is left behind would hold a pipe open.
        let log = File::create(&self.log).with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut child =
            command.stdout(log.try_clone()?).stderr(log).spawn().context("cannot start `timeout`")?;
        let status = child.wait()?;
        let group = format!("-{}", child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let text = fs::read(&self.log)?;
        let lines = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
        Ok(Ended { success: status.success(), lines })
    }
}

/// Waits until no other run has the folder. The system lets go when the file is closed, also by a death.
fn alone(folder: &Path) -> Result<File> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    if file.try_lock().is_err() {
        println!("another `cargo xtask mutants` is running here; waiting for its end");
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

/// Removes the files below a folder that are not wanted: those that the sources no longer have.
fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, wanted)?;
        } else if !wanted.contains(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_at_a_time_has_the_folder() {
        let folder = std::env::temp_dir().join(format!("chipcomm-mutants-{}", std::process::id()));
        let first = alone(&folder).unwrap();
        assert!(File::create(folder.join("lock")).unwrap().try_lock().is_err());
        drop(first);
        drop(alone(&folder).unwrap());
        fs::remove_dir_all(folder).unwrap();
    }
}
