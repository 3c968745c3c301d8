//! What one chip has when it is up, checked before anything is created.

use crate::host::HostSpan;
use comm_context::abi::DType;
use comm_context::comm::Membership;
use shared_memory::PAGE;

/// Every buffer and region of a window starts at a multiple of this: a cache line, and enough for vector
/// loads.
pub const BUFFER_ALIGN: usize = 64;
/// The most buffers and regions of a chip: as many as the bootstrap mailbox has room for.
pub const MAX_PARTS: usize = 376;

/// One chip: its device, its place in the group, and its window with named buffers in it.
#[derive(Clone, Debug)]
pub struct ChipConfig {
    device: i32,
    member: Option<Membership>,
    window_size: usize,
    guarded: bool,
    parts: Vec<Part>,
    /// A call that needs a part and came before the first.
    misplaced: Option<&'static str>,
}

/// A named part of the window.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) kind: PartKind,
    pub(crate) load: Option<HostSpan>,
    pub(crate) store: Option<HostSpan>,
}

/// What a part holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// Elements of one type.
    Buffer {
        /// The type.
        dtype: DType,
        /// The number of elements.
        count: usize,
    },
    /// Plain bytes, such as signals.
    Region {
        /// The number of bytes.
        bytes: usize,
    },
}

impl PartKind {
    /// The size in bytes; `None` on overflow.
    pub fn bytes(self) -> Option<usize> {
        match self {
            Self::Buffer { dtype, count } => (dtype.size() as usize).checked_mul(count),
            Self::Region { bytes } => Some(bytes),
        }
    }
}

/// What is wrong with a chip's configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Buffers live in the window, and there is none without a communicator.
    #[error(
        "`{name}` needs a window, and the chip on device {device} has no communicator; call \
         `.communicator(Membership::new(rank, nranks)?)` and `.window(bytes)`"
    )]
    NoCommunicator {
        /// The first buffer.
        name: String,
        /// The chip's device.
        device: i32,
    },
    /// A communicator without a window size, but with buffers.
    #[error("`{name}` needs a window; give its size with `.window(bytes)`, at least {need}")]
    NoWindow {
        /// The first buffer.
        name: String,
        /// What all buffers take.
        need: usize,
    },
    /// Two parts have one name.
    #[error("`{name}` is declared twice; give every buffer and region of a chip its own name")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A part without a name.
    #[error("part {index} has no name; give it one, by which tasks find it")]
    EmptyName {
        /// Which part, from 0.
        index: usize,
    },
    /// A part that is empty or larger than an address space.
    #[error("`{name}` is empty or larger than the address space; give it a count that fits the window")]
    BadSize {
        /// The part.
        name: String,
    },
    /// The parts do not fit.
    #[error(
        "the buffers need {need} bytes, the window has {window}, and `{name}` is the first that does not fit; give \
         `.window(bytes)` more"
    )]
    Overflow {
        /// The part.
        name: String,
        /// What all of them take, each rounded up to 64 bytes.
        need: usize,
        /// What there is.
        window: usize,
    },
    /// A host buffer has another size than the part that it is staged into or stored from.
    #[error("`{name}` has {bytes} bytes, its host buffer has {host}; they must be equal")]
    HostSize {
        /// The part.
        name: String,
        /// Its bytes.
        bytes: usize,
        /// The host's.
        host: usize,
    },
    /// More parts than the bootstrap mailbox has room for.
    #[error("{count} buffers and regions are declared; a chip has at most {MAX_PARTS}: join some")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// A host buffer is attached to no part.
    #[error("`.{call}(…)` comes before the first buffer or region; call it after the part that it fills")]
    NoPart {
        /// The call.
        call: &'static str,
    },
}

impl ChipConfig {
    /// A chip on `device`, with no communicator and no window yet.
    pub fn new(device: i32) -> Self {
        Self { device, member: None, window_size: 0, guarded: false, parts: Vec::new(), misplaced: None }
    }

    /// Makes it a rank of a group.
    pub fn communicator(mut self, member: Membership) -> Self {
        self.member = Some(member);
        self
    }

    /// Gives it a window of at least `bytes`.
    pub fn window(mut self, bytes: usize) -> Self {
        self.window_size = bytes;
        self
    }

    /// The next buffer in the window.
    pub fn buffer(self, name: &str, dtype: DType, count: usize) -> Self {
        self.part(name, PartKind::Buffer { dtype, count })
    }

    /// The next region in the window: bytes beside the data, such as signals.
    pub fn region(self, name: &str, bytes: usize) -> Self {
        self.part(name, PartKind::Region { bytes })
    }

    fn part(mut self, name: &str, kind: PartKind) -> Self {
        self.parts.push(Part { name: name.to_owned(), kind, load: None, store: None });
        self
    }

    /// Fills the part declared last from `host` at bring-up. Before the first part it is refused by
    /// [`layout`](Self::layout).
    pub fn load_from(mut self, host: &HostSpan) -> Self {
        match self.parts.last_mut() {
            Some(part) => part.load = Some(host.clone()),
            None => self.misplaced = Some("load_from"),
        }
        self
    }

    /// Copies the part declared last to `host` after every task, before the task counts as done. Before the
    /// first part it is refused by [`layout`](Self::layout).
    pub fn store_to(mut self, host: &HostSpan) -> Self {
        match self.parts.last_mut() {
            Some(part) => part.store = Some(host.clone()),
            None => self.misplaced = Some("store_to"),
        }
        self
    }

    /// The device.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// The rank, if it has a communicator.
    pub fn member(&self) -> Option<Membership> {
        self.member
    }

    /// Lays the parts out for checks of the memory that kernels touch: behind the window as it was asked for, each part on pages of its own, at
    /// their end, with a page that is nobody's on each side.
    pub fn guarded(mut self) -> Self {
        self.guarded = true;
        self
    }

    /// Whether it is [`guarded`](Self::guarded).
    pub fn is_guarded(&self) -> bool {
        self.guarded
    }

    /// The size of the window in bytes: as requested, and when it is [`guarded`](Self::guarded) with the pages of its parts.
    pub fn window_size(&self) -> usize {
        if self.guarded && self.window_size > 0 { self.guarded_layout().1 } else { self.window_size }
    }

    /// The size of the window as it was requested.
    pub fn plain_window_size(&self) -> usize {
        self.window_size
    }

    /// Where guarded parts start, and where the window ends. A window that is too large for an address space is refused when it is made.
    fn guarded_layout(&self) -> (Vec<usize>, usize) {
        let pages = |bytes: usize| bytes.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
        let mut at = pages(self.window_size).saturating_add(PAGE);
        let offsets = self.parts.iter().map(|part| {
            let bytes = part.kind.bytes().unwrap_or(0);
            let end = at.saturating_add(pages(bytes));
            at = end.saturating_add(PAGE);
            end - bytes.next_multiple_of(BUFFER_ALIGN)
        });
        (offsets.collect(), at)
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The buffers and regions, in order.
    pub fn parts_by_name(&self) -> impl Iterator<Item = (&str, PartKind)> {
        self.parts.iter().map(|part| (part.name.as_str(), part.kind))
    }

    /// What each part is loaded from and stored to, in the same order.
    pub fn hosts(&self) -> impl Iterator<Item = [Option<&HostSpan>; 2]> {
        self.parts.iter().map(|part| [part.load.as_ref(), part.store.as_ref()])
    }

    /// Checks everything and lays the window out: the offset at which each part starts, in order.
    pub fn layout(&self) -> Result<Vec<usize>, ConfigError> {
        if let Some(call) = self.misplaced {
            return Err(ConfigError::NoPart { call });
        }
        if self.parts.len() > MAX_PARTS {
            return Err(ConfigError::TooMany { count: self.parts.len() });
        }
        let mut offsets = Vec::with_capacity(self.parts.len());
        let mut end = 0_usize;
        let mut misfit = None;
        for (index, part) in self.parts.iter().enumerate() {
            let name = || part.name.clone();
            if part.name.is_empty() {
                return Err(ConfigError::EmptyName { index });
            }
            if self.parts[..index].iter().any(|earlier| earlier.name == part.name) {
                return Err(ConfigError::DuplicateName { name: name() });
            }
            let bytes =
                part.kind.bytes().filter(|bytes| *bytes > 0).ok_or(ConfigError::BadSize { name: name() })?;
            for host in [&part.load, &part.store].into_iter().flatten() {
                if host.len() != bytes {
                    return Err(ConfigError::HostSize { name: name(), bytes, host: host.len() });
                }
            }
            offsets.push(end);
            let next = bytes.checked_next_multiple_of(BUFFER_ALIGN).and_then(|bytes| end.checked_add(bytes));
            end = next.ok_or(ConfigError::BadSize { name: name() })?;
            if end > self.window_size {
                misfit.get_or_insert_with(name);
            }
        }
        match (self.parts.first(), self.member, misfit) {
            (Some(first), None, _) => {
                Err(ConfigError::NoCommunicator { name: first.name.clone(), device: self.device })
            }
            (Some(first), _, _) if self.window_size == 0 => {
                Err(ConfigError::NoWindow { name: first.name.clone(), need: end })
            }
            (_, _, Some(name)) => Err(ConfigError::Overflow { name, need: end, window: self.window_size }),
            _ if self.guarded => Ok(self.guarded_layout().0),
            _ => Ok(offsets),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_memory::Region;
    use std::sync::Arc;

    fn chip() -> ChipConfig {
        ChipConfig::new(3).communicator(Membership::new(0, 2).unwrap()).window(4096)
    }

    #[test]
    fn parts_are_laid_out_in_declaration_order_and_counts_are_elements() {
        // CB-1
        let config = chip().buffer("x", DType::Float32, 5).region("signals", 128).buffer("y", DType::Int8, 1);
        assert_eq!(config.layout().unwrap(), [0, 64, 192]);
        assert!(config.parts_by_name().map(|(name, _)| name).eq(["x", "signals", "y"]));
    }

    #[test]
    fn guarded_parts_end_at_pages_that_are_nobodys() {
        let config = chip().window(2 * PAGE).buffer("x", DType::Float32, 5).region("signals", PAGE).guarded();
        assert_eq!((config.plain_window_size(), config.window_size()), (2 * PAGE, 7 * PAGE));
        assert_eq!(config.layout().unwrap(), [4 * PAGE - 64, 5 * PAGE]);
        let bare = chip().guarded();
        assert_eq!((bare.window_size(), bare.layout()), (2 * PAGE, Ok(Vec::new())));
        // CB-2
        assert!(chip().region("s", 8192).guarded().layout().is_err());
    }

    #[test]
    fn every_mistake_is_named_before_anything_is_created() {
        // CB-2
        let host = HostSpan::new(Arc::new(Region::create("t", 4096).unwrap()), 0..12).unwrap();
        let x = |config: ChipConfig| config.buffer("x", DType::Float32, 4);
        let is = |config: ChipConfig, want: ConfigError, text: &str| {
            assert_eq!(config.layout().map_err(|error| error.to_string()), Err(text.to_owned()));
            assert_eq!(config.layout(), Err(want));
        };
        is(
            x(ChipConfig::new(3)),
            ConfigError::NoCommunicator { name: "x".into(), device: 3 },
            "`x` needs a window, and the chip on device 3 has no communicator; call \
             `.communicator(Membership::new(rank, nranks)?)` and `.window(bytes)`",
        );
        is(
            x(chip().window(0)),
            ConfigError::NoWindow { name: "x".into(), need: 64 },
            "`x` needs a window; give its size with `.window(bytes)`, at least 64",
        );
        is(
            x(x(chip())),
            ConfigError::DuplicateName { name: "x".into() },
            "`x` is declared twice; give every buffer and region of a chip its own name",
        );
        is(
            chip().region("", 4),
            ConfigError::EmptyName { index: 0 },
            "part 0 has no name; give it one, by which tasks find it",
        );
        let size = |name: &str| {
            format!(
                "`{name}` is empty or larger than the address space; give it a count that fits the window"
            )
        };
        is(chip().region("s", 0), ConfigError::BadSize { name: "s".into() }, &size("s"));
        let huge = chip().buffer("b", DType::Float32, usize::MAX);
        is(huge, ConfigError::BadSize { name: "b".into() }, &size("b"));
        let huge = x(chip()).region("s", usize::MAX - 70);
        is(huge, ConfigError::BadSize { name: "s".into() }, &size("s"));
        is(
            x(chip()).region("s", 4096),
            ConfigError::Overflow { name: "s".into(), need: 4160, window: 4096 },
            "the buffers need 4160 bytes, the window has 4096, and `s` is the first that does not fit; give `.window(bytes)` more",
        );
        for config in [x(chip()).load_from(&host), x(chip()).store_to(&host)] {
            is(
                config,
                ConfigError::HostSize { name: "x".into(), bytes: 16, host: 12 },
                "`x` has 16 bytes, its host buffer has 12; they must be equal",
            );
        }
        for (config, call) in
            [(x(chip().load_from(&host)), "load_from"), (chip().store_to(&host), "store_to")]
        {
            let text = format!(
                "`.{call}(…)` comes before the first buffer or region; call it after the part that it fills"
            );
            is(config, ConfigError::NoPart { call }, &text);
        }
        let many = (0..=MAX_PARTS).fold(chip(), |config, at| config.region(&at.to_string(), 1));
        let text = format!(
            "{} buffers and regions are declared; a chip has at most {MAX_PARTS}: join some",
            MAX_PARTS + 1
        );
        is(many, ConfigError::TooMany { count: MAX_PARTS + 1 }, &text);
    }
}
