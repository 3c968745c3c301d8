//! Programs beside ours: compilers and launchers.

use crate::finding::Finding;
use crate::machine::Machine;
use crate::trials::Trials;

/// What of these is on the search path.
fn present(machine: &Machine, names: &[&str]) -> Vec<String> {
    names.iter().filter_map(|name| machine.program(name)).map(|path| path.display().to_string()).collect()
}

fn listed(found: &[String]) -> String {
    if found.is_empty() { "none".to_owned() } else { found.join(", ") }
}

pub(crate) fn compilers(machine: &Machine, _: &Trials) -> Vec<Finding> {
    let own = machine.variable("CXX").map(|own| format!("CXX={own}"));
    let cpp: Vec<String> = own.into_iter().chain(present(machine, &["c++", "g++", "clang++"])).collect();
    let rust = present(machine, &["cargo", "rustc"]);
    vec![
        Finding::noted(
            "C++",
            !cpp.is_empty(),
            listed(&cpp),
            "install g++ or clang++ with C++17: kernels for the simulation are compiled with it",
        ),
        Finding::noted(
            "Rust",
            rust.len() == 2,
            listed(&rust),
            "install Rust 1.95 or newer (rustup): needed to build from source only",
        ),
    ]
}

pub(crate) fn launchers(machine: &Machine, _: &Trials) -> Vec<Finding> {
    let found = present(machine, &["mpirun", "mpiexec", "srun", "torchrun"]);
    vec![Finding::noted(
        "MPI, Slurm, torch",
        !found.is_empty(),
        listed(&found),
        "none is needed inside a Worker; for ranks that a launcher starts install Open MPI or MPICH",
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::State;
    use crate::planted::{Planted, good, state};

    #[test]
    fn programs_are_looked_for_on_the_search_path() {
        let bare = Planted::new().variable("PATH", "/usr/bin:/opt/bin").machine();
        assert!(compilers(&bare, &good()).iter().all(|finding| finding.state == State::Advised));
        assert_eq!(state(&launchers(&bare, &good()), "MPI, Slurm, torch"), State::Advised);
        let full = Planted::new().variable("PATH", "/usr/bin:/opt/bin");
        let full = ["/opt/bin/g++", "/usr/bin/cargo", "/usr/bin/rustc", "/opt/bin/mpirun"]
            .iter()
            .fold(full, |planted, file| planted.file(file, ""))
            .machine();
        let found = compilers(&full, &good());
        assert_eq!((state(&found, "C++"), found[0].found.as_str()), (State::Good, "/opt/bin/g++"));
        assert_eq!(state(&found, "Rust"), State::Good);
        assert_eq!(launchers(&full, &good())[0].found, "/opt/bin/mpirun");
    }

    #[test]
    fn a_compiler_that_the_user_names_counts() {
        let machine = Planted::new().variable("CXX", "ccache g++").machine();
        assert_eq!(state(&compilers(&machine, &good()), "C++"), State::Good);
    }
}
