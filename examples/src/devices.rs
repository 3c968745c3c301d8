//! Lists of devices, as users write them.

use std::str::FromStr;
use worker_orch::COMM_MAX_RANK_NUM as MAX_RANKS;

/// Devices in the order given, without repetition; at least one and at most 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices(Vec<i32>);

impl Devices {
    /// Devices 0 to `count` - 1.
    pub fn first(count: usize) -> Result<Self, String> {
        if count == 0 {
            return Err("at least one device is needed; give a count such as 4".to_owned());
        }
        if count > MAX_RANKS {
            return Err(format!("{count} ranks are too many; a group has at most {MAX_RANKS}"));
        }
        Ok(Self((0..count as i32).collect()))
    }

    /// The ids, in order.
    pub fn ids(&self) -> &[i32] {
        &self.0
    }
}

impl FromStr for Devices {
    type Err = String;

    /// `4` (a count), `0-3` (a range), `0,2,5` (ids), or ranges and ids separated by commas. A number alone
    /// is a count, so one device alone is a range: `5-5`.
    fn from_str(text: &str) -> Result<Self, String> {
        // The standard library also parses `+3`.
        if let Ok(count) = text.parse()
            && text.bytes().all(|byte| byte.is_ascii_digit())
        {
            if count == 0 {
                return Err("a number alone is a count, and at least one device is needed; \
                            for device 0 alone write 0-0"
                    .to_owned());
            }
            return Self::first(count);
        }
        let mut ids = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (id(first, text)?, id(last, text)?);
            if first > last {
                return Err(format!("the range {part} is reversed; write {last}-{first}"));
            }
            for id in first..=last {
                if ids.contains(&id) {
                    return Err(format!("device {id} is listed twice; name each once"));
                }
                ids.push(id);
            }
        }
        Ok(Self(ids))
    }
}

/// One id. They are limited to as many as there can be ranks, so that a typing error is found here.
fn id(text: &str, list: &str) -> Result<i32, String> {
    let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<i32>().ok()).flatten();
    match number {
        Some(id) if (id as usize) < MAX_RANKS => Ok(id),
        Some(id) => Err(format!("there is no device {id}; devices are 0 to {}", MAX_RANKS - 1)),
        None => Err(format!(
            "{list:?} is not a list of devices; write a range such as 0-3, ids such as 0,2,5, or a count such as 4"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<i32> {
        text.parse::<Devices>().unwrap().0
    }

    #[test]
    fn counts_ranges_and_lists_are_read() {
        assert_eq!(ids("3"), [0, 1, 2]);
        assert_eq!(ids("2-4"), [2, 3, 4]);
        assert_eq!(ids("5,0,2"), [5, 0, 2]);
        assert_eq!(ids("0,4-6"), [0, 4, 5, 6]);
        assert_eq!(ids("5-5"), [5]);
        assert_eq!(ids("64").len(), 64);
    }

    #[test]
    fn everything_else_is_refused_with_a_reason() {
        for (text, reason) in [
            (
                "0",
                "a number alone is a count, and at least one device is needed; for device 0 alone write 0-0",
            ),
            ("65", "too many"),
            ("99999999999999999999", "not a list"),
            ("1,64", "0 to 63"),
            ("3-1", "reversed"),
            ("1,1", "twice"),
            ("0-2,1", "twice"),
            ("", "not a list"),
            ("a", "not a list"),
            ("-1", "not a list"),
            ("0,", "not a list"),
            ("+1,2", "not a list"),
            ("+3", "not a list"),
            ("0 1", "not a list"),
        ] {
            let error = text.parse::<Devices>().unwrap_err();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }
}
