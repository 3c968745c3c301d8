//! What was measured, as tables, as JSON, and as figures of `cargo xtask bench`.

use crate::args::Args;
use crate::{Contestant, Line, Outcome, Report, Role};
use bench_support::Samples;
use collectives::Kind;
use std::fmt::Write;

/// A size as people write it.
pub(crate) fn readable(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// A time with three digits that mean something.
fn us(time: f64) -> String {
    match time {
        time if time >= 100.0 => format!("{time:.0}"),
        time if time >= 10.0 => format!("{time:.1}"),
        _ => format!("{time:.2}"),
    }
}

impl Report {
    pub(crate) fn round_trip(&self) -> f64 {
        self.round_trips.iter().copied().collect::<Samples>().median()
    }

    /// How many runs there are of the contestant that has the most.
    pub(crate) fn runs(&self) -> usize {
        let lines = self.contestants.iter().flat_map(|contestant| contestant.lines.0.values());
        lines.map(Vec::len).max().unwrap_or(0)
    }

    /// The shortest and the longest.
    fn round_trip_range(&self) -> (f64, f64) {
        let ends = |(least, most): (f64, f64), time: &f64| (least.min(*time), most.max(*time));
        self.round_trips.iter().fold((f64::INFINITY, 0.0), ends)
    }

    /// The fastest MPI at a size: its time, and its name.
    pub(crate) fn best_mpi(&self, at: (usize, bool)) -> Option<(f64, &'static str)> {
        self.best(at).map(|(time, mpi)| (time, mpi.name))
    }

    fn best(&self, at: (usize, bool)) -> Option<(f64, &Contestant)> {
        let mpi = self.contestants.iter().filter(|contestant| contestant.role == Role::Mpi);
        let times = mpi.filter_map(|mpi| Some((mpi.lines.median(at, |line| line.time_us)?, mpi)));
        times.min_by(|one, other| one.0.total_cmp(&other.0))
    }
}

/// Whether the comparison is of calls in place.
fn compares_in_place(args: &Args) -> bool {
    matches!(args.kind, Kind::AllReduce | Kind::Reduce | Kind::AllGather | Kind::Broadcast)
}

/// All tables.
pub(crate) fn text(args: &Args, report: &Report) -> String {
    let mut out = String::new();
    let (kind, dtype, mode, ranks) = (args.kind, args.dtype, args.mode.name(), args.ranks);
    let (least, most) = report.round_trip_range();
    let _ = writeln!(
        out,
        "# {kind} {dtype}, {ranks} ranks, {mode}; median of {} runs, slowest rank, us; bare spin round trip {:.3} us ({least:.3} to {most:.3}){}",
        report.runs(),
        report.round_trip(),
        if fault_points::COMPILED_IN { "; fault points are compiled in, and cost time" } else { "" },
    );
    for contestant in report.contestants.iter().filter(|contestant| contestant.role.is_ours()) {
        let schedule = args.schedule.iter().filter(|_| contestant.role == Role::Schedule);
        let how: String =
            schedule.map(|name| format!(" {name}, by {}", crate::schedule::name(args.passing))).collect();
        let _ = writeln!(out, "\n# {}{how}", contestant.name);
        let half =
            format!("{:>9} {:>7} {:>7} {:>6} {:>9} {:>9}", "time", "algbw", "busbw", "#wrong", "p50", "p99");
        let _ =
            writeln!(out, "#{:>10} {:>10} {:>5} {:>5} | out of place {:41} | in place", "", "", "", "", "");
        let _ = writeln!(out, "#{:>10} {:>10} {:>5} {:>5} | {half} | {half}", "size", "count", "type", "op");
        for size in args.sizes() {
            let count = size / dtype.size();
            let row = [false, true].map(|in_place| half_row(args, contestant, (size, in_place)));
            let _ = writeln!(
                out,
                " {size:>10} {count:>10} {:>5} {:>5} | {} | {}",
                dtype.to_string(),
                args.op.to_string(),
                row[0],
                row[1]
            );
        }
        over_the_call(args, contestant, &mut out);
    }
    compare(args, report, &mut out);
    out
}

/// Time, bandwidths, wrong elements and quantiles of one size and place.
fn half_row(args: &Args, contestant: &Contestant, at: (usize, bool)) -> String {
    let of = |pick: fn(&Line) -> f64| contestant.lines.median(at, pick);
    let Some((time, p50, p99)) =
        of(|l| l.time_us).zip(of(|l| l.p50_us)).zip(of(|l| l.p99_us)).map(|((a, b), c)| (a, b, c))
    else {
        return format!("{:>52}", "-");
    };
    let algbw = at.0 as f64 / time.max(1e-9) / 1e3;
    let wrong = contestant.lines.wrong(at);
    format!(
        "{:>9} {algbw:>7.2} {:>7.2} {wrong:>6} {:>9} {:>9}",
        us(time),
        algbw * args.bus_factor(),
        us(p50),
        us(p99)
    )
}

/// What a schedule takes more than the call that does the same, where there is one.
fn over_the_call(args: &Args, contestant: &Contestant, out: &mut String) {
    for size in args.sizes() {
        let over = [(false, "out of place"), (true, "in place")].map(|(in_place, place)| {
            let over = contestant.lines.over((size, in_place))?;
            Some(format!("{:+.0} ns {place}", 1e3 * over))
        });
        let over: Vec<String> = over.into_iter().flatten().collect();
        if !over.is_empty() {
            let _ = writeln!(out, "# over the call in turns: {:>8} {}", readable(size), over.join(", "));
        }
    }
}

/// What the columns of ratios are.
const RATIOS: &str = "; x: time over the best MPI's; worst: our worst run over its median; alike: the worst of our runs, each over the \
median of those of its runs before which the bare round trip was within a factor of 1.5 of ours";

/// Everybody side by side, and ours over the best MPI where there is one.
fn compare(args: &Args, report: &Report, out: &mut String) {
    let in_place = compares_in_place(args);
    let has_mpi = report.contestants.iter().any(|contestant| contestant.role == Role::Mpi);
    let ours = || report.contestants.iter().filter(|contestant| has_mpi && contestant.role == Role::Ours);
    let place = if in_place { "in place" } else { "out of place" };
    let ratio = if has_mpi { RATIOS } else { "" };
    let _ = writeln!(out, "\n# {place}, us; the worst run in brackets{ratio}");
    let _ = write!(out, "#{:>8}", "size");
    for contestant in &report.contestants {
        let _ = write!(out, " {:>19}", contestant.name);
    }
    for contestant in ours() {
        let short = if contestant.name == "ours, staged" { "staged x" } else { "window x" };
        let _ = write!(out, " {short:>8} {:>6} {:>6}", "worst", "alike");
    }
    let _ = writeln!(out, "{}", if has_mpi { "  best MPI" } else { "" });
    for size in args.sizes() {
        let at = (size, in_place);
        let _ = write!(out, " {:>8}", readable(size));
        for contestant in &report.contestants {
            let cell = contestant.lines.median(at, |line| line.time_us).zip(contestant.lines.worst(at));
            let cell = cell.map_or("-".to_owned(), |(time, worst)| format!("{} [{}]", us(time), us(worst)));
            let _ = write!(out, " {cell:>19}");
        }
        let best = report.best(at);
        for ours in ours() {
            let over = |time: Option<f64>| time.zip(best).map(|(time, best)| time / best.0);
            let text = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
            let ratio = text(over(ours.lines.median(at, |line| line.time_us)));
            let worst = text(over(ours.lines.worst(at)));
            let alike = text(best.and_then(|(_, best)| ours.lines.worst_ratio(&best.lines, at)));
            let _ = write!(out, " {ratio:>8} {worst:>6} {alike:>6}");
        }
        let _ = writeln!(
            out,
            "{}",
            if has_mpi { format!("  {}", best.map_or("-", |best| best.1.name)) } else { String::new() }
        );
    }
}

#[derive(serde::Serialize)]
struct Everything<'a> {
    kind: String,
    r#type: String,
    op: String,
    mode: &'a str,
    ranks: u32,
    round_trips_us: &'a [f64],
    measured: Vec<Measured<'a>>,
}

#[derive(serde::Serialize)]
struct Measured<'a> {
    contestant: &'a str,
    bytes: usize,
    in_place: bool,
    runs: &'a [Line],
}

/// All runs.
pub(crate) fn json(args: &Args, report: &Report) -> Outcome<String> {
    let of = |contestant: &'_ Contestant| contestant.lines.0.keys().copied().collect::<Vec<_>>();
    let mut measured = Vec::new();
    for contestant in &report.contestants {
        for at in of(contestant) {
            let runs = contestant.lines.0.get(&at).map_or(&[][..], Vec::as_slice);
            measured.push(Measured { contestant: contestant.name, bytes: at.0, in_place: at.1, runs });
        }
    }
    let (kind, r#type, op) = (args.kind.to_string(), args.dtype.to_string(), args.op.to_string());
    let everything = Everything {
        kind,
        r#type,
        op,
        mode: args.mode.name(),
        ranks: args.ranks,
        round_trips_us: &report.round_trips,
        measured,
    };
    Ok(serde_json::to_string_pretty(&everything)?)
}

/// One line for each size, as `cargo xtask bench` reads them.
pub(crate) fn figures(args: &Args, report: &Report) -> Outcome<()> {
    let in_place = compares_in_place(args);
    let limit = report.contestants.iter().find(|contestant| contestant.role == Role::Limit);
    for size in args.sizes() {
        let at = (size, in_place);
        for ours in report.contestants.iter().filter(|contestant| contestant.role == Role::Ours) {
            let Some(value) = ours.lines.median(at, |line| line.time_us) else { continue };
            let place = ours.name.trim_start_matches("ours, ");
            let case = format!("{} {place} {}, {} ranks", args.kind, readable(size), args.ranks);
            let best = report.best_mpi(at);
            let bare = limit.and_then(|limit| limit.lines.median(at, |line| line.time_us));
            print_figure(&case, value, best.map_or("MPI", |best| best.1), best.map(|best| best.0))?;
            if bare.is_some() {
                print_figure(&case, value, "bare two-shot", bare)?;
            }
        }
    }
    print_figure(
        &format!("round trip of this run, {} ranks", args.ranks),
        report.round_trip(),
        "bare spin",
        Some(report.round_trip()),
    )
}

fn print_figure(case: &str, value: f64, limit: &str, limit_value: Option<f64>) -> Outcome<()> {
    let figure = bench_support::Figure { case, value, unit: "us", limit, limit_value };
    crate::out::say(format_args!("{}\n", figure.json("coll")))
}
