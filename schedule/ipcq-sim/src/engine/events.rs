//! Engine B: a token takes its hops one by one, in time order over the whole system.
//!
//! A PE that is woken runs ahead of the event time on its own clock. That is safe, because it affects others
//! only by tokens that it sends at or after its clock, and those are queued as events.

use super::calendar::{Calendar, Event, Place};
use super::machine::{Flight, Machine, Transport};
use super::{Engine, SimError, Timing};
use crate::probe::Probe;
use ccl_schedule::Program;

struct Queue {
    calendar: Calendar,
    /// Bits of a size class.
    bits: u32,
}

impl<G: Program + ?Sized, P: Probe> Transport<G, P> for Queue {
    #[inline]
    fn launch(&mut self, machine: &mut Machine<'_, '_, G, P>, flight: Flight) {
        let net = &machine.plan.net;
        let at = net.start(flight.channel);
        let over = net.kinds()[net.steps()[at as usize].kind as usize].over;
        self.calendar.push(Event {
            time: flight.at + u64::from(over),
            tail: flight.at,
            rank: flight.rank,
            number: flight.number,
            channel: flight.channel,
            place: Place::new(at, flight.class, self.bits),
        });
    }
}

/// Events whose memory is prefetched together, so that the cache misses overlap.
const AHEAD: usize = 16;

pub(super) fn run<G: Program + ?Sized, P: Probe>(
    mut machine: Machine<'_, '_, G, P>,
) -> Result<Timing, SimError> {
    let plan = machine.plan;
    let bits = plan.class_bits();
    let mut queue = Queue { calendar: Calendar::new(plan.net.shortest_hop()), bits };
    machine.settle(&mut queue, Some(0))?;
    let (steps, kinds) = (plan.net.steps(), plan.net.kinds());
    let mut events = 0u64;
    // Tokens of one channel never overtake each other, so the arrival number is the sequence number.
    while let Some(event) = queue.calendar.pop() {
        if events.is_multiple_of(AHEAD as u64) {
            let soon = queue.calendar.soon(AHEAD);
            let links = soon.iter().map(|event| steps[event.place.step(bits)].link as usize);
            std::hint::black_box(links.fold(0, |sum, link| sum ^ machine.free[link]));
        }
        events += 1;
        let at = event.place.step(bits);
        let (step, class) = (steps[at], event.place.class(bits));
        let kind = kinds[step.kind as usize];
        let prop = u64::from(kind.prop);
        let free = &mut machine.free[step.link as usize];
        let start = event.time.max(*free);
        let drained = start + plan.costs[class].link[kind.rate as usize & 3];
        *free = drained;
        machine.probe.link(step.link, event.channel, start, drained);
        let tail = (drained + prop).max(event.tail + u64::from(kind.over) + prop);
        if step.last == 0 {
            let over = u64::from(kinds[steps[at + 1].kind as usize].over);
            let place = event.place.next(bits);
            queue.calendar.push(Event { time: start + prop + over, tail, place, ..event });
        } else {
            machine.deposit(event.channel, class as u32, tail);
            machine.settle(&mut queue, Some(event.time))?;
        }
    }
    machine.finish(Engine::B, events)
}
