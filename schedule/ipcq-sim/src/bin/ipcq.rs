//! Proves, times and draws collectives between processing elements. See `ipcq --help`.

fn main() -> std::process::ExitCode {
    ipcq_sim::cli::ipcq()
}
