//! The bytes that kernels read: little endian, natural alignment, every offset pinned. No allocation, no
//! `std`.
//!
//! The structs are plain old data: any bytes are a value of them, so no value can be trusted. The accessors
//! check what they use, and `decode` checks everything once.

mod addr;
mod context;
mod error;
mod kernel;
pub mod orchestration;
mod tensor;
mod tensor_builder;

pub use addr::DeviceAddr;
pub use context::{COMM_MAX_RANK_NUM, CommContext, CommContextTail, CommWait, PlacedContext};
pub use error::AbiError;
pub use kernel::{
    CompletionEntry, CompletionSlab, GlobalContext, KERNEL_ARGS, KERNEL_ARGS_STRIDE, KERNEL_COMPLETIONS,
    KERNEL_GLOBAL_CONTEXT_ARG, KERNEL_LOCAL_CONTEXT_ARG, KernelContexts, LocalContext,
};
pub use tensor::{DType, NO_OWNER, TENSOR_MAX_DIMS, TensorDesc};
pub use tensor_builder::TensorBuilder;

#[cfg(target_endian = "big")]
compile_error!("the ABI is little endian, as every platform with kernels is");
