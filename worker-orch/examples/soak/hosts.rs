//! A group of ranks that find each other over TCP, as ranks on several hosts do, for one cycle.

use crate::cycle::{KillPlan, Soak, limit};
use crate::group::{self, Member};
use crate::random::Random;
use comm_context::comm::{Membership, Phase};
use rendezvous::{Group, Tag};
use std::error::Error;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use worker_orch::{ErrorCode, Failure};

/// What the ranks prove to each other that they belong together with: a variable of this process and its children.
pub(crate) const TOKEN: (&str, &str) = ("CHIPCOMM_TOKEN", "a token of this soak");

pub(crate) fn run(soak: &mut Soak, plan: &mut KillPlan, random: &mut Random) -> Result<(), Failure> {
    let address = address().map_err(|error| Failure::new(ErrorCode::System, error.to_string()))?;
    let (nranks, rounds) = (random.among(2, 4) as u32, random.among(1, 30) as u64);
    let work = |member: &Member<'_>| work(&address, member, rounds);
    group::ranks(soak, plan, nranks, None, &work)
}

/// An address of this host whose port is free.
fn address() -> std::io::Result<PathBuf> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    Ok(PathBuf::from(format!("tcp://127.0.0.1:{port}")))
}

/// What one rank does: everybody gets a message of everybody, over and over.
fn work(address: &Path, member: &Member<'_>, rounds: u64) -> Result<(), Box<dyn Error>> {
    let (rank, nranks) = (member.rank, member.nranks);
    let group = Group::rendezvous(address, Membership::new(rank, nranks)?, 1 << 20, limit())?;
    member.joined();
    let everybody: Vec<u32> = (0..nranks).collect();
    for id in 0..rounds {
        let step = group.step(Phase::Barrier, limit())?;
        let messages = group.exchange(&step, Tag { kind: 1, id }, &everybody, &[rank as u8, id as u8])?;
        let wanted: Vec<Vec<u8>> = everybody.iter().map(|rank| vec![*rank as u8, id as u8]).collect();
        if messages != wanted {
            return Err(format!("wrong messages in round {id}: {messages:?}").into());
        }
        group.barrier(&step)?;
    }
    Ok(())
}
