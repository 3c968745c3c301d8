//! Which crate may use which, by the table in `layers.rs`.

use crate::layers::{ABOVE_BACKENDS, C_LIBRARIES, ROWS, SUPPORT, Uses, position};
use crate::tidy::{Finding, Tree};
use crate::workspace::{Dependency, Member};

/// Every dependency on another member must be in the table. Tests may use any crate in an earlier row, and
/// tests and benchmarks the support crates.
pub(super) fn edges(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &tree.ws.members {
        let owner = tree.ws.owner(member);
        let at = position(&owner.name);
        if at.is_none() && !is_support(owner) {
            findings.push(format!("{} has no row in xtask/src/layers.rs", owner.name));
            continue;
        }
        for dependency in &member.dependencies {
            let Some(used) = tree.ws.member(&dependency.name) else { continue };
            let used = tree.ws.owner(used);
            let for_tests = is_support(used) && is_dev(dependency);
            let mut allowed = at.map(|at| may_use(at, dependency)).unwrap_or_default();
            if C_LIBRARIES.contains(&member.name.as_str()) {
                allowed.push(ABOVE_BACKENDS);
            }
            if used.name != owner.name && !for_tests && !allowed.contains(&used.name.as_str()) {
                let kind = dependency.kind.as_deref().map(|kind| format!("{kind}-")).unwrap_or_default();
                let allowed = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
                findings.push(format!(
                    "{} has a {kind}dependency on {}; xtask/src/layers.rs allows {allowed}",
                    member.name, dependency.name,
                ));
            }
        }
    }
    findings
}

/// Names of the rows that a crate may use through this kind of dependency.
fn may_use(at: usize, dependency: &Dependency) -> Vec<&'static str> {
    match ROWS[at].uses {
        Uses::Only(_) if is_dev(dependency) => ROWS[..at].iter().map(|row| row.name).collect(),
        Uses::Only(_) | Uses::Apart(_) => ROWS[at].named(),
    }
}

fn is_dev(dependency: &Dependency) -> bool {
    dependency.kind.as_deref() == Some("dev")
}

fn is_support(member: &Member) -> bool {
    SUPPORT.contains(&member.name.as_str())
}

/// The root manifest lists the members in the order of the table, so that the listing is the architecture.
pub(super) fn order(tree: &Tree<'_>) -> Vec<Finding> {
    let placed: Vec<(&Member, usize)> =
        tree.ws.top_level().filter_map(|member| Some((member, position(&member.name)?))).collect();
    let wrong = placed.windows(2).filter(|pair| pair[0].1 > pair[1].1);
    wrong.map(|pair| format!("Cargo.toml lists {} after {}", pair[1].0.name, pair[0].0.name)).collect()
}

/// Features that are test code: a library that turned one on would bring it to its users.
const FOR_TESTS: [&str; 2] = ["conformance", "inject"];

pub(super) fn test_features(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &tree.ws.members {
        let normal = member.dependencies.iter().filter(|dependency| !is_dev(dependency));
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
        assert_eq!(
            findings,
            ["worker-errors has a dependency on comm-context; xtask/src/layers.rs allows none"]
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
        let below = vec![member("comm-context", &[]), member("mailbox-atomics", &[("comm-context", dev)])];
        assert!(findings_of(below, &[], edges).is_empty());
        let above = vec![member("comm-context", &[("mailbox-atomics", dev)]), member("mailbox-atomics", &[])];
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
    fn support_crates_are_for_tests_and_benchmarks_and_use_no_member() {
        let with = |kind: Option<&str>| {
            let user = member("mailbox-atomics", &[("bench-support", kind)]);
            findings_of(vec![member("bench-support", &[]), user], &[], edges).len()
        };
        assert_eq!((with(Some("dev")), with(None), with(Some("build"))), (0, 1, 1));
        let uses = vec![member("deadline", &[]), member("bench-support", &[("deadline", None)])];
        assert_eq!(findings_of(uses, &[], edges).len(), 1);
    }

    #[test]
    fn members_out_of_order_are_named() {
        let findings =
            findings_of(vec![member("comm-context", &[]), member("worker-errors", &[])], &[], order);
        assert_eq!(findings, ["Cargo.toml lists worker-errors after comm-context"]);
        assert!(findings_of(vec![member("comm-context", &[]), member("xtask", &[])], &[], order).is_empty());
    }

    #[test]
    fn conformance_and_injected_faults_are_for_tests() {
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
