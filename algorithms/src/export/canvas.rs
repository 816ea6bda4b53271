//! A sheet of SVG: its elements, its colours, and the rules that keep a text safe in it.
//!
//! Invariant: the drawing depends on the calls alone; coordinates have one decimal at most; every text is escaped.
//! The sheet has its own light ground, so that it looks the same on light and on dark pages. Deliberately absent:
//! scripts, external fonts and images, and the real width of a text, which only the viewer knows: [`text_width`] is
//! an upper estimate.

use std::fmt::Write;

/// The ground, which also keeps a label legible where a line passes under it.
pub(crate) const GROUND: &str = "#fdfdfb";
pub(crate) const INK: &str = "#24292f";
pub(crate) const FAINT: &str = "#d8dce1";
pub(crate) const BAND: &str = "#f3f4f2";
pub(crate) const QUIET: &str = "#626b75";

/// Colours that most readers can distinguish and that are legible on the ground, after the palette of M. Okabe and K.
/// Ito, "Color Universal Design" (2008), darkened where white is near.
const HUES: [&str; 8] =
    ["#0072b2", "#d55e00", "#008561", "#b0508a", "#8a6d00", "#2f97c7", "#7a3fb0", "#5b5b5b"];

/// The colour of a channel or a series; they repeat after eight.
pub(crate) fn hue(index: usize) -> &'static str {
    HUES[index % HUES.len()]
}

/// The number of series, in order, with colours of their own.
pub(crate) const HUES_COUNT: usize = HUES.len();

/// An upper bound of the width of a text of this size, in the fonts that viewers take for `sans-serif`.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.62
}

/// The position of a text relative to its point.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// The elements drawn so far, the later above the earlier.
#[derive(Default)]
pub(crate) struct Canvas {
    body: String,
}

impl Canvas {
    pub(crate) fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], style: &str) {
        let (x1, y1, x2, y2) = (short(x1), short(y1), short(x2), short(y2));
        self.element(&format!("<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" {style}/>"));
    }

    pub(crate) fn rectangle(&mut self, [x, y]: [f64; 2], [width, height]: [f64; 2], style: &str) {
        let (x, y, width, height) = (short(x), short(y), short(width), short(height));
        self.element(&format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" {style}/>"));
    }

    pub(crate) fn circle(&mut self, [x, y]: [f64; 2], radius: f64, style: &str) {
        let (x, y, radius) = (short(x), short(y), short(radius));
        self.element(&format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" {style}/>"));
    }

    /// Straight lines from point to point.
    pub(crate) fn path(&mut self, points: &[[f64; 2]], style: &str) {
        self.element(&format!("<path d=\"M{}\" {style}/>", joined(points)));
    }

    /// One cubic curve from the first point to the last.
    pub(crate) fn curve(&mut self, points: [[f64; 2]; 4], style: &str) {
        let [start, rest @ ..] = points;
        self.element(&format!("<path d=\"M{}C{}\" {style}/>", joined(&[start]), joined(&rest)));
    }

    pub(crate) fn text(&mut self, [x, y]: [f64; 2], size: f64, anchor: Anchor, style: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let (x, y, size, text) = (short(x), short(y), short(size), escaped(text));
        let style = if style.is_empty() { String::new() } else { format!(" {style}") };
        self.element(&format!("<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{anchor}{style}>{text}</text>"));
    }

    /// Opens a group; viewers show `title` where the pointer is on it.
    pub(crate) fn open(&mut self, title: &str, style: &str) {
        self.element(&format!("<g {style}><title>{}</title>", escaped(title)));
    }

    pub(crate) fn close(&mut self) {
        self.element("</g>");
    }

    fn element(&mut self, text: &str) {
        self.body += text;
        self.body.push('\n');
    }

    /// The whole file. `title` is for readers who cannot see the picture.
    pub(crate) fn finish(self, title: &str, width: f64, height: f64) -> String {
        let (width, height, title) = (short(width), short(height), escaped(title));
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" font-family=\"sans-serif\" fill=\"{INK}\">\n<title>{title}</title>"
        );
        let _ = writeln!(text, "<rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{GROUND}\"/>");
        text + &self.body + "</svg>\n"
    }
}

fn joined(points: &[[f64; 2]]) -> String {
    let points: Vec<String> = points.iter().map(|&[x, y]| format!("{} {}", short(x), short(y))).collect();
    points.join(" ")
}

/// One decimal, and none where it is 0.
fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0".into() } else { text.into() }
}

/// For text and for attributes; characters that XML does not allow become U+FFFD.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\n' | '\t' => safe.push(' '),
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            _ => safe.push(c),
        }
    }
    safe
}
