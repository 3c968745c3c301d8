//! prof
use ccl_schedule::algo::{self, Shape};
use ipcq_sim::{config::*, engine::*, plan::*, probe::*};
fn cpu() -> f64 {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse::<f64>()
        .unwrap()
        / 1e9
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (name, ranks, split, eng) = (&a[1], a[2].parse().unwrap(), a[3].parse().unwrap(), &a[4]);
    let cubes = a.len() > 5;
    let mut t =
        Topology { fabric: if cubes { Fabric::Cubes } else { Fabric::Direct }, ..Topology::default() };
    t.cubes.w = 16;
    t.cubes.h = 16;
    t.sips.w = 32;
    let s = Settings { n_elem: 1 << 12, slot_size: 1 << 30, ..Settings::default() };
    let p =
        algo::build(name, ranks, &Shape { split, window: 4, levels: Some([8, 256, 32]), ..Shape::default() })
            .unwrap();
    let plan = Plan::new(&*p, &t, &s, u64::MAX).unwrap();
    let ring =
        algo::Ring::new(algo::RingKind::AllReduce, ranks, &Shape { split, window: 4, ..Shape::default() })
            .unwrap();
    for i in 0..6 {
        let b = cpu();
        let r = if i % 2 == 1 && name.starts_with("ring_r") {
            run_as(&plan, &ring, if eng == "a" { Engine::A } else { Engine::B }, &mut Quiet).unwrap()
        } else {
            run(&plan, if eng == "a" { Engine::A } else { Engine::B }, &mut Quiet).unwrap()
        };
        let d = cpu() - b;
        println!(
            "{:.3}s  {:.1} Mmsg/s {:.1} Mev/s",
            d,
            r.messages as f64 / d / 1e6,
            r.events as f64 / d / 1e6
        );
    }
}
