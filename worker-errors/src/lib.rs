//! (being written)
#![forbid(unsafe_code)]

mod code;
mod failure;
mod first;
mod text;

pub use code::ErrorCode;
pub use failure::{Failure, MAX_CHAIN};
pub use first::FirstError;
pub use text::{clip, escape};
