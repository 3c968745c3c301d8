//! What a prebuilt graph tells the other chips of its session, and asks of them, before it starts.

use super::{Engine, MutexGuard, State};
use crate::error::RuntimeError;
use crate::signals::{Exchange, SignalError, Signaller, Signals, Wait};
use crate::task::TaskId;
use deadline::Deadline;
use fault_points::fault_point;
use std::sync::Arc;

impl Engine {
    /// Declares the signals of the graph, and fails it if it waits for a word that the graph of the rank it names does not
    /// signal.
    pub(super) fn exchange<'e>(
        self: &'e Arc<Self>,
        mut state: MutexGuard<'e, State>,
        deadline: Deadline,
    ) -> MutexGuard<'e, State> {
        let signals = state.poller.signals().clone();
        let checked = match state.declare(&signals) {
            Ok(exchange) => {
                drop(state);
                fault_point!("graph.exchange.declared");
                let checked = exchange.check(signals.declarations(), &*signals, deadline);
                fault_point!("graph.exchange.checked");
                state = self.lock();
                checked
            }
            Err(failed) => Err(failed),
        };
        if let Err((error, task)) = checked {
            let at = state.at(task);
            state.fail(RuntimeError { at, ..error.into() });
        }
        state
    }
}

impl State {
    fn declare(&mut self, signals: &Signals) -> Result<Exchange, (SignalError, TaskId)> {
        let mut exchange = self.poller.exchange();
        let table = signals.table();
        for (ring, slots) in self.rings.iter().enumerate() {
            for local in slots.locals() {
                let (slot, task) = (slots.slot(local), TaskId::new(ring, local));
                for (signal, target) in &slot.signals {
                    exchange.signals(table.name(signal.domain), target.to, signal.offset);
                }
                for Wait { domain, offset, from, .. } in &slot.waits {
                    let Signaller::Rank(rank) = from else { continue };
                    let from = table.member(*domain, *rank).map_err(|error| (error, task))?;
                    exchange.waits(task, (*domain, table.name(*domain)), from, *offset);
                }
            }
        }
        drop(table);
        self.poller.declare(&exchange);
        Ok(exchange)
    }
}
