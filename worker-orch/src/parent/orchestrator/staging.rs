//! What the buffers of a domain are filled from, and where they go.

use super::Orchestrator;
use super::domains::Domain;
use chip_bootstrap::{HostSpan, region_failure};
use comm_context::abi::{DType, DeviceAddr};
use fault_points::fault_point;
use worker_errors::Failure;

/// The most that is copied at once.
const STEP: usize = 16 << 20;

/// Host memory for the buffers of a domain, as [`ChipConfig`](crate::ChipConfig) has it for those of a chip's own window.
///
/// ```
/// use worker_orch::{Access, Args, DType, DomainStaging, Failure, Task, Worker};
///
/// fn double(task: &mut Task<'_>) -> Result<(), Failure> {
///     task.write(0, &task.read::<f32>(0)?.iter().map(|x| 2.0 * x).collect::<Vec<_>>())
/// }
///
/// let mut worker = Worker::builder().devices(&[0, 1]).build()?;
/// let double = worker.register_function("double", double);
/// let [x, y] = [worker.host_buffer::<f32>(4)?, worker.host_buffer(4)?];
/// x.write(&[1.0, 2.0, 3.0, 4.0])?;
/// worker.init()?;
/// // The buffer `data` of the domain's rank 1, there and back.
/// let staging = DomainStaging::new().load_from(1, "data", &x.span()).store_to(1, "data", &y.span());
/// worker.run(|orch| {
///     let data = [("data", DType::Float32, 4)];
///     let pair = orch.allocate_domain_staged("pair", &[0, 1], 4096, &data, &staging)?;
///     let member = &pair.contexts()[1];
///     let args = Args::new().tensor(&member.buffer("data")?.tensor()?, Access::InOut);
///     orch.submit_next_level(double, &args, member.chip)
/// })?;
/// assert_eq!(y.to_vec(), [2.0, 4.0, 6.0, 8.0]);
/// # Ok::<_, Failure>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DomainStaging {
    loads: Vec<Part>,
    stores: Vec<Part>,
}

/// A buffer of one member of the domain, and as much host memory.
#[derive(Clone, Debug)]
struct Part {
    rank: u32,
    buffer: String,
    host: HostSpan,
}

impl DomainStaging {
    /// Nothing is copied.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills `buffer` of the domain's rank `rank` from `host` when the domain is made.
    pub fn load_from(mut self, rank: u32, buffer: &str, host: &HostSpan) -> Self {
        self.loads.push(Part { rank, buffer: buffer.to_owned(), host: host.clone() });
        self
    }

    /// Copies `buffer` of the domain's rank `rank` to `host` when the domain is released.
    pub fn store_to(mut self, rank: u32, buffer: &str, host: &HostSpan) -> Self {
        self.stores.push(Part { rank, buffer: buffer.to_owned(), host: host.clone() });
        self
    }

    /// Says what does not fit a domain of so many ranks with these buffers.
    pub(super) fn check(&self, ranks: usize, buffers: &[(&str, DType, usize)]) -> Result<(), String> {
        for Part { rank, buffer, host } in self.loads.iter().chain(&self.stores) {
            if *rank as usize >= ranks {
                return Err(format!("there is no rank {rank} to stage `{buffer}` of; it has {ranks}"));
            }
            let Some((_, dtype, count)) = buffers.iter().find(|(name, ..)| name == buffer) else {
                let known: Vec<&str> = buffers.iter().map(|(name, ..)| *name).collect();
                return Err(format!("there is no buffer `{buffer}` to stage; it has {known:?}"));
            };
            let bytes = count.saturating_mul(dtype.size() as usize);
            if host.len() != bytes {
                let host = host.len();
                return Err(format!(
                    "`{buffer}` has {bytes} bytes, its host buffer has {host}; they must be equal"
                ));
            }
        }
        Ok(())
    }
}

/// Bytes of a chip, and where they go on the host.
#[derive(Debug)]
pub(super) struct Stored {
    chip: usize,
    from: DeviceAddr,
    to: HostSpan,
}

impl Orchestrator<'_> {
    /// Fills the buffers of a domain that was just made. The result is what its release copies to the host.
    pub(super) fn load(&mut self, domain: &Domain, staging: &DomainStaging) -> Result<Vec<Stored>, Failure> {
        fault_point!("worker.domain.load");
        for part in &staging.loads {
            let (chip, at) = place(domain, part)?;
            let mut bytes = vec![0; part.host.len().min(STEP)];
            for start in (0..part.host.len()).step_by(STEP) {
                let step = &mut bytes[..STEP.min(part.host.len() - start)];
                part.host.read(start, step).map_err(|error| region_failure(&error))?;
                let to = DeviceAddr(at.0 + start as u64);
                self.memories.copy_to(self.children, chip, to, step, self.command_of("load_from"))?;
            }
        }
        let stored = |part: &Part| {
            let (chip, from) = place(domain, part)?;
            Ok(Stored { chip, from, to: part.host.clone() })
        };
        staging.stores.iter().map(stored).collect()
    }

    /// Copies buffers of domains to the host.
    pub(super) fn store(&mut self, parts: &[Stored]) -> Result<(), Failure> {
        for Stored { chip, from, to } in parts {
            fault_point!("worker.domain.store");
            let mut bytes = vec![0; to.len().min(STEP)];
            for start in (0..to.len()).step_by(STEP) {
                let step = &mut bytes[..STEP.min(to.len() - start)];
                let from = DeviceAddr(from.0 + start as u64);
                self.memories.copy_from(self.children, *chip, from, step, self.command_of("store_to"))?;
                to.write(start, step).map_err(|error| region_failure(&error))?;
            }
        }
        Ok(())
    }
}

/// The chip and the address of a buffer.
fn place(domain: &Domain, part: &Part) -> Result<(usize, DeviceAddr), Failure> {
    // It was checked that there is such a rank.
    let member = &domain.contexts()[part.rank as usize];
    Ok((member.chip, member.buffer(&part.buffer)?.addr))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_memory::Region;
    use std::sync::Arc;

    #[test]
    fn staging_that_does_not_fit_its_domain_is_refused() {
        let region = Arc::new(Region::create("t", 4096).unwrap());
        let span = |bytes| HostSpan::new(region.clone(), 0..bytes).unwrap();
        let buffers = [("x", DType::Float32, 4)];
        let check = |staging: DomainStaging| staging.check(2, &buffers).unwrap_err();
        assert!(DomainStaging::new().load_from(1, "x", &span(16)).check(2, &buffers).is_ok());
        let nobody = check(DomainStaging::new().store_to(2, "x", &span(16)));
        assert_eq!(nobody, "there is no rank 2 to stage `x` of; it has 2");
        let missing = check(DomainStaging::new().load_from(0, "y", &span(16)));
        assert_eq!(missing, "there is no buffer `y` to stage; it has [\"x\"]");
        let short = check(DomainStaging::new().store_to(0, "x", &span(15)));
        assert_eq!(short, "`x` has 16 bytes, its host buffer has 15; they must be equal");
    }
}
