//! The picture of a run: how busy every link of the cube mesh was, and how busy links were over time.

use super::svg::{Anchor, GRID, INK, MUTED, Svg, heat};
use super::{duration, size};
use crate::config::{Fabric, SipLinks};
use crate::net::LinkRole;
use crate::plan::Plan;
use crate::sim::Outcome;
use crate::stats::{BINS, GROUP_NAMES, GROUPS, group};
use crate::units::Ps;

const MARGIN: f64 = 32.0;
const CUBE: f64 = 62.0;
const GAP: f64 = 30.0;
/// Room for the name of a SIP, and for each of its links beside it.
const NAME: f64 = 52.0;
const CHIP: f64 = 76.0;
/// SIPs that are drawn; more do not fit a page.
const MOST_SIPS: u32 = 8;
const MOST_SIDE: u32 = 16;
const COLORS: [&str; GROUPS] = ["#2f6fb5", "#d9622b", "#6b4fa0", "#2f6fb5"];

/// Draws a run.
pub fn heat_svg(plan: &Plan<'_>, outcome: &Outcome) -> String {
    let mut svg = Svg::new();
    let r = &outcome.report;
    svg.text((MARGIN, 38.0), 20, Anchor::Start, INK, &format!("{} on {} PEs", r.entry, r.ranks));
    let facts = format!(
        "{} per rank · {} · lower bound {} ({}) · efficiency {:.1} % · {} messages · engine {}",
        size(r.bytes),
        duration(r.time_ps),
        duration(r.lower_bound_ps),
        r.bound_by,
        100.0 * r.efficiency,
        r.messages,
        r.engine
    );
    svg.text((MARGIN, 60.0), 12, Anchor::Start, MUTED, &facts);
    let busiest = (0..plan.net.links()).map(|link| share(outcome, link)).fold(0.0, f64::max);
    let scale = scale(busiest);
    let (width, bottom) = match plan.net.topology().fabric {
        Fabric::Cubes => cubes(&mut svg, plan, outcome, scale, 84.0),
        Fabric::Direct | Fabric::Memory => wires(&mut svg, plan, outcome, scale, 84.0),
    };
    let width = width.max(860.0);
    legend(&mut svg, width - MARGIN - 214.0, 16.0, scale);
    let end = over_time(&mut svg, plan, outcome, bottom + 40.0, width);
    svg.finish(width, end + 24.0)
}

fn share(outcome: &Outcome, link: u32) -> f64 {
    outcome.stats.busy[link as usize] as f64 / outcome.report.time_ps.max(1) as f64
}

/// The smallest round full scale that holds the largest value.
fn scale(most: f64) -> f64 {
    [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0].into_iter().find(|&scale| most <= scale).unwrap_or(1.0)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// One panel per SIP: cubes as boxes, PEs as squares in their corners, an arrow per direction of every UCIe
/// wire.
fn cubes(svg: &mut Svg, plan: &Plan<'_>, outcome: &Outcome, scale: f64, top: f64) -> (f64, f64) {
    let t = plan.net.topology();
    let used = plan.program.ranks().div_ceil(t.pes * t.cubes.len());
    let shown = used.min(MOST_SIPS);
    let (w, h) = (t.cubes.w.min(MOST_SIDE), t.cubes.h.min(MOST_SIDE));
    let switch = t.sip_links == SipLinks::Switch;
    let sip_links = if switch { 2 } else { 4 };
    let panel_w = (f64::from(w) * (CUBE + GAP) + GAP).max(NAME + CHIP * f64::from(sip_links));
    let panel_h = f64::from(h) * (CUBE + GAP) + GAP + 26.0;
    let per_row = ((1500.0 / (panel_w + 24.0)) as u32).clamp(1, shown);
    let origin = |sip: u32| {
        let (column, row) = (sip % per_row, sip / per_row);
        (MARGIN + f64::from(column) * (panel_w + 24.0), top + 22.0 + f64::from(row) * (panel_h + 52.0))
    };
    let corner = |sip: u32, cube: u32| {
        let (x0, y0) = origin(sip);
        let (x, y) = (cube % t.cubes.w, cube / t.cubes.w);
        (x0 + GAP + f64::from(x) * (CUBE + GAP), y0 + GAP + f64::from(y) * (CUBE + GAP))
    };
    let visible = |sip: u32, cube: u32| sip < shown && cube % t.cubes.w < w && cube / t.cubes.w < h;
    for sip in 0..shown {
        let (x, y) = origin(sip);
        svg.rect((x, y), (panel_w, panel_h - 26.0), &format!("rx=\"8\" fill=\"#fafbfc\" stroke=\"{GRID}\""));
        svg.text((x + 4.0, y - 7.0), 12, Anchor::Start, INK, &format!("SIP {sip}"));
    }
    for sip in 0..shown {
        for cube in (0..t.cubes.len()).filter(|&cube| visible(sip, cube)) {
            let at = corner(sip, cube);
            svg.rect(at, (CUBE, CUBE), "rx=\"6\" fill=\"#ffffff\" stroke=\"#b8c1cc\"");
            let label = format!("{},{}", cube % t.cubes.w, cube / t.cubes.w);
            svg.text((at.0 + CUBE / 2.0, at.1 + CUBE / 2.0 + 3.5), 9, Anchor::Middle, MUTED, &label);
        }
    }
    for link in 0..plan.net.links() {
        let (busy, name) = (share(outcome, link), plan.net.name(link, &plan.wiring));
        let title = format!("{name}: {} busy, {} tokens", percent(busy), outcome.stats.tokens[link as usize]);
        match plan.net.role(link) {
            LinkRole::PeOut(pe) | LinkRole::PeIn(pe) if pe < plan.program.ranks() => {
                let place = plan.net.place(pe);
                if visible(place.sip, place.cube) {
                    let inward = matches!(plan.net.role(link), LinkRole::PeIn(_));
                    let half = pe_half(corner(place.sip, place.cube), place.pe, t.pes, inward);
                    svg.titled(&half.replace("COLOR", &heat(busy / scale)), &title);
                }
            }
            LinkRole::Ucie(sip, cube, dir) if visible(sip, cube) && exists(t.cubes, cube, dir) => {
                ucie(svg, corner(sip, cube), dir, &heat(busy / scale), &title);
            }
            LinkRole::Sip(sip, dir) if sip < shown && outcome.stats.tokens[link as usize] > 0 => {
                let (x, y) = origin(sip);
                let label = match (switch, dir) {
                    (true, 0) => "up",
                    (true, _) => "down",
                    (false, dir) => ["E", "W", "N", "S"][dir as usize],
                };
                let at = (x + panel_w - CHIP * f64::from(sip_links - dir), y - 17.0);
                let color = heat(busy / scale);
                svg.titled(
                    &format!(
                        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{color}\" \
                         stroke=\"#8995a3\" stroke-width=\"0.6\"/>",
                        at.0, at.1
                    ),
                    &title,
                );
                let text = format!("{label} {:.1} %", 100.0 * busy);
                svg.text((at.0 + 16.0, at.1 + 10.0), 10, Anchor::Start, MUTED, &text);
            }
            _ => {}
        }
    }
    let rows = f64::from(shown.div_ceil(per_row));
    let mut bottom = top + rows * (panel_h + 52.0) - 26.0;
    let text = "small boxes: PEs, left half outgoing link, right half incoming link · arrows: UCIe, one per direction · \
                hover for numbers";
    svg.text((MARGIN, bottom - 10.0), 10, Anchor::Start, MUTED, text);
    bottom += 8.0;
    if used > shown || t.cubes.w > w || t.cubes.h > h {
        let text = format!("{shown} of {used} SIPs in use, at most {MOST_SIDE} x {MOST_SIDE} cubes of each");
        svg.text((MARGIN, bottom), 11, Anchor::Start, MUTED, &text);
        bottom += 14.0;
    }
    let columns = f64::from(per_row.min(shown));
    (2.0 * MARGIN + columns * (panel_w + 24.0) - 24.0, bottom)
}

/// Whether a wire leaves this cube in that direction.
fn exists(grid: crate::config::Grid, cube: u32, dir: u32) -> bool {
    let (x, y) = (cube % grid.w, cube / grid.w);
    match dir {
        0 => x + 1 < grid.w,
        1 => x > 0,
        2 => y > 0,
        _ => y + 1 < grid.h,
    }
}

/// PEs sit at the four corners, in rows from the corner inwards; the left half of a PE is its outgoing link,
/// the right half its incoming link. `COLOR` is replaced by the colour.
fn pe_half(cube: (f64, f64), pe: u32, pes: u32, inward: bool) -> String {
    let per_corner = pes.div_ceil(4).max(1);
    let (corner, nth) = (pe / per_corner, pe % per_corner);
    let columns = f64::from(per_corner).sqrt().ceil().max(f64::from(per_corner.min(2)));
    let rows = (f64::from(per_corner) / columns).ceil();
    // The middle is left free for the name of the cube.
    let side = ((CUBE / 2.0 - 8.0) / columns).min((CUBE / 2.0 - 11.0) / rows) - 2.0;
    let side = side.clamp(1.5, 10.0);
    let (column, row) = (f64::from(nth % columns as u32), f64::from(nth / columns as u32));
    let (dx, dy) = (5.0 + column * (side + 2.0), 5.0 + row * (side + 2.0));
    let x = if corner.is_multiple_of(2) { cube.0 + dx } else { cube.0 + CUBE - dx - side };
    let y = if corner < 2 { cube.1 + dy } else { cube.1 + CUBE - dy - side };
    let x = if inward { x + side / 2.0 } else { x };
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{side:.1}\" fill=\"COLOR\" stroke=\"#8995a3\" \
         stroke-width=\"0.4\"/>",
        side / 2.0
    )
}

/// An arrow in the gap beside the cube; the two directions of a wire lie side by side.
fn ucie(svg: &mut Svg, cube: (f64, f64), dir: u32, color: &str, title: &str) {
    let (x, y) = cube;
    let (off, length) = (9.0, GAP - 4.0);
    let (from, to) = match dir {
        0 => ((x + CUBE + 2.0, y + CUBE / 2.0 - off), (x + CUBE + 2.0 + length, y + CUBE / 2.0 - off)),
        1 => ((x - 2.0, y + CUBE / 2.0 + off), (x - 2.0 - length, y + CUBE / 2.0 + off)),
        2 => ((x + CUBE / 2.0 - off, y - 2.0), (x + CUBE / 2.0 - off, y - 2.0 - length)),
        _ => ((x + CUBE / 2.0 + off, y + CUBE + 2.0), (x + CUBE / 2.0 + off, y + CUBE + 2.0 + length)),
    };
    let (dx, dy) = ((to.0 - from.0) / length, (to.1 - from.1) / length);
    let (half, head) = (3.5, 7.0);
    let side = |along: f64, across: f64| {
        format!("{:.1},{:.1}", from.0 + dx * along - dy * across, from.1 + dy * along + dx * across)
    };
    let points = [
        side(0.0, half),
        side(length - head, half),
        side(length - head, 2.0 * half),
        side(length, 0.0),
        side(length - head, -2.0 * half),
        side(length - head, -half),
        side(0.0, -half),
    ];
    svg.titled(
        &format!(
            "<polygon points=\"{}\" fill=\"{color}\" stroke=\"#8995a3\" stroke-width=\"0.6\"/>",
            points.join(" ")
        ),
        title,
    );
}

/// With a wire per channel: one square per rank, coloured by its busiest wire.
fn wires(svg: &mut Svg, plan: &Plan<'_>, outcome: &Outcome, scale: f64, top: f64) -> (f64, f64) {
    let ranks = plan.program.ranks();
    let mut busiest = vec![0f64; ranks as usize];
    for (id, channel) in plan.wiring.channels().iter().enumerate() {
        let at = &mut busiest[channel.src as usize];
        *at = at.max(share(outcome, id as u32));
    }
    // At most 64 x 16 squares; each represents as many ranks as needed.
    let per = ranks.div_ceil(1024).max(1);
    let text = if per == 1 {
        "one square per rank: its busiest outgoing wire".to_owned()
    } else {
        format!("one square per {per} ranks: their busiest outgoing wire")
    };
    svg.text((MARGIN, top + 10.0), 12, Anchor::Start, INK, &text);
    let squares = ranks.div_ceil(per);
    for square in 0..squares {
        let members = square * per..((square + 1) * per).min(ranks);
        let busy = members.clone().map(|r| busiest[r as usize]).fold(0.0, f64::max);
        let (x, y) = (MARGIN + f64::from(square % 64) * 13.0, top + 22.0 + f64::from(square / 64) * 13.0);
        svg.titled(
            &format!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"11\" height=\"11\" rx=\"1.5\" fill=\"{}\"/>",
                heat(busy / scale)
            ),
            &format!("rank {} to {}: {}", members.start, members.end - 1, percent(busy)),
        );
    }
    (2.0 * MARGIN + 64.0 * 13.0, top + 30.0 + f64::from(squares.div_ceil(64)) * 13.0)
}

fn legend(svg: &mut Svg, x: f64, y: f64, scale: f64) {
    svg.text((x - 8.0, y + 10.0), 11, Anchor::End, MUTED, "link busy");
    for i in 0..50 {
        let share = f64::from(i) / 49.0;
        svg.rect((x + 4.0 * f64::from(i), y), (4.3, 12.0), &format!("fill=\"{}\"", heat(share)));
    }
    for at in [0.0, 0.5, 1.0] {
        svg.text((x + 200.0 * at, y + 25.0), 10, Anchor::Middle, MUTED, &axis(at * scale, scale));
    }
}

/// A share as a label of an axis that ends at `scale`.
fn axis(share: f64, scale: f64) -> String {
    let digits = if scale < 0.04 { 2 } else { usize::from(scale < 0.6) };
    if share == 0.0 { "0".to_owned() } else { format!("{:.digits$} %", 100.0 * share) }
}

/// A part of a time in the unit of the whole.
fn part_of(time: Ps, part: f64) -> String {
    let (unit, word) = match time {
        0..1_000_000 => (1e3, "ns"),
        1_000_000..1_000_000_000 => (1e6, "us"),
        _ => (1e9, "ms"),
    };
    format!("{:.3} {word}", time as f64 * part / unit)
}

/// Use over time: the share of links in use, one curve per group of links.
fn over_time(svg: &mut Svg, plan: &Plan<'_>, outcome: &Outcome, top: f64, width: f64) -> f64 {
    let (bins, bin) = outcome.stats.bins();
    let time = outcome.report.time_ps.max(1);
    let mut links = [0u64; GROUPS];
    for link in 0..plan.net.links() {
        links[group(&plan.net, link)] += u64::from(outcome.stats.tokens[link as usize] > 0);
    }
    let (left, height) = (MARGIN + 40.0, 150.0);
    let span = width - left - MARGIN;
    svg.text((MARGIN, top - 12.0), 12, Anchor::Start, INK, "use over time (of the links that carry tokens)");
    let shares: Vec<Vec<f64>> = (0..GROUPS)
        .map(|g| {
            let capacity =
                |i: u64| (time.min((i + 1) * bin).saturating_sub(i * bin) * links[g].max(1)).max(1);
            let used = time.div_ceil(bin).min(BINS as u64);
            (0..used).map(|i| bins[g][i as usize] as f64 / capacity(i) as f64).collect()
        })
        .collect();
    let most = shares.iter().flatten().copied().fold(0.0, f64::max);
    let scale = scale(most);
    for i in 0..=4 {
        let y = top + height - height * f64::from(i) / 4.0;
        svg.line((left, y), (left + span, y), &format!("stroke=\"{GRID}\""));
        svg.text((left - 6.0, y + 3.5), 10, Anchor::End, MUTED, &axis(scale * f64::from(i) / 4.0, scale));
        let at = left + span * f64::from(i) / 4.0;
        let (anchor, text) = match i {
            0 => (Anchor::Start, "0".to_owned()),
            4 => (Anchor::End, duration(time)),
            _ => (Anchor::Middle, part_of(time, f64::from(i) / 4.0)),
        };
        svg.text((at, top + height + 16.0), 10, anchor, MUTED, &text);
    }
    let mut legend_x = left + span;
    for g in (0..GROUPS).rev().filter(|&g| links[g] > 0) {
        let mut points = Vec::new();
        for (i, share) in shares[g].iter().enumerate() {
            let from = (i as u64 * bin) as f64 / time as f64;
            let to = ((i as u64 + 1) * bin).min(time) as f64 / time as f64;
            let y = top + height - height * (share / scale).min(1.0);
            points.push((left + span * from, y));
            points.push((left + span * to, y));
        }
        let mut area = points.clone();
        area.push((left + span, top + height));
        area.push((left, top + height));
        svg.polygon(&area, &format!("fill=\"{}\" fill-opacity=\"0.10\"", COLORS[g]));
        svg.polyline(&points, &format!("stroke=\"{}\" stroke-width=\"1.6\"", COLORS[g]));
        let text = format!("{} ({})", GROUP_NAMES[g], links[g]);
        legend_x -= 7.0 * text.len() as f64;
        svg.text((legend_x, top - 12.0), 11, Anchor::Start, INK, &text);
        legend_x -= 15.0;
        svg.rect((legend_x, top - 21.0), (10.0, 10.0), &format!("rx=\"2\" fill=\"{}\"", COLORS[g]));
        legend_x -= 14.0;
    }
    top + height + 24.0
}
