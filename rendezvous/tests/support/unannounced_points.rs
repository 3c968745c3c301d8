//! Data for the tests of several crates that end ranks at every fault point.

/// The fault points of `Group::rendezvous` at which a rank can end before the ranks that depend on it know
/// of it. They cannot name it then and run into their deadlines. For tests that end ranks at every point.
pub(crate) const UNANNOUNCED_POINTS: &[&str] = &[
    // No other process knows that it exists.
    "rendezvous.path_checked",
    "rendezvous.bind",
    "rendezvous.connect",
    "rendezvous.connected",
    // It has asked to join, and the leader may find it dead before it accepts it.
    "rendezvous.join_sent",
    // It holds the name, and has accepted no rank yet.
    "rendezvous.leader.bound",
    // It has accepted some ranks. Those that come later find no leader, lead the next rendezvous and wait for
    // it.
    "rendezvous.leader.accepted",
    // The leader aborts the rendezvous, and a rank that comes after that finds nobody who knows of the death.
    // That the ranks that have joined name it is shown in tests/proc_rendezvous.rs.
    "rendezvous.accepted",
    // The same at an address.
    "hosts.token_read",
    "hosts.joiner.resolved",
    "hosts.joiner.connect",
    "hosts.joiner.connected",
    "hosts.joiner.join_sent",
    "hosts.joiner.accepted",
    "hosts.leader.resolved",
    "hosts.leader.listen",
    "hosts.leader.listening",
    "hosts.leader.accepted",
];
