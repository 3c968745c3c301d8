#![allow(unsafe_code, missing_docs)]
use child_process::Child;
use collectives::*;
use comm_context::comm::*;
use comm_sim::SimComm;
use std::time::Instant;
fn pin(core: usize) { unsafe { let mut set: libc::cpu_set_t = std::mem::zeroed(); libc::CPU_SET(core, &mut set); libc::sched_setaffinity(0, size_of_val(&set), &set); } }
fn p(v: &mut Vec<f64>, q: f64) -> f64 { v.sort_by(f64::total_cmp); v[((v.len()-1) as f64*q) as usize] }
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let sizes: Vec<usize> = args[1].split(',').map(|s| s.parse().unwrap()).collect();
    let dirty = args.get(2).map(String::as_str) == Some("dirty");
    let prepared = SimComm::prepare_group(2).unwrap();
    let run = |me: usize| {
        pin(me);
        let comm = SimComm::join(&prepared, me as u32, Timeout::DEFAULT).unwrap();
        let group = Collectives::new(&comm, Options::new().pool(64<<20)).unwrap();
        if me == 0 { 
            let mut v = Vec::new();
            for _ in 0..50 { let t=Instant::now(); for _ in 0..200 { group.barrier().unwrap(); } v.push(t.elapsed().as_nanos() as f64/200.0); }
            println!("barrier p10 {:.0} p50 {:.0} ns", p(&mut v,0.1), p(&mut v,0.5));
        } else { for _ in 0..10000 { group.barrier().unwrap(); } }
        for &bytes in &sizes {
            let len = bytes/4;
            let mut plain = vec![1.0f32; len];
            let mut tensor = group.alloc::<f32>(len).unwrap();
            tensor.as_mut_slice().unwrap().fill(1.0);
            let iters = (200_000_000/(20_000+bytes*8)).max(20);
            for mode in 0..3 {
                let mut v = Vec::with_capacity(iters);
                for i in 0..iters {
                    if dirty && mode != 1 { plain.fill(i as f32); std::hint::black_box(&mut plain); }
                    if dirty && mode == 1 { tensor.as_mut_slice().unwrap().fill(i as f32); }
                    if bytes > 4096 { group.barrier().unwrap(); }
                    let t = Instant::now();
                    match mode {
                        0 => group.all_reduce(&mut plain, Op::Max).unwrap(),
                        1 => group.all_reduce(&mut tensor, Op::Max).unwrap(),
                        _ => { let half = plain.len()/2; if half > 0 { group.broadcast(&mut plain[..], 0).unwrap(); } }
                    }
                    v.push(t.elapsed().as_nanos() as f64);
                    if dirty { let s: f32 = plain.iter().sum(); std::hint::black_box(s); }
                }
                if me == 0 { println!("{bytes:>9} {} p10 {:.2} p50 {:.2} us", ["staged","window","bcast "][mode], p(&mut v,0.1)/1e3, p(&mut v,0.5)/1e3); }
            }
        }
        0
    };
    let child = unsafe { Child::fork(&[prepared.region().fd()], || run(1)) }.unwrap();
    run(0);
    child.reap(deadline::Deadline::after(std::time::Duration::from_secs(60)).unwrap());
}
