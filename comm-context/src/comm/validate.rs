//! The checks of arguments before a backend creates anything.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{ArgumentError, DomainSpec, Membership, PathProblem, SubsetView};
use crate::abi::COMM_MAX_RANK_NUM;

/// The largest window: 1 TiB. 64 of them take half of a 47-bit address space, so that no sum of offset, size
/// and rounding can overflow after this check.
pub const MAX_WINDOW_SIZE: usize = 1 << 40;

/// Linux's `PATH_MAX` counts the terminating NUL.
const PATH_MAX: usize = 4096;

/// Checks the size of a window. `what` names the argument in the error.
pub fn window_size(what: &'static str, size: usize) -> Result<(), ArgumentError> {
    match size {
        0 => Err(ArgumentError::ZeroSize { what }),
        1..=MAX_WINDOW_SIZE => Ok(()),
        _ => Err(ArgumentError::TooLarge { what, size, limit: MAX_WINDOW_SIZE }),
    }
}

/// Checks a domain that the rank `me` asks for.
pub fn domain(me: Membership, spec: &DomainSpec<'_>) -> Result<(), ArgumentError> {
    members(me, spec.ranks, spec.domain_rank)?;
    window_size("window_size", spec.window_size)
}

/// Checks a view of a base window of `window` bytes that the rank `me` asks for.
pub fn subset(me: Membership, view: &SubsetView<'_>, window: usize) -> Result<(), ArgumentError> {
    members(me, view.ranks, view.domain_rank)?;
    window_size("window_size", view.size)?;
    let inside = view.offset.checked_add(view.size).is_some_and(|end| end <= window);
    if !inside {
        return Err(ArgumentError::SliceOutside { offset: view.offset, size: view.size, window });
    }
    Ok(())
}

/// Checks the text of the path at which independent ranks rendezvous. What lies at the path, or the address that it is
/// (`tcp://HOST:PORT`, `env://`), is checked by the rendezvous.
pub fn rootinfo_path(path: &Path) -> Result<(), ArgumentError> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() < PATH_MAX && (bytes.starts_with(b"tcp://") || bytes == b"env://") {
        return Ok(());
    }
    let problem = if bytes.is_empty() {
        PathProblem::Empty
    } else if bytes.len() >= PATH_MAX {
        PathProblem::TooLong
    } else if matches!(bytes.rsplit(|&b| b == b'/').next(), Some(b"" | b"." | b"..")) {
        PathProblem::NoFileName
    } else {
        return Ok(());
    };
    Err(ArgumentError::RootinfoPath { problem })
}

fn members(me: Membership, ranks: &[u32], domain_rank: u32) -> Result<(), ArgumentError> {
    let nranks = me.nranks();
    if ranks.is_empty() {
        return Err(ArgumentError::NoRanks);
    }
    if ranks.len() > nranks as usize {
        return Err(ArgumentError::TooManyRanks { count: ranks.len(), nranks });
    }
    let mut seen_at = [None; COMM_MAX_RANK_NUM];
    for (position, &rank) in ranks.iter().enumerate() {
        if rank >= nranks {
            return Err(ArgumentError::NoSuchRank { rank, position, nranks });
        }
        if let Some(first) = seen_at[rank as usize].replace(position) {
            return Err(ArgumentError::DuplicateRank { rank, first, second: position });
        }
    }
    let listed = usize::try_from(domain_rank).ok().and_then(|at| ranks.get(at));
    match listed {
        None => Err(ArgumentError::DomainRank { domain_rank, count: ranks.len() }),
        Some(&listed) if listed != me.rank() => {
            Err(ArgumentError::NotThisRank { domain_rank, listed, mine: me.rank() })
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::AllocationId;

    fn me() -> Membership {
        Membership::new(2, 4).unwrap()
    }

    fn domain_of(ranks: &[u32], domain_rank: u32, window_size: usize) -> Result<(), ArgumentError> {
        domain(me(), &DomainSpec { id: AllocationId(7), ranks, domain_rank, window_size })
    }

    fn view_of(ranks: &[u32], domain_rank: u32, offset: usize, size: usize) -> Result<(), ArgumentError> {
        subset(me(), &SubsetView { ranks, domain_rank, offset, size }, 4096)
    }

    // CC-5
    #[test]
    fn lists_of_ranks_are_refused_by_name() {
        use ArgumentError::*;
        let cases: [(&[u32], u32, ArgumentError); 7] = [
            (&[], 0, NoRanks),
            (&[0, 1, 2, 3, 0], 2, TooManyRanks { count: 5, nranks: 4 }),
            (&[2, 4], 0, NoSuchRank { rank: 4, position: 1, nranks: 4 }),
            (&[2, u32::MAX], 0, NoSuchRank { rank: u32::MAX, position: 1, nranks: 4 }),
            (&[2, 0, 2], 0, DuplicateRank { rank: 2, first: 0, second: 2 }),
            (&[0, 2], 2, DomainRank { domain_rank: 2, count: 2 }),
            (&[0, 2], 0, NotThisRank { domain_rank: 0, listed: 0, mine: 2 }),
        ];
        for (ranks, domain_rank, want) in cases {
            assert_eq!(domain_of(ranks, domain_rank, 64), Err(want.clone()));
            assert_eq!(view_of(ranks, domain_rank, 0, 64), Err(want));
        }
        assert_eq!(domain_of(&[3, 2, 0], 1, 64), Ok(()));
        assert_eq!(view_of(&[2], 0, 0, 64), Ok(()));
    }

    // CC-5
    #[test]
    fn sizes_of_zero_and_beyond_any_window_are_refused() {
        let what = "window_size";
        assert_eq!(domain_of(&[2], 0, 0), Err(ArgumentError::ZeroSize { what }));
        assert_eq!(view_of(&[2], 0, 0, 0), Err(ArgumentError::ZeroSize { what }));
        for size in [MAX_WINDOW_SIZE + 1, usize::MAX] {
            let want = ArgumentError::TooLarge { what, size, limit: MAX_WINDOW_SIZE };
            assert_eq!(domain_of(&[2], 0, size), Err(want.clone()));
            assert_eq!(window_size(what, size), Err(want));
        }
        assert_eq!(window_size(what, 1), Ok(()));
        assert_eq!(window_size(what, MAX_WINDOW_SIZE), Ok(()));
    }

    #[test]
    fn a_slice_must_lie_in_the_window() {
        assert_eq!(view_of(&[2], 0, 0, 4096), Ok(()));
        assert_eq!(view_of(&[2], 0, 4095, 1), Ok(()));
        for (offset, size) in [(0, 4097), (4096, 1), (1, 4096), (usize::MAX, 1), (usize::MAX - 1, 4096)] {
            let want = ArgumentError::SliceOutside { offset, size, window: 4096 };
            assert_eq!(view_of(&[2], 0, offset, size), Err(want));
        }
    }

    #[test]
    fn paths_that_can_name_no_file_are_refused() {
        let refused = |path: &str| match rootinfo_path(Path::new(path)) {
            Err(ArgumentError::RootinfoPath { problem }) => problem,
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(refused(""), PathProblem::Empty);
        assert_eq!(refused(&"x".repeat(4096)), PathProblem::TooLong);
        for path in ["/", "run/", "..", "/run/.", "run/.."] {
            assert_eq!(refused(path), PathProblem::NoFileName, "{path}");
        }
        for path in ["root", "/run/user/root", "./.root", "a/..b"] {
            assert_eq!(rootinfo_path(Path::new(path)), Ok(()), "{path}");
        }
    }
}
