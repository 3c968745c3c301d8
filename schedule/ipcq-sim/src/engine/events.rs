//! Engine B: a token takes its hops one by one, in time order over the whole system.
//!
//! A PE that is woken runs ahead of the event time on its own clock. That is safe, because it affects others
//! only by tokens that it sends at or after its clock, and those are queued as events.

use super::calendar::{Calendar, Event, Place};
use super::machine::{Flight, Machine, Transport};
use super::{Engine, SimError, Timing};
use crate::config::Flow;
use crate::plan::Plan;
use crate::probe::Probe;
use ccl_schedule::Program;

struct Queue {
    calendar: Calendar,
    /// Bits of a size class.
    bits: u32,
    /// Tokens of channels that are under way.
    flying: u64,
}

impl<G: Program + ?Sized, P: Probe> Transport<G, P> for Queue {
    #[inline]
    fn launch(&mut self, machine: &mut Machine<'_, '_, G, P>, flight: Flight) {
        let net = &machine.plan.net;
        let at = net.start(flight.channel);
        let over = net.kinds()[net.steps()[at as usize].kind as usize].over;
        self.flying += 1;
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

impl Queue {
    /// Sends message `number` of a flow of compute traffic, if it has so many. At one time, a PE's tokens come first.
    fn traffic(&mut self, plan: &Plan<'_>, flow: usize, number: u32) {
        let Flow { from, every, start, count, .. } = plan.flows[flow];
        if count.is_some_and(|count| number >= count) {
            return;
        }
        let channel = (plan.wiring.channels().len() + flow) as u32;
        let at = plan.net.start(channel);
        let over = plan.net.kinds()[plan.net.steps()[at as usize].kind as usize].over;
        let sent = plan.earliest() + start + u64::from(number) * every;
        let class = (plan.costs.len() - plan.flows.len() + flow) as u32;
        self.calendar.push(Event {
            time: sent + u64::from(over),
            tail: sent,
            rank: from,
            number: 1 << 31 | number,
            channel,
            place: Place::new(at, class, self.bits),
        });
    }
}

/// Events whose memory is prefetched together, so that the cache misses overlap.
const AHEAD: usize = 16;

pub(super) fn run<G: Program + ?Sized, P: Probe>(machine: Machine<'_, '_, G, P>) -> Result<Timing, SimError> {
    // Compiled twice: without traffic, no event is looked at for it.
    if machine.plan.flows.is_empty() {
        run_with::<false, G, P>(machine)
    } else {
        run_with::<true, G, P>(machine)
    }
}

fn run_with<const TRAFFIC: bool, G: Program + ?Sized, P: Probe>(
    mut machine: Machine<'_, '_, G, P>,
) -> Result<Timing, SimError> {
    let plan = machine.plan;
    let bits = plan.class_bits();
    let mut queue = Queue { calendar: Calendar::new(plan.net.shortest_hop()), bits, flying: 0 };
    machine.settle(&mut queue, Some(0))?;
    (0..plan.flows.len()).for_each(|flow| queue.traffic(plan, flow, 0));
    let channels = machine.channels();
    let (steps, kinds) = (plan.net.steps(), plan.net.kinds());
    let mut events = 0u64;
    // Tokens of one channel never overtake each other, so the arrival number is the sequence number.
    while let Some(event) = queue.calendar.pop() {
        if events.is_multiple_of(AHEAD as u64) {
            let soon = queue.calendar.soon(AHEAD);
            let links = soon.iter().map(|event| steps[event.place.step(bits)].link as usize);
            std::hint::black_box(links.fold(0, |sum, link| sum ^ machine.free[link]));
        }
        let is_traffic = TRAFFIC && event.channel >= channels;
        if is_traffic && (machine.is_done() || queue.flying == 0) {
            // The collective has ended, or nothing moves any more.
            break;
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
        if is_traffic && at == plan.net.start(event.channel) as usize {
            queue.traffic(plan, (event.channel - channels) as usize, (event.number & !(1 << 31)) + 1);
        }
        let tail = (drained + prop).max(event.tail + u64::from(kind.over) + prop);
        if step.last == 0 {
            let over = u64::from(kinds[steps[at + 1].kind as usize].over);
            let place = event.place.next(bits);
            queue.calendar.push(Event { time: start + prop + over, tail, place, ..event });
        } else if !is_traffic {
            queue.flying -= 1;
            machine.deposit(event.channel, class as u32, tail);
            machine.settle(&mut queue, Some(event.time))?;
        }
    }
    machine.finish(Engine::B, events)
}
