//! The rank that a launcher gave to this process.

use crate::hosts::{HostAddress, HostsError};
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
    #[error("no launcher has set rank and size; start with one that sets {}", accepted())]
    NotLaunched,
    /// One of a pair is missing or not a number.
    #[error(
        "{variable} is {found}, and {launcher} sets it to a whole number; start the program with that launcher, or unset its variables"
    )]
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
///
/// ```
/// # use comm_context::comm::Membership;
/// // Alone, when no launcher started this process.
/// let me = match rendezvous::from_launcher() {
///     Ok(launched) => launched.membership,
///     Err(rendezvous::LauncherError::NotLaunched) => Membership::new(0, 1)?,
///     Err(wrong) => return Err(wrong.into()),
/// };
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub fn from_launcher() -> Result<Launched, LauncherError> {
    from(variable)
}

/// The address of rank 0, for a group on several hosts: `MASTER_ADDR` and `MASTER_PORT`, which torchrun sets and which a
/// user can set under any launcher. Without them, under Slurm, the first host of the step and a port made of the numbers
/// of job and step.
pub fn address_from_launcher() -> Result<HostAddress, HostsError> {
    address_from(variable)
}

pub(crate) fn variable(name: &str) -> Option<String> {
    match std::env::var(name) {
        Ok(text) => Some(text),
        Err(VarError::NotPresent) => None,
        Err(VarError::NotUnicode(text)) => Some(text.to_string_lossy().into_owned()),
    }
}

/// The ports that a Slurm step may get: below those that Linux gives to connections, above those of common services.
const SLURM_PORTS: std::ops::Range<u32> = 20_000..32_000;

pub(crate) fn address_from(variable: impl Fn(&str) -> Option<String>) -> Result<HostAddress, HostsError> {
    let failed = |problem: String| HostsError::NoAddress { problem };
    let given = ["MASTER_ADDR", "MASTER_PORT"].map(&variable);
    let slurm = ["SLURM_STEP_NODELIST", "SLURM_JOB_ID"].map(&variable);
    let (host, port) = match (given, slurm) {
        ([Some(host), Some(port)], _) => {
            let number =
                whole_number(&port).and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
            (
                host,
                number.ok_or_else(|| {
                    failed(format!("MASTER_PORT is {port:?}, not a number from 1 to 65535"))
                })?,
            )
        }
        ([Some(_), None], _) => {
            return Err(failed("MASTER_PORT is missing; set it as well as MASTER_ADDR".to_owned()));
        }
        ([None, Some(_)], _) => {
            return Err(failed("MASTER_ADDR is missing; set it as well as MASTER_PORT".to_owned()));
        }
        ([None, None], [Some(nodes), Some(job)]) => {
            let host = first_node(&nodes)
                .ok_or_else(|| failed(format!("SLURM_STEP_NODELIST is {nodes:?}, not a list of hosts")))?;
            let step = variable("SLURM_STEP_ID").unwrap_or_default();
            let numbers = [&job, &step].map(|text| whole_number(text).unwrap_or(0));
            let port = numbers[0].wrapping_add(numbers[1].wrapping_mul(101)) % SLURM_PORTS.len() as u32;
            (host, (SLURM_PORTS.start + port) as u16)
        }
        _ => {
            return Err(failed(
                "neither MASTER_ADDR with MASTER_PORT nor SLURM_STEP_NODELIST with SLURM_JOB_ID is set; under Open MPI \
                 pass them on: mpirun -x MASTER_ADDR -x MASTER_PORT"
                    .to_owned(),
            ));
        }
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host).to_owned();
    HostAddress::new(&host, port)
        .map_err(|problem| failed(format!("{:?} {problem}", host.chars().take(300).collect::<String>())))
}

/// The first host of Slurm's list: `node[03-04,09],other` begins with `node03`.
fn first_node(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let Some(numbers) = rest.strip_prefix('[') else {
        return Some(prefix.to_owned()).filter(|n| !n.is_empty());
    };
    let (numbers, rest) = numbers.split_once(']')?;
    let first: String = numbers.chars().take_while(char::is_ascii_digit).collect();
    // A name may go on after its numbers, and a second dimension of numbers is not understood.
    let suffix = rest.split(',').next().filter(|suffix| !suffix.contains('['))?;
    (!first.is_empty()).then(|| format!("{prefix}{first}{suffix}"))
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

    fn address(set: &[(&str, &str)]) -> Result<String, String> {
        let found = address_from(|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        });
        found.map(|address| address.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_address_of_rank_0_comes_from_the_variables_of_launchers() {
        let torch = [("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")];
        assert_eq!(address(&torch).unwrap(), "tcp://10.0.0.1:29500");
        assert_eq!(
            address(&[("MASTER_ADDR", "fd00::1"), ("MASTER_PORT", "1")]).unwrap(),
            "tcp://[fd00::1]:1"
        );
        assert_eq!(
            address(&[("MASTER_ADDR", "[fd00::1]"), ("MASTER_PORT", "1")]).unwrap(),
            "tcp://[fd00::1]:1"
        );
        let slurm = |nodes| {
            address(&[("SLURM_STEP_NODELIST", nodes), ("SLURM_JOB_ID", "17"), ("SLURM_STEP_ID", "2")])
        };
        for (nodes, first) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("node[03-04,09],other", "node03"),
            ("rack2-[7,9]-ib,x", "rack2-7-ib"),
        ] {
            assert_eq!(slurm(nodes).unwrap(), format!("tcp://{first}:20219"), "{nodes}");
        }
        // What a user sets wins.
        let both = [&torch[..], &[("SLURM_STEP_NODELIST", "node1"), ("SLURM_JOB_ID", "17")]].concat();
        assert_eq!(address(&both).unwrap(), "tcp://10.0.0.1:29500");
        for nodes in ["", "[1-2]x[3]", "node[", "node[a]"] {
            let error = slurm(nodes).unwrap_err();
            assert!(
                error.ends_with(&format!("SLURM_STEP_NODELIST is {nodes:?}, not a list of hosts")),
                "{error}"
            );
        }
    }

    #[test]
    fn f78_half_an_address_in_the_environment_is_refused_by_name() {
        for (set, word) in [
            (
                &[][..],
                "neither MASTER_ADDR with MASTER_PORT nor SLURM_STEP_NODELIST with SLURM_JOB_ID is set; under Open MPI pass \
                 them on: mpirun -x MASTER_ADDR -x MASTER_PORT",
            ),
            (
                &[("MASTER_ADDR", "x")],
                "env:// needs the address of rank 0 in the environment, and MASTER_PORT is missing; set it as well as MASTER_ADDR",
            ),
            (&[("MASTER_PORT", "1")], "MASTER_ADDR is missing; set it as well as MASTER_PORT"),
            (
                &[("MASTER_ADDR", "x"), ("MASTER_PORT", "0")],
                "MASTER_PORT is \"0\", not a number from 1 to 65535",
            ),
            (&[("MASTER_ADDR", "x"), ("MASTER_PORT", "99999")], "1 to 65535"),
            (&[("MASTER_ADDR", "x y"), ("MASTER_PORT", "9")], "neither a name"),
        ] {
            let error = address(set).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn half_a_pair_bad_numbers_and_nothing_are_refused_with_what_is_accepted() {
        assert_eq!(with(&[]), Err(LauncherError::NotLaunched));
        let text = LauncherError::NotLaunched.to_string();
        assert!(text.starts_with("no launcher has set rank and size; start with one that sets "), "{text}");
        assert!(text.contains("SLURM_PROCID with SLURM_NTASKS"), "{text}");
        assert!(matches!(
            with(&[("RANK", "0")]),
            Err(LauncherError::BadVariable { variable: "WORLD_SIZE", .. })
        ));
        for bad in ["", "-1", "+1", "one", "1.0", "99999999999"] {
            let error = with(&[("PMI_RANK", bad), ("PMI_SIZE", "2")]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "PMI_RANK is {bad:?}, and PMI (MPICH, Intel MPI) sets it to a whole number; start the program with that \
                     launcher, or unset its variables"
                )
            );
        }
        assert!(matches!(with(&[("RANK", "4"), ("WORLD_SIZE", "4")]), Err(LauncherError::BadRank { .. })));
    }
}
