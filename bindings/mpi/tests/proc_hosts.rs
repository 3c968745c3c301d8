//! Communicators that span hosts. The hosts are network namespaces, joined by a bridge; the launcher enters each by an agent.
#![allow(missing_docs)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Built, Family, counts, libraries, run_well, texts};

const HOSTS: usize = 3;

/// Hosts that end with it.
struct Hosts {
    name: String,
    folder: tempfile::TempDir,
}

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).output().is_ok_and(|out| out.status.success())
}

impl Hosts {
    /// `None` where hosts cannot be made: without `ip` or the rights for it.
    fn make() -> Option<Self> {
        let name = format!("cm{}", std::process::id());
        let hosts = Self { name: name.clone(), folder: tempfile::tempdir().unwrap() };
        let mut made = ip(&format!("link add {name} type bridge")) && ip(&format!("link set {name} up"));
        for host in 0..HOSTS {
            let at = format!("{name}-{host}");
            made = made
                && ip(&format!("netns add {at}"))
                && ip(&format!("link add {name}v{host} type veth peer name eth0 netns {at}"))
                && ip(&format!("link set {name}v{host} master {name} up"))
                && ip(&format!("-n {at} addr add 10.77.23.{}/24 dev eth0", host + 1))
                && ip(&format!("-n {at} link set eth0 up"))
                && ip(&format!("-n {at} link set lo up"));
        }
        if !made {
            println!("not run: no network namespaces here (root and iproute2 are needed)");
            return None;
        }
        // The last number of an address is that of the host, from 1.
        let script = format!(
            "#!/bin/sh\nhost=$((${{1##*.}} - 1)); shift\n\
             exec ip netns exec {name}-$host unshare --uts sh -c \"hostname {name}-$host; $*\"\n"
        );
        std::fs::write(hosts.agent(), script).unwrap();
        std::fs::set_permissions(hosts.agent(), PermissionsExt::from_mode(0o755)).unwrap();
        Some(hosts)
    }

    fn agent(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    /// Open MPI's launcher on the first host, with two ranks on each until there are so many.
    fn launch(&self, built: &Built, ranks: usize) -> Command {
        let mut command = Command::new(self.agent());
        let launcher = built.launch(ranks);
        let mut words: Vec<String> =
            vec!["10.77.23.1".into(), launcher.get_program().to_string_lossy().into()];
        words.extend(launcher.get_args().map(|word| word.to_string_lossy().into_owned()));
        let net = "10.77.23.0/24";
        let list = (1..=HOSTS).map(|host| format!("10.77.23.{host}:2")).collect::<Vec<_>>().join(",");
        let agent = self.agent().display().to_string();
        let options = ["--mca", "plm_rsh_agent", &agent, "--mca", "btl_tcp_if_include", net, "--mca"];
        words.extend(
            options.iter().chain(&["oob_tcp_if_include", net, "-host", &list]).map(ToString::to_string),
        );
        command.args(words).env("CHIPCOMM_MPI_STATS", "1");
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in 0..HOSTS {
            ip(&format!("netns del {}-{host}", self.name));
        }
        ip(&format!("link del {}", self.name));
    }
}

/// Runs a test program of which calls are taken. Returns the table.
fn run(hosts: &Hosts, built: &Built, ranks: usize, name: &str, arguments: &[&str]) -> String {
    let program = built.compile(name);
    let (_, table) = run_well(hosts.launch(built, ranks).arg(program).args(arguments));
    assert!(counts(&table).0 > 0, "{name}: {table}");
    table
}

fn open_mpi() -> Option<support::Mpi> {
    libraries().into_iter().find(|mpi| mpi.family == Family::OpenMpi)
}

// CM-1, CM-2, CM-3
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn three_hosts_of_two_ranks_compute_and_move_in_two_levels() {
    let (Some(mpi), Some(hosts)) = (open_mpi(), Hosts::make()) else { return };
    let built = Built::new(mpi);
    let table = run(&hosts, &built, 6, "reductions", &["4"]);
    assert!(table.contains("not done in two levels"), "{table}");
    run(&hosts, &built, 6, "moves", &["3"]);
    run(&hosts, &built, 6, "progress", &[]);
    run(&hosts, &built, 6, "communicators", &[]);
}

// CM-3
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn hosts_may_have_different_numbers_of_ranks_and_be_more_than_send_to_each_other() {
    let (Some(mpi), Some(hosts)) = (open_mpi(), Hosts::make()) else { return };
    run(&hosts, &Built::new(mpi.clone()), 5, "reductions", &["8"]);
    run(&hosts, &Built::with(mpi, &["-DDIRECT=2"]), 6, "reductions", &["8"]);
}

// CM-4
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn a_rank_that_is_killed_on_one_host_ends_the_job_on_all() {
    let (Some(mpi), Some(hosts)) = (open_mpi(), Hosts::make()) else { return };
    let built = Built::new(mpi);
    let out = hosts.launch(&built, 6).arg(built.compile("killed")).output().unwrap();
    let (stdout, stderr) = texts(&out);
    // 124: the launcher was still there after two minutes.
    assert!(!matches!(out.status.code(), Some(0 | 124)), "{}: {stdout}{stderr}", out.status);
    assert!(stderr.contains("ignal 9"), "{stdout}{stderr}");
}

/// The Python that `cargo xtask python` makes, with chipcomm and mpi4py.
fn python() -> Option<PathBuf> {
    // target/debug/deps/this-test
    let test = std::env::current_exe().unwrap();
    let python = test.ancestors().nth(3)?.join("python/env/bin/python");
    let has = Command::new(&python).args(["-c", "import chipcomm, mpi4py"]).output();
    if has.is_ok_and(|out| out.status.success()) {
        return Some(python);
    }
    println!("not run: no Python with chipcomm and mpi4py (`cargo xtask python` makes one)");
    None
}

// CM-3
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn the_guides_program_has_workers_on_two_hosts_and_the_drop_in_between_them() {
    let (Some(mpi), Some(python), Some(hosts)) = (open_mpi(), python(), Hosts::make()) else { return };
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/examples/hosts.py");
    let built = Built::new(mpi);
    let mut command = hosts.launch(&built, 4);
    let out = command.args(["-x", "MPI4PY_MPIABI=openmpi"]).arg(python).arg(program).output().unwrap();
    let (stdout, stderr) = texts(&out);
    let right = stdout == "4 hosts of 2 chips: right, and the same on each\n";
    assert!(out.status.success() && right, "{stdout}{stderr}");
    // Each of the 60 sums on each of the processes.
    assert!(counts(&stderr).0 >= 240, "{stderr}");
}
