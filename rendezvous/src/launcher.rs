//! The rank that a launcher gave to this process.

use comm_context::comm::{ArgumentError, Membership};
use std::env::VarError;

/// The variables of the launchers that are understood, in the order in which they are tried.
const LAUNCHERS: &[(&str, &str, &str)] = &[
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
];

/// Rank and size from a launcher's environment, and which launcher it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The rank.
    pub membership: Membership,
    /// The launcher, with the names and values of its variables.
    pub by: String,
}

/// Why the environment does not say which rank this is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LauncherError {
    /// No launcher's variables are set.
    #[error("no launcher has set rank and size; accepted are {}", accepted())]
    NotLaunched,
    /// One of a pair is missing or not a number.
    #[error("{variable} is {found}; {launcher} sets it to a whole number")]
    BadVariable {
        /// The launcher whose other variable is set.
        launcher: &'static str,
        /// The variable.
        variable: &'static str,
        /// What it holds.
        found: String,
    },
    /// The numbers do not fit together.
    #[error("{by}: {source}")]
    BadRank {
        /// The launcher, with the names and values of its variables.
        by: String,
        /// What is wrong.
        source: ArgumentError,
    },
}

fn accepted() -> String {
    LAUNCHERS.iter().map(|(_, rank, size)| format!("{rank} with {size}")).collect::<Vec<_>>().join(", ")
}

/// The rank that the launcher of this process gave it.
pub fn from_launcher() -> Result<Launched, LauncherError> {
    from(|variable| match std::env::var(variable) {
        Ok(text) => Some(text),
        Err(VarError::NotPresent) => None,
        Err(VarError::NotUnicode(text)) => Some(text.to_string_lossy().into_owned()),
    })
}

pub(crate) fn from(variable: impl Fn(&str) -> Option<String>) -> Result<Launched, LauncherError> {
    for &(launcher, rank_name, size_name) in LAUNCHERS {
        if variable(rank_name).is_none() && variable(size_name).is_none() {
            continue;
        }
        let number = |name: &'static str| {
            let found = variable(name);
            found.as_deref().and_then(whole_number).ok_or_else(|| LauncherError::BadVariable {
                launcher,
                variable: name,
                found: found.map_or("not set".to_owned(), |text| format!("{text:?}")),
            })
        };
        let (rank, size) = (number(rank_name)?, number(size_name)?);
        let by = format!("{launcher} ({rank_name}={rank}, {size_name}={size})");
        return match Membership::new(rank, size) {
            Ok(membership) => Ok(Launched { membership, by }),
            Err(source) => Err(LauncherError::BadRank { by, source }),
        };
    }
    Err(LauncherError::NotLaunched)
}

/// Digits only; the standard library would accept `+1`, which no launcher writes.
fn whole_number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &[(&str, &str)]) -> Result<Launched, LauncherError> {
        from(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn every_launcher_is_understood_and_named() {
        for (launcher, rank, size) in LAUNCHERS {
            let found = with(&[(rank, "1"), (size, "4")]).unwrap();
            assert_eq!((found.membership.rank(), found.membership.nranks()), (1, 4));
            assert!(found.by.contains(launcher) && found.by.contains(rank), "{}", found.by);
        }
    }

    #[test]
    fn half_a_pair_bad_numbers_and_nothing_are_refused_with_what_is_accepted() {
        assert_eq!(with(&[]), Err(LauncherError::NotLaunched));
        assert!(LauncherError::NotLaunched.to_string().contains("SLURM_PROCID with SLURM_NTASKS"));
        assert!(matches!(
            with(&[("RANK", "0")]),
            Err(LauncherError::BadVariable { variable: "WORLD_SIZE", .. })
        ));
        for bad in ["", "-1", "+1", "one", "1.0", "99999999999"] {
            let error = with(&[("PMI_RANK", bad), ("PMI_SIZE", "2")]).unwrap_err();
            assert!(matches!(error, LauncherError::BadVariable { variable: "PMI_RANK", .. }), "{error}");
        }
        assert!(matches!(with(&[("RANK", "4"), ("WORLD_SIZE", "4")]), Err(LauncherError::BadRank { .. })));
    }
}
