//! The programs as a user runs them: lines, files, exit codes, and one sentence for every mistake.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn ipcq(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ipcq")).args(args).output().unwrap()
}

/// 64 PEs: what does not need the whole system runs on a part of it.
const SMALL: [&str; 4] = ["--set", "cubes.w=2", "--set", "cubes.h=2"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// IQ-8: exit code 2, one sentence with these parts, and nothing written.
fn refused(args: &[&str], parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut args = args.to_vec();
    if args[0] == "run" {
        args.extend(["--out", out.to_str().unwrap()]);
    }
    let output = ipcq(&args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    for part in parts {
        assert!(error.contains(part), "{args:?}: {part:?} is not in {error:?}");
    }
    assert!(text(&output.stdout).is_empty(), "{args:?}");
    assert!(!out.exists(), "{args:?} wrote something");
}

fn file(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn iq_8_bad_input_is_one_sentence_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let ccl = |content: &str| file(folder.path(), "ccl.yaml", content);
    let topology = |content: &str| file(folder.path(), "topology.yaml", content);

    // Unknown keys, with their line.
    let unknown = ccl("defaults:\n  n_slots: 4\n  n_slot: 5\n");
    refused(&["run", "--ccl", &unknown], &["ccl.yaml:3", "n_slot"]);
    let unknown = topology("cubes:\n  w: 4\n  depth: 3\n");
    refused(&["run", "--topology", &unknown], &["topology.yaml:3", "depth"]);
    refused(&["run", "--set", "n_slotz=3"], &["--set", "n_slotz"]);
    refused(&["run", "--set", "cubes.q=3"], &["--set", "q"]);
    refused(&["run", "--set", "n_slots"], &["--set n_slots", "key=value"]);
    refused(&["run", "--set", "n_slots={a: b}"], &["plain words"]);

    // Not YAML, not a number, no file.
    let broken = ccl("defaults: [1, 2\n");
    refused(&["run", "--ccl", &broken], &["ccl.yaml:"]);
    let word = topology("cubes:\n  w: many\n");
    refused(&["run", "--topology", &word], &["topology.yaml:2"]);
    refused(&["run", "--ccl", "/does/not/exist.yaml"], &["/does/not/exist.yaml", "cannot be read"]);

    // Impossible meshes and systems.
    let mesh = ccl(
        "algorithms:\n  m:\n    algorithm: mesh_allreduce\n    world_size: 8\n    mesh_w: 3\n    mesh_h: 3\n",
    );
    refused(
        &["run", "--ccl", &mesh, "--algorithm", "m"],
        &["ccl.yaml:5", "3x3 has 9 places", "world_size is 8"],
    );
    refused(&["run", "--algorithm", "mesh_allreduce", "--world-size", "7"], &["command line", "7x1"]);
    let sips = topology("sips:\n  count: 5\n  w: 2\n  h: 2\n");
    refused(&["run", "--topology", &sips], &["topology.yaml:2", "sips.count = 5", "2 x 2 = 4"]);
    let zero = topology("cubes:\n  w: 0\n");
    refused(&["run", "--topology", &zero], &["topology.yaml:2", "cubes.w = 0", "from 1"]);
    refused(&["run", "--set", "links.pe.gbps=0"], &["links.pe.gbps = 0", "above 0"]);

    // World sizes.
    refused(&["run", "--world-size", "300"], &["command line", "world_size = 300", "256 PEs"]);
    refused(&["run", "--world-size", "9"], &["8 shards", "world_size = 9"]);
    refused(&["run", "--algorithm", "recursive_doubling", "--world-size", "12"], &["power of two", "12"]);
    let huge = ["--set", "fabric=direct", "--world-size", "67108864"];
    refused(
        &[&["run"], &huge[..]].concat(),
        &["(world_size = 67108864); use fewer ranks", " messages are more than the limit of "],
    );
    let tree = ["run", "--algorithm", "tree_allreduce", "--no-data"];
    refused(
        &[&tree[..], &huge[..]].concat(),
        &["world_size = 67108864: up to ", " channels are more than the limit of ", "; use fewer ranks"],
    );
    refused(&["verify", huge[0], huge[1], huge[2], huge[3]], &["67108864 ranks", "that a proof keeps"]);

    // Tiles, slots, formats, stragglers, engines.
    refused(&["run", "--n-elem", "4096"], &["n_elem = 4096", "8192 bytes", "slot_size = 4096"]);
    let slots = ccl("defaults:\n  n_slots: 0\n");
    refused(
        &["run", "--ccl", &slots, "--algorithm", "ring_accumulate"],
        &["ccl.yaml:2", "n_slots = 0: must be from 1 to 65536"],
    );
    refused(
        &["run", "--set", "fabric=direct", "--world-size", "362"],
        &[
            "dtype = f16: the sum 1 + ... + 362 = 65703 exceeds its largest number 65504; use f32 or fewer ranks",
        ],
    );
    refused(&["run", "--set", "skew_rank=999", "--set", "skew_ns=1"], &["skew_rank = 999", "256 ranks"]);
    refused(
        &["run", "--algorithm", "tree_allreduce", "--engine", "a"],
        &["engine A is not exact", "--engine b"],
    );
    refused(&["run", "--algorithm", "rong"], &["algorithm = rong", "ring_allreduce_tcm"]);
    refused(
        &["run", "--trace-window", "9..3"],
        &["--trace-window 9..3: write two times in ns, such as 0..2000"],
    );
}

/// IQ-8: what is wrong with a key or a flag, in the words that a user reads.
#[test]
fn what_a_user_learns_about_keys_flags_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let keys = |keys: &str, said: &str| {
        let path = file(
            folder.path(),
            "ccl.yaml",
            &format!("algorithms:\n  mine:\n    algorithm: tree_allreduce\n{keys}"),
        );
        refused(&["run", "--ccl", &path, "--algorithm", "mine"], &["ccl.yaml:", said]);
    };
    keys("    n_slots: 65537\n", "must be from 1 to 65536");
    keys("    topology: ring_1d\n", "topology = ring_1d: tree_allreduce runs on tree; leave topology out");
    keys("    backpressure: poll\n    poll_interval_ns: 0\n", "polling needs an interval above 0");
    keys("    skew_ns: 1\n    skew_rank: 1\n    skew_seed: 2\n", "give skew_rank or skew_seed, not both");
    keys("    skew_rank: 1\n", "skew_rank and skew_seed need skew_ns; set it");
    keys("    module: ccl.hello_send\n", "give algorithm or module, not both");
    let traffic = |flow: &str| format!("    traffic: [{{ from: 0, to: 1, {flow} }}]\n");
    keys(&traffic("bytes: 0, every_ns: 1"), "a message has from 1 to 2^30 bytes");
    keys(&traffic("bytes: 1, every_ns: 0"), "messages need a time above 0 between them");
    let flow = traffic("bytes: 1, every_ns: 1");
    keys(
        &flow.replace("to: 1", "to: 999999"),
        "traffic from PE 0 to PE 999999: these must be two of the 256 PEs, which count from 0",
    );
    let unnamed = file(folder.path(), "ccl.yaml", "algorithms:\n  mine: { n_slots: 4 }\n");
    refused(
        &["run", "--ccl", &unnamed, "--algorithm", "mine"],
        &["no such schedule; set `algorithm` or `module` in the entry"],
    );
    let module = file(folder.path(), "ccl.yaml", "algorithms:\n  mine: { module: ccl.nothing }\n");
    refused(
        &["run", "--ccl", &module, "--algorithm", "mine"],
        &[
            "no such module; its last name must be a known schedule, or it is the path of a schedule file (.json)",
        ],
    );
    let long = file(folder.path(), "long.yaml", &"#".repeat((1 << 20) + 1));
    refused(&["run", "--ccl", &long], &["1048577 bytes is more than the 1 MiB allowed"]);
    refused(&["run", "--ccl", "none.yaml"], &["none.yaml: cannot be read: No such file"]);
    refused(&["verify", "--schedule", "none.json"], &["none.json: cannot be read: No such file"]);

    let set = |pair: &str, said: &str| refused(&["run", "--set", pair], &[said]);
    set("cubes.w=2000000", "must be from 1 to 1048576");
    set("overheads_ns.io_cpu=2000000", "must be at most 1000000 ns");
    set("links.pe.gbps=0", "a bandwidth must be above 0");
    set("links.pe.mm=999999999", "propagation exceeds a millisecond; give a shorter wire");
    set("links.ucie.load=1", "compute traffic takes a share of the link from 0 to below 1");
    set("n_slots={a: b}", "key and value must be plain words or numbers");
    set(
        "links.pe.gbps=1.23456789",
        "is not a decimal from 0 to 10^12 with at most six digits after the point",
    );
    refused(
        &["run", "--set", "cubes.w=100000", "--set", "cubes.h=100000"],
        &["the system would have 160000000000 PEs, the limit is 67108864; make it smaller"],
    );
    refused(
        &["run", "--set", "sips.count=5", "--set", "sips.w=2", "--set", "sips.h=2"],
        &["w x h is 2 x 2 = 4; leave count out, or let the two agree"],
    );
    refused(
        &["run", "--algorithm", "rong"],
        &["no such entry under algorithms (", ") and no such schedule; name one of these"],
    );
    refused(&["verify", "--algorithm", "all", "--dump", "x.json"], &["--dump: choose one algorithm"]);
    refused(
        &["run", "--n-elem", "4096"],
        &["does not fit slot_size = 4096 bytes; raise slot_size or cut the tile (split)"],
    );
    refused(
        &["run", "--set", "skew_rank=999", "--set", "skew_ns=1"],
        &["skew_rank = 999: there are only 256 ranks, counted from 0"],
    );
    let sweep = ["sweep", "--algorithm", "recursive_doubling", "--ranks", "3"];
    refused(&sweep, &["nothing to sweep: no algorithm supports any of the ranks"]);

    let dumped = folder.path().join("ring.json");
    let dumped = dumped.to_str().unwrap();
    assert_eq!(ipcq(&["verify", "--algorithm", "ring_8", "--dump", dumped]).status.code(), Some(0));
    let original = fs::read_to_string(dumped).unwrap();
    let broken = |from: &str, to: &str, said: &str| {
        assert!(original.contains(from), "{from} in {original}");
        let path = file(folder.path(), "broken.json", &original.replacen(from, to, 1));
        refused(&["verify", "--schedule", &path], &["broken.json", said]);
    };
    broken(
        "\"goal\": \"all_reduce\"",
        "\"goal\": \"all\"",
        "use all_reduce, reduce_scatter:N, all_gather:N, broadcast:ROOT, reduce:ROOT, gather:ROOT:N, scatter:ROOT:N, all_to_all, shift or any, with ranks and chunks above 0",
    );
    broken("\"ranks\": 8", "\"ranks\": 9", "there are 8 programs; give one for each rank");
    broken("\"held\": \"W\"", "\"held\": \"W\", \"from\": 1", "give exactly one of from, held and take");
    broken("\"land\": \"forward\"", "\"land\": \"stay\"", "use copy, reduce or forward");
    broken(
        "\"src\": 3, \"dir\": \"E\"",
        "\"src\": 2, \"dir\": \"E\"",
        "direction E is wired twice; wire it once",
    );
    let wired = |from: &str, to: &str, said: &str| broken(from, to, said);
    wired("\"dst\": 4", "\"dst\": 40", "to rank 40, but there are only 8 ranks");
    wired(
        "\"src\": 3, \"dir\": \"E\", \"dst\": 4",
        "\"src\": 3, \"dir\": \"E\", \"dst\": 5",
        "both send into direction W of rank 5; a queue has exactly one sender",
    );
    let module =
        file(folder.path(), "ccl.yaml", "algorithms:\n  mine: { module: ./ring.json, world_size: 4 }\n");
    refused(
        &["run", "--ccl", &module, "--algorithm", "mine"],
        &["world_size = 4: the schedule in ", "has 8 ranks; ask for as many"],
    );
    let messages =
        original.split("\"messages\": ").nth(1).and_then(|rest| rest.split(',').next()).unwrap().to_owned();
    broken(&format!("\"messages\": {messages}"), "\"messages\": 1", "; count them again");
}

#[test]
fn a_rounded_f16_sum_that_leaves_the_format_is_refused_too() {
    // 1 + ... + 361 fits the format, but rounded sums may exceed it: the result is right or refused, never
    // wrong.
    let output = ipcq(&["run", "--set", "fabric=direct", "--world-size", "361"]);
    match output.status.code() {
        Some(0) => assert!(text(&output.stdout).contains("(ws=361): 361 OK")),
        Some(2) => assert!(text(&output.stderr).contains("dtype = f16")),
        other => panic!("{other:?}: {}", text(&output.stderr)),
    }
}

#[test]
fn verify_proves_the_order_of_additions_or_names_the_first_rank_and_chunk_in_another() {
    let line = |name: &str| {
        let output = ipcq(&["verify", "--algorithm", name, "--world-size", "8"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    for name in ["direct_one_shot", "direct_two_shot", "reduce"] {
        assert!(line(name).contains("every sum is added in the order of the ranks"), "{}", line(name));
    }
    let ring = line("ring_reduce_scatter_allgather");
    assert!(ring.contains("not in rank order: rank 0, chunk 0: adds "), "{ring}");
    let gather = line("gather");
    assert!(!gather.contains("order of the ranks") && !gather.contains("rank order"), "{gather}");
}

#[test]
fn a_schedule_is_dumped_as_tables_in_c_where_the_file_is_one_of_c() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("schedule.h");
    let path = path.to_str().unwrap();
    ipcq(&["verify", "--algorithm", "direct_one_shot", "--world-size", "4", "--dump", path]);
    assert!(fs::read_to_string(path).unwrap().contains("direct_one_shot_ops[]"));
}

#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn a_machine_is_measured_and_predicted_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.yaml");
    let path = path.to_str().unwrap();
    let output = ipcq(&["calibrate", "--out", path]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let run = [
        "run",
        "--topology",
        path,
        "--algorithm",
        "direct_two_shot",
        "--world-size",
        "2",
        "--n-elem",
        "100000",
    ];
    let output = ipcq(&run);
    assert!(text(&output.stdout).starts_with(" direct_two_shot (ws=2): 2 OK"), "{}", text(&output.stderr));
}

#[test]
fn a_schedule_file_with_a_missing_peer_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let dumped = folder.path().join("ring.json");
    let path = dumped.to_str().unwrap();
    let output = ipcq(&["verify", "--algorithm", "ring_8", "--dump", path]);
    let line = text(&output.stdout);
    assert!(line.contains("n_slots = 4 (the smallest n_slots without deadlock is 2)"), "{line}");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // Read back, it is proved and runs.
    let output = ipcq(&["verify", "--schedule", path]);
    assert!(text(&output.stdout).contains("every contribution exactly once"), "{}", text(&output.stderr));
    let output = ipcq(&["run", "--schedule", path]);
    assert!(text(&output.stdout).starts_with(" ring_accumulate (ws=8): 8 OK"), "{}", text(&output.stderr));

    let original = fs::read_to_string(&dumped).unwrap();
    let line = "    {\"src\": 3, \"dir\": \"E\", \"dst\": 4, \"from\": \"W\"},\n";
    assert!(original.contains(line));
    let missing = file(folder.path(), "missing.json", &original.replace(line, ""));
    refused(&["verify", "--schedule", &missing], &["missing.json", "rank 3", "send(E", "no peer"]);
    let shared = file(
        folder.path(),
        "shared.json",
        &original.replace("\"src\": 3, \"dir\": \"E\", \"dst\": 4", "\"src\": 3, \"dir\": \"E\", \"dst\": 5"),
    );
    refused(&["verify", "--schedule", &shared], &["shared.json", "both send into direction W of rank 5"]);
    let nowhere = file(folder.path(), "nowhere.json", &original.replace("\"dst\": 4", "\"dst\": 40"));
    refused(&["verify", "--schedule", &nowhere], &["nowhere.json", "rank 40", "only 8 ranks"]);
    let typo = file(folder.path(), "typo.json", &original.replace("\"goal\"", "\"gaol\""));
    refused(&["verify", "--schedule", &typo], &["typo.json", "gaol"]);
    // Wrong, but well-formed: exit code 1.
    let wrong = original.replacen(
        "{\"op\": \"reduce\", \"held\": \"W\", \"to\": 1}",
        "{\"op\": \"copy\", \"held\": \"W\", \"to\": 1}",
        1,
    );
    let wrong = file(folder.path(), "wrong.json", &wrong);
    let output = ipcq(&["verify", "--schedule", &wrong]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("WRONG: rank 0 ends with a wrong chunk 0"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn a_deadlock_is_reported_with_the_cycle_and_exit_code_1() {
    let output = ipcq(&["verify", "--algorithm", "ring_16", "--set", "n_slots=1"]);
    assert_eq!(output.status.code(), Some(1));
    let out = text(&output.stdout);
    assert!(
        out.contains("deadlock with n_slots = 1") && out.contains("smallest n_slots that works is 2"),
        "{out}"
    );
}

#[test]
fn iq_3_runs_write_the_same_files_every_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen: Option<Vec<Vec<u8>>> = None;
    for run in 0..3 {
        let out = folder.path().join(format!("run{run}"));
        let args = ["run", "--algorithm", "hierarchical", "--op-log", "--out", out.to_str().unwrap()];
        let output = ipcq(&[&args[..], &SMALL].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let names = ["summary.json", "ranks.csv", "links.csv", "links.svg", "trace.json", "oplog.csv"];
        let files: Vec<Vec<u8>> = names.iter().map(|name| fs::read(out.join(name)).unwrap()).collect();
        assert_eq!(fs::read_dir(&out).unwrap().count(), names.len(), "nothing else is left");
        assert!(seen.get_or_insert_with(|| files.clone()) == &files);
    }
    let files = seen.unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&files[0]).unwrap();
    assert_eq!(summary["ranks"], 64);
    assert!(summary["bounds_ps"]["cut"].as_u64().unwrap() > 0);
    let trace: serde_json::Value = serde_json::from_slice(&files[4]).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 1000);
    assert_eq!(text(&files[1]).lines().count(), 65);
    assert!(text(&files[3]).starts_with("<svg "));
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let below_a_file = format!("{}/x", file(folder.path(), "file", ""));
    for command in ["run", "sweep"] {
        let output = ipcq(&[command, "--algorithm", "ring_8", "--out", &below_a_file]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            text(&output.stderr).contains(&format!("--out {below_a_file}: ")),
            "{}",
            text(&output.stderr)
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn ctrl_c_leaves_no_partial_files() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/out");
    let long = ["run", "--set", "fabric=direct", "--algorithm", "ring_reduce_scatter_allgather", "--no-data"];
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipcq"));
        command.args(long).args(["--world-size", "1000", "--out"]).arg(&out);
        let mut child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        while fs::read_dir(&out).map_or(0, |entries| entries.count()) == 0 {
            assert_eq!(child.try_wait().unwrap(), None, "it writes while it runs");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{signal}");
    }
}

#[test]
fn f76_a_reader_that_stops_reading_ends_the_programs_quietly() {
    let (ipcq, ccl_allreduce) = (env!("CARGO_BIN_EXE_ipcq"), env!("CARGO_BIN_EXE_ccl_allreduce"));
    let quiet = |program: &str, args: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(program).args(args).stdout(writer).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
        assert!(!["panicked", "pipe"].iter().any(|word| error.contains(word)), "{args:?}: {error}");
    };
    for args in [
        &["run", "--algorithm", "all", "--json"][..],
        &["run"],
        &["lint"],
        &["verify", "--algorithm", "all"],
        &["sweep", "--bytes", "256", "--ranks", "4"],
    ] {
        quiet(ipcq, &[args, &SMALL].concat());
    }
    quiet(ipcq, &["--help"]);
    quiet(ccl_allreduce, &[&["--algorithm", "all"], &SMALL[..]].concat());
}

/// What a viewer needs: named tracks, non-overlapping slices on each, and times in whole nanoseconds.
#[test]
fn a_trace_is_readable_by_viewers() {
    let folder = tempfile::tempdir().unwrap();
    for algorithm in ["ring_16", "hierarchical", "tree_allreduce_7"] {
        let out = folder.path().join(algorithm);
        let args = ["run", "--algorithm", algorithm, "--out", out.to_str().unwrap()];
        assert_eq!(ipcq(&[&args[..], &SMALL].concat()).status.code(), Some(0));
        let trace: serde_json::Value =
            serde_json::from_slice(&fs::read(out.join("trace.json")).unwrap()).unwrap();
        let (mut named, mut ends) = (BTreeSet::new(), BTreeMap::new());
        for event in trace["traceEvents"].as_array().unwrap() {
            let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
            // In nanoseconds, a viewer's finest unit.
            let time = |key: &str| {
                let ns = event[key].as_f64().unwrap() * 1e3;
                assert!((ns - ns.round()).abs() < 1e-3, "{event}");
                ns.round() as u64
            };
            match event["ph"].as_str().unwrap() {
                "M" => {
                    if event["name"] == "thread_name" {
                        assert!(named.insert(track) && event["args"]["name"].is_string(), "{event}");
                    }
                }
                "X" => {
                    let end = ends.insert(track, time("ts") + time("dur")).unwrap_or(0);
                    assert!(named.contains(&track) && time("ts") >= end && time("dur") > 0, "{event}");
                }
                "i" => assert!(named.contains(&track) && event["s"] == "t", "{event}"),
                other => panic!("{other}"),
            }
        }
        assert!(named.len() > 7, "PEs and links");
    }
}

#[test]
fn a_trace_stays_within_its_limits() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let output = ipcq(
        &[
            &["run", "--out", out, "--trace-mb", "1", "--trace-ranks", "4", "--trace-window", "0..500"],
            &SMALL[..],
        ]
        .concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let bytes = fs::read(folder.path().join("trace.json")).unwrap();
    assert!(bytes.len() <= (1 << 20) + 4096);
    let trace: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    for event in trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["pid"] == 1) {
        assert!(event["tid"].as_u64().unwrap() < 4);
        // Microseconds in which a nanosecond is a picosecond: 500 ns.
        assert!(event["ts"].as_f64().unwrap_or(0.0) < 500.0);
    }
}

#[test]
fn json_lint_and_sweep_work() {
    let output = ipcq(&[&["run", "--json", "--algorithm", "all"], &SMALL[..]].concat());
    let lines = text(&output.stdout);
    assert!(lines.lines().count() >= 13);
    for line in lines.lines() {
        let report: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(report["time_ps"].as_u64() >= report["lower_bound_ps"].as_u64());
    }
    let output = ipcq(&[&["lint"], &SMALL[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = ipcq(&[&["lint", "--set", "n_slots=1"], &SMALL[..]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("ring_8: n_slots = 1: the schedule deadlocks"));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let args = ["sweep", "--bytes", "256,4096", "--ranks", "4,8,12", "--out", out];
    let output = ipcq(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("left out: recursive_doubling"));
    let svg = fs::read_to_string(folder.path().join("sweep.svg")).unwrap();
    assert!(svg.contains("polyline") && svg.contains("stroke-dasharray"), "{svg}");
    assert!(svg.contains("hierarchical: at least "), "a bound says what it is");
    assert!(fs::read_to_string(folder.path().join("sweep.csv")).unwrap().lines().count() > 20);
}
