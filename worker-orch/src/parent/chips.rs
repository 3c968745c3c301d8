//! Checks what a chip reports of its memory against what it was asked for.

use crate::chip_context::{ChipBuffer, ChipContext};
use bootstrap_channel::Success;
use chip_bootstrap::{ChipConfig, PartKind};
use comm_context::abi::DeviceAddr;
use comm_context::comm::Membership;
use shared_memory::Region;

/// The context of a chip from its configuration and its report; `None` when the report does not match the
/// configuration. `shared` is the memory of the group where the chips' addresses are the parent's own.
pub(super) fn context(config: &ChipConfig, report: &Success, shared: Option<&Region>) -> Option<ChipContext> {
    let (base, size) = (report.window_base, report.window_size);
    let wanted = config.member().map_or(0, |_| config.window_size());
    let fits = if wanted > 0 { window_fits(base, size, wanted, shared) } else { (base, size) == (0, 0) };
    // Inside the configured size, hence inside the window.
    let expected = config.layout().ok()?.into_iter().map(|offset| base.wrapping_add(offset as u64));
    if !fits || !report.buffers.iter().copied().eq(expected) {
        return None;
    }
    let parts = config.parts_by_name().zip(&report.buffers);
    Some(ChipContext {
        device: config.device(),
        pid: 0,
        rank: config.member().map_or(0, Membership::rank),
        nranks: config.member().map_or(0, Membership::nranks),
        device_ctx: DeviceAddr(report.device_ctx),
        window_base: DeviceAddr(base),
        window_size: size as usize,
        buffers: parts
            .map(|((name, kind), addr): ((&str, PartKind), _)| ChipBuffer {
                name: name.to_owned(),
                kind,
                addr: DeviceAddr(*addr),
            })
            .collect(),
    })
}

/// Whether a window that a chip reports can exist: at least as large as was asked for, and where windows are.
/// `shared` as in [`context`].
pub(super) fn window_fits(base: u64, size: u64, asked: usize, shared: Option<&Region>) -> bool {
    let inside = |end: u64| {
        shared.is_none_or(|region| {
            let start = region.base().as_ptr() as u64;
            start <= base && end <= start + region.len() as u64
        })
    };
    base > 0 && size >= asked as u64 && base.checked_add(size).is_some_and(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_context::abi::DType;

    #[test]
    fn f29_a_window_that_cannot_exist_is_recognised() {
        let region = Region::create("t", 8192).unwrap();
        let base = region.base().as_ptr() as u64;
        assert!(window_fits(base + 4096, 4096, 4096, Some(&region)));
        assert!(window_fits(0x1000, 1 << 40, 4096, None), "a device's addresses mean nothing here");
        for (base, size) in [(base + 4096, 4097), (base - 1, 4096), (base, 4095), (0, 4096), (u64::MAX, 4096)]
        {
            assert!(!window_fits(base, size, 4096, Some(&region)), "{base:#x} {size}");
        }
        for (base, size) in [(0, 4096), (u64::MAX, 4096), (0x1000, 1)] {
            assert!(!window_fits(base, size, 4096, None), "{base:#x} {size}");
        }
    }

    #[test]
    fn f29_a_chip_whose_report_differs_from_its_configuration_is_not_up() {
        let shared = Region::create("t", 16384).unwrap();
        let base = shared.base().as_ptr() as u64;
        let config = ChipConfig::new(0)
            .communicator(Membership::new(0, 1).unwrap())
            .window(4096)
            .buffer("x", DType::Float32, 16)
            .region("signals", 128);
        let report = Success {
            device_ctx: 1,
            window_base: base + 4096,
            window_size: 8192,
            buffers: vec![base + 4096, base + 4160],
        };
        let up = context(&config, &report, Some(&shared)).unwrap();
        assert_eq!((up.window_size, up.buffers.len()), (8192, 2));
        let wrong = |change: fn(&mut Success)| {
            let mut wrong = report.clone();
            change(&mut wrong);
            context(&config, &wrong, Some(&shared))
        };
        assert_eq!(wrong(|report| report.window_base = u64::MAX), None);
        assert_eq!(wrong(|report| report.window_size = u64::MAX), None);
        assert_eq!(wrong(|report| report.window_size = 4095), None);
        assert_eq!(wrong(|report| report.buffers.truncate(1)), None);
        assert_eq!(wrong(|report| report.buffers[1] += 1), None);
        assert_eq!(wrong(|report| report.buffers.push(0)), None);
        let bare = ChipConfig::new(0);
        assert!(context(&bare, &Success::default(), Some(&shared)).is_some());
        assert_eq!(context(&bare, &report, Some(&shared)), None);
    }
}
