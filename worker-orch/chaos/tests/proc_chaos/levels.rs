//! The scenario of a Worker of Workers.

use crate::chips::{add, expect, failure};
use crate::log::CallLog;
use crate::rounds::{Limits, WorkerScenario};
use comm_context::comm::{Membership, Timeout};
use worker_orch::{
    Access, Args, ChipConfig, Failure, HostBuffer, Orchestrator, Program, Task, Worker, WorkerBuilder,
};

const WORKERS: usize = 2;
const CHIPS: usize = 2;
const COUNT: usize = 8;

/// A Worker over two Workers with two chips each.
pub(crate) struct Levels {
    worker: Worker,
    spread: Program,
    add: Program,
    data: Vec<HostBuffer<f32>>,
}

/// Has every chip add one to the tensor.
fn spread(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    let add = Program::from_number(task.scalar(0)? as u32);
    let args = Args::new().tensor(&task.tensors()[0], Access::InOut).scalar(1);
    (0..orch.chips()).try_for_each(|chip| orch.submit_next_level(add, &args, chip).map(drop))
}

impl Levels {
    pub(crate) fn build(limits: Limits, log: &CallLog) -> Result<Box<dyn WorkerScenario>, Failure> {
        log.call("build", None, || {
            let mut worker = timed(Worker::builder().level(4), limits)?.build()?;
            let spread = worker.register_orchestration("spread", spread);
            let mut last = None;
            for _ in 0..WORKERS {
                let devices: Vec<i32> = (0..CHIPS as i32).collect();
                let mut below = timed(Worker::builder().devices(&devices), limits.below())?.build()?;
                let config = |rank: usize| {
                    let member = Membership::new(rank as u32, CHIPS as u32).map_err(failure)?;
                    Ok::<_, Failure>(ChipConfig::new(rank as i32).communicator(member).window(4096))
                };
                below.configure_chips((0..CHIPS).map(config).collect::<Result<_, _>>()?)?;
                last = Some(below.register_function("add", add));
                worker.add_worker(below)?;
            }
            let add = last.ok_or_else(|| crate::chips::wrong("there is no Worker below"))?;
            let data = (0..WORKERS).map(|_| worker.host_buffer(COUNT)).collect::<Result<_, _>>()?;
            Ok(Box::new(Self { worker, spread, add, data }) as Box<dyn WorkerScenario>)
        })
    }

    fn run(&mut self) -> Result<(), Failure> {
        let Self { worker, spread, add, data } = self;
        worker.run(|orch| {
            data.iter().enumerate().try_for_each(|(to, data)| {
                let args = Args::new().tensor(&data.tensor(), Access::InOut).scalar(add.number().into());
                orch.submit_next_level(*spread, &args, to).map(drop)
            })
        })?;
        data.iter().try_for_each(|data| expect("what a Worker made", &data.to_vec(), &[CHIPS as f32; COUNT]))
    }
}

impl Limits {
    /// Those below have less time, so that they report their failure before the one above gives up.
    fn below(self) -> Self {
        Self { call: self.call / 2, close: self.close / 2 }
    }
}

fn timed(builder: WorkerBuilder, limits: Limits) -> Result<WorkerBuilder, Failure> {
    let call = Timeout::new(limits.call).map_err(failure)?;
    Ok(builder.init_within(call).run_within(call).close_within(Timeout::new(limits.close).map_err(failure)?))
}

impl WorkerScenario for Levels {
    fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    fn once_more(&mut self) -> Result<(), Failure> {
        self.worker.run(|_| Ok(()))
    }

    fn run_all(&mut self, log: &CallLog, limits: Limits) -> Result<(), Failure> {
        self.data.iter().try_for_each(|data| data.write(&[0.0; COUNT]))?;
        log.call("init", Some(limits.call), || self.worker.init())?;
        log.call("run 1", Some(limits.call), || self.run())
    }
}
