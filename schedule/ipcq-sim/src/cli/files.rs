//! Result files that appear together at the end. After an error or Ctrl-C none appears.

use super::BadInput;
use crate::out::Trace;
use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

/// A trace that goes to a file.
pub(super) type FileTrace<'a> = Trace<'a, BufWriter<File>>;

/// A folder that is being written.
pub(super) struct Files {
    dir: PathBuf,
    partial: Partial,
}

impl Files {
    /// Refuses a folder that cannot be written, before anything is computed.
    pub(super) fn create(dir: &Path) -> anyhow::Result<Files> {
        watch();
        let partial = Partial {
            folder: dir.join(format!(".partial-{}", std::process::id())),
            created: dir.ancestors().take_while(|dir| !dir.exists()).map(Path::to_owned).collect(),
        };
        unfinished(|list| list.push(partial.clone()));
        let files = Files { dir: dir.to_owned(), partial };
        fs::create_dir_all(&files.partial.folder)
            .map_err(|error| BadInput(format!("--out {}: {error}", dir.display())))?;
        Ok(files)
    }

    /// A file of the folder; `keep` moves it there.
    pub(super) fn open(&self, name: &str) -> anyhow::Result<BufWriter<File>> {
        let file = File::create(self.partial.folder.join(name)).with_context(|| self.named(name))?;
        Ok(BufWriter::new(file))
    }

    /// A whole file at once.
    pub(super) fn write(
        &self,
        name: &str,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut out = self.open(name)?;
        fill(&mut out).and_then(|()| out.flush()).with_context(|| self.named(name))
    }

    fn named(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Moves everything to its place.
    pub(super) fn keep(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.partial.folder)? {
            let entry = entry?;
            fs::rename(entry.path(), self.dir.join(entry.file_name()))?;
        }
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        unfinished(|list| list.retain(|partial| partial.folder != self.partial.folder));
        self.partial.remove();
    }
}

/// Partial results, which must not be left behind.
#[derive(Clone)]
struct Partial {
    folder: PathBuf,
    /// The result folder and its ancestors that did not exist before, innermost first.
    created: Vec<PathBuf>,
}

impl Partial {
    fn remove(&self) {
        // After `keep` only the empty folder is left.
        let _ = fs::remove_dir_all(&self.folder);
        for dir in &self.created {
            // Succeeds only when nothing was kept.
            let _ = fs::remove_dir(dir);
        }
    }
}

fn unfinished<R>(with: impl FnOnce(&mut Vec<Partial>) -> R) -> R {
    static LIST: Mutex<Vec<Partial>> = Mutex::new(Vec::new());
    with(&mut LIST.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Starts a thread that waits for the signals that end a program, removes partial results, and exits.
fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        // Threads that are started later inherit the mask, so only the one below receives them.
        if signals.thread_block().is_err() {
            return;
        }
        std::thread::spawn(move || {
            if let Ok(signal) = signals.wait() {
                unfinished(|list| {
                    list.iter().for_each(Partial::remove);
                    // Under the lock, so that no new result is started.
                    std::process::exit(128 + signal as i32)
                })
            }
        });
    });
}
