//! Pages of several mappings, mapped once more, side by side.
//!
//! A process that reads a little in many mappings spends its time on finding the pages: each has entries of its own at every level of
//! the page table. Side by side they share all but the last.
//!
//! # Safety
//! Maps and unmaps. `MAP_FIXED` replaces pages only inside the range that was reserved for it, and that range is what is unmapped.
#![allow(unsafe_code)]

use crate::arena::PAGE;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use nix::errno::Errno;
use nix::sys::mman::{MRemapFlags, MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mremap, munmap};

/// Second addresses of some pages: what is written at one address is read at the other.
#[derive(Debug)]
pub struct GatheredPages {
    base: NonNull<u8>,
    len: NonZeroUsize,
}

impl GatheredPages {
    /// Maps the pages at these addresses once more, in this order. Fails where there is no page of shared memory, or the kernel has no
    /// room for as many mappings.
    pub fn new(pages: &[NonNull<u8>]) -> Result<Self, Errno> {
        let len = NonZeroUsize::new(pages.len() * PAGE).ok_or(Errno::EINVAL)?;
        let reserved = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at addresses of the kernel's choice.
        let base = unsafe { mmap_anonymous(None, len, ProtFlags::PROT_NONE, reserved) }?.cast();
        let gathered = Self { base, len };
        let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
        for (page, from) in pages.iter().enumerate() {
            // SAFETY: a length of 0 leaves the old mapping as it is and, of shared memory only, makes another one; it replaces a page
            // of the range reserved above, which nobody else knows of yet.
            unsafe { mremap(from.cast(), 0, PAGE, flags, Some(gathered.page(page).cast())) }?;
        }
        // SAFETY: the range mapped above; populating changes no byte, and an old kernel refuses it.
        let _ = unsafe { madvise(base.cast(), len.get(), MmapAdvise::MADV_POPULATE_WRITE) };
        Ok(gathered)
    }

    /// Where page `index` stands a second time.
    ///
    /// # Panics
    /// When there are not as many.
    #[inline]
    pub fn page(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.len.get() / PAGE, "page {index} of {}", self.len.get() / PAGE);
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base.add(index * PAGE) }
    }
}

impl Drop for GatheredPages {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; who made pointers into it keeps the value as long as they are used.
        let _ = unsafe { munmap(self.base.cast(), self.len.get()) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::Region;

    /// SM-10
    #[test]
    fn gathered_pages_are_the_same_memory_in_the_order_asked_for() {
        let regions = ["a", "b"].map(|name| Region::create(name, 3 * PAGE).unwrap());
        // SAFETY: inside the regions.
        let page = |region: usize, page: usize| unsafe { regions[region].base().add(page * PAGE) };
        let gathered = GatheredPages::new(&[page(1, 2), page(0, 1)]).unwrap();
        regions[1].write(2 * PAGE + 5, b"one").unwrap();
        let read = |index: usize, at: usize| {
            let mut bytes = [0; 3];
            // SAFETY: a page that was gathered; nobody writes it meanwhile.
            unsafe { gathered.page(index).add(at).copy_to(NonNull::from(&mut bytes).cast(), 3) };
            bytes
        };
        assert_eq!((read(0, 5), read(1, 5)), (*b"one", [0; 3]));
        // SAFETY: as above.
        unsafe { gathered.page(1).add(4000).copy_from(NonNull::from(b"two").cast(), 3) };
        let mut bytes = [0; 3];
        regions[0].read(PAGE + 4000, &mut bytes).unwrap();
        assert_eq!(bytes, *b"two");
        let addresses = [gathered.page(0), gathered.page(1)];
        assert_eq!(addresses[1].addr().get() - addresses[0].addr().get(), PAGE);
        drop(gathered);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains(&format!("{:x}-", addresses[0].addr())), "{maps}");
        regions[0].read(PAGE + 4000, &mut bytes).unwrap();
        assert_eq!(bytes, *b"two");
    }

    /// SM-10
    #[test]
    fn only_pages_of_shared_memory_are_gathered() {
        // SAFETY: a new mapping at addresses of the kernel's choice.
        let private = unsafe {
            let len = NonZeroUsize::new(PAGE).unwrap();
            mmap_anonymous(None, len, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE).unwrap()
        };
        assert_eq!(GatheredPages::new(&[private.cast()]).unwrap_err(), Errno::EINVAL);
        assert_eq!(GatheredPages::new(&[]).unwrap_err(), Errno::EINVAL);
        // SAFETY: what was mapped above.
        unsafe { munmap(private, PAGE) }.unwrap();
        assert!(GatheredPages::new(&[private.cast()]).is_err(), "nothing is mapped there any more");
    }
}
