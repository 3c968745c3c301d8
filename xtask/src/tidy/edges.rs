//! Which crate may use which, by the table in `layers.rs`.

use crate::layers::{ROWS, Uses, position};
use crate::tidy::{Finding, Tree};
use crate::workspace::{Dependency, Member};

/// Every dependency on another member must be in the table. Tests may use any crate in an earlier row.
pub(super) fn edges(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &tree.ws.members {
        let owner = tree.ws.owner(member);
        let Some(at) = position(&owner.name) else {
            findings.push(format!("{} has no row in xtask/src/layers.rs", owner.name));
            continue;
        };
        for dependency in &member.dependencies {
            let Some(used) = tree.ws.member(&dependency.name) else { continue };
            let used = tree.ws.owner(used);
            if used.name != owner.name && !allowed(at, &used.name, dependency) {
                let kind = dependency.kind.as_deref().map(|kind| format!("{kind}-")).unwrap_or_default();
                findings.push(format!(
                    "{} has a {kind}dependency on {}; xtask/src/layers.rs allows {}",
                    member.name,
                    dependency.name,
                    names(at, dependency)
                ));
            }
        }
    }
    findings
}

/// Names of the rows that a crate may use through this kind of dependency.
fn may_use(at: usize, dependency: &Dependency) -> Vec<&'static str> {
    let earlier = || ROWS[..at].iter().map(|row| row.name).collect();
    match ROWS[at].uses {
        Uses::AllEarlier => earlier(),
        Uses::Only(_) if dependency.kind.as_deref() == Some("dev") => earlier(),
        Uses::Only(names) | Uses::Apart(names) => names.to_vec(),
    }
}

fn allowed(at: usize, used: &str, dependency: &Dependency) -> bool {
    may_use(at, dependency).contains(&used)
}

fn names(at: usize, dependency: &Dependency) -> String {
    let names = may_use(at, dependency);
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The root manifest lists the members in the order of the table, so that the listing is the architecture.
pub(super) fn order(tree: &Tree<'_>) -> Vec<Finding> {
    let placed: Vec<(&Member, usize)> =
        tree.ws.top_level().filter_map(|member| Some((member, position(&member.name)?))).collect();
    let wrong = placed.windows(2).filter(|pair| pair[0].1 > pair[1].1);
    wrong.map(|pair| format!("Cargo.toml lists {} after {}", pair[1].0.name, pair[0].0.name)).collect()
}

/// Features that are test code: a library that turned one on would bring it to its users.
const FOR_TESTS: [&str; 2] = ["conformance", "fault-points"];

pub(super) fn test_features(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &tree.ws.members {
        let normal =
            member.dependencies.iter().filter(|dependency| dependency.kind.as_deref() != Some("dev"));
        for dependency in normal {
            let (name, used) = (&member.name, &dependency.name);
            let on = dependency.features.iter().filter(|feature| FOR_TESTS.contains(&feature.as_str()));
            findings.extend(
                on.map(|feature| format!("{name} turns on {used}'s `{feature}` outside of dev-dependencies")),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::findings_of;

    fn member(name: &str, dependencies: &[(&str, Option<&str>)]) -> Member {
        let dependency = |(name, kind): &(&str, Option<&str>)| Dependency {
            name: name.to_string(),
            kind: kind.map(str::to_owned),
            ..Dependency::default()
        };
        Member {
            name: name.into(),
            dir: name.into(),
            dependencies: dependencies.iter().map(dependency).collect(),
            ..Member::default()
        }
    }

    #[test]
    fn an_edge_outside_the_table_fails_by_name() {
        let up = vec![member("worker-errors", &[("comm-context", None)]), member("comm-context", &[])];
        let findings = findings_of(up, &[], edges);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            findings[0].contains("comm-context") && findings[0].contains("worker-errors"),
            "{findings:?}"
        );
    }

    #[test]
    fn edges_of_the_table_and_foreign_crates_pass() {
        let bootstrap = member("bootstrap-channel", &[("mailbox-atomics", None), ("libc", None)]);
        let orch = member("worker-orch", &[("bootstrap-channel", None)]);
        let members = vec![member("mailbox-atomics", &[]), bootstrap, orch];
        assert_eq!(findings_of(members, &[], edges), Vec::<String>::new());
    }

    #[test]
    fn tests_may_use_what_is_below_but_nothing_above() {
        let dev = Some("dev");
        let below = vec![member("worker-errors", &[]), member("comm-context", &[("worker-errors", dev)])];
        assert!(findings_of(below, &[], edges).is_empty());
        let above = vec![member("worker-errors", &[("comm-context", dev)]), member("comm-context", &[])];
        assert_eq!(findings_of(above, &[], edges).len(), 1);
        let apart = vec![member("mailbox-atomics", &[]), member("ipcq-sim", &[("mailbox-atomics", dev)])];
        assert_eq!(findings_of(apart, &[], edges).len(), 1);
        let itself = vec![member("comm-context", &[("comm-context", dev)])];
        assert!(findings_of(itself, &[], edges).is_empty());
    }

    #[test]
    fn a_member_inside_another_has_its_edges_and_one_without_a_row_has_none() {
        let hccl = member("comm-hccl", &[("cann-sim", Some("dev"))]);
        let double =
            Member { dir: "comm-hccl/cann-sim".into(), ..member("cann-sim", &[("worker-orch", None)]) };
        let findings = findings_of(vec![hccl, double, member("worker-orch", &[])], &[], edges);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("cann-sim has a dependency on worker-orch"), "{findings:?}");
        assert_eq!(findings_of(vec![member("stranger", &[])], &[], edges).len(), 1);
    }

    #[test]
    fn members_out_of_order_are_named() {
        let findings =
            findings_of(vec![member("comm-context", &[]), member("worker-errors", &[])], &[], order);
        assert_eq!(findings, ["Cargo.toml lists worker-errors after comm-context"]);
        assert!(findings_of(vec![member("comm-context", &[]), member("xtask", &[])], &[], order).is_empty());
    }

    #[test]
    fn conformance_and_fault_points_are_for_tests() {
        for feature in FOR_TESTS {
            let with = |kind: Option<&str>| {
                let mut one = member("comm-sim", &[("comm-context", kind)]);
                one.dependencies[0].features = vec![feature.into()];
                findings_of(vec![one], &[], test_features).len()
            };
            assert_eq!((with(None), with(Some("build")), with(Some("dev"))), (1, 1, 0), "{feature}");
        }
    }
}
