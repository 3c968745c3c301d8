//! The kind of chip that a program runs on.

use std::fmt;
use std::str::FromStr;

/// A platform, as users name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Platform {
    /// The simulation: processes and shared memory. Also spelled `a2a3sim` and `a5sim`.
    #[default]
    Sim,
    /// Atlas A2 and A3.
    A2a3,
    /// Atlas A5.
    A5,
}

/// Where a chip's own memory lies: its windows, and what is allocated on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChipMemoryKind {
    /// In host memory that parent and chips share, at one address in all of them.
    Host = 0,
    /// On the device. The parent asks the chip to copy; two devices may use one address for different memory.
    Device = 1,
}

/// A platform that this build does not contain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "platform {platform} is not compiled in; enable the feature `{feature}` of worker-orch or chip-bootstrap"
)]
pub struct PlatformNotBuilt {
    /// The platform.
    pub platform: Platform,
    /// The feature that has it.
    pub feature: &'static str,
}

impl Platform {
    /// Where a chip's own memory lies on this platform.
    pub const fn chip_memory(self) -> ChipMemoryKind {
        match self {
            Self::Sim => ChipMemoryKind::Host,
            Self::A2a3 | Self::A5 => ChipMemoryKind::Device,
        }
    }

    #[cfg(not(all(feature = "sim", feature = "ascend")))]
    pub(crate) const fn not_built(self) -> PlatformNotBuilt {
        let feature = match self {
            Self::Sim => "sim",
            Self::A2a3 | Self::A5 => "ascend",
        };
        PlatformNotBuilt { platform: self, feature }
    }
}

/// A platform that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown platform {name:?}; choose sim (also a2a3sim, a5sim), a2a3 or a5")]
pub struct UnknownPlatform {
    /// What was given.
    pub name: String,
}

impl FromStr for Platform {
    type Err = UnknownPlatform;

    fn from_str(name: &str) -> Result<Self, UnknownPlatform> {
        match name {
            "sim" | "a2a3sim" | "a5sim" => Ok(Self::Sim),
            "a2a3" => Ok(Self::A2a3),
            "a5" => Ok(Self::A5),
            _ => Err(UnknownPlatform { name: name.to_owned() }),
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sim => "sim",
            Self::A2a3 => "a2a3",
            Self::A5 => "a5",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_known_and_others_are_refused_with_the_list() {
        for (name, platform) in [
            ("sim", Platform::Sim),
            ("a2a3sim", Platform::Sim),
            ("a5sim", Platform::Sim),
            ("a2a3", Platform::A2a3),
            ("a5", Platform::A5),
        ] {
            assert_eq!(name.parse(), Ok(platform));
        }
        for name in ["", "SIM", "a3", "hccl"] {
            let refused = name.parse::<Platform>().unwrap_err().to_string();
            assert_eq!(
                refused,
                format!("unknown platform {name:?}; choose sim (also a2a3sim, a5sim), a2a3 or a5")
            );
        }
    }
}
