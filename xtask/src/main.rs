//! The workspace's own commands. One file a subcommand; this file only names them.
fn main() {}
