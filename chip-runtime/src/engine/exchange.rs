//! What a prebuilt graph tells the other chips of its session, and asks of them, before it starts.

use super::{Engine, MutexGuard, State};
use crate::error::{At, RuntimeError};
use crate::signals::{Exchange, SignalError};
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
        let checked = match state.declare() {
            Ok(exchange) => {
                drop(state);
                fault_point!("graph.exchange.declared");
                let checked = exchange.check(deadline);
                fault_point!("graph.exchange.checked");
                state = self.lock();
                checked
            }
            Err(failed) => Err(failed),
        };
        if let Err((error, task)) = checked {
            let at = task.map_or_else(At::default, |task| state.at(task));
            state.fail(RuntimeError { at, ..error.into() });
        }
        state
    }
}

impl State {
    fn declare(&mut self) -> Result<Exchange, (SignalError, Option<TaskId>)> {
        let mut exchange = self.poller.exchange();
        for (ring, slots) in self.rings.iter().enumerate() {
            for local in slots.locals() {
                let (slot, task) = (slots.slot(local), TaskId::new(ring, local));
                slot.signals
                    .iter()
                    .for_each(|(signal, target)| exchange.signals(signal.domain, target.to, signal.offset));
                for wait in &slot.waits {
                    exchange.waits(task, wait).map_err(|error| (error, Some(task)))?;
                }
            }
        }
        self.poller.declare(&exchange);
        Ok(exchange)
    }
}
