//! What a sweep adds up to.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::choice::{action, area};
use super::{FAILED, Verdict};
use crate::lane::counted;

const HELD: &str = "held";
/// The contract: what a death may take to be told, a parent's processes to go after it, and a call beyond
/// its deadline.
const TOLD_MS: f64 = 200.0;
const GONE_MS: f64 = 1000.0;
const LATE_MS: f64 = 1000.0;
/// From so many times on the 99th percentile is judged; of fewer it is the slowest one, and may be the
/// machine's.
const ENOUGH: usize = 500;

/// The verdicts of a sweep.
#[derive(Default)]
pub(super) struct Totals {
    /// How many cases were to run.
    planned: usize,
    verdicts: Vec<Verdict>,
    /// Names that came up in the machine's shared memory meanwhile.
    pub(super) shared_left: Vec<String>,
}

impl Totals {
    pub(super) fn new(planned: usize) -> Self {
        Self { planned, ..Self::default() }
    }

    pub(super) fn add(&mut self, verdict: Verdict) {
        self.verdicts.push(verdict);
    }

    pub(super) fn ran(&self) -> usize {
        self.verdicts.len()
    }

    fn count(&self, verdict: &str) -> usize {
        self.verdicts.iter().filter(|one| one.verdict == verdict).count()
    }

    /// Why the sweep failed, if it did. One that reached no fault has shown nothing.
    pub(super) fn failure(&self) -> Option<String> {
        match (self.count(FAILED), self.count(HELD)) {
            (0, 0) => Some("no case reached its fault".to_owned()),
            (0, _) if !self.shared_left.is_empty() => {
                Some(format!("left in /dev/shm: {}", self.shared_left.join(", ")))
            }
            (0, _) => self.too_slow(),
            (failed, _) => Some(format!("{} failed", counted(failed as u64, "case"))),
        }
    }

    fn too_slow(&self) -> Option<String> {
        let judged = [
            ("told", self.told(), TOLD_MS),
            ("gone", self.gone(), GONE_MS),
            ("beyond a deadline", self.late(), LATE_MS),
        ];
        let slow = |times: &Times, limit| {
            times.0.len() >= ENOUGH && times.percentile(99).is_some_and(|p99| p99 > limit)
        };
        let (what, times, limit) = judged.into_iter().find(|(_, times, limit)| slow(times, *limit))?;
        Some(format!("{what}: {times}; the contract is a p99 of {limit} ms"))
    }

    /// One line for a lane.
    pub(super) fn brief(&self) -> String {
        format!(
            "{}, {} not reached; told after {}",
            counted(self.ran() as u64, "case"),
            self.ran() - self.count(HELD) - self.count(FAILED),
            self.told()
        )
    }

    fn told(&self) -> Times {
        Times::of(self.verdicts.iter().filter_map(|verdict| verdict.told_ms))
    }

    fn gone(&self) -> Times {
        Times::of(self.verdicts.iter().filter_map(|verdict| verdict.gone_ms))
    }

    fn late(&self) -> Times {
        Times::of(self.verdicts.iter().filter_map(|verdict| verdict.late_ms))
    }

    pub(super) fn text(&self, seed: u64, took: Duration) -> String {
        let mut text = String::new();
        let mut rows: BTreeMap<(&str, &str), [usize; 3]> = BTreeMap::new();
        for verdict in &self.verdicts {
            let row = rows.entry((area(&verdict.case).0, action(&verdict.case))).or_default();
            let column = [HELD, FAILED].iter().position(|word| *word == verdict.verdict).unwrap_or(2);
            row[column] += 1;
        }
        let _ =
            writeln!(text, "{:<8} {:<8} {:>8} {:>8} {:>12}", "scene", "action", HELD, FAILED, "not reached");
        for ((scene, action), [held, failed, missed]) in rows {
            let _ = writeln!(text, "{scene:<8} {action:<8} {held:>8} {failed:>8} {missed:>12}");
        }
        let _ = writeln!(
            text,
            "\nfrom a death to whoever is told      {}   (contract: {TOLD_MS} ms)",
            self.told()
        );
        let _ =
            writeln!(text, "from the parent's death to the last  {}   (contract: {GONE_MS} ms)", self.gone());
        let _ =
            writeln!(text, "calls beyond their deadlines         {}   (contract: {LATE_MS} ms)", self.late());
        let stalled = Times::of(self.verdicts.iter().map(|verdict| verdict.stalled_ms));
        let _ = writeln!(text, "the machine itself held a case up    {stalled}");
        if !self.shared_left.is_empty() {
            let _ = writeln!(text, "new in /dev/shm: {}", self.shared_left.join(", "));
        }
        let missed = self.ran() - self.count(HELD) - self.count(FAILED);
        let _ = write!(
            text,
            "{} of {} cases, seed {seed}, {:.0} s: {} held, {} failed, {missed} not reached",
            self.ran(),
            self.planned,
            took.as_secs_f64(),
            self.count(HELD),
            self.count(FAILED),
        );
        text
    }

    pub(super) fn json(&self, seed: u64, took: Duration) -> String {
        let failed: Vec<&str> =
            self.verdicts.iter().filter(|one| one.verdict == FAILED).map(|one| one.case.as_str()).collect();
        serde_json::json!({
            "seed": seed,
            "planned": self.planned,
            "ran": self.ran(),
            "held": self.count(HELD),
            "failed": failed,
            "left_in_shared_memory": self.shared_left,
            "told_ms": self.told().json(),
            "gone_ms": self.gone().json(),
            "late_ms": self.late().json(),
            "took_s": took.as_secs_f64(),
        })
        .to_string()
    }
}

/// Times in milliseconds, sorted.
struct Times(Vec<f64>);

impl Times {
    fn of(times: impl Iterator<Item = f64>) -> Self {
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    /// The time that `percent` of all do not exceed.
    fn percentile(&self, percent: usize) -> Option<f64> {
        let at = (self.0.len() * percent).div_ceil(100).max(1) - 1;
        self.0.get(at).copied()
    }

    fn json(&self) -> serde_json::Value {
        let [p50, p99, max] = [50, 99, 100].map(|percent| self.percentile(percent));
        serde_json::json!({ "count": self.0.len(), "p50": p50, "p99": p99, "max": max })
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match [50, 99, 100].map(|percent| self.percentile(percent)) {
            [Some(p50), Some(p99), Some(max)] => {
                write!(f, "p50 {p50:.0} ms, p99 {p99:.0} ms, max {max:.0} ms of {}", self.0.len())
            }
            _ => f.write_str("no case"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(case: &str, verdict: &str, told_ms: Option<f64>) -> Verdict {
        Verdict {
            case: case.to_owned(),
            verdict: verdict.to_owned(),
            why: Vec::new(),
            told_ms,
            gone_ms: None,
            late_ms: None,
            took_ms: 1.0,
            stalled_ms: 0.0,
            told: None,
        }
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times = Times::of((1..=200).rev().map(f64::from));
        assert_eq!([1, 50, 99, 100].map(|p| times.percentile(p).unwrap()), [2.0, 100.0, 198.0, 200.0]);
        assert_eq!(Times::of([7.0].into_iter()).to_string(), "p50 7 ms, p99 7 ms, max 7 ms of 1");
        assert_eq!(Times::of(std::iter::empty()).to_string(), "no case");
    }

    #[test]
    fn a_sweep_of_enough_cases_is_held_to_the_contracts_times() {
        let of = |slow: usize, cases: usize| {
            let mut totals = Totals::new(cases);
            let ms = |at| if at < slow { 201.0 } else { 50.0 };
            (0..cases).for_each(|at| totals.add(verdict("fork:a.b@1#1=kill", HELD, Some(ms(at)))));
            totals.failure()
        };
        assert_eq!(of(5, ENOUGH), None, "one of a hundred may be slow");
        assert!(of(6, ENOUGH).unwrap().starts_with("told: "));
        assert_eq!(of(6, ENOUGH - 1), None, "too few to judge");
    }

    #[test]
    fn a_failed_case_a_leftover_and_an_empty_sweep_fail() {
        let mut totals = Totals::new(2);
        assert!(totals.failure().is_some(), "nothing ran");
        totals.add(verdict("fork:a.b@1#1=kill", "not reached", None));
        assert!(totals.failure().is_some(), "nothing was reached");
        totals.add(verdict("fork:a.b@1#1=kill", HELD, Some(50.0)));
        assert_eq!(totals.failure(), None);
        totals.shared_left.push("x".to_owned());
        assert!(totals.failure().unwrap().contains("/dev/shm"));
        totals.add(verdict("ranks:a.b@1#1=error:12", FAILED, None));
        assert_eq!(totals.failure().unwrap(), "1 case failed");
        let text = totals.text(3, Duration::from_secs(9));
        assert!(
            text.contains("ranks    error")
                && text.ends_with("3 of 2 cases, seed 3, 9 s: 1 held, 1 failed, 1 not reached"),
            "{text}"
        );
        let json: serde_json::Value = serde_json::from_str(&totals.json(3, Duration::from_secs(9))).unwrap();
        assert_eq!(
            (json["held"].as_u64(), json["failed"][0].as_str()),
            (Some(1), Some("ranks:a.b@1#1=error:12"))
        );
    }
}
