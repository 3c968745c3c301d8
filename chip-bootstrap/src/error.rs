//! What can go wrong with a chip, typed up to the process border. An error becomes a [`Failure`] where it
//! crosses that border, with its sources as causes.

use crate::bring_up::BringUpPhase;
use crate::config::ConfigError;
use crate::device::MAX_BLOCKS;
use crate::platform::PlatformNotBuilt;
use bootstrap_channel::PublishError;
use comm_context::abi::{AbiError, KERNEL_LOCAL_CONTEXT_ARG};
use comm_context::comm::CommError;
use deadline::DeadlineError;
use shared_memory::RegionError;
use std::io;
use std::path::PathBuf;
use worker_errors::{ErrorCode, Failure};

/// Why a call on a chip or on its group failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChipError {
    /// The platform is not part of this build.
    #[error(transparent)]
    Platform(#[from] PlatformNotBuilt),
    /// A device number that cannot exist.
    #[error("there is no device {device}; devices count from 0")]
    NoSuchDevice {
        /// The number.
        device: i32,
    },
    /// The call needs a communicator.
    #[error("this chip has no communicator; give it one in its ChipConfig")]
    NoCommunicator,
    /// The memory belongs to something else, and this chip has no window that it could be in.
    #[error(
        "{len} bytes at {addr:#x} are not memory of device {device}, which has no window; pass a host buffer of the same \
         Worker, or memory that was allocated on this chip"
    )]
    ForeignMemory {
        /// The device.
        device: i32,
        /// Where the memory starts.
        addr: u64,
        /// How many bytes.
        len: usize,
    },
    /// Something made over the communicator is still there.
    #[error(
        "a group made over this chip's communicator is still in use; drop it before the chip is torn down"
    )]
    CommunicatorInUse,
    /// The communicator failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Host memory could not be read or written.
    #[error("host memory failed {during}")]
    Host {
        /// What the chip was doing: "while inputs were staged".
        during: &'static str,
        /// Why.
        source: RegionError,
    },
    /// A tensor of a launch does not fit its buffer.
    #[error("tensor {tensor} of the launch is wrong")]
    Tensor {
        /// Its position in the argument list.
        tensor: usize,
        /// Why.
        source: AbiError,
    },
    /// A launch with more arguments than a kernel takes.
    #[error(
        "a kernel takes at most {KERNEL_LOCAL_CONTEXT_ARG} arguments, tensors and scalars together; this task has \
         {tensors} tensors and {scalars} scalars; pass fewer"
    )]
    TooManyArguments {
        /// How many tensors.
        tensors: usize,
        /// How many scalars.
        scalars: usize,
    },
    /// No blocks, or too many.
    #[error("a kernel runs with 1 to {MAX_BLOCKS} blocks, not {blocks}; give each block more of the work")]
    Blocks {
        /// How many.
        blocks: u32,
    },
    /// A kernel asked for deferred completion.
    #[error(
        "the kernel asks for its task to complete later, when {words} words have reached their values; deferred \
         completion is not supported yet: have the kernel wait for them before it returns"
    )]
    DeferredCompletion {
        /// How many words it wants to wait for.
        words: u32,
    },
    /// A kernel left an error in its completion slab.
    #[error("the kernel reports error {error} in its completion slab{}", said(text))]
    CompletionError {
        /// The kernel's number.
        error: i32,
        /// What it says about it, if anything.
        text: Option<String>,
    },
    /// An exception left a kernel.
    #[cfg(feature = "sim")]
    #[error("kernel {} threw {what}", path.display())]
    Threw {
        /// The kernel's file.
        path: PathBuf,
        /// The exception: `std::runtime_error: text`.
        what: String,
    },
    /// A kernel could not be loaded or found.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A time limit that cannot be kept.
    #[error(transparent)]
    TimeLimit(#[from] DeadlineError),
    /// The vendor's libraries could not be loaded.
    #[cfg(feature = "ascend")]
    #[error(transparent)]
    Libraries(#[from] comm_hccl::LoadError),
    /// The device failed.
    #[cfg(feature = "ascend")]
    #[error(transparent)]
    Device(#[from] comm_hccl::DeviceError),
    /// A vendor call did not return in time.
    #[cfg(feature = "ascend")]
    #[error("{0}; end this process, and see `npu-smi info` for the state of the device")]
    Stuck(comm_hccl::Overrun),
    /// The thread that makes vendor calls could not be started.
    #[cfg(feature = "ascend")]
    #[error(
        "the thread for vendor calls could not be started; see `ulimit -u` and pids.max of the container"
    )]
    Thread(#[source] io::Error),
}

/// What a kernel says beside its code, behind it.
fn said(text: &Option<String>) -> String {
    text.as_ref().map_or(String::new(), |text| format!(": {text}"))
}

/// What to do about an object that the system's loader refuses.
#[cfg(feature = "sim")]
fn loader_hint(loader: &str) -> &'static str {
    if loader.contains("undefined symbol") {
        "define the symbol in the kernel, or link the library that does"
    } else if loader.contains("cannot open shared object file") {
        "a library that the kernel needs is missing: see ldd, and set its rpath"
    } else {
        "build it as a shared object for this machine, with -shared -fPIC"
    }
}

/// The loader's own words, without the name of the call.
#[cfg(feature = "sim")]
pub(crate) fn loader_words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Why a kernel could not be loaded or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The file cannot be opened.
    #[error("kernel {} cannot be opened; check the path", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not a shared object, or one of its libraries is missing.
    #[cfg(feature = "sim")]
    #[error("kernel {} cannot be loaded: {loader}; {}", path.display(), loader_hint(loader))]
    Library {
        /// The file.
        path: PathBuf,
        /// Why, in the words of the system's loader.
        loader: String,
    },
    /// The shared object does not export the function.
    #[cfg(feature = "sim")]
    #[error(
        "kernel {} has no `{symbol}`; export it as extern \"C\" void (int64_t *); the loader says: {loader}",
        path.display()
    )]
    Symbol {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: String,
        /// Why, in the words of the system's loader.
        loader: String,
    },
    /// The device refused the kernel.
    #[cfg(feature = "ascend")]
    #[error("kernel {} `{symbol}` cannot be loaded", path.display())]
    Device {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: String,
        /// Why.
        source: Box<ChipError>,
    },
    /// A kernel of another chip.
    #[error("kernel {number} was never loaded on this chip; load it first")]
    NotLoaded {
        /// Its number.
        number: usize,
    },
}

/// Why a chip did not come up: what failed, and where.
#[derive(Debug, thiserror::Error)]
#[error("device {device} did not come up: it failed in phase {phase}")]
pub struct BringUpError {
    /// The step that failed.
    pub phase: BringUpPhase,
    /// The device.
    pub device: i32,
    /// The rank, where the chip has a communicator.
    pub rank: Option<u32>,
    /// What failed.
    #[source]
    pub cause: Box<BringUpCause>,
}

/// What failed in a bring-up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BringUpCause {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration has a communicator, and no entry was passed.
    #[error("the configuration has a communicator, but nothing says where its group is; pass an Entry")]
    NoEntry,
    /// The device, the communicator or the window failed.
    #[error(transparent)]
    Chip(#[from] ChipError),
    /// The chip is up, but its mailbox takes no reply.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

impl From<CommError> for BringUpCause {
    fn from(error: CommError) -> Self {
        Self::Chip(error.into())
    }
}

/// The code for a failure of shared host memory.
fn region_code(error: &RegionError) -> ErrorCode {
    match error {
        RegionError::OutOfMemory { .. } => ErrorCode::OutOfMemory,
        RegionError::System { .. } => ErrorCode::System,
        _ => ErrorCode::Invalid,
    }
}

/// A failure of shared host memory as the carrier that crosses processes.
pub fn region_failure(error: &RegionError) -> Failure {
    Failure::from_error(region_code(error), error)
}

impl ChipError {
    /// The code of the error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Platform(_)
            | Self::NoSuchDevice { .. }
            | Self::NoCommunicator
            | Self::ForeignMemory { .. }
            | Self::CommunicatorInUse
            | Self::Tensor { .. }
            | Self::TooManyArguments { .. }
            | Self::Blocks { .. }
            | Self::TimeLimit(_) => ErrorCode::Invalid,
            Self::DeferredCompletion { .. } | Self::CompletionError { .. } => ErrorCode::Task,
            #[cfg(feature = "sim")]
            Self::Threw { .. } => ErrorCode::Task,
            Self::Comm(error) => error.code(),
            Self::Host { source, .. } => region_code(source),
            Self::Kernel(_) => ErrorCode::Load,
            #[cfg(feature = "ascend")]
            Self::Libraries(_) => ErrorCode::Load,
            #[cfg(feature = "ascend")]
            Self::Device(error) => device_code(error),
            #[cfg(feature = "ascend")]
            Self::Stuck(_) => ErrorCode::TimedOut,
            #[cfg(feature = "ascend")]
            Self::Thread(_) => ErrorCode::System,
        }
    }
}

#[cfg(feature = "ascend")]
fn device_code(error: &comm_hccl::DeviceError) -> ErrorCode {
    use comm_hccl::DeviceError;
    match error {
        DeviceError::Vendor(_) => ErrorCode::Vendor,
        DeviceError::NotAllocated { .. } | DeviceError::BadSize { .. } | DeviceError::NoSuchDevice { .. } => {
            ErrorCode::Invalid
        }
        _ => ErrorCode::Internal,
    }
}

impl From<&ChipError> for Failure {
    fn from(error: &ChipError) -> Self {
        match error {
            ChipError::Comm(error) => error.into(),
            ChipError::Kernel(_) => Self::from_error(error.code(), error).in_phase("load_kernel"),
            _ => Self::from_error(error.code(), error),
        }
    }
}

impl From<ChipError> for Failure {
    fn from(error: ChipError) -> Self {
        Self::from(&error)
    }
}

/// The cause, placed: phase, device, process, and the rank. A peer that is to blame stays named; otherwise it
/// is this rank.
impl From<&BringUpError> for Failure {
    fn from(error: &BringUpError) -> Self {
        let failure = match &*error.cause {
            BringUpCause::Chip(cause) => cause.into(),
            cause @ (BringUpCause::Config(_) | BringUpCause::NoEntry) => {
                Self::from_error(ErrorCode::Invalid, cause)
            }
            cause @ BringUpCause::Publish(_) => Self::from_error(ErrorCode::Protocol, cause),
        };
        let failure =
            failure.in_phase(error.phase.name()).on_device(error.device).in_process(std::process::id());
        match (failure.rank, error.rank) {
            (None, Some(rank)) => failure.on_rank(rank),
            _ => failure,
        }
    }
}

impl From<BringUpError> for Failure {
    fn from(error: BringUpError) -> Self {
        Self::from(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_context::comm::{Death, Phase};

    fn bring_up(cause: impl Into<BringUpCause>) -> Failure {
        let cause = Box::new(cause.into());
        BringUpError { phase: BringUpPhase::Window, device: 7, rank: Some(2), cause }.into()
    }

    // CB-3
    #[test]
    fn a_bring_up_names_its_place_and_a_peer_that_is_to_blame() {
        let own = bring_up(ChipError::NoCommunicator);
        assert_eq!(own.root_cause().message, "this chip has no communicator; give it one in its ChipConfig");
        let cause = Box::new(ChipError::NoCommunicator.into());
        let error = BringUpError { phase: BringUpPhase::Window, device: 7, rank: None, cause };
        assert_eq!(error.to_string(), "device 7 did not come up: it failed in phase window");
        assert_eq!((own.code, own.rank, own.device), (ErrorCode::Invalid, Some(2), Some(7)));
        assert_eq!((own.pid, &*own.phase), (Some(std::process::id()), "window"));
        let how = Death::Signalled { signal: 9 };
        let died = CommError::PeerDied { rank: 1, pid: None, how, phase: Phase::AllocWindows };
        let peer = bring_up(died);
        assert_eq!((peer.code, peer.rank, &*peer.phase), (ErrorCode::Killed, Some(1), "window"));
    }

    // CB-3
    #[test]
    fn sources_become_causes_with_one_code() {
        let source = RegionError::OutOfBounds { start: 4, end: 9, len: 8 };
        let text = source.to_string();
        let failure = Failure::from(ChipError::Host { during: "while inputs were staged", source });
        assert_eq!((failure.code, failure.root_cause().code), (ErrorCode::Invalid, ErrorCode::Invalid));
        assert_eq!(failure.message, "host memory failed while inputs were staged");
        assert_eq!(failure.root_cause().message, text);
        let source = io::Error::from(io::ErrorKind::NotFound);
        let failure = Failure::from(ChipError::from(KernelError::File { path: "/k.so".into(), source }));
        assert_eq!((failure.code, &*failure.phase), (ErrorCode::Load, "load_kernel"));
        assert_eq!(failure.message, "kernel /k.so cannot be opened; check the path");
        assert_eq!(failure.chain().count(), 2);
    }
}
