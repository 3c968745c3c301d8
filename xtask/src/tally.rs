//! Counting tests from what `cargo test` prints, so that a lane that ran nothing does not
//! count as one that passed.

use std::ops::AddAssign;

/// Tests by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Tally {
    /// Tests that ran to an end, good or bad.
    pub(crate) fn ran(self) -> u64 {
        self.passed + self.failed
    }

    /// The sum of all `test result:` lines.
    pub(crate) fn of(lines: &[String]) -> Self {
        let mut sum = Self::default();
        lines.iter().filter_map(|line| result_line(line)).for_each(|one| sum += one);
        sum
    }

    /// Tests by name: `counts` says which ones belong to this tally.
    pub(crate) fn by_name(lines: &[String], counts: impl Fn(&str) -> bool) -> Self {
        let mut sum = Self::default();
        for (_, end) in lines.iter().filter_map(|line| test_line(line)).filter(|(name, _)| counts(name)) {
            match end {
                "ok" => sum.passed += 1,
                "FAILED" => sum.failed += 1,
                _ => sum.ignored += 1,
            }
        }
        sum
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; …`
pub(crate) fn result_line(line: &str) -> Option<Tally> {
    let (_, counts) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
    let count = |word: &str| {
        counts.split(';').find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok())
    };
    Some(Tally { passed: count("passed")?, failed: count("failed")?, ignored: count("ignored")? })
}

/// `test path::name ... ok`, also with ` - should panic` after the name and a reason after `ignored`.
pub(crate) fn test_line(line: &str) -> Option<(&str, &str)> {
    let (name, end) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let name = name.split(" - ").next().unwrap_or(name);
    let end = end.split(',').next().unwrap_or(end).trim();
    matches!(end, "ok" | "FAILED" | "ignored").then_some((name, end))
}

/// What has a test program print what its passing tests print, so that [`not_run`] sees it.
pub(crate) const SHOW_OUTPUT: &str = "--show-output";

/// Why a test that passed did not do what it is there for: `not run: why`, or pytest's `SKIPPED [1] file:line: why`.
pub(crate) fn not_run(line: &str) -> Option<&str> {
    let skipped = || line.strip_prefix("SKIPPED [")?.splitn(3, ':').nth(2);
    line.strip_prefix("not run: ").or_else(skipped).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    const LOG: &str = "\
running 3 tests
test payload_before_state ... ok
test sub::mutant_relaxed_store - should panic ... ok
test slow ... ignored, needs a device
test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
running 1 test
test broken ... FAILED
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.00s
";

    #[test]
    fn result_lines_are_summed() {
        assert_eq!(Tally::of(&lines(LOG)), Tally { passed: 2, failed: 1, ignored: 1 });
        assert_eq!(Tally::of(&lines(LOG)).ran(), 3);
    }

    #[test]
    fn tests_are_counted_by_name() {
        let mutant = |name: &str| name.rsplit("::").next().is_some_and(|n| n.starts_with("mutant_"));
        assert_eq!(Tally::by_name(&lines(LOG), mutant), Tally { passed: 1, failed: 0, ignored: 0 });
        let others = Tally::by_name(&lines(LOG), |name| !mutant(name));
        assert_eq!(others, Tally { passed: 1, failed: 1, ignored: 1 });
    }

    #[test]
    fn a_test_that_did_not_run_says_why() {
        assert_eq!(not_run("not run: only root can do it"), Some("only root can do it"));
        let skipped = "SKIPPED [2] tests/test_hosts.py:18: mpirun.mpich is not installed";
        assert_eq!(not_run(skipped), Some("mpirun.mpich is not installed"));
        assert_eq!(not_run("it was not run: x"), None);
    }

    #[test]
    fn other_lines_count_nothing() {
        let noise =
            "test result: pending\ntesting 3 passed; 1 failed\n   Compiling x v0.1.0\ntest a ... maybe\n";
        assert_eq!(Tally::of(&lines(noise)), Tally::default());
        assert_eq!(Tally::by_name(&lines(noise), |_| true), Tally::default());
    }
}
