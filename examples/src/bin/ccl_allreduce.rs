//! kernbench2's bench: `all_reduce` over the processing elements of simulated chips, from a `ccl.yaml` and a
//! `topology.yaml` (both in `configs`, with comments), and the bench's line last. No chip is brought up: `ipcq-sim` runs
//! the collective, and the program `ipcq` of that crate tells more about it.

fn main() -> std::process::ExitCode {
    ipcq_sim::cli::ccl_allreduce()
}
