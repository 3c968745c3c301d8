//! An all-reduce between processing elements, from kernel to proof to picture. docs/guide-pe-kernels.md explains it.

use ccl_schedule::Dir;
use ipcq_sim::config::{DType, Settings, Topology};
use ipcq_sim::engine::Engine;
use ipcq_sim::kernel::{Kernel, Pe};
use ipcq_sim::out::{duration, heat_svg};
use ipcq_sim::probe::NoProbe;
use ipcq_sim::sim::Simulation;

/// Every rank passes its tile to the east and adds what arrives from the west.
fn ring(pe: &Pe) {
    let mine = pe.tensor();
    let mut sum = pe.load(&mine);
    pe.send(Dir::E, &mine);
    for round in 1..pe.ranks() {
        let tile = pe.recv(Dir::W, mine.shape(), mine.dtype());
        sum += &tile;
        if round + 1 < pe.ranks() {
            pe.send(Dir::E, &tile);
        }
    }
    pe.store(&mine, &sum);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let program = Kernel::new("ring", 64, &[32], DType::F16).record(ring)?;
    let (topology, settings) = (Topology::default(), program.settings(&Settings::default()));
    let proof = program.prove(&settings)?;
    println!("proved: {} ranks, {} messages, {}", proof.ranks, proof.messages, proof.method);

    // Small enough that every sum is exact in 16 bits, in whatever order a rank adds.
    let start: Vec<Vec<f32>> = (0..64_u8).map(|rank| vec![f32::from(rank % 8); 32]).collect();
    let run = program.run(&topology, &settings, Engine::Auto, &start)?;
    assert!((0..64).all(|rank| run.values(rank) == [224.0; 32]));
    println!("right on every rank after {}", duration(run.outcome.report.time_ps));

    if let Some(file) = std::env::args().nth(1) {
        let simulation = Simulation::new(&program, &topology, &settings)?;
        let outcome = simulation.time(Engine::Auto, &mut NoProbe)?;
        std::fs::write(&file, heat_svg(&simulation.plan, &outcome))?;
        println!("{file} shows how busy every link was");
    }
    Ok(())
}
