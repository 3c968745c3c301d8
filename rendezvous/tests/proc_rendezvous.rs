//! Groups of real processes, joined at a path or forked, with ranks that are killed, leave, or never join.
//!
//! # Safety
//! Forks; the children use shared memory, sockets and system calls, and no lock of the test harness.
#![allow(unsafe_code, missing_docs)]

mod support;

use child_process::Child;
use comm_context::comm::{CommError, Phase, Timeout};
use deadline::{Deadline, HowDied};
use fault_points::{Action, Plan};
use mailbox_atomics::WordU32;
use nix::sys::signal::Signal;
use rendezvous::{Group, Prepared, Tag, groups_of};
use serial_test::serial;
use shared_memory::Region;
use std::os::fd::AsFd;
use std::time::Duration;
use support::{EXTENT, all_fine, await_table, far, join, names_death, path, rank, secs};

fn use_group(group: &Group) -> Result<(), CommError> {
    let step = group.step(Phase::Barrier, secs(60))?;
    group.barrier(&step)?;
    let nranks = group.membership().nranks();
    let everybody: Vec<u32> = (0..nranks).collect();
    for id in 0..20 {
        let mine = [group.membership().rank() as u8, id as u8];
        let messages = group.exchange(&step, Tag { kind: 1, id }, &everybody, &mine)?;
        let wanted: Vec<Vec<u8>> = (0..nranks).map(|rank| vec![rank as u8, id as u8]).collect();
        assert_eq!(messages, wanted);
    }
    Ok(())
}

#[test]
#[serial]
fn ranks_join_in_any_order_and_leave_nothing_at_the_path() {
    // RV-1, RV-3
    for nranks in [1, 2, 3, 8, 16] {
        let (folder, path) = path();
        let path = &path;
        // Some order that is not that of the ranks, with some skew.
        let mut order: Vec<u32> = (0..nranks).collect();
        order.sort_unstable_by_key(|rank| rank.wrapping_mul(2_654_435_761) % 97);
        let children = order
            .into_iter()
            .map(|me| {
                std::thread::sleep(Duration::from_millis(u64::from(me % 3) * 5));
                rank(move || {
                    let group = join(path, me, nranks, secs(60)).map_err(|error| error.to_string())?;
                    use_group(&group).map_err(|error| error.to_string())
                })
            })
            .collect();
        all_fine(children);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
#[serial]
fn rv_4_ten_groups_at_one_path_never_run_into_each_other() {
    groups_in_a_row(10);
}

#[test]
#[serial]
fn f16_a_thousand_groups_at_one_path_never_run_into_each_other() {
    // RV-4
    groups_in_a_row(1000);
}

/// Two ranks join at one path, and at once again, so many times.
fn groups_in_a_row(rounds: u32) {
    let (_folder, path) = path();
    let path = &path;
    let children = (0..2)
        .map(|me| {
            rank(move || {
                for round in 0..rounds {
                    let group =
                        join(path, me, 2, secs(60)).map_err(|error| format!("round {round}: {error}"))?;
                    let step = group.step(Phase::Barrier, secs(60)).map_err(|error| error.to_string())?;
                    let tag = Tag { kind: 9, id: 0 };
                    let messages = group.exchange(&step, tag, &[0, 1], &round.to_le_bytes());
                    let messages = messages.map_err(|error| format!("round {round}: {error}"))?;
                    if messages.iter().any(|message| message != &round.to_le_bytes()) {
                        return Err(format!("round {round} got the message of another round: {messages:?}"));
                    }
                }
                Ok(())
            })
        })
        .collect();
    all_fine(children);
}

#[test]
#[serial]
fn f20_all_ranks_name_a_leader_that_is_killed() {
    // RV-3: the victim comes first and so is the leader.
    for victim in [0, 1] {
        let (_folder, path) = path();
        let path = &path;
        let doomed =
            rank(move || join(path, victim, 4, secs(60)).map(drop).map_err(|error| error.to_string()));
        await_table(path, |table| table.contains("pid"));
        let others: Vec<Child> = (0..3)
            .filter(|me| *me != victim)
            .map(|me| rank(move || names_death(join(path, me, 4, secs(60)).map(drop), victim)))
            .collect();
        await_table(path, |table| table.matches("pid").count() == 3);
        doomed.signal(Signal::SIGKILL as i32);
        all_fine(others);
    }
}

#[test]
#[serial]
fn f20_all_ranks_name_a_joiner_that_is_killed() {
    let (_folder, path) = path();
    let path = &path;
    let leader = rank(move || names_death(join(path, 2, 4, secs(60)).map(drop), 1));
    await_table(path, |table| table.contains("leader"));
    let joiner = rank(move || join(path, 1, 4, secs(60)).map(drop).map_err(|error| error.to_string()));
    let other = rank(move || names_death(join(path, 0, 4, secs(60)).map(drop), 1));
    await_table(path, |table| table.matches("pid").count() == 3);
    joiner.signal(Signal::SIGKILL as i32);
    all_fine(vec![leader, other]);
}

#[test]
#[serial]
fn a_rank_that_has_joined_already_is_refused_with_a_reason_and_the_others_still_join() {
    let (_folder, path) = path();
    let path = &path;
    let leader = rank(move || join(path, 0, 2, secs(60)).map(drop).map_err(|error| error.to_string()));
    await_table(path, |table| table.contains("leader"));
    let refusal = |result: Result<Group, CommError>| result.map(drop).unwrap_err().to_string();
    let twice = refusal(join(path, 0, 2, secs(10)));
    assert!(twice.contains("rank 0 has joined already (pid "), "{twice}");
    assert!(twice.ends_with("); give each process a rank of its own"), "{twice}");
    let joiner = rank(move || join(path, 1, 2, secs(60)).map(drop).map_err(|error| error.to_string()));
    all_fine(vec![leader, joiner]);
}

#[test]
#[serial]
fn f06_a_rank_that_never_joins_is_named_at_the_deadline() {
    let (_folder, path) = path();
    let error = join(&path, 0, 3, Timeout::new(Duration::from_millis(150)).unwrap()).map(drop).unwrap_err();
    let CommError::TimedOut { missing, table, .. } = &error else { panic!("{error}") };
    assert_eq!(missing, &[1, 2]);
    assert!(table.contains("leader") && table.contains("not joined yet"), "{error}");
}

/// The deadline of the leader, of which it tells the others, or that of a rank that has joined, which asks the leader.
#[test]
#[serial]
fn rv_9_a_rank_that_has_joined_names_the_missing_at_a_deadline() {
    for limits in [[secs(2), secs(60)], [secs(60), secs(2)]] {
        let (_folder, path) = path();
        let path = &path;
        let leader = rank(move || match join(path, 0, 3, limits[0]).map(drop) {
            Err(CommError::TimedOut { missing, .. }) if missing == [2] => Ok(()),
            Err(CommError::PeerLeft { rank: 1, .. }) if limits[1] < limits[0] => Ok(()),
            other => Err(format!("{other:?}")),
        });
        await_table(path, |table| table.contains("leader"));
        let joiner = rank(move || match join(path, 1, 3, limits[1]).map(drop) {
            Err(CommError::TimedOut { missing, .. }) if missing == [2] => Ok(()),
            other => Err(format!("{other:?}")),
        });
        all_fine(vec![leader, joiner]);
    }
}

/// Forks `nranks` ranks of a prepared group.
fn forked(nranks: u32, body: impl Fn(Group) -> Result<(), String> + Copy) -> (Prepared, Vec<Child>) {
    let prepared = Prepared::new(nranks, EXTENT).unwrap();
    let children = (0..nranks)
        .map(|me| {
            let there = prepared.clone();
            let keep: Vec<_> = prepared.fds().collect();
            // SAFETY: see the head of the file.
            let child = unsafe {
                Child::fork(&keep, || {
                    match there.join(me, secs(60)).map_err(|error| error.to_string()).and_then(body) {
                        Ok(()) => 0,
                        Err(text) => {
                            let _ = nix::unistd::write(
                                std::io::stderr().as_fd(),
                                format!("rank {me}: {text}\n").as_bytes(),
                            );
                            1
                        }
                    }
                })
            };
            child.unwrap()
        })
        .collect();
    (prepared, children)
}

#[test]
#[serial]
fn forked_ranks_share_memory_at_one_address() {
    let (_prepared, children) = forked(4, |group| {
        let offset = group.extent(group.membership().rank()).start;
        group.reserve(offset..offset + 4096).map_err(|error| error.to_string())?;
        group.region().words::<WordU32>(offset).unwrap().store(100 + group.membership().rank());
        use_group(&group).map_err(|error| error.to_string())?;
        let base = group.region().base().as_ptr() as u64;
        let step = group.step(Phase::Barrier, secs(60)).unwrap();
        let bases =
            group.exchange(&step, Tag { kind: 3, id: 0 }, &[0, 1, 2, 3], &base.to_le_bytes()).unwrap();
        assert!(bases.iter().all(|theirs| theirs == &base.to_le_bytes()));
        for peer in 0..4 {
            assert_eq!(group.region().words::<WordU32>(group.extent(peer).start).unwrap().load(), 100 + peer);
        }
        let step2 = group.step(Phase::Barrier, secs(60)).unwrap();
        group.barrier(&step2).map_err(|error| error.to_string())
    });
    all_fine(children);
}

#[test]
#[serial]
fn exchanges_of_other_members_do_not_wait_for_each_other() {
    // RV-5: in opposite orders from two threads, which would deadlock if one waited for the other.
    let (_prepared, children) = forked(3, |group| {
        let me = group.membership().rank();
        let step = group.step(Phase::AllocDomain, secs(60)).unwrap();
        for round in 0..50 {
            std::thread::scope(|scope| {
                let exchange = |id: u64, members: &'static [u32]| {
                    if members.contains(&me) {
                        let tag = Tag { kind: 1, id: round * 10 + id };
                        let messages = group.exchange(&step, tag, members, &[me as u8]).unwrap();
                        let wanted: Vec<Vec<u8>> = members.iter().map(|rank| vec![*rank as u8]).collect();
                        assert_eq!(messages, wanted);
                    }
                };
                let other = scope.spawn(move || {
                    exchange(1, &[0, 1]);
                    exchange(2, &[1, 2]);
                });
                exchange(3, &[2, 0]);
                exchange(4, &[0, 1, 2]);
                other.join().unwrap();
            });
        }
        Ok(())
    });
    all_fine(children);
}

#[test]
#[serial]
fn rv_5_a_message_is_taken_once() {
    // The same members and the same tag, again and again: each round has its own messages.
    let (_prepared, children) = forked(3, |group| {
        let me = group.membership().rank();
        let step = group.step(Phase::AllocDomain, secs(60)).unwrap();
        for round in 0..200_u32 {
            let of = |rank: u32| [round.to_le_bytes(), rank.to_le_bytes()].concat();
            let messages = group.exchange(&step, Tag { kind: 2, id: 7 }, &[0, 1, 2], &of(me));
            let messages = messages.map_err(|error| format!("round {round}: {error}"))?;
            if messages != [of(0), of(1), of(2)] {
                return Err(format!("round {round}: {messages:?}"));
            }
        }
        Ok(())
    });
    all_fine(children);
}

#[test]
#[serial]
fn f20_survivors_name_the_rank_that_was_killed_and_the_group_stays_broken() {
    // RV-6
    let (_prepared, mut children) = forked(4, |group| {
        if group.membership().rank() == 2 {
            nix::sys::signal::raise(Signal::SIGKILL).unwrap();
        }
        let step = group.step(Phase::Barrier, secs(60)).unwrap();
        names_death(group.barrier(&step), 2)?;
        match group.step(Phase::Barrier, secs(60)) {
            Err(CommError::Broken { cause }) if matches!(*cause, CommError::PeerDied { rank: 2, .. }) => {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    });
    let victim = children.remove(2);
    all_fine(children);
    assert_eq!(victim.reap(far()), Some(HowDied::Signalled(Signal::SIGKILL as i32)));
}

#[test]
#[serial]
fn a_rank_that_leaves_gives_its_reason() {
    // RV-7
    let (_prepared, children) = forked(3, |group| {
        if group.membership().rank() == 1 {
            group.leave("its own reasons");
            return Ok(());
        }
        let step = group.step(Phase::Barrier, secs(60)).unwrap();
        match group.barrier(&step) {
            Err(CommError::PeerLeft { rank: 1, reason, .. }) if reason == "its own reasons" => Ok(()),
            // The other survivor may have given up first, with the same cause in its reason.
            Err(CommError::PeerLeft { reason, .. }) if reason.contains("its own reasons") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    all_fine(children);
}

#[test]
#[serial]
fn no_rank_waits_for_one_that_gave_up() {
    // RV-7: it cannot take part again, also in what others begin later.
    let (_prepared, children) = forked(2, |group| {
        if group.membership().rank() == 1 {
            let step = group.step(Phase::Barrier, Timeout::new(Duration::from_millis(50)).unwrap()).unwrap();
            let gave_up = group.barrier(&step);
            std::thread::sleep(Duration::from_secs(30));
            return Err(format!("this rank was not ended after {gave_up:?}"));
        }
        std::thread::sleep(Duration::from_millis(200));
        let step = group.step(Phase::AllocDomain, secs(60)).unwrap();
        match group.exchange(&step, Tag { kind: 1, id: 1 }, &[0, 1], &[]) {
            Err(CommError::PeerLeft { rank: 1, reason, .. }) if reason.contains("timed out in barrier") => {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    });
    let ends = children[0].reap(far());
    assert_eq!(ends, Some(HowDied::Exited(0)), "it failed before the other rank was gone");
    assert_eq!(children[1].try_reap(), None);
}

#[test]
#[serial]
fn a_cancelled_wait_ends_at_once_with_the_reason() {
    let (prepared, children) = forked(2, |group| {
        if group.membership().rank() == 0 {
            let step = group.step(Phase::Barrier, secs(60)).unwrap();
            return match group.barrier(&step) {
                Err(error @ CommError::Aborted { .. }) => {
                    let text = "aborted in barrier: a task of the run failed; the first error of the run says why, this one \
                                only follows from it";
                    if error.to_string() == text { Ok(()) } else { Err(error.to_string()) }
                }
                other => Err(format!("{other:?}")),
            };
        }
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    });
    let end = far();
    while !prepared.table().contains("barrier") {
        assert!(!end.has_passed(), "{}", prepared.table());
        std::thread::sleep(Duration::from_millis(1));
    }
    prepared.cancel_kernels();
    let ended = children[0].reap(Deadline::after(Duration::from_secs(30)).unwrap());
    assert_eq!(ended, Some(HowDied::Exited(0)));
}

#[test]
#[serial]
fn the_death_that_the_parent_reports_wins() {
    let (prepared, children) = forked(2, |group| {
        if group.membership().rank() == 0 {
            let step = group.step(Phase::Barrier, secs(60)).unwrap();
            return match group.barrier(&step) {
                Err(CommError::PeerDied {
                    rank: 1,
                    how: comm_context::comm::Death::Signalled { signal: 11 },
                    ..
                }) => Ok(()),
                other => Err(format!("{other:?}")),
            };
        }
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    });
    // As if a chip had crashed and was reaped: only the parent knows how.
    prepared.report_death(1, HowDied::Signalled(11));
    assert_eq!(children[0].reap(far()), Some(HowDied::Exited(0)));
}

#[test]
#[serial]
fn f44_a_group_can_be_inspected_from_outside() {
    let (_prepared, children) = forked(2, |group| {
        let _step = group.step(Phase::AllocDomain, secs(60)).unwrap();
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    });
    let end = far();
    loop {
        let tables = groups_of(children[0].pid() as u32).unwrap();
        if tables.first().is_some_and(|table| table.matches("alloc_domain").count() == 2) {
            break;
        }
        assert!(!end.has_passed(), "{tables:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(groups_of(std::process::id()).map(|tables| tables.len()).unwrap(), 1);
    let own = Region::create("other", 4096).unwrap();
    assert!(own.len() == 4096 && groups_of(std::process::id()).unwrap().len() == 1);
}

#[test]
#[serial]
fn f07_a_deadline_of_the_rendezvous_is_not_taken_for_a_death() {
    // RV-9: first the leader's deadline passes, then a joiner's.
    let short = Timeout::new(Duration::from_millis(300)).unwrap();
    for (leader_within, joiner_within) in [(short, secs(60)), (secs(60), short)] {
        let (_folder, path) = path();
        let path = &path;
        let expect = |result: Result<Group, CommError>, within: Timeout| match result.map(drop) {
            Err(CommError::TimedOut { missing, table, .. })
                if missing == [2] && table.contains("not joined yet") =>
            {
                Ok(())
            }
            Err(CommError::PeerLeft { rank: 1, reason, .. })
                if within != short && reason.contains("gave up") =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        };
        let leader = rank(move || expect(join(path, 0, 3, leader_within), leader_within));
        await_table(path, |table| table.contains("leader"));
        let joiner = rank(move || expect(join(path, 1, 3, joiner_within), joiner_within));
        all_fine(vec![leader, joiner]);
    }
}

#[test]
#[serial]
fn members_that_disagree_all_fail_however_late_and_may_try_again() {
    // RV-8
    let (_prepared, children) = forked(2, |group| {
        let me = group.membership().rank();
        let step = group.step(Phase::AllocDomain, secs(60)).unwrap();
        let tag = Tag { kind: 1, id: 5 };
        for round in 0..3 {
            if me == round % 2 {
                std::thread::sleep(Duration::from_millis(50));
            }
            let members = if me == 0 { [0, 1] } else { [1, 0] };
            match group.exchange(&step, tag, &members, &[me as u8]) {
                Err(CommError::Mismatch { rank, .. }) if rank == 1 - me => {}
                other => return Err(format!("{other:?}")),
            }
            group.barrier(&step).map_err(|error| error.to_string())?;
            let messages =
                group.exchange(&step, tag, &[1, 0], &[me as u8]).map_err(|error| error.to_string())?;
            assert_eq!(messages, [[1], [0]]);
        }
        Ok(())
    });
    all_fine(children);
}

#[test]
#[serial]
fn a_thread_that_leaves_while_another_does_changes_no_reason() {
    // RV-7
    let (_prepared, children) = forked(2, |group| {
        if group.membership().rank() == 0 {
            // The first thread sleeps where it is about to write its reason.
            let delay = Action::Delay(Duration::from_millis(300));
            fault_points::arm(Plan::one("rendezvous.leaving", 0, 1, delay));
            fault_points::record();
            std::thread::scope(|scope| {
                scope.spawn(|| group.leave("the first reason"));
                while fault_points::passed().is_empty() {
                    std::thread::yield_now();
                }
                group.leave("the second reason");
            });
            return Ok(());
        }
        let step = group.step(Phase::Barrier, secs(60)).unwrap();
        match group.barrier(&step) {
            Err(CommError::PeerLeft { rank: 0, reason, .. }) if reason == "the first reason" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    all_fine(children);
}

#[test]
#[serial]
fn f62_the_answer_of_a_refused_attempt_is_not_taken_for_the_next_attempts() {
    // RV-8: each rank finds the disagreement with one peer, and leaves the other peer's message unread.
    let (_prepared, children) = forked(3, |group| {
        let me = group.membership().rank();
        let step = group.step(Phase::AllocDomain, secs(60)).unwrap();
        let tag = Tag { kind: 1, id: 5 };
        for late in 0..3 {
            let members = if me == 2 { [2, 1, 0] } else { [0, 1, 2] };
            match group.exchange(&step, tag, &members, &[me as u8]) {
                Err(CommError::Mismatch { .. } | CommError::PeerFailed { .. }) => {}
                other => return Err(format!("late {late}: {other:?}")),
            }
            // The refused message of the late rank is all that its peers find at first.
            std::thread::sleep(Duration::from_millis(if me == late { 300 } else { 100 }));
            let messages = group
                .exchange(&step, tag, &[0, 1, 2], &[10 + me as u8])
                .map_err(|error| format!("late {late}: {error}"))?;
            assert_eq!(messages, [[10], [11], [12]]);
        }
        Ok(())
    });
    all_fine(children);
}

#[test]
#[serial]
fn f62_a_rank_that_misses_a_refused_attempt_fails_in_it_and_not_in_the_next() {
    // RV-8: two ranks disagree twice and are at the third attempt before the last rank comes to the first.
    let (_prepared, children) = forked(3, |group| {
        let me = group.membership().rank();
        let step = group.step(Phase::AllocDomain, secs(60)).unwrap();
        let tag = Tag { kind: 1, id: 6 };
        if me == 0 {
            std::thread::sleep(Duration::from_millis(300));
        }
        for attempt in 0..2 {
            let members = if me == 2 { [0, 2, 1] } else { [0, 1, 2] };
            match group.exchange(&step, tag, &members, &[attempt]) {
                Err(CommError::Mismatch { .. } | CommError::PeerFailed { .. }) => {}
                other => return Err(format!("attempt {attempt}: {other:?}")),
            }
        }
        let messages =
            group.exchange(&step, tag, &[0, 1, 2], &[10 + me as u8]).map_err(|error| error.to_string())?;
        assert_eq!(messages, [[10], [11], [12]]);
        Ok(())
    });
    all_fine(children);
}

#[test]
#[serial]
fn f61_a_forked_copy_of_a_rank_cannot_end_its_membership() {
    // RV-11
    let (_prepared, children) = forked(2, |group| {
        let step = group.step(Phase::Barrier, secs(20)).unwrap();
        if group.membership().rank() == 0 {
            // SAFETY: the child drops its copy and ends.
            let copy = unsafe { libc::fork() };
            if copy == 0 {
                let alone = group.exchange(&step, Tag { kind: 1, id: 7 }, &[0], b"from a copy");
                let refused = alone.is_err_and(|error| error.to_string().contains("forked copy"));
                drop(step);
                group.leave("it is a copy");
                let _ = group.leave_destroyed();
                drop(group);
                // SAFETY: ends the child without running what it inherited.
                unsafe { libc::_exit(i32::from(!refused)) }
            }
            let copy = nix::unistd::Pid::from_raw(copy);
            let ended = nix::sys::wait::waitpid(copy, None).unwrap();
            if ended != nix::sys::wait::WaitStatus::Exited(copy, 0) {
                return Err(format!("an exchange of a forked copy was not refused: {ended:?}"));
            }
            // The other rank waits for this one, and would notice that it has left.
            std::thread::sleep(Duration::from_millis(300));
        }
        group.barrier(&step).map_err(|error| error.to_string())
    });
    all_fine(children);
}
