//! x
#![forbid(unsafe_code)]
pub mod bound;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod data;
pub mod dist;
pub mod engine;
pub mod memory;
pub mod net;
pub mod oplog;
pub mod out;
pub mod placement;
pub mod plan;
pub mod probe;
pub mod schedule_file;
pub mod seed;
pub mod sim;
pub mod stats;
pub mod units;
