//! Results as tables, CSV, JSON, Chrome traces and SVG.

mod files;
mod heat;
mod plot;
mod svg;
mod trace;

pub use files::{links_csv, ranks_csv, summary_json, table};
pub use heat::heat_svg;
pub use plot::{Point, sweep_csv, sweep_svg};
pub use trace::{Trace, TraceLimits};

use crate::units::Ps;

/// A time with a unit that suits it.
pub fn duration(ps: Ps) -> String {
    match ps {
        0..1_000_000 => format!("{}.{:03} ns", ps / 1000, ps % 1000),
        1_000_000..1_000_000_000 => format!("{:.3} us", ps as f64 / 1e6),
        _ => format!("{:.3} ms", ps as f64 / 1e9),
    }
}

/// A number of bytes with a unit that suits it.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes;
    while value >= 1024 && value.is_multiple_of(1024) && unit < 4 {
        value /= 1024;
        unit += 1;
    }
    if value >= 10_240 && unit < 4 {
        return format!("{:.1} {}", value as f64 / 1024.0, UNITS[unit + 1]);
    }
    format!("{value} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_a_unit() {
        assert_eq!(duration(1_678_040), "1.678 us");
        assert_eq!(duration(125), "0.125 ns");
        assert_eq!(duration(52_006_600_000), "52.007 ms");
        assert_eq!(
            (size(16), size(4096), size(1 << 20), size(1000)),
            ("16 B".into(), "4 KiB".into(), "1 MiB".into(), "1000 B".into())
        );
        assert_eq!(size(123_456), "120.6 KiB");
    }
}
