//! What a sweep adds up to.

use crate::order::{action, area};
use crate::outcome::{Kind, Outcome};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

/// The contract: how long it may take to report the death of a Worker's process, to report a rank without a
/// Worker or a panic that no process died of, a parent's processes to end after it, and a call beyond its
/// deadline.
const DEATH_MS: f64 = 100.0;
const REPORTED_MS: f64 = 200.0;
const GONE_MS: f64 = 1000.0;
const LATE_MS: f64 = 1000.0;
/// From so many times on the 99th percentile is checked; of fewer it is the slowest one, and may be due to
/// the machine.
const ENOUGH: usize = 500;

/// The outcomes of a sweep.
#[derive(Debug, Default)]
pub struct Totals {
    planned: usize,
    outcomes: Vec<Outcome>,
    shared_left: Vec<String>,
}

impl Totals {
    /// The totals of a sweep of so many cases, none of which has run yet.
    pub fn new(planned: usize) -> Self {
        Self { planned, ..Self::default() }
    }

    /// One more case has run.
    pub fn add(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    /// Names that appeared in the machine's shared memory during the sweep, and stayed.
    pub fn set_left_in_shared_memory(&mut self, names: Vec<String>) {
        self.shared_left = names;
    }

    /// How many cases have run.
    pub fn ran(&self) -> usize {
        self.outcomes.len()
    }

    fn count(&self, kind: Kind) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.outcome == kind).count()
    }

    /// Why the sweep failed, if it did. One that reached no fault has shown nothing.
    pub fn failure(&self) -> Option<String> {
        match (self.count(Kind::Failed), self.count(Kind::Held)) {
            (0, 0) => Some("no case reached its fault".to_owned()),
            (0, _) if !self.shared_left.is_empty() => {
                Some(format!("left in /dev/shm: {}", self.shared_left.join(", ")))
            }
            (0, _) => self.too_slow(),
            (failed, _) => Some(format!("{} failed", cases(failed))),
        }
    }

    fn too_slow(&self) -> Option<String> {
        let checked = self.checked();
        let slow = |times: &Times, limit| {
            times.0.len() >= ENOUGH && times.percentile(99).is_some_and(|p99| p99 > limit)
        };
        let (what, times, limit) = checked.into_iter().find(|(_, times, limit)| slow(times, *limit))?;
        Some(format!("{what}: {times}; the contract is a p99 of {limit} ms"))
    }

    /// One line.
    pub fn summary(&self) -> String {
        let missed = self.count(Kind::NotReached);
        format!(
            "{}, {missed} not reached; deaths in a Worker reported after {}",
            cases(self.ran()),
            self.deaths()
        )
    }

    /// Everything that the contract bounds.
    fn checked(&self) -> [(&'static str, Times, f64); 4] {
        [
            ("from a death in a Worker to its report", self.deaths(), DEATH_MS),
            ("from another fault to its report", self.others(), REPORTED_MS),
            ("from the parent's death to the last", self.gone(), GONE_MS),
            ("calls beyond their deadlines", self.late(), LATE_MS),
        ]
    }

    /// Deaths of a Worker's processes.
    fn deaths(&self) -> Times {
        self.reported(is_death_in_worker)
    }

    /// Deaths of ranks without a Worker, and panics.
    fn others(&self) -> Times {
        self.reported(|case| !is_death_in_worker(case))
    }

    fn reported(&self, of: impl Fn(&str) -> bool) -> Times {
        let chosen = self.outcomes.iter().filter(|outcome| of(&outcome.case));
        Times::of(chosen.filter_map(|outcome| outcome.reported_ms))
    }

    fn gone(&self) -> Times {
        Times::of(self.outcomes.iter().filter_map(|outcome| outcome.gone_ms))
    }

    fn late(&self) -> Times {
        Times::of(self.outcomes.iter().filter_map(|outcome| outcome.late_ms))
    }

    /// A table by scenario and action, the times, and one line at the end.
    pub fn text(&self, seed: u64, took: Duration) -> String {
        let mut rows: BTreeMap<(&str, &str), BTreeMap<Kind, usize>> = BTreeMap::new();
        for outcome in &self.outcomes {
            let row = rows.entry((area(&outcome.case).0, action(&outcome.case))).or_default();
            *row.entry(outcome.outcome).or_default() += 1;
        }
        let [held, failed, missed] = Kind::ALL;
        let mut text = format!("{:<8} {:<8} {held:>8} {failed:>8} {missed:>12}\n", "scenario", "action");
        for ((scenario, action), counts) in rows {
            let [held, failed, missed] = Kind::ALL.map(|kind| counts.get(&kind).copied().unwrap_or(0));
            let _ = writeln!(text, "{scenario:<8} {action:<8} {held:>8} {failed:>8} {missed:>12}");
        }
        text.push('\n');
        for (what, times, limit) in self.checked() {
            let _ = writeln!(text, "{what:<40} {times}   (contract: {limit} ms)");
        }
        let stalled = Times::of(self.outcomes.iter().map(|outcome| outcome.stalled_ms));
        let _ = writeln!(text, "{:<40} {stalled}", "delays of a case by the machine");
        if !self.shared_left.is_empty() {
            let _ = writeln!(text, "new in /dev/shm: {}", self.shared_left.join(", "));
        }
        let [held, failed, missed] = Kind::ALL.map(|kind| self.count(kind));
        let (ran, planned, seconds) = (self.ran(), self.planned, took.as_secs_f64());
        let _ = write!(
            text,
            "{ran} of {planned} cases, seed {seed}, {seconds:.0} s: {held} held, {failed} failed, {missed} not reached"
        );
        text
    }

    /// The same as one JSON object.
    pub fn json(&self, seed: u64, took: Duration) -> String {
        let failed = self.outcomes.iter().filter(|outcome| outcome.outcome == Kind::Failed);
        let failed: Vec<&str> = failed.map(|outcome| outcome.case.as_str()).collect();
        serde_json::json!({
            "seed": seed,
            "planned": self.planned,
            "ran": self.ran(),
            "held": self.count(Kind::Held),
            "failed": failed,
            "left_in_shared_memory": self.shared_left,
            "deaths_in_worker_ms": self.deaths().json(),
            "other_reports_ms": self.others().json(),
            "gone_ms": self.gone().json(),
            "late_ms": self.late().json(),
            "took_s": took.as_secs_f64(),
            "summary": self.summary(),
            "failure": self.failure(),
        })
        .to_string()
    }
}

/// Whether the fault of a case ends a process of a Worker.
fn is_death_in_worker(case: &str) -> bool {
    !["ranks", "hosts"].contains(&area(case).0) && ["kill", "term", "exit"].contains(&action(case))
}

fn cases(count: usize) -> String {
    format!("{count} case{}", if count == 1 { "" } else { "s" })
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

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    fn outcome(case: &str, outcome: Kind, reported_ms: Option<f64>) -> Outcome {
        Outcome { outcome, reported_ms, ..Outcome::not_watched(case, String::new()) }
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
        let of = |case: &str, limit: f64, slow: usize, cases: usize| {
            let mut totals = Totals::new(cases);
            let ms = |at| if at < slow { limit + 1.0 } else { 50.0 };
            (0..cases).for_each(|at| totals.add(outcome(case, Kind::Held, Some(ms(at)))));
            totals.failure()
        };
        for (case, limit) in [
            ("fork:a.b@1#1=kill", DEATH_MS),
            ("levels:a.b@1#1=exit:7", DEATH_MS),
            ("fork:a.b@1#1=panic", REPORTED_MS),
            ("ranks:a.b@1#1=kill", REPORTED_MS),
        ] {
            assert_eq!(of(case, limit, 5, ENOUGH), None, "one of a hundred may be slow");
            assert!(of(case, limit, 6, ENOUGH).unwrap().contains(&format!("p99 of {limit} ms")), "{case}");
            assert_eq!(of(case, limit, 6, ENOUGH - 1), None, "too few to check");
        }
    }

    #[test]
    fn a_failed_case_a_leftover_and_an_empty_sweep_fail() {
        let mut totals = Totals::new(2);
        assert!(totals.failure().is_some(), "nothing ran");
        totals.add(outcome("fork:a.b@1#1=kill", Kind::NotReached, None));
        assert!(totals.failure().is_some(), "nothing was reached");
        totals.add(outcome("fork:a.b@1#1=kill", Kind::Held, Some(50.0)));
        assert_eq!(totals.failure(), None);
        totals.set_left_in_shared_memory(vec!["x".to_owned()]);
        assert!(totals.failure().unwrap().contains("/dev/shm"));
        totals.add(outcome("ranks:a.b@1#1=error:12", Kind::Failed, None));
        assert_eq!(totals.failure().unwrap(), "1 case failed");
        let text = totals.text(3, Duration::from_secs(9));
        assert!(text.contains("ranks    error"), "{text}");
        assert!(text.ends_with("3 of 2 cases, seed 3, 9 s: 1 held, 1 failed, 1 not reached"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&totals.json(3, Duration::from_secs(9))).unwrap();
        assert_eq!(json["held"].as_u64(), Some(1));
        assert_eq!(json["failed"][0].as_str(), Some("ranks:a.b@1#1=error:12"));
        assert_eq!(json["failure"].as_str(), Some("1 case failed"));
    }

    #[test]
    fn an_outcome_survives_its_line_of_json() {
        let text = serde_json::to_string(&outcome("fork:a.b@1#1=kill", Kind::NotReached, Some(1.5))).unwrap();
        assert!(text.contains("\"outcome\":\"not_reached\""), "{text}");
        let again: Outcome = serde_json::from_str(&text).unwrap();
        assert_eq!((again.outcome, again.reported_ms), (Kind::NotReached, Some(1.5)));
    }
}
