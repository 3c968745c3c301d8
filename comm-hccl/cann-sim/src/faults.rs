//! The script of faults: which call of which function fails, on which rank, and how.
//!
//! One rule a line (or between `;`): `[rank=R] FUNCTION#N WHAT`, where N counts the calls of that function in
//! a process from 1 (`*` is every call) and WHAT is `return CODE` (without doing anything), `hang`, `kill`
//! (SIGKILL) or `abort`.
//!
//! ```
//! use cann_sim::faults::{Effect, Script};
//! let script: Script = "rank=1 aclrtMalloc#2 return 507899; HcclBarrier#* hang".parse()?;
//! assert_eq!(script.effect(Some(1), "aclrtMalloc", 2), Some(Effect::Return(507899)));
//! assert_eq!(script.effect(Some(0), "aclrtMalloc", 2), None);
//! # Ok::<(), cann_sim::faults::ScriptError>(())
//! ```

use comm_hccl::sys::{AscendCl, Hccl};
use std::str::FromStr;

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It does nothing and returns this code. A function that returns a text returns null.
    Return(i32),
    /// It never returns.
    Hang,
    /// The process is killed.
    Kill,
    /// The process aborts.
    Abort,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    rank: Option<u32>,
    function: &'static str,
    /// `None` is every call.
    call: Option<u64>,
    effect: Effect,
}

/// All rules of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    rules: Vec<Rule>,
}

/// A malformed rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fault rule {rule:?}: {why}; a rule reads `[rank=R] FUNCTION#N return CODE|hang|kill|abort`")]
pub struct ScriptError {
    /// The rule.
    pub rule: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl FromStr for Script {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, ScriptError> {
        let rules = text
            .lines()
            .flat_map(|line| strip_comment(line).split(';'))
            .map(str::trim)
            .filter(|rule| !rule.is_empty())
            .map(|rule| parse_rule(rule).map_err(|why| ScriptError { rule: rule.to_owned(), why }))
            .collect::<Result<_, _>>()?;
        Ok(Self { rules })
    }
}

impl Script {
    /// Adds another script's rules after these.
    pub fn extend(&mut self, other: Self) {
        self.rules.extend(other.rules);
    }

    /// What happens to the `call`-th call (from 1) of `function` on `rank`. The first rule that fits wins; a
    /// rule for a rank does not fit a process that has none yet.
    pub fn effect(&self, rank: Option<u32>, function: &str, call: u64) -> Option<Effect> {
        self.rules
            .iter()
            .find(|r| {
                r.function == function
                    && r.call.is_none_or(|n| n == call)
                    && r.rank.is_none_or(|wanted| rank == Some(wanted))
            })
            .map(|r| r.effect)
    }
}

/// A comment is a line that starts with `#`; elsewhere `#` belongs to the rule.
fn strip_comment(line: &str) -> &str {
    if line.trim_start().starts_with('#') { "" } else { line }
}

fn parse_rule(rule: &str) -> Result<Rule, &'static str> {
    let mut words = rule.split_whitespace().peekable();
    let rank = match words.peek().and_then(|w| w.strip_prefix("rank=")) {
        Some(number) => {
            words.next();
            Some(number.parse().map_err(|_| "the rank is not a number")?)
        }
        None => None,
    };
    let (name, call) = words.next().and_then(|w| w.split_once('#')).ok_or("expected FUNCTION#N")?;
    let function = AscendCl::FUNCTIONS
        .iter()
        .chain(Hccl::FUNCTIONS)
        .map(|f| f.name)
        .find(|&known| known == name)
        .ok_or("unknown vendor function")?;
    let call = match call {
        "*" => None,
        n => Some(n.parse().ok().filter(|&n| n > 0).ok_or("calls are counted from 1")?),
    };
    let effect = match (words.next(), words.next(), words.next()) {
        (Some("return"), Some(code), None) => {
            Effect::Return(code.parse().map_err(|_| "the code is not a number")?)
        }
        (Some("hang"), None, None) => Effect::Hang,
        (Some("kill"), None, None) => Effect::Kill,
        (Some("abort"), None, None) => Effect::Abort,
        _ => return Err("expected what the call does"),
    };
    Ok(Rule { rank, function, call, effect })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_match_by_rank_function_and_call() {
        let script: Script =
            "# a comment\nrank=1 aclInit#1 hang; aclrtFree#3 kill\n\nHcclBarrier#* return 9".parse().unwrap();
        assert_eq!(script.effect(Some(1), "aclInit", 1), Some(Effect::Hang));
        assert_eq!(script.effect(None, "aclInit", 1), None);
        assert_eq!(script.effect(Some(1), "aclInit", 2), None);
        assert_eq!(script.effect(Some(5), "aclrtFree", 3), Some(Effect::Kill));
        assert_eq!(script.effect(None, "HcclBarrier", 77), Some(Effect::Return(9)));
    }

    // CN-4
    #[test]
    fn a_malformed_rule_is_refused() {
        for rule in [
            "aclNoSuch#1 hang",
            "aclInit#0 hang",
            "aclInit hang",
            "aclInit#1",
            "aclInit#1 return",
            "aclInit#1 return x",
            "aclInit#1 hang now",
            "rank=x aclInit#1 hang",
        ] {
            assert_eq!(rule.parse::<Script>().expect_err(rule).rule, rule);
        }
    }
}
