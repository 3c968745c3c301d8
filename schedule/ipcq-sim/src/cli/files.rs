//! Result files that appear together at the end, or not at all: not after an error, and not after Ctrl-C.

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
    half: Half,
}

impl Files {
    /// Refuses a folder that cannot be written to before anything is computed for it.
    pub(super) fn create(dir: &Path) -> anyhow::Result<Files> {
        watch();
        let half = Half {
            partial: dir.join(format!(".partial-{}", std::process::id())),
            made: dir.ancestors().take_while(|dir| !dir.exists()).map(Path::to_owned).collect(),
        };
        unfinished(|list| list.push(half.clone()));
        let files = Files { dir: dir.to_owned(), half };
        fs::create_dir_all(&files.half.partial)
            .map_err(|error| BadInput(format!("--out {}: {error}", dir.display())))?;
        Ok(files)
    }

    /// A file of the folder; until the end it is elsewhere.
    pub(super) fn open(&self, name: &str) -> anyhow::Result<BufWriter<File>> {
        let file = File::create(self.half.partial.join(name)).with_context(|| self.named(name))?;
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
        for entry in fs::read_dir(&self.half.partial)? {
            let entry = entry?;
            fs::rename(entry.path(), self.dir.join(entry.file_name()))?;
        }
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        unfinished(|list| list.retain(|half| half.partial != self.half.partial));
        self.half.remove();
    }
}

/// What must not be left behind.
#[derive(Clone)]
struct Half {
    partial: PathBuf,
    /// The folder itself and those around it that were not there before, from the inside out.
    made: Vec<PathBuf>,
}

impl Half {
    fn remove(&self) {
        // After `keep` there is nothing left but the empty folder.
        let _ = fs::remove_dir_all(&self.partial);
        for dir in &self.made {
            // Succeeds only when nothing was kept.
            let _ = fs::remove_dir(dir);
        }
    }
}

fn unfinished<R>(with: impl FnOnce(&mut Vec<Half>) -> R) -> R {
    static LIST: Mutex<Vec<Half>> = Mutex::new(Vec::new());
    with(&mut LIST.lock().unwrap_or_else(PoisonError::into_inner))
}

/// From now on a thread waits for the signals that end a program, removes what is half written, and ends it.
fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        // Threads that are started later inherit the mask, so the one below is the only one to take them.
        if signals.thread_block().is_err() {
            return;
        }
        std::thread::spawn(move || {
            if let Ok(signal) = signals.wait() {
                unfinished(|list| {
                    list.iter().for_each(Half::remove);
                    // Under the lock, so that nothing new is begun.
                    std::process::exit(128 + signal as i32)
                })
            }
        });
    });
}
