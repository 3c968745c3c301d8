//! x
#![forbid(unsafe_code)]
pub mod bound;
pub mod config;
pub mod data;
pub mod dist;
pub mod engine;
pub mod memory;
pub mod net;
pub mod oplog;
pub mod placement;
pub mod plan;
pub mod probe;
pub mod sim;
pub mod stats;
pub mod units;
