//! The lane `slow`: tests that would take `cargo xtask test` beyond six minutes, or need more than a user has (hosts made of
//! network namespaces need root and `ip`). They are ignored there, and named here.

use anyhow::Result;

use crate::cargo::cargo;
use crate::lane::{Outcome, Report, Setting};
use crate::tally::{SHOW_OUTPUT, Tally};

/// Crate, program, test.
const SLOW: &[(&str, &str, &str)] = &[
    ("rendezvous", "proc_hosts", "f81_a_rank_that_dies_at_any_step_is_named_or_missed_at_the_deadline"),
    ("rendezvous", "proc_startup", "f54_a_process_that_takes_the_name_and_does_not_answer_is_named"),
    ("rendezvous", "proc_startup", "f53_ranks_in_different_pid_namespaces_are_refused"),
    ("rendezvous", "proc_startup", "f55_a_rank_that_died_is_named_although_a_helper_keeps_its_sockets"),
    ("comm-sim", "proc_kill", "f20_f21_a_forked_rank_killed_at_any_point_is_named_and_nothing_is_left"),
    ("comm-sim", "proc_kill", "f20_f21_an_independent_rank_killed_at_any_point_is_named_and_nothing_is_left"),
    ("comm-hccl", "conformance_double", "four_ranks_by_fabric"),
    ("comm-hccl", "proc_device", "f11_a_thousand_windows_of_each_mode_do_not_grow"),
    ("comm-hccl-c", "proc_c_api", "a_program_in_c_runs_two_ranks_on_the_double"),
    ("comm-hccl-c", "proc_c_api", "a_program_in_c_joins_at_an_address"),
    ("comm-hccl", "proc_faults", "f11_every_vendor_call_that_fails_or_kills_is_named_and_leaves_nothing"),
    ("comm-hccl", "proc_comm_faults", "f11_every_vendor_call_of_a_communicator_fails_once_in_turn"),
    ("comm-hccl", "proc_hosts", "f81_a_host_that_is_cut_off_is_named_with_the_seconds_of_its_silence"),
    ("comm-hccl", "proc_hosts", "ranks_on_two_hosts_make_every_call_of_a_communicator"),
    (
        "comm-hccl",
        "proc_hosts",
        "f83_without_fabric_windows_across_hosts_are_refused_and_those_of_one_host_are_not",
    ),
    ("comm-hccl", "proc_hosts", "the_double_knows_handles_of_its_own_host_only"),
    ("comm-hccl", "proc_hosts", "f81_a_rank_that_is_killed_on_another_host_is_named_by_all"),
    ("comm-hccl", "proc_hosts", "ranks_of_a_launcher_on_two_hosts_find_each_other_by_its_variables"),
    ("comm-hccl-c", "proc_c_api", "a_program_in_c_makes_collective_calls_on_the_double"),
    ("chip-runtime", "random_graphs", "large_random_graphs_give_what_their_tasks_give_one_after_the_other"),
    ("collectives", "proc_kernels", "kernels_and_ranks_in_rust_make_one_group_with_the_same_bits"),
    ("collectives", "proc_coll_perf", "wrong_flags_are_refused_with_what_to_write"),
    (
        "collectives",
        "proc_coll_perf",
        "a_schedule_of_the_library_or_of_a_file_runs_and_a_wrong_one_is_refused",
    ),
    ("comm-sim", "conformance_sim", "f05_two_seconds_of_skew_at_start_up_fail_no_rank"),
    ("collectives", "proc_started", "two_groups_may_be_waited_for_in_opposite_order_again_and_again"),
    ("collectives", "proc_plans", "tensors_that_take_several_pieces_give_what_a_replay_gives"),
    ("collectives", "proc_plans", "calls_have_the_bits_of_their_plans"),
    ("comm-hccl", "proc_comm", "a_hung_call_does_not_hold_destroy_when_a_peer_has_failed"),
    ("comm-hccl", "conformance_double", "two_ranks_by_ipc_key"),
    (
        "worker-orch",
        "proc_graphs_stuck",
        "objects_in_cpp_that_do_not_return_are_named_and_their_process_replaced",
    ),
    ("chipcomm-examples", "proc_programs", "right::tp_ffn_is_right_in_1000_rounds_on_2_4_and_8_chips"),
    ("collectives", "proc_random_plans", "a_thousand_random_schedules_and_cuts_give_what_their_replay_gives"),
    ("worker-chaos", "proc_coll_kill", "f02_f20_a_rank_killed_at_any_point_of_any_call_is_named"),
];

pub(super) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    let (mut tests, mut failures) = (Tally::default(), Vec::new());
    for (package, program, test) in SLOW {
        let args = [
            "test",
            "--package",
            setting.ws.package(package),
            "--test",
            program,
            "--",
            "--ignored",
            "--exact",
            test,
            SHOW_OUTPUT,
        ];
        let log = setting.console.run(&mut cargo(&setting.ws.root, args))?;
        let here = Tally::of(&log.lines);
        failures.extend(log.failure);
        if here.ran() == 0 {
            failures.push(format!("{package} has no ignored test {test} in {program}"));
        }
        tests += here;
    }
    Ok(Outcome::Ran(Report::tests(tests, failures.into_iter().next())))
}
