//! Who has joined, and who may: what rank 0 decides while the ranks of several hosts join. It knows no sockets.

use super::error::Lost;
use super::proof::{Challenge, Proof, Seal, Transcript};
use super::token::Token;
use super::wire::{Join, Member, OBSERVER};
use crate::memory::layout::layout_hash;
use comm_context::comm::Membership;
use std::fmt::Write;
use std::time::Duration;

/// The ranks that have joined.
pub(super) struct Roll<'a> {
    me: Membership,
    extent: u64,
    token: &'a Token,
    members: Vec<Option<Member>>,
    /// Connections that did not prove that they know the token, and the last of them.
    strangers: u64,
    last_stranger: String,
}

/// What rank 0 answers to a process that wants to join.
pub(super) enum Admission {
    /// It is a rank of this group, and here is rank 0's own proof.
    Accepted { proof: Proof, seal: Seal },
    /// It knows the token and only asks who has joined.
    Observer { proof: Proof, seal: Seal },
    /// It does not know the token. The others may still join.
    Stranger,
    /// It knows the token and cannot be accepted. No group can come of it.
    Disagreement { reason: String, proof: Proof, seal: Seal },
}

impl<'a> Roll<'a> {
    /// Rank 0 of `me.nranks()` ranks.
    pub(super) fn new(me: Membership, extent: u64, token: &'a Token, own: Member) -> Self {
        let mut members: Vec<Option<Member>> = (0..me.nranks()).map(|_| None).collect();
        members[0] = Some(own);
        Self { me, extent, token, members, strangers: 0, last_stranger: String::new() }
    }

    /// Decides about a process that answered `hello` from `peer`.
    pub(super) fn admit(
        &mut self,
        hello: &Challenge,
        challenge: &Challenge,
        join: Join,
        proof: &Proof,
        peer: &str,
    ) -> Admission {
        let bytes = join.bytes();
        let transcript = Transcript { token: self.token, leader: hello, joiner: challenge, join: &bytes };
        if !transcript.is_joiner(proof) {
            self.refuse_stranger(peer, "does not know the token");
            return Admission::Stranger;
        }
        let (proof, seal) = (transcript.leader_proof(), transcript.leader_seal());
        if join.rank == OBSERVER {
            return Admission::Observer { proof, seal };
        }
        if let Some(reason) = self.disagreement(&join) {
            return Admission::Disagreement { reason, proof, seal };
        }
        self.members[join.rank as usize] = Some(Member { pid: join.pid, host: join.host });
        Admission::Accepted { proof, seal }
    }

    /// Counts a connection that is not a rank's.
    pub(super) fn refuse_stranger(&mut self, peer: &str, why: &str) {
        self.strangers += 1;
        self.last_stranger = format!("{peer}, which {why}");
    }

    fn disagreement(&self, join: &Join) -> Option<String> {
        let Join { hash, rank, nranks, extent, pid, host } = join;
        let who = format!("rank {rank} (pid {pid} on {})", host.name);
        let size = self.me.nranks();
        if *hash != layout_hash() {
            return Some(format!("{who} runs another build than rank 0; use one build for all ranks"));
        }
        if *nranks != size {
            return Some(format!(
                "{who} says {nranks} ranks, rank 0 says {size}; give all ranks the same size"
            ));
        }
        if *extent != self.extent {
            return Some(format!(
                "{who} owns {extent} bytes of the group's memory, rank 0 {}; use one build for all ranks",
                self.extent
            ));
        }
        match self.members.get(*rank as usize) {
            None => Some(format!("{who} is out of range for {size} ranks; count them from 0")),
            Some(Some(first)) => Some(format!(
                "{who} joined, but rank {rank} has joined already (pid {} on {}); give each process a rank of its own",
                first.pid, first.host.name
            )),
            Some(None) => None,
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.members.iter().all(Option::is_some)
    }

    /// The ranks that have not joined.
    pub(super) fn missing(&self) -> Vec<u32> {
        (0..).zip(&self.members).filter(|(_, member)| member.is_none()).map(|(rank, _)| rank).collect()
    }

    /// All ranks, when they are complete.
    pub(super) fn members(&self) -> Vec<Member> {
        self.members.iter().flatten().cloned().collect()
    }

    /// The process of `rank`, if it has joined.
    pub(super) fn pid(&self, rank: u32) -> u32 {
        self.members.get(rank as usize).and_then(Option::as_ref).map_or(0, |member| member.pid)
    }

    /// One line for each rank, and one for those that were refused.
    pub(super) fn table(&self, since: Duration) -> String {
        let mut table = String::new();
        for (rank, member) in self.members.iter().enumerate() {
            let _ = match member {
                None => writeln!(table, "  rank {rank:>2}  not joined yet"),
                Some(Member { pid, host }) => {
                    let doing = if rank == 0 {
                        format!("waiting for the others for {since:.1?}")
                    } else {
                        "waiting".into()
                    };
                    writeln!(table, "  rank {rank:>2}  pid {pid:<8} on {} {doing}", host.name)
                }
            };
        }
        if self.strangers > 0 {
            let _ = writeln!(
                table,
                "  {} connections were refused, the last from {}; check that all ranks have the same token",
                self.strangers, self.last_stranger
            );
        }
        table
    }
}

/// A rank that goes away while others join, as all of them report it.
pub(super) fn departure(rank: u32, pid: u32, how: Lost) -> comm_context::comm::CommError {
    let phase = comm_context::comm::Phase::Init;
    comm_context::comm::CommError::PeerDied {
        rank,
        pid: Some(pid).filter(|pid| *pid != 0),
        how: how.death(),
        phase,
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Host;
    use super::*;

    /// What rank 0 of two says to a process that knows the token and wants to join like this.
    fn refusal_of(join: Join) -> String {
        let token = Token::of_test("0123456789abcdef");
        let own = Member { pid: 70, host: Host { id: [0; 16], name: "first".to_owned() } };
        let mut roll = Roll::new(Membership::new(0, 2).unwrap(), 4096, &token, own);
        let (hello, challenge) = ([1; 32], [2; 32]);
        let bytes = join.bytes();
        let proof =
            Transcript { token: &token, leader: &hello, joiner: &challenge, join: &bytes }.joiner_proof();
        match roll.admit(&hello, &challenge, join, &proof, "192.0.2.1:5") {
            Admission::Disagreement { reason, .. } => reason,
            _ => "no disagreement".to_owned(),
        }
    }

    #[test]
    fn rv_9_a_rank_on_another_host_that_no_group_can_be_made_with_is_named() {
        let host = Host { id: [1; 16], name: "second".to_owned() };
        let good = Join { hash: layout_hash(), rank: 1, nranks: 2, extent: 4096, pid: 71, host };
        assert_eq!(refusal_of(good.clone()), "no disagreement");
        for (join, text) in [
            (
                Join { hash: layout_hash() ^ 1, ..good.clone() },
                "rank 1 (pid 71 on second) runs another build than rank 0; use one build for all ranks",
            ),
            (
                Join { nranks: 3, ..good.clone() },
                "rank 1 (pid 71 on second) says 3 ranks, rank 0 says 2; give all ranks the same size",
            ),
            (
                Join { extent: 8192, ..good.clone() },
                "rank 1 (pid 71 on second) owns 8192 bytes of the group's memory, rank 0 4096; use one build for all ranks",
            ),
            (
                Join { rank: 2, ..good.clone() },
                "rank 2 (pid 71 on second) is out of range for 2 ranks; count them from 0",
            ),
            (
                Join { rank: 0, ..good },
                "rank 0 (pid 71 on second) joined, but rank 0 has joined already (pid 70 on first); give each process a rank of \
                 its own",
            ),
        ] {
            assert_eq!(refusal_of(join), text);
        }
    }
}
