//! Events (CN-14).
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the vendor's headers
//! say. Null and handles are checked here; each unsafe block says what the caller must ensure.
#![allow(unsafe_code)]

use crate::device_process::Ended;
use crate::gate::{Refusal, call, ensure, refuse};
use crate::kernel::fail;
use crate::state::{Event, State};
use cann_sim::Kind;
use comm_hccl::sys::*;

/// The event and the stream, which are of the calling thread's device.
fn check_both(state: &State, event: aclrtEvent, stream: aclrtStream) -> Result<(), Refusal> {
    let device = state.device()?;
    state.healthy(device)?;
    let Some(of) = state.streams.get(&(stream as usize)) else {
        return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown stream");
    };
    let event = known(state, event)?;
    ensure(
        of.device == device && event.device == device,
        ACL_ERROR_RT_STREAM_CONTEXT,
        "the event or the stream is of another device",
    )
}

fn known(state: &State, event: aclrtEvent) -> Result<&Event, Refusal> {
    state
        .events
        .get(&(event as usize))
        .map_or_else(|| refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown event"), Ok)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtCreateEvent(event: *mut aclrtEvent) -> aclError {
    call("aclrtCreateEvent", |state| {
        ensure(!event.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let device = state.device()?;
        let handle = state.handle();
        state.events.insert(handle, Event { device, recorded: None });
        state.attachment.created(Kind::Event);
        // SAFETY: not null; the caller provides a place for one handle.
        unsafe { event.write(handle as aclrtEvent) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtDestroyEvent(event: aclrtEvent) -> aclError {
    call("aclrtDestroyEvent", |state| {
        known(state, event)?;
        let awaited = |(of, kernels): &(usize, Vec<std::sync::Arc<crate::device_process::Running>>)| {
            *of == event as usize && kernels.iter().any(|kernel| kernel.ended().is_none())
        };
        let in_use = state.streams.values().any(|stream| stream.waits.iter().any(awaited));
        ensure(!in_use, ACL_ERROR_RT_PARAM_INVALID, "a stream still waits for the event")?;
        state.events.remove(&(event as usize));
        state.attachment.destroyed(Kind::Event);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtRecordEvent(event: aclrtEvent, stream: aclrtStream) -> aclError {
    call("aclrtRecordEvent", |state| {
        check_both(state, event, stream)?;
        let of = &state.streams[&(stream as usize)];
        // A kernel that was queued before has ended, or this one would not run.
        let awaited = of.waits.iter().flat_map(|(_, kernels)| kernels);
        let recorded = of.running.iter().chain(awaited).cloned().collect();
        state.events.entry(event as usize).and_modify(|event| event.recorded = Some(recorded));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtStreamWaitEvent(stream: aclrtStream, event: aclrtEvent) -> aclError {
    call("aclrtStreamWaitEvent", |state| {
        check_both(state, event, stream)?;
        let Some(kernels) = known(state, event)?.recorded.clone() else {
            return refuse(ACL_ERROR_RT_PARAM_INVALID, "the event was never recorded");
        };
        state
            .streams
            .entry(stream as usize)
            .and_modify(|stream| stream.waits.push((event as usize, kernels)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtQueryEventStatus(
    event: aclrtEvent,
    status: *mut aclrtEventRecordedStatus,
) -> aclError {
    call("aclrtQueryEventStatus", |state| {
        ensure(!status.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let device = known(state, event)?.device;
        state.healthy(device)?;
        // One that was never recorded stands for nothing that is left to do, as the vendor's sources have it.
        let ends: Vec<_> =
            known(state, event)?.recorded.iter().flatten().map(|kernel| kernel.ended()).collect();
        if let Some(failed) = ends.iter().flatten().find(|ended| **ended != Ended::Returned) {
            return fail(state, device, *failed);
        }
        let complete = ends.iter().all(Option::is_some);
        let value =
            if complete { ACL_EVENT_RECORDED_STATUS_COMPLETE } else { ACL_EVENT_RECORDED_STATUS_NOT_READY };
        // SAFETY: not null; the caller provides a place for one number.
        unsafe { status.write(value) };
        Ok(())
    })
}
