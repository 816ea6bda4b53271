//! A timeline as a picture: time to the right, a row for each sender and channel, a bar for each message.
//!
//! Invariant: a pure function of the outcome, in whole pixels. Absent: receivers' work and waiting, which stay white.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Outcome;

const WIDTH: u64 = 1000;
const ROW: usize = 16;
const MARGIN: usize = 60;
const COLOURS: [&str; 6] = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"];

/// The timeline as an SVG. Bars reach from the first byte out to the last byte in; their colour is the channel's.
/// A sender has a row for each of its channels.
pub fn timeline_svg(outcome: &Outcome) -> String {
    let mut rows: BTreeMap<_, usize> =
        outcome.timeline.iter().map(|span| ((span.from, span.channel), 0)).collect();
    for (row, number) in rows.values_mut().zip(0..) {
        *row = number;
    }
    let end_ps = outcome.timeline.iter().map(|span| span.end_ps).max().unwrap_or(0).max(1);
    let x = |time_ps: u64| MARGIN as u128 + u128::from(time_ps) * u128::from(WIDTH) / u128::from(end_ps);
    let (width, height) = (MARGIN as u64 + WIDTH, (rows.len() + 1) * ROW);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"monospace\" \
         font-size=\"11\">\n"
    );
    // Writing to a String cannot fail.
    for ((rank, channel), row) in &rows {
        let _ = writeln!(text, "<text x=\"0\" y=\"{}\">{rank} {channel}</text>", (row + 1) * ROW - 4);
    }
    for span in &outcome.timeline {
        let row = rows[&(span.from, span.channel)];
        let (left, right) = (x(span.start_ps), x(span.end_ps));
        let colour = COLOURS[span.channel.index() % COLOURS.len()];
        let _ = writeln!(
            text,
            "<rect x=\"{left}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{colour}\" fill-opacity=\"0.7\">\
             <title>{} to {}, {} bytes, {} to {} ns</title></rect>",
            row * ROW + 1,
            (right - left).max(1),
            ROW - 2,
            span.from,
            span.to,
            span.bytes,
            span.start_ps / 1000,
            span.end_ps / 1000
        );
    }
    let _ = writeln!(text, "<text x=\"{MARGIN}\" y=\"{}\">0 to {} ns</text>", height - 4, end_ps / 1000);
    text + "</svg>\n"
}
