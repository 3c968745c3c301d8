//! (being written)
#![cfg_attr(not(feature = "std"), no_std)]

pub mod abi;
#[cfg(feature = "std")]
pub mod comm;
mod headers;

pub use headers::{Header, INCLUDE_DIR, headers};
