//! What goes wrong, and its text form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The system call that follows fails with this errno, without being made.
    Error(i32),
    /// A panic.
    Panic,
    /// The process ends with this code, at once.
    Exit(i32),
    /// SIGKILL.
    Kill,
    /// SIGSTOP: the process goes on after a SIGCONT.
    Stop,
    /// SIGTERM.
    Term,
    /// The process sleeps.
    Delay(Duration),
}

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The name of the point.
    pub point: String,
    /// In which rank; in any where `None`.
    pub rank: Option<u32>,
    /// At which pass of the point, from 1.
    pub hit: u64,
    /// What happens.
    pub action: Action,
}

/// What goes wrong in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In any order; of two for the same pass of the same point the first counts.
    pub faults: Vec<Fault>,
}

/// A text that is not a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "malformed fault {entry:?}: {problem}; write point@rank#hit=action, such as rendezvous.accepted@1#2=kill"
)]
pub struct PlanError {
    /// The entry.
    pub entry: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl Plan {
    /// One fault.
    pub fn one(point: &str, rank: u32, hit: u64, action: Action) -> Self {
        Self { faults: vec![Fault { point: point.to_owned(), rank: Some(rank), hit, action }] }
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        text.split(';').map(str::parse).collect::<Result<_, _>>().map(|faults| Self { faults })
    }
}

impl FromStr for Fault {
    type Err = PlanError;

    fn from_str(entry: &str) -> Result<Self, PlanError> {
        let wrong = |problem| PlanError { entry: entry.to_owned(), problem };
        let (place, action) = entry.split_once('=').ok_or(wrong("`=` is missing"))?;
        let (place, hit) = place.split_once('#').map_or((place, None), |(place, hit)| (place, Some(hit)));
        let (point, rank) = place.split_once('@').map_or((place, None), |(point, rank)| (point, Some(rank)));
        let named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_');
        if point.is_empty() || !point.chars().all(named) {
            return Err(wrong("a point has a name like rendezvous.accepted"));
        }
        let rank = rank.map(str::parse).transpose().map_err(|_| wrong("the rank is not a number"))?;
        let hit = hit.map_or(Ok(1), str::parse).ok().filter(|hit| *hit > 0);
        let hit = hit.ok_or(wrong("the hit is not a number from 1 on"))?;
        let (name, number) =
            action.split_once(':').map_or((action, None), |(name, number)| (name, Some(number)));
        let number = number
            .map(str::parse::<u16>)
            .transpose()
            .map_err(|_| wrong("what stands after `:` is not a number up to 65535"))?;
        let action = match (name, number) {
            ("error", Some(errno)) if errno > 0 => Action::Error(errno.into()),
            ("panic", None) => Action::Panic,
            ("exit", Some(code @ 0..=255)) => Action::Exit(code.into()),
            ("kill", None) => Action::Kill,
            ("stop", None) => Action::Stop,
            ("term", None) => Action::Term,
            ("delay", Some(ms)) => Action::Delay(Duration::from_millis(ms.into())),
            _ => {
                return Err(wrong(
                    "actions are error:ERRNO, panic, exit:CODE, kill, stop, term, delay:MILLISECONDS",
                ));
            }
        };
        Ok(Self { point: point.to_owned(), rank, hit, action })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { point, rank, hit, action } = self;
        f.write_str(point)?;
        if let Some(rank) = rank {
            write!(f, "@{rank}")?;
        }
        write!(f, "#{hit}=")?;
        match action {
            Action::Error(errno) => write!(f, "error:{errno}"),
            Action::Panic => f.write_str("panic"),
            Action::Exit(code) => write!(f, "exit:{code}"),
            Action::Kill => f.write_str("kill"),
            Action::Stop => f.write_str("stop"),
            Action::Term => f.write_str("term"),
            Action::Delay(time) => write!(f, "delay:{}", time.as_millis()),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.faults.iter().enumerate() {
            write!(f, "{}{fault}", if at == 0 { "" } else { ";" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FP-3
    #[test]
    fn a_plan_survives_its_text() {
        let text = "a.b@3#2=kill;a.c#1=error:12;d@0#7=delay:250;e#1=exit:3;f#1=panic;g#1=stop;h-i_2#1=term";
        let plan: Plan = text.parse().unwrap();
        assert_eq!(plan.faults.len(), 7);
        assert_eq!(plan.to_string(), text);
        assert_eq!("a=kill".parse::<Plan>().unwrap().to_string(), "a#1=kill");
    }

    #[test]
    fn malformed_plans_are_refused() {
        let name = "a point has a name like rendezvous.accepted";
        let rank = "the rank is not a number";
        let hit = "the hit is not a number from 1 on";
        let actions = "actions are error:ERRNO, panic, exit:CODE, kill, stop, term, delay:MILLISECONDS";
        let number = "what stands after `:` is not a number up to 65535";
        for (problem, texts) in [
            ("`=` is missing", &["", "a", "a=kill;"][..]),
            (name, &["=kill", "a b=kill", "A=kill"]),
            (rank, &["a@=kill", "a@-1=kill", "a@x=kill"]),
            (hit, &["a#0=kill", "a#=kill"]),
            (actions, &["a=", "a=KILL", "a=kill:1", "a=exit", "a=exit:256", "a=error", "a=error:0"]),
            (number, &["a=error:-1", "a=error:ENOMEM", "a=delay:1s", "a=delay:99999"]),
        ] {
            for text in texts {
                let entry = text.rsplit(';').next().unwrap_or(text);
                let expected = format!(
                    "malformed fault {entry:?}: {problem}; write point@rank#hit=action, such as \
                     rendezvous.accepted@1#2=kill"
                );
                assert_eq!(text.parse::<Plan>().unwrap_err().to_string(), expected);
            }
        }
    }
}
