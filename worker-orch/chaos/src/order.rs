//! The order of the cases: by the seed, and such that any beginning of it is spread over everything.

use std::collections::BTreeMap;

/// A generator of pseudo-random numbers (splitmix64): the same for the same seed, everywhere.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            // A bias of one in 2^50 does not matter here.
            list.swap(at, (self.next() % (at as u64 + 1)) as usize);
        }
    }
}

/// Scenario and area of a case: `fork` and `worker.task` of `fork:worker.task.before-program@1#2=kill`.
pub(crate) fn area(case: &str) -> (&str, &str) {
    let (scenario, rest) = case.split_once(':').unwrap_or(("", case));
    let point = rest.split(['@', '#', '=']).next().unwrap_or(rest);
    (scenario, point.rsplit_once('.').map_or(point, |(area, _)| area))
}

/// The action of a case, without its number: `error` of `…=error:12`.
pub(crate) fn action(case: &str) -> &str {
    let action = case.rsplit_once('=').map_or("", |(_, action)| action);
    action.split(':').next().unwrap_or(action)
}

/// All cases, shuffled, then taken in turns from every area of every scenario.
pub fn spread(mut cases: Vec<String>, seed: u64) -> Vec<String> {
    let mut numbers = Numbers(seed);
    numbers.shuffle(&mut cases);
    let total = cases.len();
    let mut areas: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for case in cases {
        let (scenario, area) = area(&case);
        areas.entry((scenario.to_owned(), area.to_owned())).or_default().push(case);
    }
    let mut areas: Vec<Vec<String>> = areas.into_values().collect();
    numbers.shuffle(&mut areas);
    let mut chosen = Vec::with_capacity(total);
    while chosen.len() < total {
        chosen.extend(areas.iter_mut().filter_map(Vec::pop));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn cases() -> Vec<String> {
        let point = |at: u32| format!("fork:worker.task.a@{at}#1=kill");
        let mut cases: Vec<String> = (0..100).map(point).collect();
        cases.extend(
            ["exec:chip.ready@0#1=kill", "fork:chip.ready@0#1=error:12", "ranks:region.map=stop"]
                .map(str::to_owned),
        );
        cases
    }

    #[test]
    fn every_case_comes_once_and_every_area_early() {
        let spread = spread(cases(), 7);
        assert_eq!(spread.iter().cloned().collect::<BTreeSet<_>>(), cases().into_iter().collect());
        let first: BTreeSet<_> = spread[..4].iter().map(|case| area(case)).collect();
        assert_eq!(first.len(), 4, "{first:?}");
    }

    #[test]
    fn a_seed_gives_one_order_and_another_seed_another() {
        assert_eq!(spread(cases(), 1), spread(cases(), 1));
        assert_ne!(spread(cases(), 1), spread(cases(), 2));
    }

    #[test]
    fn areas_and_actions_are_read_from_a_case() {
        assert_eq!(area("fork:worker.task.before-program@1#2=kill"), ("fork", "worker.task"));
        assert_eq!(area("exec:worker.exec.begun#1=kill"), ("exec", "worker.exec"));
        assert_eq!(action("fork:region.map@1#2=error:12"), "error");
        assert_eq!(action("fork:region.map@1#2=pause"), "pause");
    }
}
