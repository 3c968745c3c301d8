//! Every kind of collective call at a size of each algorithm, called and started.

use collectives::{CollError, Collectives, Op};
use std::time::Duration;

/// One rank's calls, in a group of three with a pool of 256 KiB.
pub(crate) fn every_call(group: &Collectives<'_>) -> Result<(), CollError> {
    let (me, nranks) = (group.rank(), group.nranks());
    group.barrier()?;
    for count in [1, 200, 30_000] {
        let mut values = vec![1.0_f32; count];
        group.all_reduce(&mut values, Op::Sum)?;
    }
    let mut tensor = group.alloc::<f32>(4000)?;
    group.all_reduce(&mut tensor, Op::Sum)?;
    let mut plain = vec![1.0_f32; 4000];
    if me == 0 {
        group.all_reduce(&mut plain, Op::Sum)?
    } else {
        group.all_reduce(&mut tensor, Op::Sum)?
    }
    for count in [3, 100_000] {
        let mut bytes = vec![1_u8; count];
        group.broadcast(&mut bytes, 1)?;
        group.reduce(&bytes.clone(), (me == 0).then_some(&mut bytes[..]), Op::Max, 0)?;
        let mut gathered = vec![0_u8; count * nranks];
        group.gather(&bytes, (me == 2).then_some(&mut gathered[..]), 2)?;
        group.all_gather(&bytes, &mut gathered)?;
    }
    let mut blocks = vec![1_u16; 300];
    group.reduce_scatter(&blocks, &mut [0; 100], Op::Sum)?;
    group.all_to_all(&blocks.clone(), &mut blocks)?;
    group.scatter((me == 0).then_some(&blocks), &mut [0; 100], 0)?;
    group.all_to_all_v(&blocks[..6], &[1, 2, 3], &mut vec![0; 3 * (me + 1)], &[me + 1; 3])?;
    let (next, last) = ((me + 1) % nranks, (me + 2) % nranks);
    let mut received = vec![0_u16; 100_000];
    group.scope(|calls| {
        let sent = vec![7_u16; 100_000];
        let sent: &'static [u16] = sent.leak();
        let sending = calls.start_send(sent, next, 1)?;
        group.recv(&mut received, last, 1)?;
        sending.wait()
    })??;
    let (mut one, mut two) = (vec![1.0_f64; 50_000], vec![1_i8; 5]);
    group.scope(|calls| {
        let one = calls.start_all_reduce(&mut one, Op::Sum)?;
        let mut two = calls.start_broadcast(&mut two, 2)?;
        while !two.test()? {}
        one.wait().map(drop)
    })??;
    Ok(())
}

/// Prints how long after the deaths the others learned of them. Only where `ASSERT_P99` asks for it, 99 of 100 must take at most `most`: that is a
/// property of a machine that does nothing else.
pub(crate) fn judge_times(mut told: Vec<Duration>, most: Duration) {
    told.sort();
    let at = |percent: usize| told[(told.len() * percent / 100).min(told.len() - 1)];
    let (p50, p99, longest) = (at(50), at(99), at(100));
    eprintln!("{} reports, after p50 {p50:.1?}, p99 {p99:.1?}, max {longest:.1?}", told.len());
    assert!(longest < Duration::from_secs(5), "a death was reported after {longest:?}");
    if std::env::var_os("ASSERT_P99").is_some() {
        assert!(p99 <= most, "the 99th percentile is {p99:?}, more than {most:?}");
    }
}
