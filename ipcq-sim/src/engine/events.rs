//! Engine B: a token takes its hops one by one, in the order of time over the whole system.
//!
//! A PE that is woken runs ahead of the event time on its own clock; that is safe, because all it does to others is to
//! send tokens at or after its clock, and those take their turn in the queue.

use super::calendar::{Calendar, Event};
use super::machine::{Carrier, Flight, Machine};
use super::{Engine, SimError, Timing};
use crate::probe::Probe;
use ccl_schedule::Program;

struct Queue {
    calendar: Calendar,
}

impl<G: Program + ?Sized, P: Probe> Carrier<G, P> for Queue {
    #[inline]
    fn launch(&mut self, machine: &mut Machine<'_, '_, G, P>, flight: Flight) {
        let over = machine.plan.net.path(flight.channel)[0].over;
        self.calendar.push(Event {
            time: flight.at + u64::from(over),
            tail: flight.at,
            rank: flight.rank,
            number: flight.number,
            channel: flight.channel,
            hop: 0,
            class: flight.class as u16,
        });
    }
}

pub(super) fn run<G: Program + ?Sized, P: Probe>(
    mut machine: Machine<'_, '_, G, P>,
) -> Result<Timing, SimError> {
    let plan = machine.plan;
    let mut queue = Queue { calendar: Calendar::new(plan.net.shortest_hop()) };
    machine.settle(&mut queue)?;
    let mut events = 0u64;
    // Tokens of one channel never overtake each other, so the arrival number is the sequence number.
    while let Some(event) = queue.calendar.pop() {
        events += 1;
        let path = plan.net.path(event.channel);
        let hop = path[event.hop as usize];
        let prop = u64::from(hop.prop);
        let free = &mut machine.free[hop.link as usize];
        let start = event.time.max(*free);
        let drained = start + plan.costs[event.class as usize].link[hop.rate as usize & 3];
        *free = drained;
        machine.probe.link(hop.link, event.channel, start, drained);
        let tail = (drained + prop).max(event.tail + u64::from(hop.over) + prop);
        match path.get(event.hop as usize + 1) {
            Some(next) => queue.calendar.push(Event {
                time: start + prop + u64::from(next.over),
                tail,
                hop: event.hop + 1,
                ..event
            }),
            None => machine.deposit(event.channel, u32::from(event.class), tail),
        }
        machine.settle(&mut queue)?;
    }
    machine.finish(Engine::B, events)
}
