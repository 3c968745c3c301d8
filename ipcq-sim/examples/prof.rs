//! prof
use ccl_schedule::algo::{self, Shape};
use ipcq_sim::{config::*, engine::*, plan::*, probe::*};
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (name, ranks, split, eng) = (&a[1], a[2].parse().unwrap(), a[3].parse().unwrap(), &a[4]);
    let cubes = a.len() > 5;
    let mut t = Topology { fabric: if cubes { Fabric::Cubes } else { Fabric::Direct }, ..Topology::default() };
    t.cubes.w = 16; t.cubes.h = 16; t.sips.w = 32;
    let s = Settings { n_elem: 1 << 12, slot_size: 1 << 30, ..Settings::default() };
    let p = algo::build(name, ranks, &Shape { split, window: 4, levels: Some([8, 256, 32]), ..Shape::default() }).unwrap();
    let plan = Plan::new(&*p, &t, &s, u64::MAX).unwrap();
    for _ in 0..3 {
    let b = Instant::now();
    let r = run(&plan, if eng == "a" { Engine::A } else { Engine::B }, &mut Quiet).unwrap();
    let d = b.elapsed().as_secs_f64();
    println!("{:.3}s  {:.1} Mmsg/s {:.1} Mev/s", d, r.messages as f64 / d / 1e6, r.events as f64 / d / 1e6);
    }
}
