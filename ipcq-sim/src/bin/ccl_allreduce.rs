//! kernbench2's all-reduce bench on the simulator. See `ccl_allreduce --help`.

fn main() -> std::process::ExitCode {
    ipcq_sim::cli::ccl_allreduce()
}
