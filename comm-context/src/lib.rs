//! (being written)
#![cfg_attr(not(feature = "std"), no_std)]

pub mod abi;
#[cfg(feature = "std")]
pub mod comm;
