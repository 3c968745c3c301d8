//! Joining and leaving.

use super::Seat;
use super::kit::{During, Outcome, ensure_refused};
use crate::comm::CommError;

pub(super) fn a_group_forms_and_dissolves(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    ensure_refused!(comm.window(), CommError::NoWindow);
    seat.part(comm)
}

pub(super) fn windows_and_domains_left_over_do_not_hinder_destroy(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    comm.alloc_windows(4096, seat.timeout).during("alloc_windows")?;
    let everybody = seat.everybody();
    if let Some(spec) = seat.domain(1, &everybody, 4096) {
        comm.alloc_domain(&spec, seat.timeout).during("alloc_domain")?;
    }
    seat.part(comm)
}
