//! The arguments of a launch, in device memory: descriptors, contexts and lists.

use crate::device::Device;
use crate::error::DeviceError;
use crate::memory::DeviceMemory;
use comm_context::abi::{
    DeviceAddr, KERNEL_ARGS_STRIDE, KERNEL_LOCAL_CONTEXT_ARG, KernelContexts, TensorDesc,
};

/// A kernel's arguments, which stay on the device as long as this value lives.
#[derive(Debug)]
pub struct Arguments {
    /// The descriptors, then the contexts of each block, then the argument list of each block.
    memory: DeviceMemory,
    contexts_at: usize,
    blocks: usize,
}

/// From the contexts of a block to those of the next: no two cores write the same cache line.
const CONTEXTS_STRIDE: usize = size_of::<KernelContexts>().next_multiple_of(64);

/// A descriptor is a multiple of 64 bytes, so the contexts that follow are aligned as they have to be, and so are the lists.
const _: () = assert!(
    size_of::<TensorDesc>().is_multiple_of(64) && (KERNEL_ARGS_STRIDE * size_of::<u64>()).is_multiple_of(64)
);

impl Arguments {
    /// Copies them to the device.
    pub fn place(
        device: &Device,
        tensors: &[TensorDesc],
        scalars: &[u64],
        blocks: u32,
    ) -> Result<Self, DeviceError> {
        let (contexts_at, blocks) = (size_of_val(tensors), blocks as usize);
        let lists_at = contexts_at + blocks * CONTEXTS_STRIDE;
        let size = lists_at + blocks * KERNEL_ARGS_STRIDE * size_of::<u64>();
        let memory = DeviceMemory::allocate(device, size)?;
        let start = memory.addr().0;
        let mut bytes: Vec<u8> = tensors.iter().flat_map(|tensor| tensor.as_bytes()).copied().collect();
        bytes.reserve(size - bytes.len());
        let at = |block: usize| DeviceAddr(start + (contexts_at + block * CONTEXTS_STRIDE) as u64);
        for block in 0..blocks {
            let contexts = KernelContexts::of_block(at(block), block as u32, blocks as u32);
            bytes.extend_from_slice(contexts.as_bytes());
            bytes.resize(contexts_at + (block + 1) * CONTEXTS_STRIDE, 0);
        }
        let mut list = Vec::with_capacity(KERNEL_ARGS_STRIDE);
        for block in 0..blocks {
            list.clear();
            list.extend((0..tensors.len()).map(|at| start + (at * size_of::<TensorDesc>()) as u64));
            list.extend(scalars);
            list.resize(KERNEL_LOCAL_CONTEXT_ARG, 0);
            list.extend(KernelContexts::arguments(at(block)));
            list.resize(KERNEL_ARGS_STRIDE, 0);
            bytes.extend(list.iter().flat_map(|word| word.to_le_bytes()));
        }
        memory.write(0, &bytes)?;
        Ok(Self { memory, contexts_at, blocks })
    }

    /// The list of block 0, which the others follow.
    pub fn list(&self) -> DeviceAddr {
        DeviceAddr(self.memory.addr().0 + (self.contexts_at + self.blocks * CONTEXTS_STRIDE) as u64)
    }

    /// What each block left as count and error in its slab.
    pub fn completions(&self) -> Result<Vec<(u32, i32)>, DeviceError> {
        // The slab is first in the contexts, and count and error first in the slab.
        let mut bytes = vec![0; (self.blocks - 1) * CONTEXTS_STRIDE + 8];
        self.memory.read(self.contexts_at, &mut bytes)?;
        let of = |contexts: &[u8]| {
            let word = |at: usize| std::array::from_fn(|byte| contexts[at + byte]);
            (u32::from_le_bytes(word(0)), i32::from_le_bytes(word(4)))
        };
        Ok(bytes.chunks(CONTEXTS_STRIDE).map(of).collect())
    }
}
