//! Proofs that a process knows the token, and tags that show that a message comes from it.
//!
//! Both sides choose 32 random bytes. Each proves with an HMAC over both that it knows the token, the joiner also
//! over everything that it says about itself. The keys of the tags are made in the same way. So the token never
//! crosses the network, nothing recorded can be used a second time, and nobody without the token can add, change or
//! repeat a message. Messages are not encrypted.

use super::token::Token;
use hmac_sha256::HMAC;
use std::io::Read;

/// Random bytes that make proofs and keys those of one connection.
pub(super) type Challenge = [u8; 32];
/// An HMAC-SHA256.
pub(super) type Proof = [u8; 32];

/// What each HMAC is for, in 16 bytes.
const JOINER: &[u8; 16] = b"chipcomm1 joiner";
const LEADER: &[u8; 16] = b"chipcomm1 leader";
const FROM_JOINER: &[u8; 16] = b"chipcomm1 key up";
const FROM_LEADER: &[u8; 16] = b"chipcomm1 key dn";

pub(super) fn challenge() -> std::io::Result<Challenge> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The challenges of both sides and what the joiner says about itself.
pub(super) struct Transcript<'a> {
    pub(super) token: &'a Token,
    pub(super) leader: &'a Challenge,
    pub(super) joiner: &'a Challenge,
    pub(super) join: &'a [u8],
}

impl Transcript<'_> {
    fn mac(&self, purpose: &[u8; 16]) -> HMAC {
        let mut mac = HMAC::new(self.token.bytes());
        for part in [&purpose[..], self.leader, self.joiner, self.join] {
            mac.update(part);
        }
        mac
    }

    pub(super) fn joiner_proof(&self) -> Proof {
        self.mac(JOINER).finalize()
    }

    /// Whether the joiner knows the token. Takes the same time for every wrong proof.
    pub(super) fn is_joiner(&self, proof: &Proof) -> bool {
        self.mac(JOINER).finalize_verify(proof)
    }

    pub(super) fn leader_proof(&self) -> Proof {
        self.mac(LEADER).finalize()
    }

    /// Whether the leader knows the token.
    pub(super) fn is_leader(&self, proof: &Proof) -> bool {
        self.mac(LEADER).finalize_verify(proof)
    }

    /// The keys with which the leader sends and receives; a joiner swaps them.
    pub(super) fn leader_seal(&self) -> Seal {
        Seal::new(self.mac(FROM_LEADER).finalize(), self.mac(FROM_JOINER).finalize())
    }

    pub(super) fn joiner_seal(&self) -> Seal {
        Seal::new(self.mac(FROM_JOINER).finalize(), self.mac(FROM_LEADER).finalize())
    }
}

/// Tags the messages of one connection, in both directions.
pub(super) struct Seal {
    send_key: [u8; 32],
    receive_key: [u8; 32],
    sent: u64,
    received: u64,
}

impl Seal {
    fn new(send_key: [u8; 32], receive_key: [u8; 32]) -> Self {
        Self { send_key, receive_key, sent: 0, received: 0 }
    }

    /// The tag of the next message that is sent.
    pub(super) fn tag(&mut self, body: &[u8]) -> Proof {
        let tag = mac(&self.send_key, self.sent, body).finalize();
        self.sent += 1;
        tag
    }

    /// Whether `tag` is that of the next message that is received.
    pub(super) fn is_next(&mut self, body: &[u8], tag: &Proof) -> bool {
        let next = mac(&self.receive_key, self.received, body).finalize_verify(tag);
        self.received += u64::from(next);
        next
    }
}

fn mac(key: &[u8; 32], number: u64, body: &[u8]) -> HMAC {
    let mut mac = HMAC::new(key);
    mac.update(number.to_le_bytes());
    mac.update(body);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f79_a_proof_is_good_for_one_token_one_connection_and_one_side() {
        let (token, other) = (Token::of_test("0123456789abcdef"), Token::of_test("0123456789abcdeF"));
        let (leader, joiner, again) = (challenge().unwrap(), challenge().unwrap(), challenge().unwrap());
        let good = Transcript { token: &token, leader: &leader, joiner: &joiner, join: b"rank 1" };
        let proof = good.joiner_proof();
        assert!(good.is_joiner(&proof) && !good.is_leader(&proof));
        assert!(good.is_leader(&good.leader_proof()));
        for wrong in [
            Transcript { token: &other, ..good },
            Transcript { leader: &again, ..good },
            Transcript { joiner: &again, ..good },
            Transcript { join: b"rank 2", ..good },
        ] {
            assert!(!wrong.is_joiner(&proof));
        }
    }

    #[test]
    fn f79_a_message_that_is_changed_repeated_or_left_out_has_the_wrong_tag() {
        let token = Token::of_test("0123456789abcdef");
        let (leader, joiner) = (challenge().unwrap(), challenge().unwrap());
        let both = Transcript { token: &token, leader: &leader, joiner: &joiner, join: b"" };
        let (mut up, mut down) = (both.joiner_seal(), both.leader_seal());
        let (one, two) = (up.tag(b"one"), up.tag(b"two"));
        assert!(!down.is_next(b"two", &two), "the first is missing");
        assert!(!down.is_next(b"onE", &one));
        assert!(down.is_next(b"one", &one));
        assert!(!down.is_next(b"one", &one), "a second time");
        assert!(down.is_next(b"two", &two));
        assert!(!up.is_next(b"one", &one), "sent back to its sender");
    }
}
