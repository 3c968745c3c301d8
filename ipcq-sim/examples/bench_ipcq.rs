//! quick
use ccl_schedule::algo::{self, Shape};
use ipcq_sim::{config::*, engine::*, plan::*, probe::*};
use std::time::Instant;
fn go(
    name: &str,
    ranks: u32,
    split: u32,
    engine: Engine,
    fabric: Fabric,
    elems: u64,
    topo: impl Fn(&mut Topology),
) {
    let mut t = Topology { fabric, ..Topology::default() };
    topo(&mut t);
    let s = Settings { n_elem: elems, slot_size: 1 << 30, ..Settings::default() };
    let p = algo::build(name, ranks, &Shape { split, window: 4, ..Shape::default() }).unwrap();
    let a = Instant::now();
    let plan = Plan::new(&*p, &t, &s, u64::MAX).unwrap();
    let b = Instant::now();
    let r = run(&plan, engine, &mut Quiet).unwrap();
    let d = b.elapsed().as_secs_f64();
    println!(
        "{name} {ranks} {split} {:?} plan {:.3}s run {:.3}s  {:.1} Mmsg/s {:.1} Mev/s time {} hash {:x}",
        r.engine,
        (b - a).as_secs_f64(),
        d,
        r.messages as f64 / d / 1e6,
        r.events as f64 / d / 1e6,
        r.time(),
        r.hash()
    );
}
fn main() {
    go("ring_reduce_scatter_allgather", 4096, 1, Engine::A, Fabric::Direct, 1 << 19, |_| ());
    go("ring_reduce_scatter_allgather", 1024, 1, Engine::B, Fabric::Direct, 1 << 19, |_| ());
    go("ring_accumulate", 4096, 1, Engine::A, Fabric::Direct, 8, |_| ());
    for n in [1000, 10_000, 100_000, 1_000_000] {
        go("tree_allreduce", n, 8, Engine::A, Fabric::Direct, 4096, |_| ());
        go("tree_allreduce", n, 8, Engine::B, Fabric::Direct, 4096, |_| ());
    }
    let big = |t: &mut Topology| {
        t.cubes.w = 16;
        t.cubes.h = 16;
        t.sips.w = 32;
    };
    go("tree_allreduce", 65536, 8, Engine::B, Fabric::Cubes, 4096, big);
    go("mesh_allreduce", 65536, 1, Engine::B, Fabric::Cubes, 32, big);
    let s = Instant::now();
    let p =
        algo::build("ring_reduce_scatter_allgather", 4096, &Shape { window: 4, ..Shape::default() }).unwrap();
    ccl_schedule::prove(&*p, 4, ccl_schedule::CreditPoint::LastUse).unwrap();
    println!("proof {:.3}", s.elapsed().as_secs_f64());
}
