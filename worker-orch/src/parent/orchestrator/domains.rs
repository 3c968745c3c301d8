//! Domains inside a run: some of the chips, with a window of their own.

use super::Orchestrator;
use super::collectives::{Groups, RunEnd};
use super::staging::{DomainStaging, Stored};
use crate::chip_context::ChipBuffer;
use crate::log;
use crate::parent::children::NamedMemory;
use crate::parent::chips::window_fits;
use crate::shared::{Frame, Kind};
use chip_bootstrap::{BUFFER_ALIGN, ChipConfig, ChipGroup, PartKind};
use comm_context::abi::{DType, DeviceAddr};
use comm_context::comm::Membership;
use deadline::Deadline;
use fault_points::fault_point;
use std::ops::Range;
use std::time::Duration;
use worker_errors::{ErrorCode, Failure};

/// How long the release of domains may take after a run that used up its own time.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// The most of a domain's name that chips get.
const NAME_BYTES: usize = 64;

/// Why Workers do not form a group.
const OF_ONE_WORKER: &str = "these are Workers, and only chips of one Worker can form a group; give all devices of this host to one Worker \
                             of level 3, or form a group in each Worker, in its orchestration";

/// The group of all chips, which domains are made of.
#[derive(Debug)]
pub(in crate::parent) struct BaseGroup {
    /// Whether all chips have joined it.
    joined: bool,
    next_id: u64,
    /// How many times graphs were submitted.
    pub(super) sessions: u64,
    /// The collectives that chips have.
    pub(super) groups: Groups,
}

impl BaseGroup {
    pub(in crate::parent) fn new(joined: bool) -> Self {
        Self { joined, next_id: 0, sessions: 0, groups: Groups::default() }
    }
}

/// The domains of a run; they are released when it has drained.
#[derive(Debug, Default)]
pub(in crate::parent) struct Domains {
    live: Vec<Live>,
}

/// A domain that is not released.
#[derive(Debug)]
struct Live {
    id: u64,
    name: String,
    chips: Vec<usize>,
    /// The window of each chip, by the chip's number.
    windows: Vec<(usize, Range<u64>)>,
    /// What is copied to the host before its release.
    stores: Vec<Stored>,
}

impl Domains {
    pub(in crate::parent) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Whether the bytes are in a window that `chip` has of a domain.
    pub(super) fn hold(&self, chip: usize, bytes: &Range<u64>) -> bool {
        self.live
            .iter()
            .flat_map(|live| &live.windows)
            .any(|(of, window)| *of == chip && window.start <= bytes.start && bytes.end <= window.end)
    }
}

/// A domain as one of its members sees it.
#[derive(Clone, Debug)]
pub struct DomainContext {
    /// The chip.
    pub chip: usize,
    /// Its rank in the domain.
    pub rank: u32,
    /// How many members there are.
    pub nranks: u32,
    /// Its `CommContext`.
    pub device_ctx: DeviceAddr,
    /// Its window.
    pub window_base: DeviceAddr,
    /// The window's real size.
    pub window_size: usize,
    /// Its buffers, in the order of the call.
    pub buffers: Vec<ChipBuffer>,
}

impl DomainContext {
    /// The buffer called `name`.
    pub fn buffer(&self, name: &str) -> Result<&ChipBuffer, Failure> {
        self.buffers.iter().find(|buffer| buffer.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.buffers.iter().map(|buffer| buffer.name.as_str()).collect();
            let text = format!("this domain has no buffer `{name}`; it has {known:?}");
            Failure::new(ErrorCode::Invalid, text)
        })
    }
}

/// A domain: one context for each member. It lives until the run has drained, also when this is dropped
/// before, or until it is [released](Orchestrator::release_domain).
#[derive(Clone, Debug)]
pub struct Domain {
    id: u64,
    name: String,
    contexts: Vec<DomainContext>,
}

impl Domain {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The members' contexts, by their rank in the domain.
    pub fn contexts(&self) -> &[DomainContext] {
        &self.contexts
    }
}

impl Orchestrator<'_> {
    /// Makes a domain of `chips`, in this order, each with a window of `window_size` bytes that holds
    /// `buffers` (name, type, count) one after the other. Waits for the earlier tasks of these chips first.
    /// All bytes of the windows are zero before a task can reach them.
    ///
    /// ```
    /// use worker_orch::{Access, Args, DType, Failure, Task, Worker};
    ///
    /// fn one(task: &mut Task<'_>) -> Result<(), Failure> {
    ///     task.write(0, &[1.0_f32; 4])
    /// }
    /// fn copy(task: &mut Task<'_>) -> Result<(), Failure> {
    ///     task.write(1, &task.read::<f32>(0)?)
    /// }
    ///
    /// let mut worker = Worker::builder().devices(&[0, 1]).build()?;
    /// let (one, copy) = (worker.register_function("one", one), worker.register_function("copy", copy));
    /// let y = worker.host_buffer::<f32>(4)?;
    /// worker.init()?;
    /// worker.run(|orch| {
    ///     let pair = orch.allocate_domain("pair", &[0, 1], 4096, &[("data", DType::Float32, 4)])?;
    ///     let [first, second] = pair.contexts() else { unreachable!("a domain of two chips") };
    ///     let theirs = second.buffer("data")?.tensor()?;
    ///     orch.submit_next_level(one, &Args::new().tensor(&theirs, Access::Output), second.chip)?;
    ///     // Chip 0 reads the window of chip 1, after the task that fills it.
    ///     let args = Args::new().tensor(&theirs, Access::Input).tensor(&y.tensor(), Access::Output);
    ///     orch.submit_next_level(copy, &args, first.chip)
    /// })?;
    /// assert_eq!(y.to_vec(), [1.0; 4]);
    /// # Ok::<_, Failure>(())
    /// ```
    pub fn allocate_domain(
        &mut self,
        name: &str,
        chips: &[usize],
        window_size: usize,
        buffers: &[(&str, DType, usize)],
    ) -> Result<Domain, Failure> {
        self.allocate_domain_staged(name, chips, window_size, buffers, &DomainStaging::new())
    }

    /// [Makes a domain](Self::allocate_domain) whose buffers are filled from host memory before this returns, and copied to host memory when the
    /// domain is released, early or with its run. After a run that failed nothing is copied.
    pub fn allocate_domain_staged(
        &mut self,
        name: &str,
        chips: &[usize],
        window_size: usize,
        buffers: &[(&str, DType, usize)],
        staging: &DomainStaging,
    ) -> Result<Domain, Failure> {
        let span = log::span(|| tracing::debug_span!("allocate_domain", name, ?chips, window_size));
        let _entered = span.enter();
        let (offsets, window_size) = self.check_domain(name, chips, window_size, buffers)?;
        staging.check(chips.len(), buffers).map_err(|text| refused(name, &text))?;
        self.join_all()?;
        self.settle(chips)?;
        let domain =
            self.collectively(chips, |orch| orch.allocate(name, chips, window_size, buffers, &offsets))?;
        let stores = self.load(&domain, staging)?;
        if let Some(live) = self.domains.live.last_mut() {
            live.stores = stores;
        }
        Ok(domain)
    }

    /// Releases a domain before the run is over: waits for the earlier tasks of its chips, then frees its windows on all of them. A task
    /// that was submitted with it must not be submitted again. Its collectives are closed with it.
    pub fn release_domain(&mut self, domain: &Domain) -> Result<(), Failure> {
        let span = log::span(|| tracing::debug_span!("release_domain", name = domain.name()));
        let _entered = span.enter();
        let Some(at) = self.domains.live.iter().position(|live| live.id == domain.id) else {
            let text = format!(
                "domain `{}` is of another run, or was released before; it ends with its run",
                domain.name()
            );
            return Err(Failure::new(ErrorCode::Invalid, text).in_phase("release_domain"));
        };
        self.release_live(at)
    }

    fn release_live(&mut self, at: usize) -> Result<(), Failure> {
        let chips = self.domains.live[at].chips.clone();
        self.settle(&chips)?;
        let stores = std::mem::take(&mut self.domains.live[at].stores);
        self.store(&stores)?;
        let Live { id, name, .. } = self.domains.live.remove(at);
        fault_point!("worker.domain.early-release");
        self.collectively(&chips, |orch| {
            orch.close_collectives_of(&name)?;
            for chip in &chips {
                let frame = Frame { scalars: &[id], ..Frame::new(Kind::ReleaseDomain, orch.run) };
                orch.children.send(*chip, &frame, orch.deadline)?;
            }
            orch.settle(&chips)
        })
    }

    /// The number of the last domain that was made.
    pub(super) fn last_domain(&self) -> u64 {
        self.base.next_id
    }

    /// Releases this run's domains that were made after domain number `before`, the last first.
    pub(super) fn release_domains_after(&mut self, before: u64) -> Result<(), Failure> {
        while let Some(at) = self.domains.live.iter().rposition(|live| live.id > before) {
            self.release_live(at)?;
        }
        Ok(())
    }

    /// The names of this run's domains that are not released, in the order in which they were made.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.live.iter().map(|live| live.name.as_str())
    }

    /// A command that all of `chips` take part in. Nothing cancels it while it is under way; a run that was
    /// cancelled before gets none.
    pub(super) fn collectively<T>(
        &mut self,
        chips: &[usize],
        command: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.children.run_cancelled() {
            self.children.problems(self.run).into_result()?;
        }
        self.children.begin_command();
        let done = command(self);
        if done.is_err() {
            // The others get the failure from each other, and can go on together afterwards.
            let _ = chips.iter().try_for_each(|chip| self.children.await_all_of(*chip, self.deadline));
        }
        self.children.end_command();
        done
    }

    fn allocate(
        &mut self,
        name: &str,
        chips: &[usize],
        window_size: usize,
        buffers: &[(&str, DType, usize)],
        offsets: &[usize],
    ) -> Result<Domain, Failure> {
        self.base.next_id += 1;
        let id = self.base.next_id;
        // A chip's number fits a byte: there are at most 64 ranks.
        let ranks = chips.iter().map(|chip| self.children.ranks()[*chip] as u8);
        // With its number a name is that of one domain, also when a later run allocates another of the same name.
        let called = format!("{}#{id}", worker_errors::clip(name, NAME_BYTES));
        let blob: Vec<u8> = [chips.len() as u8].into_iter().chain(ranks).chain(called.bytes()).collect();
        let mut sent = Vec::with_capacity(chips.len());
        for (position, chip) in chips.iter().enumerate() {
            let mut scalars = vec![id, window_size as u64, position as u64];
            if self.checked.is_some() {
                let parts = buffers.iter().zip(offsets);
                let parts = parts.map(|((_, dtype, count), at)| [*at as u64, *count as u64 * dtype.size()]);
                scalars.extend(parts.flatten());
            }
            let frame = Frame { scalars: &scalars, blob: &blob, ..Frame::new(Kind::AllocDomain, self.run) };
            sent.push(self.children.send(*chip, &frame, self.deadline)?);
        }
        self.domains.live.push(Live {
            id,
            name: name.to_owned(),
            chips: chips.to_vec(),
            windows: Vec::new(),
            stores: Vec::new(),
        });
        let mut contexts = Vec::with_capacity(chips.len());
        for (position, (chip, seq)) in chips.iter().zip(sent).enumerate() {
            self.children.await_done(*chip, seq, self.deadline)?;
            self.check_child(*chip)?;
            let answer = self.children.block().read_answer(*chip);
            let number = |at: usize| {
                answer
                    .get(at * 8..at * 8 + 8)
                    .and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)))
            };
            let shared = self.children.group().and_then(ChipGroup::windows);
            let (context, base, size) = match (number(0), number(1), number(2)) {
                (Some(context), Some(base), Some(size)) if window_fits(base, size, window_size, shared) => {
                    (context, base, size)
                }
                _ => {
                    let text = format!(
                        "chip {chip} reported an impossible window for domain `{name}`; it runs another build, or \
                         something overwrote its memory"
                    );
                    return Err(Failure::new(ErrorCode::Protocol, text).in_phase("allocate_domain"));
                }
            };
            let named = buffers.iter().zip(offsets).map(|((buffer, dtype, count), at)| {
                let len = count.saturating_mul(dtype.size() as usize);
                NamedMemory::of_domain(name, buffer, DeviceAddr(base + *at as u64), len)
            });
            self.children.name_memory(named);
            if let Some(live) = self.domains.live.last_mut() {
                live.windows.push((*chip, base..base + size));
            }
            let parts = buffers.iter().zip(offsets);
            contexts.push(DomainContext {
                chip: *chip,
                rank: position as u32,
                nranks: chips.len() as u32,
                device_ctx: DeviceAddr(context),
                window_base: DeviceAddr(base),
                window_size: size as usize,
                buffers: parts
                    .map(|((name, dtype, count), at)| ChipBuffer {
                        name: (*name).to_owned(),
                        kind: PartKind::Buffer { dtype: *dtype, count: *count },
                        addr: DeviceAddr(base + *at as u64),
                    })
                    .collect(),
            });
        }
        Ok(Domain { id, name: name.to_owned(), contexts })
    }

    /// Everything that can be wrong is found before anything is made. The result is where the buffers lie, and how large the window is.
    fn check_domain(
        &self,
        name: &str,
        chips: &[usize],
        window_size: usize,
        buffers: &[(&str, DType, usize)],
    ) -> Result<(Vec<usize>, usize), Failure> {
        let bad = |text: String| refused(name, &text);
        if window_size == 0 {
            return Err(bad("ask for a window of at least one byte".to_owned()));
        }
        self.check_members(chips).map_err(bad)?;
        let member = Membership::new(0, 1).map_err(|error| bad(error.to_string()))?;
        let window =
            ChipConfig::new(0).communicator(member).window(window_size.next_multiple_of(BUFFER_ALIGN));
        let config =
            buffers.iter().fold(window, |config, (name, dtype, count)| config.buffer(name, *dtype, *count));
        let config = if self.checked.is_some() { config.guarded() } else { config };
        let offsets = config.layout().map_err(|error| bad(error.to_string()))?;
        let size = if config.is_guarded() { config.window_size() } else { window_size };
        Ok((offsets, size))
    }

    /// Whether these chips can form a domain or a group.
    pub(super) fn check_members(&self, chips: &[usize]) -> Result<(), String> {
        if chips.is_empty() {
            return Err("name at least one chip".to_owned());
        }
        if self.children.ranks().len() != self.chips() {
            return Err(OF_ONE_WORKER.to_owned());
        }
        for (index, chip) in chips.iter().enumerate() {
            if *chip >= self.chips() || chips[..index].contains(chip) {
                return Err(format!(
                    "chip {chip} does not exist or is named twice; there are {}",
                    self.chips()
                ));
            }
        }
        Ok(())
    }

    /// Waits for the chips' earlier tasks. One of them that failed would skip its part of a collective, and
    /// the others would wait for it.
    pub(super) fn settle(&mut self, chips: &[usize]) -> Result<(), Failure> {
        chips.iter().try_for_each(|chip| {
            self.children.await_all_of(*chip, self.deadline)?;
            self.check_child(*chip)
        })
    }

    /// Makes the base group, once, when the first domain needs it and no configuration made it before.
    pub(super) fn join_all(&mut self) -> Result<(), Failure> {
        if self.base.joined {
            return Ok(());
        }
        let all: Vec<usize> = (0..self.chips()).collect();
        self.settle(&all)?;
        self.collectively(&all, |orch| {
            for chip in 0..orch.chips() {
                orch.children.send(chip, &Frame::new(Kind::Join, orch.run), orch.deadline)?;
            }
            for chip in 0..orch.chips() {
                orch.children.await_all_of(chip, orch.deadline)?;
                orch.check_child(chip)?;
            }
            orch.base.joined = true;
            Ok(())
        })
    }

    /// Closes the collectives that end with this run and releases its domains, as commands of the run `clean_up`, which no failure of
    /// this one skips.
    pub(in crate::parent) fn release_domains(&mut self, clean_up: u64, end: RunEnd) -> Result<(), Failure> {
        if self.domains.live.is_empty() && !self.has_collectives_to_close(end) {
            return Ok(());
        }
        let span = log::span(|| tracing::trace_span!("release_domains", clean_up));
        let _entered = span.enter();
        let live = std::mem::take(&mut self.domains.live);
        if self.deadline.has_passed() {
            // The run took too long, and its chips have come back: its domains are released all the same.
            self.deadline = Deadline::after(CLEAN_UP).unwrap_or(self.deadline);
        }
        let stored = match end {
            RunEnd::Succeeded => live.iter().try_for_each(|live| self.store(&live.stores)),
            RunEnd::Failed => Ok(()),
        };
        self.children.begin_clean_up(clean_up);
        let mut drained = self.close_collectives(clean_up, end);
        for (id, chip) in live.iter().flat_map(|live| live.chips.iter().map(|chip| (live.id, chip))) {
            let frame = Frame { scalars: &[id], ..Frame::new(Kind::ReleaseDomain, clean_up) };
            drained = drained.and_then(|()| self.children.send(*chip, &frame, self.deadline).map(drop));
        }
        drained = drained.and_then(|()| self.children.drain(self.deadline));
        self.children.forget_domains();
        self.children.end_command();
        self.problems_after(clean_up, drained).into_result().and(stored)
    }
}

/// Why there is no such domain.
fn refused(name: &str, text: &str) -> Failure {
    Failure::new(ErrorCode::Invalid, format!("domain `{name}`: {text}")).in_phase("allocate_domain")
}
