//! A core for each process, while there are enough.

use crate::raw::Cores;
use std::io;

/// Which process runs where. With more processes than cores the scheduler decides, as it would for a user.
pub(crate) struct Plan {
    allowed: Cores,
    cores: Vec<usize>,
}

impl Plan {
    pub(crate) fn for_processes(count: usize) -> io::Result<Self> {
        let allowed = Cores::allowed()?;
        let cores: Vec<usize> = allowed.iter().take(count).collect();
        Ok(Self { cores: if cores.len() == count { cores } else { Vec::new() }, allowed })
    }

    /// Pins process `me`, which is the caller, to its core.
    pub(crate) fn pin(&self, me: usize) -> io::Result<()> {
        self.cores.get(me).map_or(Ok(()), |core| Cores::only(*core).confine())
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // It was allowed there before; if that fails, the rest of the benchmark runs on one core.
        let _ = self.allowed.confine();
    }
}
