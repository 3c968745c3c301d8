//! A peer that has written anything over its words: what it declares, and whether it is quiet.

use super::{Domain, Poller, SignalError, Signaller, Signals, Wait};
use crate::task::TaskId;
use deadline::Deadline;
use mailbox_atomics::SignalWords;
use std::sync::Arc;
use std::time::Duration;

thread_local!(static CHIPS: Vec<Arc<Signals>> =
    Signals::in_process(3, 4096).unwrap_or_else(|error| panic!("{error}")));

const SESSION: u64 = 7;

fn soon() -> Deadline {
    Deadline::after(Duration::from_millis(1)).unwrap_or_else(|error| panic!("{error}"))
}

/// Chip 0 waits for chip 1, whose words are these bytes: it is refused, proves a deadlock or waits, and no more than its time.
pub(crate) fn hostile_peer(bytes: &[u8]) {
    CHIPS.with(|chips| {
        let me = &chips[0];
        let (words, declared) = bytes.split_at(bytes.len().min(size_of::<SignalWords>()));
        let declared = &declared[..declared.len().min(super::declared::BYTES)];
        let written = me.words.write(me.words_at + size_of::<SignalWords>(), words);
        written.unwrap_or_else(|error| panic!("{error}"));
        let declared_at = me.words_at + me.nranks as usize * size_of::<SignalWords>();
        let written = me.words.write(declared_at + super::declared::BYTES, declared);
        written.unwrap_or_else(|error| panic!("{error}"));

        let wait = Wait { domain: Domain::BASE, offset: 64, at_least: 1, from: Signaller::Rank(1) };
        let mut poller = Poller::new(me.clone());
        poller.begin(SESSION, &[0, 1], soon());
        let mut exchange = poller.exchange();
        exchange.waits(TaskId(0), (wait.domain, me.table().name(wait.domain)), 1, wait.offset);
        if let Err((error, _)) = exchange.check(me.declarations(), &**me, soon()) {
            judge(&error);
        }
        let armed = poller.arm(TaskId(0), &wait).unwrap_or_else(|error| panic!("{error}"));
        assert!(armed, "nobody has signalled");
        for _ in 0..3 {
            let mut met = Vec::new();
            if let Err(error) = poller.poll(true, &mut met) {
                judge(&error);
            }
            assert!(met.is_empty());
            poller.next_check();
        }
        let table = poller.table();
        assert!(table.len() < 500 && !table.chars().any(char::is_control), "{table:?}");
    });
}

fn judge(error: &SignalError) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() < 1000 && !text.chars().any(char::is_control), "{text:?}");
    if let SignalError::Deadlock(deadlock) = error {
        assert!((1..=2).contains(&deadlock.chain.len()), "{deadlock:?}");
    }
}
