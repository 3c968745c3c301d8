//! Small pieces of SVG.

use std::fmt::Write;

/// A drawing of a given size with its elements.
pub(super) struct Svg {
    body: String,
}

/// How a text is aligned at its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

pub(super) const INK: &str = "#1f2933";
pub(super) const MUTED: &str = "#6b7785";
pub(super) const GRID: &str = "#e3e7ec";

impl Svg {
    pub(super) fn new() -> Svg {
        Svg { body: String::new() }
    }

    pub(super) fn rect(&mut self, (x, y): (f64, f64), (w, h): (f64, f64), style: &str) {
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" {style}/>"
        );
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), style: &str) {
        let _ = writeln!(
            self.body,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>"
        );
    }

    pub(super) fn polyline(&mut self, points: &[(f64, f64)], style: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.body, "<polyline points=\"{}\" fill=\"none\" {style}/>", points.join(" "));
    }

    pub(super) fn polygon(&mut self, points: &[(f64, f64)], style: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.body, "<polygon points=\"{}\" {style}/>", points.join(" "));
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), size: u32, anchor: Anchor, color: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{color}\">{text}</text>"
        );
    }

    /// An element with a tooltip.
    pub(super) fn titled(&mut self, element: &str, title: &str) {
        let _ = writeln!(self.body, "<g><title>{}</title>{element}</g>", escape(title));
    }

    pub(super) fn finish(self, width: f64, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 \
             {width:.0} {height:.0}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n<rect width=\"100%\" \
             height=\"100%\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// From pale over yellow and orange to dark red: 0 is unused, 1 is always busy.
pub(super) fn heat(share: f64) -> String {
    const STOPS: [(f64, [f64; 3]); 5] = [
        (0.0, [236.0, 240.0, 244.0]),
        (0.05, [254.0, 237.0, 177.0]),
        (0.35, [253.0, 174.0, 82.0]),
        (0.7, [222.0, 76.0, 42.0]),
        (1.0, [128.0, 8.0, 28.0]),
    ];
    let share = share.clamp(0.0, 1.0);
    let above = STOPS.iter().position(|&(at, _)| at >= share).unwrap_or(STOPS.len() - 1).max(1);
    let ((low, from), (high, to)) = (STOPS[above - 1], STOPS[above]);
    let part = (share - low) / (high - low);
    let mix = |i: usize| (from[i] + (to[i] - from[i]) * part).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}
