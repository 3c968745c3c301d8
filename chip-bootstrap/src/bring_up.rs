//! Bring-up of one chip, step by step.

use crate::chip::{Buffer, Chip};
use crate::config::ChipConfig;
use crate::device::{self, Entry};
use crate::error::{BringUpCause, BringUpError, ChipError};
use crate::platform::Platform;
use bootstrap_channel::{Success, Writer};
use comm_context::abi::DeviceAddr;
use comm_context::comm::{Membership, Timeout};
use fault_points::fault_point;
use std::sync::Arc;
use worker_errors::Failure;

worker_errors::code_table! {
    /// Where a chip is in its bring-up. Published on the bootstrap channel by its code.
    pub enum BringUpPhase: u32, code, from_code {
        /// The process has not started yet.
        NotStarted = 0, "not started";
        /// It checks its configuration.
        Configuration = 1, "configuration";
        /// It opens its device.
        Device = 2, "device";
        /// It joins the group.
        Communicator = 3, "communicator";
        /// It allocates its window.
        Window = 4, "window";
        /// It stages its inputs.
        Staging = 5, "staging";
        /// It is up.
        Ready = 6, "ready";
    }
}

/// Brings a chip up. `entry` is needed when the configuration has a communicator; `at_phase` is called before
/// each step.
pub fn bring_up(
    platform: Platform,
    config: &ChipConfig,
    entry: Option<&Entry>,
    within: Timeout,
    at_phase: &mut dyn FnMut(BringUpPhase),
) -> Result<Chip, BringUpError> {
    let mut phase = BringUpPhase::Configuration;
    let mut enter = |next| {
        at_phase(next);
        next
    };
    let mut steps = || {
        phase = enter(BringUpPhase::Configuration);
        fault_point!("chip.configuration");
        let offsets = config.layout()?;
        phase = enter(BringUpPhase::Device);
        fault_point!("chip.device");
        let mut chip = Chip {
            id: config.device(),
            device: device::open(platform, config.device(), within)?,
            comm: None,
            window: None,
            buffers: Vec::new(),
            stores: Vec::new(),
            within,
            kernel_limit: None,
            down: false,
        };
        if let Some(me) = config.member() {
            phase = enter(BringUpPhase::Communicator);
            fault_point!("chip.communicator");
            let entry = entry.ok_or(BringUpCause::NoEntry)?;
            chip.comm = Some(Arc::new(chip.device.communicator(entry, me, within)?));
            if config.window_size() > 0 {
                phase = enter(BringUpPhase::Window);
                fault_point!("chip.window");
                open_window(&mut chip, config, &offsets)?;
                phase = enter(BringUpPhase::Staging);
                fault_point!("chip.staging");
                chip.stage_inputs(config)?;
            }
        }
        phase = enter(BringUpPhase::Ready);
        fault_point!("chip.ready");
        Ok(chip)
    };
    steps().map_err(|cause: BringUpCause| failed(config, phase, cause))
}

fn failed(config: &ChipConfig, phase: BringUpPhase, cause: BringUpCause) -> BringUpError {
    let rank = config.member().map(Membership::rank);
    BringUpError { phase, device: config.device(), rank, cause: Box::new(cause) }
}

fn open_window(chip: &mut Chip, config: &ChipConfig, offsets: &[usize]) -> Result<(), ChipError> {
    let comm = chip.comm.as_deref().ok_or(ChipError::NoCommunicator)?;
    let window = comm.alloc_windows(config.window_size(), chip.within)?;
    chip.window = Some(window);
    for (part, offset) in config.parts().iter().zip(offsets) {
        let addr = DeviceAddr(window.base.0 + *offset as u64);
        let bytes = part.kind.bytes().unwrap_or(0);
        chip.buffers.push(Buffer { name: part.name.clone(), kind: part.kind, addr, bytes });
        if let Some(host) = &part.store {
            chip.stores.push((addr, host.clone()));
        }
    }
    Ok(())
}

/// Brings a chip up and publishes the result, success or failure, on its bootstrap channel: the process
/// border of a bring-up.
pub fn bring_up_and_publish(
    platform: Platform,
    config: &ChipConfig,
    entry: Option<&Entry>,
    within: Timeout,
    channel: &mut Writer<'_>,
) -> Result<Chip, BringUpError> {
    let brought = bring_up(platform, config, entry, within, &mut |phase| channel.set_phase(phase.code()));
    let chip = match brought {
        Ok(chip) => chip,
        Err(error) => {
            let failure = Failure::from(&error);
            // A channel that takes no reply has one already.
            let _ = channel.publish_error(failure.root_cause().code, &failure.to_string());
            return Err(error);
        }
    };
    let published = channel.publish_success(&Success {
        device_ctx: chip.window.map_or(0, |window| window.context.0),
        window_base: chip.window.map_or(0, |window| window.base.0),
        window_size: chip.window.map_or(0, |window| window.size as u64),
        buffers: chip.buffers.iter().map(|buffer| buffer.addr.0).collect(),
    });
    published.map_err(|error| failed(config, BringUpPhase::Ready, error.into()))?;
    Ok(chip)
}
