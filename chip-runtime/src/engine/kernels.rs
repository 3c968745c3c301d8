//! The kernels that are registered, by number, and those that no longer are but may still run.

use crate::kernel::Kernel;
use crate::task::KernelId;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct Kernels {
    by_number: BTreeMap<KernelId, Arc<Kernel>>,
    /// Those that the runtime numbered itself.
    added: Vec<KernelId>,
    /// One above the last number of these: a number that was forgotten never stands for another kernel.
    next: u32,
    /// Replaced or forgotten; a core may still run one.
    dropped: Vec<Arc<Kernel>>,
}

impl Kernels {
    pub(super) fn get(&self, id: KernelId) -> Option<&Kernel> {
        self.by_number.get(&id).map(|kernel| &**kernel)
    }

    pub(super) fn set(&mut self, kernel: Arc<Kernel>) {
        self.dropped.extend(self.by_number.insert(kernel.id, kernel));
    }

    /// A number above all that there are, and above all that this has returned.
    pub(super) fn next(&mut self) -> KernelId {
        let above = self.by_number.last_key_value().map_or(0, |(id, _)| id.0.wrapping_add(1));
        let mut id = KernelId(self.next.max(above));
        // Only once the numbers are used up.
        while self.by_number.contains_key(&id) {
            id.0 = id.0.wrapping_add(1);
        }
        self.next = id.0.wrapping_add(1);
        self.added.push(id);
        id
    }

    pub(super) fn forget(&mut self, id: KernelId) -> bool {
        let old = self.by_number.remove(&id);
        self.added.retain(|added| *added != id);
        let was_there = old.is_some();
        self.dropped.extend(old);
        was_there
    }

    /// Forgets those that `next` numbered.
    pub(super) fn forget_added(&mut self) {
        let added = std::mem::take(&mut self.added);
        self.dropped.extend(added.iter().filter_map(|id| self.by_number.remove(id)));
    }

    pub(super) fn take_dropped(&mut self) -> Vec<Arc<Kernel>> {
        std::mem::take(&mut self.dropped)
    }
}
