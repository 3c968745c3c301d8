//! Engine A: a token crosses its whole path the moment it is sent. There is no event queue.
//!
//! On links that are not shared, a token's times depend only on earlier tokens of the same channel, which
//! have been sent already. The outgoing link of a PE may be shared by the PE's own channels: it sends in the
//! order of its clock.

use super::machine::{Flight, Machine, Transport};
use super::{Engine, SimError, Timing};
use crate::probe::Probe;
use ccl_schedule::Program;

struct Straight;

impl<G: Program + ?Sized, P: Probe> Transport<G, P> for Straight {
    #[inline]
    fn launch(&mut self, machine: &mut Machine<'_, '_, G, P>, flight: Flight) {
        let plan = machine.plan;
        if let Some(wire) = plan.net.wire() {
            return machine.fly(flight, wire);
        }
        let costs = &plan.costs[flight.class as usize].link;
        let (mut head, mut tail) = (flight.at, flight.at);
        for hop in plan.net.path(flight.channel) {
            let (over, prop) = (u64::from(hop.over), u64::from(hop.prop));
            let free = &mut machine.free[hop.link as usize];
            let start = (head + over).max(*free);
            let drained = start + costs[hop.rate as usize & 3];
            *free = drained;
            head = start + prop;
            tail = (tail + over + prop).max(drained + prop);
            machine.probe.link(hop.link, flight.channel, start, drained);
        }
        machine.deposit(flight.channel, flight.class, tail);
    }
}

pub(super) fn run<G: Program + ?Sized, P: Probe>(
    mut machine: Machine<'_, '_, G, P>,
) -> Result<Timing, SimError> {
    machine.settle(&mut Straight, None)?;
    machine.finish(Engine::A, 0)
}
