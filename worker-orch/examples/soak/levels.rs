//! A Worker of Workers for one cycle.

use crate::cycle::{KillPlan, Phase, Soak, limit};
use crate::random::Random;
use crate::unit::{add, expect, spread};
use worker_orch::{Access, Args, Failure, Program, Start, Worker};

pub(crate) fn run(soak: &mut Soak, plan: &mut KillPlan, random: &mut Random) -> Result<(), Failure> {
    let workers = random.among(1, 2);
    let mut top = Worker::builder().level(4).init_within(limit()).run_within(limit()).build()?;
    let spread = top.register_orchestration("spread", spread);
    let mut add_below = Program::from_number(0);
    for _ in 0..workers {
        let devices: Vec<i32> = (0..random.among(1, 3) as i32).collect();
        let start = if random.chance(10) { Start::Exec } else { Start::Fork };
        let builder = Worker::builder().devices(&devices).start(start);
        let mut below = builder.init_within(limit()).run_within(limit()).build()?;
        add_below = below.register_function("add", add);
        top.add_worker(below)?;
    }
    let mut work = || {
        soak.step(Phase::Init, plan, || top.init())?;
        for phase in [Phase::Run, Phase::Control] {
            let times = random.among(1, 20);
            let x = top.host_buffer::<f32>(random.among(1, 2000))?;
            soak.step(phase, plan, || {
                let args = Args::new().tensor(&x.tensor(), Access::InOut);
                let args = args.scalar(add_below.number().into()).scalar(times as u64);
                top.run(|orch| {
                    (0..workers).try_for_each(|to| orch.submit_next_level(spread, &args, to).map(drop))
                })
            })?;
            expect(&x.to_vec(), times * workers)?;
        }
        Ok(())
    };
    let worked = work();
    let closed = soak.step(Phase::Close, plan, || top.close());
    worked.and(closed)
}
