//! The result of a soak, and whether it failed.

use crate::cycle::Tally;
use crate::history::History;
use crate::sample::FIGURES;
use crate::trend::Trend;

/// Everything that a soak found.
pub(crate) struct Report<'a> {
    pub(crate) seed: u64,
    pub(crate) cycles: u64,
    pub(crate) tally: &'a Tally,
    pub(crate) history: &'a History,
    /// Cycles that broke the contract, and how.
    pub(crate) violations: &'a [(u64, String)],
}

impl Report<'_> {
    /// Prints the result, as text or as one JSON object, and returns why the soak failed, if it did.
    pub(crate) fn print(&self, json: bool) -> Option<String> {
        let trends = self.history.trends();
        let failure = self.failure(trends.as_deref());
        if json {
            println!("{}", self.json(trends.as_deref(), failure.as_deref()));
        } else {
            self.print_text(trends.as_deref());
        }
        failure
    }

    fn failure(&self, trends: Option<&[Trend]>) -> Option<String> {
        let broken = self.violations.len();
        let growing = trends.into_iter().flatten().zip(FIGURES).filter(|(trend, _)| trend.grows);
        let growing: Vec<&str> = growing.map(|(_, (name, _))| name).collect();
        if !growing.is_empty() {
            Some(format!("this grows from cycle to cycle: {}", growing.join(", ")))
        } else if broken > 0 {
            Some(format!("{broken} cycle{} broke the contract", if broken == 1 { "" } else { "s" }))
        } else if self.tally.kills() == 0 {
            Some(format!("no process was killed in {} cycles: let it run longer", self.cycles))
        } else if trends.is_none() {
            Some(format!("{} samples are too few for a trend: let it run longer", self.history.len()))
        } else {
            None
        }
    }

    fn print_text(&self, trends: Option<&[Trend]>) {
        let list = |counts: Vec<(String, u64)>| {
            counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        };
        println!("{} cycles: {}", self.cycles, list(self.tally.cycles_by_kind()));
        println!(
            "{} kills: {}; {} cycles ended with an error, each of which named the kill",
            self.tally.kills(),
            list(self.tally.kills_by_phase()),
            self.tally.reported()
        );
        println!("{} samples, the first quarter of which does not count\n", self.history.len());
        println!(
            "{:<20} {:>12} {:>12} {:>14}   {:<26} trend",
            "figure", "at first", "at last", "per 1000", "99.9 % between"
        );
        for (trend, (name, _)) in trends.into_iter().flatten().zip(FIGURES) {
            let Trend { first, last, slope, low, high, grows } = trend;
            let word = if *grows { "GROWS" } else { "steady" };
            let between = format!("{low:.2} and {high:.2}");
            println!("{name:<20} {first:>12.1} {last:>12.1} {slope:>14.2}   {between:<26} {word}");
        }
    }

    fn json(&self, trends: Option<&[Trend]>, failure: Option<&str>) -> serde_json::Value {
        let object = |counts: Vec<(String, u64)>| {
            counts.into_iter().map(|(name, count)| (name, count.into())).collect::<serde_json::Map<_, _>>()
        };
        let trends = trends.into_iter().flatten().zip(FIGURES).map(|(trend, (name, _))| {
            let Trend { first, last, slope, low, high, grows } = trend;
            let of = serde_json::json!({
                "first": first, "last": last, "slope": slope, "low": low, "high": high, "grows": grows,
            });
            (name.to_owned(), of)
        });
        serde_json::json!({
            "seed": self.seed,
            "cycles": self.cycles,
            "kinds": object(self.tally.cycles_by_kind()),
            "kills": object(self.tally.kills_by_phase()),
            "missed": self.tally.missed(),
            "reported": self.tally.reported(),
            "samples": self.history.len(),
            "trends": trends.collect::<serde_json::Map<_, _>>(),
            "violations": self.violations,
            "failure": failure,
        })
    }
}
