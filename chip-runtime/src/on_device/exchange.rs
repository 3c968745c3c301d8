//! What a graph tells those of its session, and asks of them, before it starts.

use super::graph::Built;
use super::windows::DeviceWindows;
use super::{GraphDevice, OnDeviceError};
use crate::engine::Session;
use crate::signals::{Declarations, Exchange, SignalError};
use crate::task::TaskId;
use deadline::Deadline;

impl GraphDevice {
    /// The graph of a session is over, however it ended: who waits for a signal of it learns that none comes any more.
    pub(super) fn declare_over(&self, session: &Session) {
        if let Some(declarations) = self.windows.as_ref().and_then(DeviceWindows::declarations) {
            declarations.declare_over(session.number, &session.members);
        }
    }

    /// Declares the signals of a graph, and refuses it if it waits for a word that the graph of the rank it names does not signal. Of a
    /// graph that was not built nobody knows what it would have signalled.
    pub(super) fn exchange<T>(
        &self,
        session: &Session,
        built: Result<(T, Built), OnDeviceError>,
        deadline: Deadline,
    ) -> Result<(T, Built), OnDeviceError> {
        let Some(windows) = &self.windows else { return built };
        let Some(declarations) = windows.declarations() else { return built };
        let (value, built) = match built {
            Ok(built) => built,
            Err(error) => {
                declarations.declare_any(session.number, &session.members);
                return Err(error);
            }
        };
        match exchange(session, &built, windows, declarations, deadline) {
            Ok(()) => Ok((value, built)),
            Err((error, task)) => Err(self.refuse(built.tasks[task.local() as usize].site, error)),
        }
    }
}

fn exchange(
    session: &Session,
    built: &Built,
    windows: &DeviceWindows,
    declarations: &Declarations,
    deadline: Deadline,
) -> Result<(), (SignalError, TaskId)> {
    let mut exchange = Exchange::new(session.number, &session.members, windows.rank());
    for (index, task) in built.tasks.iter().enumerate() {
        let id = TaskId::new(0, index as u32);
        let at = |error| (error, id);
        for signal in &task.signals {
            let to = windows.member(signal.domain, signal.rank).map_err(at)?;
            exchange.signals(windows.name(signal.domain), to, signal.offset);
        }
        for wait in &task.waits {
            let (_, Some(from)) = windows.awaited(wait).map_err(at)? else { continue };
            exchange.waits(id, (wait.domain, windows.name(wait.domain)), from, wait.offset);
        }
    }
    declarations.declare(&exchange);
    exchange.check(declarations, windows, deadline)
}
