//! The program `ccl_allreduce`: kernbench2's bench.

use ipcq_sim::config::{SHIPPED_CCL, SHIPPED_TOPOLOGY};
use std::process::{Command, Output};

fn ccl_allreduce(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ccl_allreduce")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_bench_prints_its_line_last() {
    for (name, ranks) in [
        ("ring_allreduce_tcm", 256),
        ("ring_8", 8),
        ("ring_16", 16),
        ("mesh_allreduce_4", 4),
        ("tree_allreduce_7", 7),
    ] {
        let output = ccl_allreduce(&["--algorithm", name]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let line = format!(" {name} (ws={ranks}): {ranks} OK");
        assert_eq!(text(&output.stdout).lines().last(), Some(line.as_str()));
    }
}

#[test]
fn the_shipped_files_give_the_same_result_as_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (ccl, topology) = (file("ccl.yaml", SHIPPED_CCL), file("topology.yaml", SHIPPED_TOPOLOGY));
    let with = ccl_allreduce(&["--ccl", &ccl, "--topology", &topology]);
    assert_eq!(with.status.code(), Some(0), "{}", text(&with.stderr));
    assert_eq!(with.stdout, ccl_allreduce(&[]).stdout);
}

#[test]
fn other_collectives_and_impossible_sizes_are_refused() {
    for (args, parts) in [
        (&["--algorithm", "hello_send"][..], &["hello_send", "not an all-reduce"][..]),
        (&["--world-size", "300"], &["world_size = 300", "256 PEs"]),
        (&["--set", "fabric=direct", "--world-size", "362"], &["dtype = f16", "65703"]),
        (&["--ccl", "no/such.yaml"], &["no/such.yaml", "cannot be read"]),
        (&["--wrold-size", "8"], &["--wrold-size"]),
    ] {
        let output = ccl_allreduce(args);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{args:?}");
        for part in parts {
            assert!(text(&output.stderr).contains(part), "{args:?}: {}", text(&output.stderr));
        }
    }
}
