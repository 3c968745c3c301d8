//! Started calls, messages and smaller groups.
#![allow(missing_docs)]

mod support;

use collectives::{CollError, Collectives, Op, Options};
use comm_context::comm::Communicator;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::time::{Duration, Instant};
use support::{Texts, elements, in_comms, in_groups, options, reduced, same_bits, secs};

fn text(error: CollError) -> String {
    error.to_string()
}

// CO-7
#[test]
fn several_calls_are_started_before_the_first_is_waited_for() {
    for nranks in [1, 2, 3, 8] {
        in_groups(nranks, options(), |group| {
            for (round, count) in [3, 700, 50_000, 600_000].into_iter().enumerate() {
                let count = if nranks > 3 { count.min(50_000) } else { count };
                let (me, seed) = (group.rank(), round as u64);
                let all: Vec<Vec<f32>> = (0..nranks).map(|rank| elements(seed, rank, count)).collect();
                let (mut one, mut two, mut four) = (all[me].clone(), all[me].clone(), all[me].clone());
                let mut three = vec![0.0; count * nranks];
                let root = round % nranks;
                group
                    .scope(|calls| {
                        let first = calls.start_all_reduce(&mut one, Op::Sum)?;
                        let second = calls.start_all_reduce(&mut two, Op::Max)?;
                        let third = calls.start_all_gather(&all[me], &mut three)?;
                        let fourth = calls.start_broadcast(&mut four, root)?;
                        let fifth = calls.start_barrier()?;
                        // In another order than they were started.
                        let four = fourth.wait()?;
                        let wanted = |got: &[f32], wanted: &[f32]| same_bits("started", got, wanted);
                        let mut checked = wanted(four, &all[root]);
                        let mut second = second;
                        while !second.test()? {}
                        checked = checked.and(wanted(second.wait()?, &reduced(Op::Max, &all)));
                        checked = checked.and(wanted(first.wait()?, &reduced(Op::Sum, &all)));
                        checked = checked.and(wanted(third.wait()?, &all.concat()));
                        fifth.wait()?;
                        Ok(checked)
                    })
                    .and_then(|inside| inside)
                    .map_err(text)??;
                // A call after the scope goes on with the numbers where started ones left off.
                let mut after = all[me].clone();
                group.all_reduce(&mut after, Op::Min).map_err(text)?;
                same_bits("after", &after, &reduced(Op::Min, &all))?;
            }
            Ok(())
        });
    }
}

// CO-7
#[test]
fn a_call_may_be_made_while_others_are_under_way_and_match_a_started_one() {
    in_groups(3, options(), |group| {
        let me = group.rank();
        for round in 0..50_u64 {
            let count = [4, 1000, 40_000][round as usize % 3];
            let all: Vec<Vec<i64>> = (0..3).map(|rank| elements(round, rank, count)).collect();
            let (mut one, mut two) = (all[me].clone(), all[me].clone());
            if me == 0 {
                group.all_reduce(&mut one, Op::Sum).map_err(text)?;
                group.all_reduce(&mut two, Op::BitXor).map_err(text)?;
            } else {
                group
                    .scope(|calls| {
                        let pending = calls.start_all_reduce(&mut one, Op::Sum)?;
                        group.all_reduce(&mut two, Op::BitXor)?;
                        pending.wait()?;
                        Ok::<(), CollError>(())
                    })
                    .and_then(|inside| inside)
                    .map_err(text)?;
            }
            same_bits("first", &one, &reduced(Op::Sum, &all))?;
            same_bits("second", &two, &reduced(Op::BitXor, &all))?;
        }
        Ok(())
    });
}

// CO-7
#[test]
fn co_7_two_groups_may_be_waited_for_in_opposite_order() {
    in_opposite_order(2);
}

// CO-7
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn two_groups_may_be_waited_for_in_opposite_order_again_and_again() {
    in_opposite_order(20);
}

fn in_opposite_order(rounds: u64) {
    in_comms(2, |comm| {
        let (one, two) = (Collectives::new(comm, options()), Collectives::new(comm, options()));
        let (one, two) = (one.map_err(text)?, two.map_err(text)?);
        let me = comm.rank() as usize;
        for round in 0..rounds {
            // More pieces than are sent at once, so that both need progress.
            let all: Vec<Vec<f32>> = (0..2).map(|rank| elements(round, rank, 700_000)).collect();
            let (mut a, mut b) = (all[me].clone(), all[me].clone());
            let waited = one.scope(|first| {
                two.scope(|second| {
                    let (a, b) = if me == 0 {
                        let a = first.start_all_reduce(&mut a, Op::Sum)?;
                        (a, second.start_all_reduce(&mut b, Op::Min)?)
                    } else {
                        let b = second.start_all_reduce(&mut b, Op::Min)?;
                        (first.start_all_reduce(&mut a, Op::Sum)?, b)
                    };
                    if me == 0 {
                        a.wait()?;
                        b.wait()?;
                    } else {
                        b.wait()?;
                        a.wait()?;
                    }
                    Ok::<(), CollError>(())
                })
            });
            waited.and_then(|inner| inner).and_then(|inner| inner).map_err(text)?;
            same_bits("one", &a, &reduced(Op::Sum, &all))?;
            same_bits("two", &b, &reduced(Op::Min, &all))?;
        }
        // A called one of one group beside a started one of the other.
        let mut a = vec![1.0_f32; 700_000];
        one.scope(|first| {
            let pending = first.start_all_reduce(&mut a, Op::Sum)?;
            if me == 0 {
                pending.wait()?;
                two.barrier()
            } else {
                two.barrier()?;
                pending.wait().map(drop)
            }
        })
        .and_then(|inside| inside)
        .map_err(text)?;
        same_bits("a", &a, &vec![2.0; 700_000])?;
        one.close().and(two.close()).map_err(text)
    });
}

// CO-7
#[test]
fn a_started_call_that_is_dropped_or_forgotten_is_over_at_the_end_of_its_scope() {
    in_groups(2, options(), |group| {
        for round in 0..10 {
            let all: Vec<Vec<f32>> = (0..2).map(|rank| elements(round, rank, 600_000)).collect();
            let (mut one, mut two) = (all[group.rank()].clone(), all[group.rank()].clone());
            group
                .scope(|calls| {
                    drop(calls.start_all_reduce(&mut one, Op::Sum)?);
                    let _ = calls.start_all_reduce(&mut two, Op::Sum)?;
                    Ok::<(), CollError>(())
                })
                .and_then(|inside| inside)
                .map_err(text)?;
            same_bits("dropped", &one, &reduced(Op::Sum, &all))?;
            same_bits("forgotten", &two, &reduced(Op::Sum, &all))?;
        }
        Ok(())
    });
}

// CO-13
#[test]
fn a_panic_in_a_scope_waits_for_its_calls() {
    in_groups(2, options(), |group| {
        let mut one = vec![1.0_f32; 600_000];
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = group.scope(|calls| {
                let _pending = calls.start_all_reduce(&mut one, Op::Sum).unwrap();
                if group.rank() == 0 {
                    panic!("on purpose");
                }
            });
        }));
        if panicked.is_err() != (group.rank() == 0) {
            return Err("it did not panic".to_owned());
        }
        same_bits("sums", &one, &vec![2.0; 600_000])
    });
}

/// The other rank is done while this one computes: what the progress thread is for. Rank 0 makes no call of the crate until rank 1
/// has said that its call is over, which without the thread it never would.
// CO-7
#[test]
fn with_a_progress_thread_a_started_call_finishes_on_the_other_rank_while_this_one_computes() {
    let over = Texts::new(1);
    in_groups(2, Options::new().timeout(secs(60)).progress_thread(), |group| {
        let mut values = vec![1.0_f32; 4 << 20];
        if group.rank() == 1 {
            group.all_reduce(&mut values, Op::Sum).map_err(text)?;
            over.write(0, "over on rank 1");
            return same_bits("sums", &values, &vec![2.0; 4 << 20]);
        }
        let computed = group.scope(|calls| {
            let pending = calls.start_all_reduce(&mut values, Op::Sum)?;
            let started = Instant::now();
            let mut sum = 0_u64;
            while started.elapsed() < Duration::from_secs(1)
                || over.read(0).is_empty() && started.elapsed() < Duration::from_secs(30)
            {
                sum = std::hint::black_box(sum.wrapping_mul(3) + 1);
            }
            let said = over.read(0);
            pending.wait()?;
            Ok::<_, CollError>(said)
        });
        let said = computed.and_then(|inside| inside).map_err(text)?;
        if said.is_empty() {
            return Err("rank 1 was not done before rank 0 waited".to_owned());
        }
        same_bits("sums", &values, &vec![2.0; 4 << 20])
    });
}

#[test]
fn a_progress_thread_serves_scope_after_scope_and_called_ones_between() {
    in_groups(3, options().progress_thread(), |group| {
        for round in 0..60_u64 {
            let count = [2, 5000, 90_000][round as usize % 3];
            let all: Vec<Vec<i32>> = (0..3).map(|rank| elements(round, rank, count)).collect();
            let (mut one, mut two) = (all[group.rank()].clone(), all[group.rank()].clone());
            group
                .scope(|calls| {
                    let pending = calls.start_all_reduce(&mut one, Op::Sum)?;
                    if round % 2 == 0 {
                        std::thread::sleep(Duration::from_micros(300));
                    }
                    if round % 3 == 0 {
                        pending.wait()?;
                    }
                    Ok::<(), CollError>(())
                })
                .and_then(|inside| inside)
                .map_err(text)?;
            group.all_reduce(&mut two, Op::Max).map_err(text)?;
            same_bits("started", &one, &reduced(Op::Sum, &all))?;
            same_bits("called", &two, &reduced(Op::Max, &all))?;
        }
        Ok(())
    });
}

// CO-1
#[test]
fn messages_arrive_in_order_by_tag_with_their_bytes() {
    for nranks in [2, 3, 8] {
        in_groups(nranks, options(), |group| {
            let (me, next, last) =
                (group.rank(), (group.rank() + 1) % nranks, (group.rank() + nranks - 1) % nranks);
            for (round, count) in [0, 1, 10, 11, 5000, 100_000].into_iter().enumerate() {
                let tag = round as u32;
                // Round the ring: large ones have to be started, or nobody would receive.
                let (mine, theirs) = (elements::<f64>(7, me, count), elements::<f64>(7, last, count));
                let mut got = vec![0.0; count];
                group
                    .scope(|calls| {
                        let sending = calls.start_send(&mine, next, tag)?;
                        group.recv(&mut got, last, tag)?;
                        sending.wait()
                    })
                    .and_then(|inside| inside)
                    .map_err(text)?;
                same_bits("ring", &got, &theirs)?;
                // Small ones fit between the two.
                group.send(&[me as u32], next, 1000).map_err(text)?;
                group.send(&[2 * me as u32], next, 1001).map_err(text)?;
                group.send(&[3 * me as u32], next, 1000).map_err(text)?;
                let mut small = [0_u32; 3];
                let [b, a, c] = &mut small;
                // By tag, not by time.
                group.recv(std::slice::from_mut(a), last, 1001).map_err(text)?;
                group.recv(std::slice::from_mut(b), last, 1000).map_err(text)?;
                group.recv(std::slice::from_mut(c), last, 1000).map_err(text)?;
                let wanted = [1, 2, 3].map(|factor| factor * last as u32);
                same_bits("tags", &small, &wanted)?;
            }
            group.barrier().map_err(text)
        });
    }
}

/// A message that comes later than the collective: whoever waits must look for both.
// CO-7
#[test]
fn a_receive_under_way_does_not_hold_up_the_calls_beside_it() {
    for options in [options(), options().progress_thread()] {
        in_groups(2, options.timeout(secs(20)), |group| {
            for round in 0..5_u64 {
                // Several pieces, of which the second is not written before the first was read.
                let mut values = vec![round; 600_000];
                let mut got = [0_u64; 300];
                if group.rank() == 0 {
                    group
                        .scope(|calls| {
                            let receiving = calls.start_recv(&mut got, 1, 7)?;
                            group.all_reduce(&mut values, Op::Sum)?;
                            receiving.wait().map(drop)
                        })
                        .and_then(|inside| inside)
                        .map_err(text)?;
                    same_bits("message", &got, &[round; 300])?;
                } else {
                    group.all_reduce(&mut values, Op::Sum).map_err(text)?;
                    group.send(&[round; 300], 0, 7).map_err(text)?;
                }
                same_bits("sums", &values, &vec![2 * round; 600_000])?;
            }
            Ok(())
        });
    }
}

/// Rank 1 gives up and lives on. Rank 0 waits for rank 2, which says nothing, and has a message of rank 1 under way: a group that has
/// lost one rank has failed, and rank 0 learns that, however it waits.
// CO-4, CO-7
#[test]
fn a_rank_learns_who_gave_up_also_when_it_waits_for_another() {
    for (polls, options) in [(false, options()), (true, options()), (false, options().progress_thread())] {
        in_comms(3, |comm| {
            let group = Collectives::new(comm, options.timeout(secs(10))).map_err(text)?;
            let (mut one, mut two) = ([0_u32; 3], [0_u32; 3]);
            let ended = match comm.rank() {
                0 => group.scope(|calls| {
                    let _from_1 = calls.start_recv(&mut one, 1, 7)?;
                    let mut from_2 = calls.start_recv(&mut two, 2, 7)?;
                    while polls && !from_2.test()? {}
                    from_2.wait().map(drop)
                }),
                1 => {
                    group.give_up("its own reasons");
                    Ok(Ok(()))
                }
                _ => Ok(Ok(())),
            };
            let told = ended.and_then(|inside| inside);
            comm.barrier(secs(60)).map_err(|error| error.to_string())?;
            match (comm.rank(), told) {
                (0, Err(CollError::PeerGaveUp { rank: 1, .. })) | (1 | 2, Ok(())) => Ok(()),
                (rank, other) => Err(format!("rank {rank}: {other:?}")),
            }
        });
    }
}

/// Ranks on one core that do nothing but ask whether a call is over give the core to those that it waits for. Ranks that kept it would
/// ask ten thousand times in a time slice.
// CO-1, F71
#[test]
fn ranks_that_share_a_core_and_only_ask_give_it_to_each_other() {
    let on_one_core = || {
        let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let first = (0..CpuSet::count()).find(|core| allowed.is_set(*core).unwrap()).unwrap();
        let mut only = CpuSet::new();
        only.set(first).unwrap();
        // This thread; the ranks inherit it.
        sched_setaffinity(Pid::from_raw(0), &only).unwrap();
        in_groups(3, options(), |group| {
            let mut asked = 0;
            for count in [1, 1000].repeat(50) {
                let mut values = vec![1_u32; count];
                let over = group.scope(|calls| {
                    let mut pending = calls.start_all_reduce(&mut values, Op::Sum)?;
                    while !pending.test()? {
                        asked += 1;
                    }
                    Ok(())
                });
                over.and_then(|inside| inside).map_err(text)?;
                same_bits("sums", &values, &vec![3; count])?;
            }
            (asked < 100 * 100).then_some(()).ok_or(format!("asked {asked} times without success"))
        });
    };
    std::thread::spawn(on_one_core).join().unwrap();
}

#[test]
fn started_receives_take_messages_whatever_order_they_come_in() {
    in_groups(2, options(), |group| {
        for round in 0..40_u64 {
            let other = 1 - group.rank();
            let count = [3, 400, 50_000][round as usize % 3];
            let mine: Vec<Vec<i16>> =
                (0..3).map(|tag| elements(round * 8 + tag, group.rank(), count)).collect();
            let theirs: Vec<Vec<i16>> = (0..3).map(|tag| elements(round * 8 + tag, other, count)).collect();
            let mut got = vec![vec![0_i16; count]; 3];
            let [zero, one, two] = &mut got[..] else { unreachable!() };
            group
                .scope(|calls| {
                    let two = calls.start_recv(two, other, 2)?;
                    let zero = calls.start_recv(zero, other, 0)?;
                    let sends = [0, 2, 1].map(|tag| calls.start_send(&mine[tag], other, tag as u32));
                    let one = calls.start_recv(one, other, 1)?;
                    one.wait()?;
                    for send in sends {
                        send?.wait()?;
                    }
                    two.wait()?;
                    zero.wait()?;
                    Ok::<(), CollError>(())
                })
                .and_then(|inside| inside)
                .map_err(text)?;
            for tag in 0..3 {
                same_bits("message", &got[tag], &theirs[tag])?;
            }
        }
        Ok(())
    });
}

// CO-1
#[test]
fn a_split_makes_groups_by_color_in_the_order_of_keys() {
    in_groups(7, options(), |group| {
        let me = group.rank();
        // Even and odd ranks, each in reverse; rank 6 stays out.
        let color = (me != 6).then_some(me as u32 % 2);
        let part = group.split(color, -(me as i64)).map_err(text)?;
        match (&part, color) {
            (None, None) => {}
            (Some(part), Some(color)) => {
                let members: Vec<u32> = if color == 0 { vec![4, 2, 0] } else { vec![5, 3, 1] };
                if part.members() != members || part.members()[part.rank()] as usize != me {
                    return Err(format!("{part:?}"));
                }
                let mut sum = [me as u64];
                part.all_reduce(&mut sum, Op::Sum).map_err(text)?;
                same_bits("sum", &sum, &[u64::from(members.iter().sum::<u32>())])?;
                // Smaller still, of a group that is not the whole communicator.
                let alone = part.split(Some(me as u32), 0).map_err(text)?.ok_or("no group")?;
                alone.barrier().map_err(text)?;
                alone.close().map_err(text)?;
            }
            other => return Err(format!("{other:?}")),
        }
        group.barrier().map_err(text)?;
        part.map_or(Ok(()), Collectives::close).map_err(text)
    });
}

#[test]
fn groups_of_the_same_ranks_stand_side_by_side() {
    in_comms(3, |comm| {
        let groups = [0, 1, 2].map(|_| Collectives::new(comm, options()));
        let groups = groups.into_iter().collect::<Result<Vec<_>, _>>().map_err(text)?;
        for round in 0..30_usize {
            let mut value = [round as u64 + u64::from(comm.rank())];
            groups[round % 3].all_reduce(&mut value, Op::Sum).map_err(text)?;
            same_bits("sum", &value, &[3 * round as u64 + 3])?;
        }
        groups.into_iter().try_for_each(Collectives::close).map_err(text)?;
        // Their ids are free again.
        Collectives::new(comm, options()).and_then(Collectives::close).map_err(text)
    });
}

/// More calls than a rank keeps on record: none is recorded before its turn, so the first is there to be compared.
// CO-3
#[test]
fn forty_started_calls_that_the_other_rank_does_not_make_name_the_first() {
    in_groups(2, Options::new().timeout(secs(20)), |group| {
        let failed = if group.rank() == 0 {
            let mut buffers = vec![[1.0_f32; 16]; 40];
            let started = group.scope(|calls| {
                let pending: Result<Vec<_>, CollError> =
                    buffers.iter_mut().map(|buffer| calls.start_broadcast(buffer, 1)).collect();
                pending.map(drop)
            });
            started.and_then(|inside| inside)
        } else {
            group.broadcast(&mut [2.0_f32; 16], 0).and_then(|()| group.barrier())
        };
        match failed {
            Err(CollError::Mismatch { one, other }) if one.number == 1 && other.number == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// The thread finds what the caller would find, and does not look again and again.
#[test]
fn a_progress_thread_rests_after_a_mismatch_until_the_caller_asks() {
    in_groups(2, options().progress_thread(), |group| {
        let mut values = vec![1.0_f32; 1000];
        let failed = group.scope(|calls| {
            // Each waits for the other to send.
            let pending = calls.start_broadcast(&mut values, 1 - group.rank())?;
            // Until both have found out.
            std::thread::sleep(Duration::from_millis(200));
            let before = processor_time();
            std::thread::sleep(Duration::from_millis(300));
            let used = processor_time() - before;
            assert!(used < Duration::from_millis(15), "the thread used {used:?}");
            pending.wait().map(drop)
        });
        match failed.and_then(|inside| inside) {
            Err(CollError::Mismatch { .. }) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// What all threads of this process have used.
fn processor_time() -> Duration {
    bench_support::processor_time()
}
