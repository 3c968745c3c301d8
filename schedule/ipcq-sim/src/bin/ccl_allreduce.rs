//! kernbench2's bench: `all_reduce` over the processing elements of simulated chips, from a `ccl.yaml` and a
//! `topology.yaml` (those in `configs` are built in), with the bench's line last. `ipcq` reports more about a
//! run.

fn main() -> std::process::ExitCode {
    ipcq_sim::cli::ccl_allreduce()
}
