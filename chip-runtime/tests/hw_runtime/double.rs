//! The tests of devices on the vendor double, each in a session of its own: what `cargo test` runs of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

/// The kernels, compiled once for all tests.
fn kernels() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hw_kernels");
        // Another run of this program may be using those that are there.
        let new = folder.join(std::process::id().to_string());
        std::fs::create_dir_all(&new).unwrap();
        for name in ["scale", "late", "add", "spin", "fail", "defer"] {
            let object = new.join(format!("{name}.o"));
            let mut compiler = Command::new("g++");
            compiler.args(["-std=c++17", "-shared", "-fPIC", "-I"]).arg(here.join("../comm-context/include"));
            compiler.arg("-o").arg(&object).arg(here.join(format!("tests/hw_kernels/{name}.cpp")));
            assert!(compiler.status().expect("g++ is needed for this test").success());
            cann_sim::hw_test::describe_kernel(&object);
            for file in [object.with_extension("json"), object] {
                std::fs::rename(&file, folder.join(file.file_name().unwrap())).unwrap();
            }
        }
        std::fs::remove_dir(new).unwrap();
        folder
    })
}

/// A test that has not ended by then never does.
const LONG: Duration = Duration::from_secs(100);

/// Runs a test on three devices of the double. It must pass and leave nothing behind.
fn on_double(test: &str) {
    let (dir, program) = (tempfile::tempdir().unwrap(), std::env::current_exe().unwrap());
    let session = cann_sim::Session::create(dir.path()).unwrap();
    session.configure("devices = 3\n").unwrap();
    let mut command = Command::new(program);
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("CHIPCOMM_DEVICES", "0,1,2").env("CHIPCOMM_HW_KERNELS", kernels());
    session.enlist(&mut command);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let (done, ended) = mpsc::channel();
    let watch = std::thread::spawn(move || {
        if ended.recv_timeout(LONG).is_err() {
            // Its ranks end with it.
            let _ = Command::new("kill").args(["-KILL", &pid]).status();
        }
    });
    let output = child.wait_with_output().unwrap();
    done.send(()).ok();
    watch.join().unwrap();
    let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && said[0].contains("1 passed"), "{}{}", said[0], said[1]);
}

// CA-1
#[test]
fn the_order_of_a_graph_holds_on_the_double() {
    on_double("a_graph_over_both_kinds_of_cores_computes_what_its_order_says");
}

// CA-1
#[test]
fn predicates_hold_on_the_double() {
    on_double("a_predicate_is_looked_at_when_what_its_task_comes_after_has_ended");
}

// CA-4
#[test]
fn what_a_host_cannot_do_is_refused_on_the_double() {
    on_double("what_a_host_cannot_do_is_refused_and_the_device_stays_usable");
    on_double("ranks::waits_and_signals_that_cannot_be_are_refused_where_they_are_submitted");
}

// CA-4
#[test]
fn completions_that_wait_for_words_are_refused_on_the_double() {
    on_double("a_kernel_that_defers_its_completion_is_refused_by_name");
}

// CA-2
#[test]
fn a_graph_that_comes_too_late_ends_on_the_double() {
    on_double("what_the_host_does_too_late_is_named_by_its_task");
}

// CA-2
#[test]
fn a_kernel_that_spins_ends_on_the_double() {
    on_double("a_kernel_that_spins_ends_with_the_deadline_of_the_run");
}

// CA-3
#[test]
fn tensors_lie_in_memory_that_the_graph_knows_on_the_double() {
    on_double("tensors_outside_of_the_memory_of_the_graph_are_refused");
}

// CA-5
#[test]
fn waits_and_signals_hold_on_the_double() {
    on_double("ranks::graphs_that_signal_each_other_sum_what_all_ranks_have");
}

// CA-5
#[test]
fn a_wait_holds_back_only_what_comes_after_it_on_the_double() {
    on_double("ranks::a_task_that_waits_holds_back_only_what_comes_after_it");
}

// CA-5
#[test]
fn only_a_task_that_ended_well_signals_on_the_double() {
    on_double("ranks::a_task_that_is_skipped_signals_and_one_that_failed_does_not");
}

// CA-6
#[test]
fn a_wait_that_is_not_met_names_both_ends_on_the_double() {
    on_double("ranks::a_wait_that_is_never_met_names_both_ends_and_the_device_stays_usable");
}

// CA-6
#[test]
fn a_wait_for_a_rank_that_dies_ends_on_the_double() {
    on_double("ranks::a_wait_for_a_rank_that_dies_ends_with_its_name");
}

// CA-7
#[test]
fn host_memory_is_copied_around_a_graph_on_the_double() {
    on_double("host::what_tasks_write_of_host_memory_is_copied_back_and_nothing_beside_it");
    on_double("host::host_memory_stays_as_it_was_when_a_run_fails");
}

// CA-7
#[test]
fn host_memory_that_cannot_be_used_is_refused_on_the_double() {
    on_double("host::host_memory_that_cannot_be_used_is_refused_with_its_place");
    on_double("host::host_memory_that_does_not_fit_on_the_device_is_refused");
}

// CA-8
#[test]
fn a_wait_for_what_nobody_signals_is_refused_on_the_double() {
    on_double("ranks::exchange::a_wait_for_a_word_that_no_graph_signals_is_refused_before_anything_runs");
}

// CA-8
#[test]
fn graphs_that_were_not_built_or_whose_rank_dies_end_the_exchange_on_the_double() {
    on_double("ranks::exchange::a_graph_that_was_not_built_ends_the_waits_for_it");
    on_double("ranks::exchange::a_rank_that_dies_before_it_says_what_it_signals_is_named");
}

#[test]
fn orchestrations_in_cpp_build_graphs_on_the_double() {
    on_double("objects::an_orchestration_in_cpp_builds_the_graph_of_a_device");
    on_double("ranks::exchange::graphs_in_cpp_signal_each_other");
}

#[test]
fn mistakes_of_orchestrations_in_cpp_are_named_on_the_double() {
    on_double("objects::mistakes_of_an_orchestration_in_cpp_are_named_with_their_place");
}

#[test]
fn traces_of_streams_are_written_on_the_double() {
    on_double("traces::a_recording_has_tasks_by_stream_and_their_order");
    on_double("ranks::exchange::a_recording_has_waits_and_signals_of_all_ranks");
}
