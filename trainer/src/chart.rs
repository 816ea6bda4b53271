//! Pictures of a run: its losses, and what each rank did in one step.

use std::path::Path;

use plotters::prelude::{
    ChartBuilder, Color, IntoDrawingArea, LineSeries, PathElement, RGBColor, Rectangle, SVGBackend,
    SeriesLabelPosition, WHITE,
};

use crate::error::{Error, Result};
use crate::timeline::{ACTIVITIES, Activity, Span};

const SIZE: (u32, u32) = (800, 450);
const EACH: RGBColor = RGBColor(150, 170, 200);
const MEAN: RGBColor = RGBColor(20, 60, 140);
const HELD_OUT: RGBColor = RGBColor(190, 60, 30);
/// A step's weight in the running mean.
const WEIGHT: f64 = 0.1;
/// The lanes of a step's picture that its legend takes, above those of the ranks.
const LEGEND: f64 = 1.4;

/// What is drawn.
pub struct Losses<'a> {
    /// The loss of each step.
    pub steps: &'a [f64],
    /// The loss on what is held out after the last step.
    pub held_out: f64,
    /// The text above the picture.
    pub title: &'a str,
    /// What a token is called.
    pub unit: &'a str,
}

/// The text of an SVG file, or what the drawing library says.
type Drawn = std::result::Result<String, Box<dyn std::error::Error>>;

/// Writes the picture of the losses as an SVG file.
///
/// # Errors
/// [`Error::Chart`] with what the drawing library says, [`Error::File`] where the file cannot be written.
pub fn draw(path: &Path, losses: &Losses<'_>) -> Result<()> {
    save(path, svg(losses))
}

/// Writes the picture of a step, with the spans of each rank, as an SVG file.
///
/// # Errors
/// As [`draw`].
pub fn draw_step(path: &Path, ranks: &[Vec<Span>]) -> Result<()> {
    save(path, step_svg(ranks))
}

fn save(path: &Path, drawn: Drawn) -> Result<()> {
    let name = path.display().to_string();
    let svg = drawn.map_err(|error| Error::Chart { path: name.clone(), why: error.to_string() })?;
    std::fs::write(path, svg).map_err(|error| Error::File { path: name, verb: "written", error })
}

/// The colour of an activity, and its name.
fn look(activity: Activity) -> (RGBColor, &'static str) {
    match activity {
        Activity::Forward => (RGBColor(90, 150, 210), "forward"),
        Activity::Backward => (RGBColor(40, 80, 160), "backward"),
        Activity::Sum => (RGBColor(230, 150, 60), "sums of gradients"),
        Activity::Gather => (RGBColor(240, 200, 120), "gathers of weights"),
        Activity::Wait => (RGBColor(190, 60, 30), "waiting for sums"),
        Activity::Idle => (RGBColor(215, 215, 215), "idle"),
        Activity::Optimizer => (RGBColor(90, 160, 90), "optimizer"),
    }
}

/// The boxes of an activity. A rank's lane is as high as 1: what it computes lies in the upper half, its sums and gathers below
/// each other in the lower.
fn boxes(activity: Activity, ranks: &[Vec<Span>]) -> Vec<[(f64, f64); 2]> {
    let mut boxes = Vec::new();
    for (rank, spans) in (0..).map(f64::from).zip(ranks) {
        let chosen: Vec<&Span> = spans.iter().filter(|span| span.activity == activity).collect();
        let (top, height, down) = match activity {
            Activity::Sum | Activity::Gather => (0.5, 0.36 / chosen.len() as f64, 0.4 / chosen.len() as f64),
            _ => (0.1, 0.35, 0.0),
        };
        for (number, span) in (0..).map(f64::from).zip(chosen) {
            let y = rank + top + number * down;
            boxes.push([(1e3 * span.begin_s, y), (1e3 * span.end_s, y + height)]);
        }
    }
    boxes
}

fn step_svg(ranks: &[Vec<Span>]) -> Drawn {
    let mut text = String::new();
    let count = ranks.len() as f64;
    let area =
        SVGBackend::with_string(&mut text, (SIZE.0, 240 + 70 * ranks.len() as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let last = ranks.iter().flatten().map(|span| 1e3 * span.end_s).fold(1e-3, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .caption("one step", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(0f64..last, count..-LEGEND)?;
    let is_rank = |at: f64| at.fract() == 0.0 && (0.0..count).contains(&at);
    let rank = |at: &f64| if is_rank(*at) { format!("rank {at:.0}") } else { String::new() };
    chart.configure_mesh().disable_x_mesh().x_desc("milliseconds").y_label_formatter(&rank).draw()?;
    for activity in ACTIVITIES {
        let (color, name) = look(activity);
        let boxes = boxes(activity, ranks).into_iter().map(|corners| Rectangle::new(corners, color.filled()));
        let series = chart.draw_series(boxes)?;
        series
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 16, y + 4)], color.filled()));
    }
    let mut labels = chart.configure_series_labels();
    labels.position(SeriesLabelPosition::UpperRight).background_style(WHITE).border_style(EACH).draw()?;
    area.present()?;
    drop(chart);
    drop(area);
    Ok(text)
}

fn svg(losses: &Losses<'_>) -> Drawn {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let highest = losses.steps.iter().copied().fold(losses.held_out, f64::max);
    let last = losses.steps.len().max(2) as f64;
    let mut chart = ChartBuilder::on(&area)
        .caption(losses.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(1f64..last, 0f64..highest * 1.05)?;
    let steps = |step: &f64| format!("{step:.0}");
    let y = format!("loss, nats a {}", losses.unit);
    chart.configure_mesh().x_desc("step").y_desc(y).x_label_formatter(&steps).draw()?;
    let points = || (1..).map(f64::from).zip(losses.steps.iter().copied());
    let mut mean = losses.steps.first().copied().unwrap_or_default();
    let means = points().map(|(step, loss)| {
        mean += WEIGHT * (loss - mean);
        (step, mean)
    });
    let curves = [
        ("each step", EACH, points().collect::<Vec<_>>()),
        ("running mean", MEAN, means.collect()),
        ("held out, at the end", HELD_OUT, vec![(1.0, losses.held_out), (last, losses.held_out)]),
    ];
    for (name, color, points) in curves {
        let series = chart.draw_series(LineSeries::new(points, color))?;
        series.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
    }
    chart.configure_series_labels().background_style(WHITE).border_style(EACH).draw()?;
    area.present()?;
    drop(chart);
    drop(area);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_its_curves_and_names() {
        let losses = Losses { steps: &[5.5, 4.0, 3.0], held_out: 3.5, title: "a <run>", unit: "byte" };
        let svg = svg(&losses).unwrap();
        assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.matches("<polyline").count() >= 3 && svg.contains("held out, at the end"), "{svg}");
        assert!(svg.contains("a &lt;run&gt;"), "{svg}");
    }

    #[test]
    fn a_step_has_a_lane_for_each_rank() {
        let span = |activity, begin_s, end_s| Span { activity, begin_s, end_s };
        let forward = span(Activity::Forward, 0.0, 0.1);
        let rank = vec![forward, span(Activity::Sum, 0.1, 0.2), span(Activity::Sum, 0.2, 0.3)];
        let boxes = super::boxes(Activity::Sum, &[rank.clone(), rank.clone()]);
        let expected = [[(100.0, 0.5), (200.0, 0.68)], [(200.0, 0.7), (300.0, 0.88)]];
        assert_eq!(boxes.len(), 4);
        for (found, expected) in boxes.iter().flatten().zip(expected.iter().flatten()) {
            assert!((found.0 - expected.0).abs() < 1e-9 && (found.1 - expected.1).abs() < 1e-9, "{boxes:?}");
        }
        let svg = step_svg(&[rank.clone(), rank]).unwrap();
        let without = step_svg(&[vec![], vec![]]).unwrap();
        assert_eq!(svg.matches("<rect").count(), without.matches("<rect").count() + 6, "{svg}");
        assert!(
            svg.contains("rank 1") && !svg.contains("rank 2") && svg.contains("sums of gradients"),
            "{svg}"
        );
    }
}
