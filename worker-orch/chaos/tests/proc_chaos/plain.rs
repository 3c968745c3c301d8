//! The scenario of a Worker without configurations: its chips have memory of their own, and become a group
//! when the first domain needs one.

use crate::chips::{add, expect, failure};
use crate::log::CallLog;
use crate::rounds::{Limits, WorkerScenario};
use comm_context::abi::DType;
use comm_context::comm::Timeout;
use worker_orch::{Access, Args, DomainStaging, Failure, Platform, Program, Worker};

const COUNT: usize = 16;

/// A Worker of two chips.
pub(crate) struct Plain {
    worker: Worker,
    add: Program,
}

impl Plain {
    pub(crate) fn build(
        platform: Platform,
        limits: Limits,
        log: &CallLog,
    ) -> Result<Box<dyn WorkerScenario>, Failure> {
        log.call("build", None, || {
            let within = |limit| Timeout::new(limit).map_err(failure);
            let builder = Worker::builder();
            // Where they can be, its tasks are checked.
            let builder = if platform == Platform::Sim { builder.checked() } else { builder };
            let mut worker = builder
                .platform(platform)
                .devices(&[0, 1])
                .init_within(within(limits.call)?)
                .run_within(within(limits.call)?)
                .close_within(within(limits.close)?)
                .build()?;
            let add = worker.register_function("add", add);
            Ok(Box::new(Self { worker, add }) as Box<dyn WorkerScenario>)
        })
    }

    fn run(&mut self) -> Result<(), Failure> {
        let Self { worker, add } = self;
        let (there, back) = (worker.host_buffer::<f32>(COUNT)?, worker.host_buffer::<f32>(COUNT)?);
        there.write(&[2.0; COUNT])?;
        let staging = DomainStaging::new().load_from(0, "x", &there.span()).store_to(0, "x", &back.span());
        worker.run(|orch| {
            orch.scope(|orch| {
                let x = [("x", DType::Float32, COUNT)];
                let staged = orch.allocate_domain_staged("staged", &[1, 0], 4096, &x, &staging)?;
                let member = &staged.contexts()[0];
                let args = Args::new().tensor(&member.buffer("x")?.tensor()?, Access::InOut).scalar(1);
                orch.submit_next_level(*add, &args, member.chip)?;
                let memory = orch.chip_alloc(1, 64)?;
                orch.copy_to(1, memory.addr(), &[7; 64])
            })?;
            expect("what was staged back", &back.to_vec(), &[3.0; COUNT])?;
            let domain = orch.allocate_domain("both", &[0, 1], 4096, &[("x", DType::Float32, COUNT)])?;
            for member in domain.contexts() {
                let x = member.buffer("x")?.tensor()?;
                let args = Args::new().tensor(&x, Access::InOut).scalar(1);
                orch.submit_next_level(*add, &args, member.chip)?;
            }
            orch.settle_chips(&[0, 1])?;
            let mut back = [0; 4];
            orch.copy_from(1, domain.contexts()[1].buffer("x")?.addr, &mut back)?;
            expect("what a task wrote", &back, &1.0_f32.to_le_bytes())?;
            let memory = orch.chip_alloc(0, 64)?;
            orch.copy_to(0, memory.addr(), &[7; 64])?;
            orch.release_domain(&domain)
        })
    }
}

impl WorkerScenario for Plain {
    fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    fn run_all(&mut self, log: &CallLog, limits: Limits) -> Result<(), Failure> {
        let (worker, limit) = (&mut self.worker, Some(limits.call));
        log.call("init", limit, || worker.init())?;
        let memory = log.call("chip_alloc", limit, || worker.chip_alloc(1, 256))?;
        log.call("copy_to", limit, || worker.copy_to(1, memory.addr(), &[7; 256]))?;
        let mut back = [0; 256];
        log.call("copy_from", limit, || {
            worker.copy_from(1, memory.addr(), &mut back)?;
            expect("what was copied to chip 1 and back", &back, &[7; 256])
        })?;
        // On a device it is freed with the next run.
        drop(memory);
        log.call("run 1", limit, || self.run())?;
        log.call("run 2", limit, || self.run())
    }
}
