//! Groups over TCP, of real processes on this host: ranks that die at every step, that disagree, that are strangers.
//! Between network namespaces they are tested with the vendor's double, in comm-hccl.
//!
//! # Safety
//! Forks; the children use memory, sockets, a thread and system calls, and no lock of the test harness. Sets a variable
//! before any other thread of the test program reads it.
#![allow(unsafe_code, missing_docs)]

mod support;

use child_process::Child;
use comm_context::comm::{CommError, Phase, Timeout};
use fault_points::{Action, Plan};
use nix::sys::signal::Signal;
use rendezvous::{Group, Tag, ranks_at};
use serial_test::serial;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;
use support::{all_fine, await_table, far, join, names_death, rank, secs};

const TOKEN: &str = "a token of this test program";

/// An address of this host whose port is free, and the token in the environment.
fn address() -> PathBuf {
    address_on("127.0.0.1")
}

fn address_on(host: &str) -> PathBuf {
    static TOKEN_SET: Once = Once::new();
    // SAFETY: see the head of the file.
    TOKEN_SET.call_once(|| unsafe { std::env::set_var("CHIPCOMM_TOKEN", TOKEN) });
    let port = TcpListener::bind(format!("{host}:0")).unwrap().local_addr().unwrap().port();
    PathBuf::from(format!("tcp://{host}:{port}"))
}

/// What stands behind `tcp://`.
fn socket_of(address: &std::path::Path) -> String {
    address.to_str().unwrap().trim_start_matches("tcp://").to_owned()
}

fn text(error: CommError) -> String {
    error.to_string()
}

fn use_group(group: &Group) -> Result<(), CommError> {
    let nranks = group.membership().nranks();
    let everybody: Vec<u32> = (0..nranks).collect();
    for id in 0..10 {
        let step = group.step(Phase::Barrier, secs(60))?;
        let mine = [group.membership().rank() as u8, id as u8];
        let messages = group.exchange(&step, Tag { kind: 1, id }, &everybody, &mine)?;
        let wanted: Vec<Vec<u8>> = (0..nranks).map(|rank| vec![rank as u8, id as u8]).collect();
        assert_eq!(messages, wanted);
        group.barrier(&step)?;
    }
    Ok(())
}

/// Some of the ranks, each of which joins and does `body`.
fn ranks(
    path: &std::path::Path,
    of: impl IntoIterator<Item = u32>,
    nranks: u32,
    body: impl Fn(Group) -> Result<(), String> + Copy,
) -> Vec<Child> {
    of.into_iter().map(|me| rank(move || body(join(path, me, nranks, secs(60)).map_err(text)?))).collect()
}

#[test]
#[serial]
fn rv12_ranks_join_in_any_order_exchange_and_leave() {
    for (host, nranks) in
        [("127.0.0.1", 1), ("127.0.0.1", 2), ("[::1]", 3), ("localhost", 2), ("127.0.0.1", 8)]
    {
        let path = if host == "localhost" {
            let port = socket_of(&address()).rsplit(':').next().unwrap().to_owned();
            PathBuf::from(format!("tcp://localhost:{port}"))
        } else {
            address_on(host)
        };
        let mut order: Vec<u32> = (0..nranks).collect();
        order.sort_unstable_by_key(|rank| rank.wrapping_mul(2_654_435_761) % 97);
        all_fine(ranks(&path, order, nranks, |group| use_group(&group).map_err(text)));
    }
}

#[test]
#[serial]
fn rv_4_five_groups_at_one_address_never_run_into_each_other() {
    groups_in_a_row(5);
}

#[test]
#[serial]
fn f16_many_groups_at_one_address_never_run_into_each_other() {
    // RV-4
    groups_in_a_row(100);
}

/// Two ranks join at one address, and at once again, so many times.
fn groups_in_a_row(rounds: u32) {
    let path = address();
    let path = &path;
    let children = (0..2)
        .map(|me| {
            rank(move || {
                for round in 0..rounds {
                    let group =
                        join(path, me, 2, secs(60)).map_err(|error| format!("round {round}: {error}"))?;
                    let step = group.step(Phase::Barrier, secs(60)).map_err(text)?;
                    let messages =
                        group.exchange(&step, Tag { kind: 9, id: 0 }, &[0, 1], &round.to_le_bytes());
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
fn exchanges_of_some_ranks_pass_through_rank_0_and_a_broadcast_reaches_all() {
    let path = address();
    let children = ranks(&path, 0..4, 4, |group| {
        let me = group.membership().rank();
        let step = group.step(Phase::AllocDomain, secs(60)).unwrap();
        if me == 2 {
            group.broadcast(&[7; 4109]).map_err(text)?;
        } else {
            assert_eq!(group.receive_broadcast(&step, 2).map_err(text)?, [7; 4109]);
        }
        for round in 0..20 {
            for (id, members) in (round * 4..).zip([&[1, 2][..], &[3, 1], &[0, 1, 2, 3], &[2, 3]]) {
                if members.contains(&me) {
                    let tag = Tag { kind: 1, id };
                    let messages = group.exchange(&step, tag, members, &[me as u8]).map_err(text)?;
                    let wanted: Vec<Vec<u8>> = members.iter().map(|rank| vec![*rank as u8]).collect();
                    assert_eq!(messages, wanted);
                }
            }
        }
        group.publish_imports(5 + me);
        group.barrier(&step).map_err(text)?;
        // Everything that a rank did before it came to the barrier is here after it.
        assert_eq!((0..4).map(|rank| group.imports(rank).load()).collect::<Vec<_>>(), [5, 6, 7, 8]);
        assert!(group.first_apart(&[0, 1, 2, 3]).is_none(), "all are on this host");
        let table = group.table();
        assert_eq!(table.lines().filter(|line| line.contains(" on ")).count(), 4, "{table}");
        group.barrier(&step).map_err(text)
    });
    all_fine(children);
}

#[test]
#[serial]
fn f81_all_ranks_name_a_rank_that_is_killed_while_they_join() {
    for victim in [0, 2] {
        let path = address();
        let path = &path;
        let others: Vec<u32> = (0..3).filter(|me| *me != victim).collect();
        let doomed = rank(move || join(path, victim, 4, secs(60)).map(drop).map_err(text));
        let others: Vec<Child> = others
            .into_iter()
            .map(|me| rank(move || names_lost(join(path, me, 4, secs(60)).map(drop), victim)))
            .collect();
        await_table(path, |table| table.matches("pid").count() == 3);
        doomed.signal(Signal::SIGKILL as i32);
        all_fine(others);
    }
}

/// Expects an error that names the loss of `rank`, whose process may not be known yet.
fn names_lost(result: Result<(), CommError>, rank: u32) -> Result<(), String> {
    match result {
        Err(CommError::PeerDied { rank: named, .. }) if named == rank => Ok(()),
        other => Err(format!("expected the loss of rank {rank}, got {other:?}")),
    }
}

#[test]
#[serial]
fn f81_survivors_name_the_rank_that_was_killed_and_the_group_stays_broken() {
    // RV-6, RV-13
    for victim in [0, 2] {
        let path = address();
        let path = &path;
        let mut children: Vec<Child> = (0..4)
            .map(|me| {
                rank(move || {
                    let group = join(path, me, 4, secs(60)).map_err(text)?;
                    if me == victim {
                        nix::sys::signal::raise(Signal::SIGKILL).unwrap();
                    }
                    let step = group.step(Phase::Barrier, secs(60)).unwrap();
                    let ended = group.barrier(&step);
                    let said = ended.as_ref().map_err(CommError::to_string).err().unwrap_or_default();
                    names_death(ended, victim)?;
                    if !said.contains("died (its connection from another host was closed)") {
                        return Err(said);
                    }
                    match group.step(Phase::Barrier, secs(60)) {
                        Err(CommError::Broken { cause })
                            if matches!(*cause, CommError::PeerDied { rank, .. } if rank == victim) =>
                        {
                            Ok(())
                        }
                        other => Err(format!("{other:?}")),
                    }
                })
            })
            .collect();
        let killed = children.remove(victim as usize);
        all_fine(children);
        drop(killed);
    }
}

/// What rank 1 waits for cannot come: rank 2 sends nothing to it, and lives.
#[test]
#[serial]
fn rv_13_ranks_that_need_each_other_end_when_rank_0_is_lost() {
    let path = address();
    let path = &path;
    let mut children: Vec<Child> = (0..3)
        .map(|me| {
            rank(move || {
                let group = join(path, me, 3, secs(30)).map_err(text)?;
                if me == 0 {
                    nix::sys::signal::raise(Signal::SIGKILL).unwrap();
                }
                let step = group.step(Phase::Barrier, secs(30)).unwrap();
                if me == 2 {
                    return names_death(group.barrier(&step), 0);
                }
                names_death(group.exchange(&step, Tag { kind: 1, id: 7 }, &[1, 2], b"").map(drop), 0)
            })
        })
        .collect();
    let killed = children.remove(0);
    all_fine(children);
    drop(killed);
}

#[test]
#[serial]
fn a_rank_that_leaves_gives_its_reason_to_ranks_on_other_hosts() {
    // RV-7
    for leaver in [0, 1] {
        let path = address();
        let path = &path;
        let children = (0..3)
            .map(|me| {
                rank(move || {
                    let group = join(path, me, 3, secs(60)).map_err(text)?;
                    if me == leaver {
                        group.leave("its own reasons");
                        return Ok(());
                    }
                    let step = group.step(Phase::Barrier, secs(60)).unwrap();
                    match group.barrier(&step) {
                        Err(CommError::PeerLeft { reason, .. }) if reason.contains("its own reasons") => {
                            Ok(())
                        }
                        other => Err(format!("{other:?}")),
                    }
                })
            })
            .collect();
        all_fine(children);
    }
}

/// What each of these ranks fails with. The last one comes when the others have joined: a rank that comes after a failure
/// finds nobody, as at a path.
fn refusals(path: &std::path::Path, who: &[(u32, u32)], word: &'static str) {
    let start = |&(me, nranks): &(u32, u32)| {
        rank(move || match join(path, me, nranks, secs(60)).map(drop) {
            Err(error) if error.to_string().contains(word) => Ok(()),
            other => Err(format!("rank {me} of {nranks}: {other:?}")),
        })
    };
    let (last, first) = who.split_last().unwrap();
    let mut children: Vec<Child> = first.iter().map(start).collect();
    await_table(path, |table| table.matches("pid").count() == first.len());
    children.push(start(last));
    all_fine(children);
}

#[test]
#[serial]
fn f82_ranks_that_disagree_or_come_twice_fail_at_once_on_every_side() {
    refusals(
        &address(),
        &[(0, 3), (1, 3), (2, 4)],
        "says 4 ranks, rank 0 says 3; give all ranks the same size",
    );
    refusals(&address(), &[(0, 3), (1, 3), (1, 3)], "; give each process a rank of its own");
    refusals(&address(), &[(0, 2), (5, 9)], "says 9 ranks");
}

#[test]
#[serial]
fn f79_a_process_without_the_token_is_refused_and_the_others_still_join() {
    // RV-12
    let path = address();
    let path = &path;
    let leader = ranks(path, [0], 2, |group| use_group(&group).map_err(text));
    await_table(path, |table| table.contains("pid"));
    let stranger = rank(move || {
        // SAFETY: see the head of the file; this process has one thread.
        unsafe { std::env::set_var("CHIPCOMM_TOKEN", "another token, as long") };
        match join(path, 1, 2, secs(60)).map(drop) {
            Err(error) if error.to_string().contains("does not have the token that rank 0 has") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    all_fine(vec![stranger]);
    await_table(path, |table| {
        table.contains("1 connections were refused") && table.contains("know the token")
    });
    all_fine(ranks(path, [1], 2, |group| use_group(&group).map_err(text)));
    all_fine(leader);
}

#[test]
#[serial]
fn f80_strangers_that_are_silent_send_garbage_or_flood_keep_nobody_from_joining() {
    let path = address();
    let leader = ranks(&path, [0], 2, |group| use_group(&group).map_err(text));
    await_table(&path, |table| table.contains("pid"));
    let connect = || TcpStream::connect(socket_of(&path)).unwrap();
    let silent: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    let mut garbage = connect();
    garbage.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // It gets the challenge and the end of the connection, at once.
    let _ = garbage.read_to_end(&mut answer);
    assert!(answer.len() < 100, "{} bytes", answer.len());
    let mut flood = connect();
    // The beginning of one message of 64 MB.
    let flooded = (0..10_000).try_for_each(|_| flood.write_all(&[4; 4096]));
    assert!(flooded.is_err(), "40 MB were taken from a stranger");
    let mut half = connect();
    half.write_all(&200_u32.to_le_bytes()).unwrap();
    half.write_all(&[2; 100]).unwrap();
    await_table(&path, |table| {
        table.contains(" connections were refused, the last from 127.0.0.1:")
            && table.contains("; check that all ranks have the same token")
    });
    all_fine(ranks(&path, [1], 2, |group| use_group(&group).map_err(text)));
    all_fine(leader);
    drop((silent, half));
}

#[test]
#[serial]
fn f78_an_address_that_cannot_be_used_is_refused_at_once_with_the_reason() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("tcp://127.0.0.1:{}", taken.local_addr().unwrap().port()).into();
    let _ = address();
    for (path, me, word) in [
        (
            taken,
            0,
            ": rank 0 cannot listen there (…); another process uses the port; choose another one, or end that process",
        ),
        (
            PathBuf::from("tcp://192.0.2.1:29500"),
            0,
            ": rank 0 cannot listen there (…); the address is not one of this host's; start rank 0 on the host that it names",
        ),
        (PathBuf::from("tcp://no-such-host.invalid:29500"), 0, "cannot be resolved"),
        (PathBuf::from("tcp://no-such-host.invalid:29500"), 1, "cannot be resolved"),
        (PathBuf::from("tcp://127.0.0.1:0"), 1, "1 to 65535"),
        (PathBuf::from("tcp://0.0.0.0:29500"), 0, "is not the address of one host"),
    ] {
        let error = join(&path, me, 2, secs(120)).map(drop).unwrap_err().to_string();
        let in_order = word.split('…').try_fold(error.as_str(), |rest, part| Some(rest.split_once(part)?.1));
        assert!(in_order.is_some(), "{}: {error}", path.display());
    }
}

#[test]
#[serial]
fn f78_what_listens_at_the_address_and_is_not_rank_0_is_refused_at_once() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let _ = address();
    let path = PathBuf::from(format!("tcp://{}", other.local_addr().unwrap()));
    let service = std::thread::spawn(move || {
        let (mut socket, _) = other.accept().unwrap();
        socket.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(200));
    });
    let error = join(&path, 1, 2, secs(120)).map(drop).unwrap_err().to_string();
    assert!(
        error.ends_with(
            ": what listens there is not rank 0 of this group (it sent a malformed message); check the address, and use one \
             build for all ranks"
        ),
        "{error}"
    );
    service.join().unwrap();
}

#[test]
#[serial]
fn f06_ranks_that_never_join_are_named_at_the_deadline() {
    let short = || Timeout::new(Duration::from_millis(300)).unwrap();
    let path = address();
    let error = join(&path, 1, 2, short()).map(drop).unwrap_err();
    assert!(matches!(&error, CommError::TimedOut { missing, .. } if missing == &[0]), "{error}");
    assert!(error.to_string().contains(" does not answer at "), "{error}");
    let path = &path;
    let joiner = rank(move || match join(path, 1, 3, secs(60)).map(drop) {
        Err(CommError::TimedOut { missing, table, .. })
            if missing == [2] && table.contains("rank  2  not joined") =>
        {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    });
    let leader = rank(move || match join(path, 0, 3, secs(3)).map(drop) {
        Err(CommError::TimedOut { missing, .. }) if missing == [2] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    all_fine(vec![joiner, leader]);
}

#[test]
#[serial]
fn rv12_nothing_listens_once_the_ranks_have_joined() {
    let path = address();
    let path = &path;
    let children = ranks(path, 0..2, 2, move |group| {
        let step = group.step(Phase::Barrier, secs(60)).unwrap();
        let refused = TcpStream::connect(socket_of(path)).is_err();
        group.barrier(&step).map_err(text)?;
        if refused { Ok(()) } else { Err("somebody listens".to_owned()) }
    });
    all_fine(children);
    assert_eq!(ranks_at(path, secs(5)).unwrap(), None);
}

#[test]
#[serial]
fn f61_a_forked_copy_of_a_rank_changes_nothing() {
    // RV-11
    let path = address();
    let children = ranks(&path, 0..2, 2, |group| {
        let group = std::mem::ManuallyDrop::new(group);
        let mut group_of_copy = Some(&group);
        let copy = support::fork(|| {
            if let Some(group) = group_of_copy.take() {
                // SAFETY: this process is a copy, and neither uses nor drops the group again.
                drop(unsafe { std::ptr::read(&raw const **group) });
            }
            0
        });
        assert_eq!(copy.reap(far()), Some(deadline::HowDied::Exited(0)));
        let used = use_group(&group).map_err(text);
        drop(std::mem::ManuallyDrop::into_inner(group));
        used
    });
    all_fine(children);
}

/// Where a rank can end before the ranks that depend on it know of it: they run into their deadlines.
const UNANNOUNCED: &[(u32, &str)] = &[
    (0, "hosts.token_read"),
    (0, "hosts.leader.resolved"),
    (0, "hosts.leader.listen"),
    (0, "hosts.leader.listening"),
    // Those that come later find nobody.
    (0, "hosts.leader.accepted"),
    (1, "hosts.token_read"),
    (1, "hosts.joiner.resolved"),
    (1, "hosts.joiner.connect"),
    (1, "hosts.joiner.connected"),
    (1, "hosts.joiner.join_sent"),
    // Rank 0 aborts the rendezvous, and a rank that comes after that finds nobody.
    (1, "hosts.joiner.accepted"),
];

/// Where all others know of it.
const ANNOUNCED: &[(u32, &str)] = &[
    (0, "hosts.leader.closed"),
    (0, "hosts.leader.started"),
    (0, "hosts.relay.started"),
    (0, "hosts.relay.sent"),
    (0, "hosts.relay.forwarded"),
    (0, "hosts.relay.applied"),
    (1, "hosts.joiner.started"),
    (1, "hosts.relay.started"),
    (1, "hosts.relay.sent"),
    (1, "hosts.relay.applied"),
];

#[test]
#[serial]
#[ignore = "slow: cargo xtask ci slow"]
fn f81_a_rank_that_dies_at_any_step_is_named_or_missed_at_the_deadline() {
    let cases = UNANNOUNCED.iter().map(|case| (case, true)).chain(ANNOUNCED.iter().map(|case| (case, false)));
    for (&(victim, point), may_time_out) in cases {
        let path = address();
        let path = &path;
        let limit = if may_time_out { 2 } else { 60 };
        let mut children: Vec<Child> = (0..3)
            .map(|me| {
                rank(move || {
                    if me == victim {
                        fault_points::arm(Plan::one(point, victim, 1, Action::Kill));
                    }
                    let used = join(path, me, 3, secs(limit)).and_then(|group| use_group(&group));
                    match used {
                        Err(CommError::PeerDied { rank, .. }) if rank == victim => Ok(()),
                        Err(CommError::TimedOut { .. }) if may_time_out => Ok(()),
                        // The deadline of another rank passed a little earlier.
                        Err(error) if may_time_out && error.to_string().contains("it gave up after") => {
                            Ok(())
                        }
                        // A survivor that gave up first says why.
                        Err(CommError::PeerLeft { reason, .. })
                            if reason.contains(&format!("rank {victim}")) =>
                        {
                            Ok(())
                        }
                        other => Err(format!("{point} of rank {victim}, rank {me}: {other:?}")),
                    }
                })
            })
            .collect();
        let killed = children.remove(victim as usize);
        all_fine(children);
        assert_eq!(killed.reap(far()), Some(deadline::HowDied::Signalled(9)), "{point} was not passed");
    }
}
