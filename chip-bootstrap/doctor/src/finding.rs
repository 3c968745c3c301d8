//! What was found, and how it is shown.

use std::fmt::Write;
use std::process::ExitCode;

use serde_json::{Value, json};

/// How good a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// As it should be.
    Good,
    /// The simulation runs, but something else does not, or not as well.
    Advised,
    /// The simulation cannot run.
    Missing,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Advised => "note",
            Self::Missing => "MISSING",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) what: &'static str,
    pub(crate) state: State,
    /// What is there, in one line.
    pub(crate) found: String,
    /// What to do, in one line.
    pub(crate) advice: String,
}

impl Finding {
    pub(crate) fn new(
        what: &'static str,
        state: State,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        // One line each: a text from elsewhere may have several.
        let line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        Self { what, state, found: line(found.into()), advice: line(advice.into()) }
    }

    /// Good if `good`, else a note.
    pub(crate) fn noted(
        what: &'static str,
        good: bool,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::new(what, if good { State::Good } else { State::Advised }, found, advice)
    }
}

/// Everything that was found, area by area.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    pub(crate) areas: Vec<(&'static str, Vec<Finding>)>,
}

impl Diagnosis {
    fn all(&self) -> impl Iterator<Item = &Finding> {
        self.areas.iter().flat_map(|(_, findings)| findings)
    }

    /// Whether the simulation can run.
    pub(crate) fn simulation(&self) -> bool {
        self.all().all(|finding| finding.state != State::Missing)
    }

    /// Whether nothing that Ascend devices need was found to be wrong.
    pub(crate) fn ascend(&self) -> bool {
        let ascend =
            self.areas.iter().filter(|(name, _)| *name == "Ascend").flat_map(|(_, findings)| findings);
        self.simulation()
            && ascend.clone().next().is_some()
            && ascend.clone().all(|one| one.state == State::Good)
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        if self.simulation() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (area, findings) in &self.areas {
            let _ = writeln!(text, "{area}");
            for Finding { what, state, found, advice } in findings {
                let _ = writeln!(text, "  {:<7} {what}: {found}", state.word());
                if *state != State::Good {
                    let _ = writeln!(text, "          {advice}");
                }
            }
        }
        let can = |yes: bool| if yes { "can" } else { "cannot" };
        let _ = writeln!(text, "\nThe simulation {} run here.", can(self.simulation()));
        let ascend = if self.ascend() {
            "nothing that Ascend devices need is missing"
        } else {
            "Ascend devices: see the notes above"
        };
        let _ = writeln!(text, "{}{}.", ascend[..1].to_uppercase(), &ascend[1..]);
        text
    }

    pub(crate) fn json(&self) -> Value {
        let findings: Vec<Value> = self
            .areas
            .iter()
            .flat_map(|(area, findings)| findings.iter().map(move |finding| (area, finding)))
            .map(|(area, Finding { what, state, found, advice })| {
                json!({"area": area, "what": what, "state": state.word(), "found": found, "advice": advice})
            })
            .collect();
        json!({"simulation": self.simulation(), "ascend": self.ascend(), "findings": findings})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnosis(states: &[State]) -> Diagnosis {
        let finding = |state: &State| Finding::new("thing", *state, "two\nlines", "do this");
        Diagnosis { areas: vec![("Ascend", states.iter().map(finding).collect())] }
    }

    #[test]
    fn only_what_is_missing_stops_the_simulation_and_advice_stands_below_what_needs_it() {
        let noted = diagnosis(&[State::Good, State::Advised]);
        assert!(noted.simulation() && !noted.ascend());
        assert_eq!(noted.text().matches("do this").count(), 1);
        assert!(noted.text().contains("thing: two lines") && noted.text().contains("simulation can run"));
        assert!(diagnosis(&[State::Good]).ascend() && !diagnosis(&[]).ascend());
        let missing = diagnosis(&[State::Missing]);
        assert!(!missing.simulation() && missing.text().contains("simulation cannot run"));
        assert_eq!(missing.exit_code(), ExitCode::FAILURE);
    }

    #[test]
    fn json_has_every_finding_with_its_advice() {
        let json = diagnosis(&[State::Good, State::Advised]).json();
        assert_eq!((json["simulation"].as_bool(), json["ascend"].as_bool()), (Some(true), Some(false)));
        assert_eq!(json["findings"].as_array().unwrap().len(), 2);
        assert_eq!(json["findings"][0]["advice"], "do this");
        assert_eq!(json["findings"][1]["state"], "note");
    }
}
