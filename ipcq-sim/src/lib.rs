//! x
#![forbid(unsafe_code)]
pub mod config;
pub mod engine;
pub mod net;
pub mod plan;
pub mod probe;
pub mod units;
