//! Groups whose ranks are on several hosts.
//!
//! The ranks agree on an address, `tcp://HOST:PORT`, which is rank 0's, and on a token. Rank 0 listens there while the
//! ranks join, and no longer. Each rank connects to it, both prove that they know the token, and when all have joined,
//! rank 0 tells all of them and the group begins. From then on the connections carry what the ranks do; see [`relay`].
//! Everything above, from the barrier to the exchange of messages, is the same as on one host.

mod address;
mod connection;
mod error;
mod event;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod host;
mod joiner;
mod leader;
mod proof;
mod relay;
mod roll;
mod token;
mod wire;

pub use address::HostAddress;
pub use error::HostsError;
pub(crate) use event::Event;
pub(crate) use relay::{Hosts, Uplink};

use crate::group::Group;
use crate::memory::Memory;
use crate::memory::layout::{Layout, layout_hash};
use comm_context::comm::{CommError, Membership};
use deadline::Deadline;
use fault_points::fault_point;
use roll::Roll;
use std::sync::Arc;
use token::Token;
use wire::{Join, Member};

/// One rank's attempt to join.
struct Attempt<'a> {
    address: &'a HostAddress,
    deadline: Deadline,
}

/// Joins the other ranks at `address`.
pub(crate) fn rendezvous(
    address: &HostAddress,
    me: Membership,
    layout: Layout,
    deadline: Deadline,
) -> Result<Group, CommError> {
    let token = Token::from_env()?;
    fault_point!("hosts.token_read");
    // The memory first: after a rank has joined, there is little left that can fail.
    let memory = Arc::new(Memory::create(layout)?);
    let (attempt, host) = (Attempt { address, deadline }, host::this());
    let (extent, pid) = (layout.extent_len() as u64, std::process::id());
    let (connections, members) = if me.rank() == 0 {
        let roll = Roll::new(me, extent, &token, Member { pid, host });
        let (members, joined) = leader::lead(&attempt, roll)?;
        (joined, members)
    } else {
        let (rank, nranks) = (me.rank(), me.nranks());
        let join = Join { hash: layout_hash(), rank, nranks, extent, pid, host };
        let (connection, members) = joiner::join(&attempt, &token, &join)?;
        (vec![(0, connection)], members)
    };
    let hosts = Hosts::start(me.rank(), members, connections, memory.clone())
        .map_err(|error| HostsError::NoRelay { address: address.to_string(), reason: error.to_string() })?;
    fault_point!("hosts.relay.started");
    Group::enter_hosts(me, memory, hosts, deadline)
}

/// The ranks that wait at `address` right now, one line each; `None` when there are none.
pub(crate) fn ranks_at(address: &HostAddress, deadline: Deadline) -> Result<Option<String>, CommError> {
    let (token, host, pid) = (Token::from_env()?, host::this(), std::process::id());
    let own = Join { hash: layout_hash(), rank: wire::OBSERVER, nranks: 0, extent: 0, pid, host };
    joiner::observe(&Attempt { address, deadline }, &token, &own)
}
