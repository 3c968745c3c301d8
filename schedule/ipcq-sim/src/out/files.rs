//! The summary table, `summary.json`, `ranks.csv` and `links.csv`.

use super::{duration, size};
use crate::plan::Plan;
use crate::sim::{Outcome, Report};
use std::io::{self, Write};

/// The reports as an aligned table.
pub fn table(reports: &[&Report]) -> String {
    let head = [
        "algorithm",
        "ranks",
        "bytes",
        "engine",
        "time",
        "algbw GB/s",
        "busbw GB/s",
        "lower bound",
        "efficiency",
        "messages",
        "slots",
        "blocked (mean)",
        "hash",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for r in reports {
        rows.push([
            r.entry.clone(),
            r.ranks.to_string(),
            size(r.bytes),
            r.engine.to_owned(),
            duration(r.time_ps),
            format!("{:.3}", r.algorithm_gbps),
            format!("{:.3}", r.bus_gbps),
            format!("{} ({})", duration(r.lower_bound_ps), r.bound_by),
            format!("{:.1} %", 100.0 * r.efficiency),
            r.messages.to_string(),
            r.most_slots.to_string(),
            duration(r.blocked_mean_ps),
            r.hash.clone(),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &width))| {
            if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Everything about a run as one JSON object.
pub fn summary_json(outcome: &Outcome, out: &mut dyn Write) -> io::Result<()> {
    let mut value = serde_json::to_value(&outcome.report)?;
    let bounds = &outcome.bounds;
    value["bounds_ps"] = serde_json::json!({
        "port": bounds.port, "latency": bounds.latency, "cut": bounds.cut, "reduction": bounds.reduction,
        "ring": bounds.ring,
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)
}

/// One line per rank: where it is, when it finished, how long it waited.
pub fn ranks_csv(plan: &Plan<'_>, outcome: &Outcome, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "rank,sip,cube,pe,start_ps,finish_ps,blocked_ps")?;
    for rank in 0..plan.program.ranks() {
        let (place, timing) = (plan.net.place(rank), &outcome.timing);
        writeln!(
            out,
            "{rank},{},{},{},{},{},{}",
            place.sip,
            place.cube,
            place.pe,
            plan.start(rank),
            timing.finish[rank as usize],
            timing.blocked[rank as usize]
        )?;
    }
    Ok(())
}

/// One line per link that carried something.
pub fn links_csv(plan: &Plan<'_>, outcome: &Outcome, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "link,name,gbps,tokens,busy_ps,use")?;
    let time = outcome.report.time_ps.max(1) as f64;
    for link in 0..plan.net.links() {
        let (tokens, busy) = (outcome.stats.tokens[link as usize], outcome.stats.busy[link as usize]);
        if tokens > 0 {
            writeln!(
                out,
                "{link},{},{},{tokens},{busy},{:.6}",
                plan.net.name(link, &plan.wiring),
                plan.net.rate_of(link),
                busy as f64 / time
            )?;
        }
    }
    Ok(())
}
