//! The scenario of runs in flight, of what is cancelled, and of memory that ends inside a run.

use crate::chips::{expect, failure, wrong};
use crate::log::CallLog;
use crate::rounds::{Limits, WorkerScenario};
use comm_context::abi::DType;
use comm_context::comm::Timeout;
use std::time::{Duration, Instant};
use worker_orch::{
    Access, Args, DomainStaging, ErrorCode, Failure, HostBuffer, Program, Run, RunState, Task, Worker,
};

const COUNT: usize = 16;
/// A task that is held goes on after so long by itself, also when nobody lets it go on because of a fault.
const HELD: Duration = Duration::from_millis(300);

/// Returns when tensor 0 is not 0, or after a while.
fn hold(task: &mut Task<'_>) -> Result<(), Failure> {
    let end = Instant::now() + HELD;
    while task.read::<f32>(0)?[0] == 0.0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A Worker of two chips and two sub-workers.
pub(crate) struct Flight {
    worker: Worker,
    hold: Program,
    add: Program,
    gate: HostBuffer<f32>,
    data: Vec<HostBuffer<f32>>,
    limits: Limits,
}

impl Flight {
    pub(crate) fn build(limits: Limits, log: &CallLog) -> Result<Box<dyn WorkerScenario>, Failure> {
        log.call("build", None, || {
            let within = |limit| Timeout::new(limit).map_err(failure);
            let mut worker = Worker::builder()
                .devices(&[0, 1])
                .sub_workers(2)
                .init_within(within(limits.call)?)
                .run_within(within(limits.call)?)
                .close_within(within(limits.close)?)
                .build()?;
            let hold = worker.register_function("hold", hold);
            let more = 1.0;
            // The last tensor becomes the first plus one.
            let add_to = move |task: &mut Task<'_>| {
                let sum: Vec<f32> = task.read::<f32>(0)?.iter().map(|x| x + more).collect();
                task.write(task.tensors().len() - 1, &sum)
            };
            let add = worker.register_closure("add", add_to)?;
            let gate = worker.host_buffer(1)?;
            let data = (0..2).map(|_| worker.host_buffer(COUNT)).collect::<Result<_, _>>()?;
            Ok(Box::new(Self { worker, hold, add, gate, data, limits }) as Box<dyn WorkerScenario>)
        })
    }

    /// A run that holds `chip`, until the gate opens.
    fn held(&mut self, chip: usize) -> Result<Run, Failure> {
        self.gate.write(&[0.0])?;
        let args = Args::new().tensor(&self.gate.tensor(), Access::Input);
        let hold = self.hold;
        Ok(self.worker.submit_run(|orch| orch.submit_next_level(hold, &args, chip))?.1)
    }

    fn step(&self, number: usize) -> Args {
        Args::new().tensor(&self.data[number].tensor(), Access::InOut)
    }

    fn wait(&mut self, run: &Run) -> Result<(), Failure> {
        match run.wait(&mut self.worker, Timeout::new(self.limits.call).map_err(failure)?)? {
            RunState::Done => Ok(()),
            RunState::UnderWay => Err(wrong("a run is in flight beyond its deadline")),
        }
    }

    /// It may have been over when it was cancelled, on a machine that stalls.
    fn wait_cancelled(&mut self, run: &Run) -> Result<(), Failure> {
        match self.wait(run) {
            Err(failure) if failure.to_string().contains("cancelled by its caller") => Ok(()),
            other => other,
        }
    }

    fn in_flight(&mut self) -> Result<(), Failure> {
        let (add, steps) = (self.add, [self.step(0), self.step(1)]);
        let first = self.held(0)?;
        let (_, second) = self.worker.submit_run(|orch| {
            (0..2).try_for_each(|chip| orch.submit_next_level(add, &steps[chip], chip).map(drop))
        })?;
        let (_, third) = self.worker.submit_run(|orch| orch.submit_sub_group(add, &steps))?;
        self.gate.write(&[1.0])?;
        [&first, &second, &third].into_iter().try_for_each(|run| self.wait(run))?;
        self.data.iter().try_for_each(|data| expect("what two runs made", &data.to_vec(), &[2.0; COUNT]))
    }

    fn cancelled_run(&mut self) -> Result<(), Failure> {
        let (add, step) = (self.add, self.step(0));
        let first = self.held(0)?;
        let (_, second) = self.worker.submit_run(|orch| orch.submit_next_level(add, &step, 0))?;
        second.cancel(&mut self.worker)?;
        self.gate.write(&[1.0])?;
        self.wait(&first)?;
        self.wait_cancelled(&second)
    }

    fn cancelled_task(&mut self) -> Result<(), Failure> {
        let (add, step) = (self.add, self.step(1));
        let first = self.held(1)?;
        let (task, second) = self.worker.submit_run(|orch| {
            orch.submit_next_level(add, &step, 1)?;
            orch.submit_next_level(add, &step, 1)
        })?;
        self.worker.cancel_task(task)?;
        self.gate.write(&[1.0])?;
        self.wait(&first)?;
        self.wait_cancelled(&second)
    }

    /// Scopes with memory of all kinds, and a domain that is staged.
    fn scopes(&mut self) -> Result<(), Failure> {
        let (add, data) = (self.add, &self.data);
        data.iter().try_for_each(|data| data.write(&[0.0; COUNT]))?;
        let staging =
            DomainStaging::new().load_from(1, "x", &data[0].span()).store_to(1, "x", &data[1].span());
        self.worker.run(|orch| {
            for round in 0..2 {
                orch.scope(|orch| {
                    let between = orch.host_buffer::<f32>(COUNT)?.tensor();
                    let (first, second) = (data[0].tensor(), Access::Output);
                    let there = Args::new().tensor(&first, Access::Input).tensor(&between, second);
                    let back = Args::new().tensor(&between, Access::Input).tensor(&first, second);
                    orch.submit_next_level(add, &there, 0)?;
                    orch.submit_sub(add, &back)?;
                    let memory = orch.chip_alloc(1, 64)?;
                    orch.copy_to(1, memory.addr(), &[7; 64])?;
                    let mut bytes = [0; 64];
                    orch.copy_from(1, memory.addr(), &mut bytes)?;
                    expect("what was copied to chip 1 and back", &bytes, &[7; 64])
                })?;
                let x = [("x", DType::Float32, COUNT)];
                let pair = orch.allocate_domain_staged("pair", &[0, 1], 4096, &x, &staging)?;
                let args = Args::new().tensor(&pair.contexts()[1].buffer("x")?.tensor()?, Access::InOut);
                orch.submit_next_level(add, &args, 1)?;
                if round == 0 {
                    orch.release_domain(&pair)?;
                }
            }
            Ok(())
        })?;
        expect("what the scopes made", &data[0].to_vec(), &[4.0; COUNT])?;
        expect("what was staged back", &data[1].to_vec(), &[5.0; COUNT])
    }

    fn unregistered(&mut self, removed: Program) -> Result<(), Failure> {
        let (add, step) = (self.add, self.step(0));
        self.worker.unregister(removed)?;
        match self.worker.run(|orch| orch.submit_next_level(removed, &step, 0)) {
            Err(failure) if failure.code == ErrorCode::Invalid => {}
            Err(failure) => return Err(failure),
            Ok(_) => return Err(wrong("a program that was unregistered was submitted")),
        }
        self.worker.run(|orch| (0..2).try_for_each(|chip| orch.submit_next_level(add, &step, chip).map(drop)))
    }
}

impl WorkerScenario for Flight {
    fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    fn run_all(&mut self, log: &CallLog, limits: Limits) -> Result<(), Failure> {
        self.limits = limits;
        self.data.iter().try_for_each(|data| data.write(&[0.0; COUNT]))?;
        let removed = self.worker.register_closure("removed", |_| Ok(()))?;
        let limit = Some(limits.call);
        log.call("init", limit, || self.worker.init())?;
        log.call("runs in flight", limit, || self.in_flight())?;
        log.call("cancelled run", limit, || self.cancelled_run())?;
        log.call("cancelled task", limit, || self.cancelled_task())?;
        log.call("scopes", limit, || self.scopes())?;
        log.call("unregister", limit, || self.unregistered(removed))
    }
}
