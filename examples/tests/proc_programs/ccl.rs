//! kernbench2's bench on the simulator of processing elements.

use crate::support::run;

/// The two files beside the programs.
fn config(name: &str) -> String {
    format!("{}/configs/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_bench_prints_its_line_last() {
    let (ccl, topology) = (config("ccl.yaml"), config("topology.yaml"));
    for (name, ranks) in [
        ("ring_allreduce_tcm", 256),
        ("ring_8", 8),
        ("ring_16", 16),
        ("mesh_allreduce_4", 4),
        ("tree_allreduce_7", 7),
    ] {
        let ended = run("ccl_allreduce", &["--ccl", &ccl, "--topology", &topology, "--algorithm", name]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        let line = format!(" {name} (ws={ranks}): {ranks} OK");
        assert_eq!(ended.out.lines().last(), Some(line.as_str()));
    }
}

/// Without files, the same ones are built in.
#[test]
fn the_files_beside_the_programs_are_the_ones_built_in() {
    let with = run("ccl_allreduce", &["--ccl", &config("ccl.yaml"), "--topology", &config("topology.yaml")]);
    let without = run("ccl_allreduce", &[]);
    assert_eq!((with.code, &with.out), (Some(0), &without.out));
    assert_eq!(std::fs::read_to_string(config("ccl.yaml")).unwrap(), ipcq_sim::config::SHIPPED_CCL);
    assert_eq!(std::fs::read_to_string(config("topology.yaml")).unwrap(), ipcq_sim::config::SHIPPED_TOPOLOGY);
}

#[test]
fn what_is_no_all_reduce_and_what_does_not_fit_is_refused() {
    for (args, parts) in [
        (&["--algorithm", "hello_send"][..], &["hello_send", "no all-reduce"][..]),
        (&["--world-size", "300"], &["world_size = 300", "256 shards"]),
        (&["--set", "fabric=direct", "--world-size", "362"], &["dtype = f16", "65703"]),
        (&["--ccl", "no/such.yaml"], &["no/such.yaml", "cannot be read"]),
        (&["--wrold-size", "8"], &["--wrold-size"]),
    ] {
        let ended = run("ccl_allreduce", args);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{args:?}");
        for part in parts {
            assert!(ended.err.contains(part), "{args:?}: {}", ended.err);
        }
    }
}
