//! The picture of a sweep: time against size and against ranks, for several algorithms.

use super::svg::{Anchor, GRID, INK, MUTED, Svg};
use super::{duration, size};
use crate::sim::Report;
use std::io::{self, Write};

/// One run of a sweep.
pub type Point = Report;

const COLORS: [&str; 8] =
    ["#2f6fb5", "#d9622b", "#2d8a5f", "#8a4fa0", "#b8860b", "#c2397a", "#4b6b7a", "#7a5230"];

/// One line per run.
pub fn sweep_csv(points: &[Point], out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "algorithm,ranks,bytes,engine,time_ps,lower_bound_ps,bound_by,efficiency,algorithm_gbps,bus_gbps,messages"
    )?;
    for p in points {
        writeln!(
            out,
            "{},{},{},{},{},{},{},{:.6},{:.6},{:.6},{}",
            p.entry,
            p.ranks,
            p.bytes,
            p.engine,
            p.time_ps,
            p.lower_bound_ps,
            p.bound_by,
            p.efficiency,
            p.algorithm_gbps,
            p.bus_gbps,
            p.messages
        )?;
    }
    Ok(())
}

/// Draws a sweep: on the left time against size with the most ranks, on the right time against ranks at the
/// largest size.
pub fn sweep_svg(points: &[Point]) -> String {
    let mut svg = Svg::new();
    let names = {
        let mut names: Vec<&str> = Vec::new();
        for point in points {
            if !names.contains(&point.entry.as_str()) {
                names.push(&point.entry);
            }
        }
        names
    };
    let most_ranks = points.iter().map(|p| p.ranks).max().unwrap_or(1);
    let most_bytes = points.iter().map(|p| p.bytes).max().unwrap_or(1);
    svg.text((32.0, 38.0), 20, Anchor::Start, INK, "Time of collectives");
    let text = "solid: simulated time; dashed: lower bound for the same goal, channels, message size and count; both axes logarithmic";
    svg.text((32.0, 60.0), 12, Anchor::Start, MUTED, text);
    let by_size: Vec<&Point> = points.iter().filter(|p| p.ranks == most_ranks).collect();
    let by_ranks: Vec<&Point> = points.iter().filter(|p| p.bytes == most_bytes).collect();
    let title = format!("{most_ranks} ranks, time against bytes per rank");
    panel(&mut svg, (32.0, 100.0), &title, &names, &by_size, |p| p.bytes, size);
    let title = format!("{} per rank, time against ranks", size(most_bytes));
    panel(&mut svg, (572.0, 100.0), &title, &names, &by_ranks, |p| u64::from(p.ranks), |n| n.to_string());
    for (i, name) in names.iter().enumerate() {
        let (x, y) = (32.0 + 270.0 * (i % 4) as f64, 520.0 + 22.0 * (i / 4) as f64);
        svg.rect((x, y - 9.0), (14.0, 10.0), &format!("rx=\"2\" fill=\"{}\"", COLORS[i % COLORS.len()]));
        svg.text((x + 20.0, y), 12, Anchor::Start, INK, name);
    }
    svg.finish(1104.0, 540.0 + 22.0 * names.len().div_ceil(4) as f64)
}

fn panel(
    svg: &mut Svg,
    (x0, y0): (f64, f64),
    title: &str,
    names: &[&str],
    points: &[&Point],
    key: impl Fn(&Point) -> u64,
    label: impl Fn(u64) -> String,
) {
    let (left, top, width, height) = (x0 + 66.0, y0 + 20.0, 420.0, 330.0);
    svg.text((x0, y0), 13, Anchor::Start, INK, title);
    let mut keys: Vec<u64> = points.iter().map(|p| key(p)).collect();
    keys.sort_unstable();
    keys.dedup();
    let (Some(&first), Some(&last)) = (keys.first(), keys.last()) else { return };
    let times = points.iter().flat_map(|p| [p.time_ps.max(1), p.lower_bound_ps.max(1)]);
    let low = (times.clone().min().unwrap_or(1) as f64).log10().floor();
    let high = (times.max().unwrap_or(10) as f64).log10().ceil().max(low + 1.0);
    let log = |value: u64| (value.max(1) as f64).log2();
    let x = |value: u64| {
        if last == first {
            left + width / 2.0
        } else {
            left + width * (log(value) - log(first)) / (log(last) - log(first))
        }
    };
    let y = |ps: u64| top + height - height * ((ps.max(1) as f64).log10() - low) / (high - low);
    for decade in low as i32..=high as i32 {
        let ps = 10u64.pow(decade.max(0) as u32);
        svg.line((left, y(ps)), (left + width, y(ps)), &format!("stroke=\"{GRID}\""));
        let text = match decade {
            ..3 => format!("{ps} ps"),
            3..6 => format!("{} ns", ps / 1000),
            6..9 => format!("{} us", ps / 1_000_000),
            9..12 => format!("{} ms", ps / 1_000_000_000),
            _ => format!("{} s", ps / 1_000_000_000_000),
        };
        svg.text((left - 8.0, y(ps) + 3.5), 10, Anchor::End, MUTED, &text);
    }
    // Every label that has room.
    let step = keys.len().div_ceil(7);
    for &value in keys.iter().step_by(step.max(1)) {
        svg.line((x(value), top), (x(value), top + height), &format!("stroke=\"{GRID}\""));
        svg.text((x(value), top + height + 16.0), 10, Anchor::Middle, MUTED, &label(value));
    }
    for (i, name) in names.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let mut line: Vec<&&Point> = points.iter().filter(|p| p.entry == *name).collect();
        line.sort_by_key(|p| key(p));
        let bound: Vec<(f64, f64)> = line.iter().map(|p| (x(key(p)), y(p.lower_bound_ps))).collect();
        svg.polyline(
            &bound,
            &format!("stroke=\"{color}\" stroke-width=\"1.2\" stroke-dasharray=\"3 4\" opacity=\"0.7\""),
        );
        let drawn: Vec<(f64, f64)> = line.iter().map(|p| (x(key(p)), y(p.time_ps))).collect();
        svg.polyline(&drawn, &format!("stroke=\"{color}\" stroke-width=\"2\""));
        for (point, at) in line.iter().zip(&drawn) {
            let title = format!(
                "{}: {} at {} ranks, {}",
                point.entry,
                duration(point.time_ps),
                point.ranks,
                size(point.bytes)
            );
            svg.titled(
                &format!("<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"/>", at.0, at.1),
                &title,
            );
        }
    }
}
