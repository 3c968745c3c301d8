//! The drop-in under real launchers, with every MPI library of this machine.
#![allow(missing_docs)]

mod support;

use std::process::Command;
use support::{Built, Family, counts, libraries, run_well, texts};

fn everywhere(test: impl Fn(&Built)) {
    libraries().into_iter().for_each(|mpi| test(&Built::new(mpi)));
}

/// Runs a test program. Returns the table.
fn run(built: &Built, name: &str, ranks: usize, arguments: &[&str]) -> String {
    let program = built.compile(name);
    run_well(built.launch(ranks).arg(program).args(arguments)).1
}

// CM-1, CM-3
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn reductions_of_every_type_and_operation_are_those_of_the_library() {
    everywhere(|built| {
        for (ranks, step) in [(2, "2"), (3, "7")] {
            let table = run(built, "reductions", ranks, &[step]);
            let (taken, passed) = counts(&table);
            assert!(taken > 20 * passed && passed > 0, "{table}");
            for reason in
                ["an operation that is MPI's", "a type of which", "the first calls of a communicator"]
            {
                assert!(table.contains(reason), "{table}");
            }
            // Calls and milliseconds: taken, and passed on.
            let row = table.lines().find_map(|line| line.trim().strip_prefix("Allreduce ")).unwrap();
            let numbers: Vec<f64> = row.split_whitespace().map(|word| word.parse().unwrap()).collect();
            assert!(numbers.len() == 4 && numbers.iter().all(|number| *number > 0.0), "{table}");
        }
    });
}

// CM-1, CM-3
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn blocks_move_as_they_do_with_the_library_whatever_type_each_rank_has() {
    everywhere(|built| {
        for (ranks, sizes) in [(2, "6"), (3, "5"), (5, "2")] {
            let (taken, passed) = counts(&run(built, "moves", ranks, &[sizes]));
            assert!(taken > 100 && passed == 0, "{taken} taken, {passed} passed on");
        }
    });
}

// CM-3
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn calls_from_fortran_are_taken_with_both_modules() {
    everywhere(|built| {
        if !Command::new(&built.mpi.fortran).arg("--version").output().is_ok_and(|out| out.status.success()) {
            println!("not run: there is no Fortran compiler on this machine");
            return;
        }
        for name in ["fortran", "fortran08"] {
            let (taken, passed) = counts(&run(built, name, 3, &[]));
            assert!(taken >= 6 && passed == 0, "{taken} taken, {passed} passed on");
        }
    });
}

// CM-2
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn f91_messages_go_on_while_a_rank_waits_in_a_call() {
    everywhere(|built| {
        // More ranks than these take MPICH minutes on two processors.
        for ranks in [2, 3] {
            let (taken, _) = counts(&run(built, "progress", ranks, &[]));
            assert!(taken > 0);
        }
    });
}

// CM-5
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn groups_end_with_their_communicators_and_leave_nothing() {
    everywhere(|built| {
        for ranks in [2, 3, 4] {
            let table = run(built, "communicators", ranks, &[]);
            assert!(counts(&table).0 > 0 && table.contains("an intercommunicator"), "{table}");
        }
    });
}

// CM-4
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn a_killed_rank_ends_the_job_as_the_launcher_does_it() {
    everywhere(|built| {
        let program = built.compile("killed");
        for arguments in [&[][..], &["return"]] {
            let out = built.launch(3).arg(&program).args(arguments).output().unwrap();
            let (stdout, stderr) = texts(&out);
            // 124: the launcher was still there after two minutes.
            assert!(!matches!(out.status.code(), Some(0 | 124)), "{:?} {stdout}{stderr}", built.mpi);
            let named = format!("{stdout}{stderr}");
            let words = ["ignal 9", "(signal 9)", "EXIT CODE: 9", "died"];
            assert!(words.iter().any(|word| named.contains(word)), "{named}");
        }
    });
}

// CM-4
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn the_death_of_a_rank_is_an_error_of_the_others_calls() {
    everywhere(|built| {
        // Open MPI's launcher notices a lost connection too, and ends the others before they can say anything.
        if built.mpi.family != Family::Mpich {
            return;
        }
        let program = built.compile("killed");
        // The launcher sees a shell, which lives.
        let script = "\"$0\" \"$@\"; sleep 20";
        let out = built.launch(3).args(["sh", "-c", script]).arg(&program).arg("return").output().unwrap();
        let (stdout, stderr) = texts(&out);
        assert!(stderr.contains(": an error\n"), "{stdout}{stderr}");
        assert!(stderr.contains("died") && !stderr.contains("the call succeeded"), "{stdout}{stderr}");
    });
}

fn rank_1_declines(ranks: usize) {
    everywhere(|built| {
        let program = built.compile("moves");
        let script = "case ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in 1) export CHIPCOMM_MPI_OFF=1;; esac; exec \"$0\" \"$@\"";
        let out = built.launch(ranks).args(["sh", "-c", script]).arg(&program).arg("2").output().unwrap();
        let (stdout, stderr) = texts(&out);
        assert!(out.status.success() && stdout.contains("ok"), "{stdout}{stderr}");
        let (taken, passed) = counts(&stderr);
        assert!(taken == 0 && passed > 100, "{stderr}");
    });
}

// CM-6
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn where_one_rank_declines_all_calls_are_passed_on() {
    rank_1_declines(2);
}

// CM-6
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn f90_two_ranks_do_not_take_what_a_third_passes_on() {
    rank_1_declines(3);
}

// CM-6
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn more_ranks_than_a_group_may_have_get_the_librarys_own_calls() {
    for mpi in libraries() {
        let built = Built::with(mpi, &["-DMOST_RANKS=2"]);
        let (taken, _) = counts(&run(&built, "moves", 2, &["1"]));
        let table = run(&built, "moves", 3, &["1"]);
        assert!(taken > 0 && counts(&table).0 == 0 && table.contains("ranks on a host"), "{taken} {table}");
    }
}

// CM-5
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn nothing_stays_in_memory_or_in_files_when_a_program_has_ended_or_was_killed() {
    everywhere(|built| {
        let folder = built.folder.path().display();
        // Folders of its own, in which nobody else leaves anything; the programs are seen where they were.
        let script = format!(
            "set -e; mount --bind {folder} /mnt; mount -t tmpfs none /dev/shm; mount -t tmpfs none /tmp
             mkdir -p {folder}; mount --bind /mnt {folder}; \"$@\" > /dev/null 2>&1 || true; trap '' HUP TERM
             sleep 0.2; find /dev/shm -mindepth 1; find /tmp -name '*chipcomm*' -not -path '{folder}*'; echo looked"
        );
        for name in ["communicators", "killed"] {
            let program = built.compile(name);
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", &script, "sh"]);
            let launcher = built.launch(3);
            command.arg(launcher.get_program()).args(launcher.get_args()).arg(program);
            let (stdout, stderr) = texts(&command.output().unwrap());
            if stderr.contains("unshare:") || stderr.contains("mount:") {
                println!("not run: no right to mount");
                return;
            }
            // What a killed rank leaves of the MPI library's own is the launcher's to remove.
            let ours = |line: &&str| name == "communicators" || line.contains("chipcomm");
            let left: Vec<_> = stdout.lines().filter(|line| *line != "looked").filter(ours).collect();
            assert!(stdout.contains("looked") && left.is_empty(), "{name}: {stdout}{stderr}");
        }
    });
}

// CM-7
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn a_program_of_which_nothing_is_taken_says_the_same_with_and_without_the_drop_in() {
    everywhere(|built| {
        let program = built.compile("nothing");
        let quiet = |mut command: Command| run_well(command.env_remove("CHIPCOMM_MPI_STATS").arg(&program));
        let (with, without) = (quiet(built.launch(2)), quiet(built.launch_alone(2)));
        assert_eq!(with.0, without.0);
        assert!(!with.1.contains("chipcomm"), "{}", with.1);
    });
}

// CM-7
#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn threads_get_the_level_that_the_library_grants() {
    everywhere(|built| {
        let program = built.compile("levels");
        for level in ["0", "1", "2", "3"] {
            let (with, table) = run_well(built.launch(2).arg(&program).arg(level));
            let (without, _) = run_well(built.launch_alone(2).arg(&program).arg(level));
            assert_eq!(with, without);
            assert!(counts(&table).0 >= 2, "{table}");
        }
    });
}

#[test]
#[ignore = "slow: cargo xtask ci mpi"]
fn a_run_that_took_nothing_fails_where_it_is_asked_to() {
    everywhere(|built| {
        let (taken, passed) = counts(&run(built, "nothing", 2, &[]));
        assert_eq!((taken, passed), (0, 0));
        let program = built.compile("nothing");
        let required = |built: &Built| {
            let mut command = built.launch(2);
            if built.mpi.family == Family::OpenMpi {
                command.args(["-x", "CHIPCOMM_MPI_REQUIRE"]);
            }
            command.env("CHIPCOMM_MPI_REQUIRE", "1").arg(&program).output().unwrap()
        };
        let out = required(built);
        let (_, stderr) = texts(&out);
        assert!(
            !out.status.success() && stderr.contains("CHIPCOMM_MPI_REQUIRE is set and no call"),
            "{}: {stderr:?}",
            out.status
        );
    });
}
