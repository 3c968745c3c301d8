//! Time and bus bandwidth against size, as a picture.

use crate::args::Args;
use crate::table::readable;
use crate::{Contestant, Report, Role};
use collectives::Kind;
use std::fmt::Write;

const WIDTH: f64 = 1280.0;
const HEIGHT: f64 = 640.0;
const TOP: f64 = 104.0;
const BOTTOM: f64 = 548.0;
/// Left and right edge of the two panels.
const PANELS: [(f64, f64); 2] = [(76.0, 610.0), (716.0, 1250.0)];

/// Colour, width and dashes of a line.
fn look(contestant: &Contestant, peers_before: usize) -> (&'static str, f64, &'static str) {
    match (contestant.role, contestant.name) {
        (Role::Ours, "ours, staged") => ("#1f6fd6", 3.2, ""),
        (Role::Ours, _) => ("#c2321f", 3.2, ""),
        (Role::Limit, _) => ("#222222", 1.6, "5 4"),
        _ => (["#8a8f98", "#b58900", "#5b9a68", "#9a6fb0", "#4fa3b5", "#7a5c46"][peers_before % 6], 1.7, ""),
    }
}

/// A scale of powers: of two for sizes, of ten for the rest.
struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let part = (value.log2() - self.from.log2()) / (self.to.log2() - self.from.log2()).max(1e-9);
        self.start + part * (self.end - self.start)
    }
}

/// The picture.
pub(crate) fn svg(args: &Args, report: &Report) -> String {
    let in_place = matches!(args.kind, Kind::AllReduce | Kind::Reduce | Kind::AllGather | Kind::Broadcast);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"14\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    );
    let _ = writeln!(
        out,
        "<text x=\"76\" y=\"40\" font-size=\"24\" font-weight=\"bold\">{} {} {}, {} ranks</text>\n<text x=\"76\" y=\"64\" fill=\"#555\">{} data, {}; \
         slowest rank, median of {} runs in turns; bare spin round trip {:.2} µs</text>",
        args.kind,
        args.dtype,
        args.op,
        args.ranks,
        args.mode.name(),
        if in_place { "in place" } else { "out of place" },
        report.runs(),
        report.round_trip()
    );
    let series: Vec<(&Contestant, Vec<(f64, f64)>)> = report
        .contestants
        .iter()
        .map(|contestant| {
            let point = |size: usize| {
                Some((size as f64, contestant.lines.median((size, in_place), |line| line.time_us)?))
            };
            (contestant, args.sizes().into_iter().filter_map(point).filter(|(_, time)| *time > 0.0).collect())
        })
        .collect();
    let bus = |(size, time): (f64, f64)| (size, size / time / 1e3 * args.bus_factor());
    let kept = |(size, value): (f64, f64)| (size, value);
    panel(&mut out, PANELS[0], "time, µs", &series, &kept);
    panel(&mut out, PANELS[1], "bus bandwidth, GB/s", &series, &bus);
    legend(&mut out, &series);
    out + "</svg>\n"
}

type Series<'a> = [(&'a Contestant, Vec<(f64, f64)>)];

fn panel(
    out: &mut String,
    (left, right): (f64, f64),
    title: &str,
    series: &Series<'_>,
    value: &dyn Fn((f64, f64)) -> (f64, f64),
) {
    let points = || series.iter().flat_map(|(_, points)| points.iter().map(|point| value(*point)));
    let least = |pick: fn((f64, f64)) -> f64| points().map(pick).fold(f64::INFINITY, f64::min);
    let most = |pick: fn((f64, f64)) -> f64| points().map(pick).fold(0.0, f64::max);
    if points().next().is_none() {
        return;
    }
    let x =
        Scale { from: least(|p| p.0), to: most(|p| p.0).max(2.0 * least(|p| p.0)), start: left, end: right };
    let (low, high) = (least(|p| p.1), most(|p| p.1));
    let y = Scale { from: low * 0.8, to: high * 1.25, start: BOTTOM, end: TOP };
    let _ = writeln!(out, "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{title}</text>", TOP - 12.0);
    let (first, last) = (y.from.log10().floor() as i32, y.to.log10().floor() as i32);
    for power in first..=last {
        for step in [1.0, 2.0, 5.0] {
            let mark = step * 10_f64.powi(power);
            // The steps between powers only where there are few of these.
            if mark < y.from || mark > y.to || (step > 1.0 && last - first > 1) {
                continue;
            }
            let at = y.at(mark);
            let _ = writeln!(
                out,
                "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#e4e4e4\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{mark}</text>",
                left - 8.0,
                at + 5.0
            );
        }
    }
    let mut size = x.from;
    while size <= x.to {
        let at = x.at(size);
        let _ = writeln!(
            out,
            "<path d=\"M{at:.1} {TOP}V{BOTTOM}\" stroke=\"#f1f1f1\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
            BOTTOM + 20.0,
            readable(size as usize)
        );
        let step = ((x.to / x.from).log2() / 6.0).ceil().max(1.0);
        size *= step.exp2();
    }
    let _ = writeln!(out, "<path d=\"M{left} {TOP}V{BOTTOM}H{right}\" fill=\"none\" stroke=\"#999\"/>");
    // Ours last, on top of the others.
    let mut order: Vec<usize> = (0..series.len()).collect();
    order.sort_by_key(|at| (series[*at].0.role == Role::Ours, *at));
    for at in order {
        let (contestant, points) = &series[at];
        let (colour, width, dashes) = look(contestant, at);
        let path: Vec<String> = points
            .iter()
            .map(|point| value(*point))
            .map(|(size, value)| format!("{:.1},{:.1}", x.at(size), y.at(value)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\" stroke-linejoin=\"round\"/>",
            path.join(" ")
        );
    }
}

fn legend(out: &mut String, series: &Series<'_>) {
    let mut left = 76.0;
    for (at, (contestant, _)) in series.iter().enumerate() {
        let (colour, width, dashes) = look(contestant, at);
        let y = HEIGHT - 34.0;
        let name = if contestant.role == Role::Limit { "limit (no library)" } else { contestant.name };
        let _ = writeln!(
            out,
            "<path d=\"M{left} {y}h28\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\"/><text x=\"{}\" y=\"{}\">{name}</text>",
            left + 36.0,
            y + 5.0
        );
        left += 60.0 + 7.2 * name.len() as f64;
    }
}
