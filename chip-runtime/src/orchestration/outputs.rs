//! Descriptors of tensors that a graph made, where an orchestration finds them until its scope ends.
//!
//! # Safety
//! The descriptors are given away by their addresses. A chunk is allocated once and freed with the whole; a place in it is
//! written again only after the scope that it belonged to has ended.
#![allow(unsafe_code)]

use comm_context::abi::TensorDesc;
use std::ptr::NonNull;

const CHUNK: usize = 128;

/// Descriptors at addresses that stay, in the order of the scopes.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    chunks: Vec<NonNull<[TensorDesc; CHUNK]>>,
    used: usize,
    /// For each open scope, how many were used when it began.
    scopes: Vec<usize>,
}

impl Outputs {
    pub(super) fn scope_begin(&mut self) {
        self.scopes.push(self.used);
    }

    pub(super) fn scope_end(&mut self) {
        if let Some(used) = self.scopes.pop() {
            self.used = used;
        }
    }

    /// Keeps a descriptor and returns its address.
    pub(super) fn keep(&mut self, desc: TensorDesc) -> u64 {
        let (chunk, place) = (self.used / CHUNK, self.used % CHUNK);
        if chunk == self.chunks.len() {
            let fresh = Box::new([bytemuck::Zeroable::zeroed(); CHUNK]);
            self.chunks.push(NonNull::from(Box::leak(fresh)));
        }
        self.used += 1;
        let at = self.chunks[chunk].cast::<TensorDesc>().as_ptr();
        // SAFETY: `place` is in the chunk, which is alive. Nobody may read there: the place is new, or was of a scope
        // that has ended.
        unsafe {
            let at = at.add(place);
            at.write(desc);
            at as u64
        }
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            // SAFETY: it came from a box, and no orchestration runs that could use an address in it.
            drop(unsafe { Box::from_raw(chunk.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_context::abi::{DType, DeviceAddr};

    #[test]
    fn descriptors_stay_until_their_scope_ends() {
        let desc = |addr| TensorDesc::builder(DeviceAddr(addr), 64, DType::Float32, &[4]).build().unwrap();
        let mut outputs = Outputs::default();
        outputs.scope_begin();
        let kept: Vec<u64> = (1..=300).map(|at| outputs.keep(desc(at * 64))).collect();
        outputs.scope_begin();
        let inner = outputs.keep(desc(64 * 1000));
        outputs.scope_end();
        assert_eq!(outputs.keep(desc(64 * 2000)), inner);
        for (at, address) in (1..).zip(&kept) {
            // SAFETY: kept above, and its scope has not ended.
            let found = unsafe { *(*address as *const TensorDesc) };
            assert_eq!((found.addr, address % 64), (at * 64, 0));
        }
    }
}
