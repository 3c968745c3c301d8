//! What kind of chip a program runs on.

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
            let told = name.parse::<Platform>().unwrap_err().to_string();
            assert!(told.contains("a2a3sim"), "{told}");
        }
    }
}
