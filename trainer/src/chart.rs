//! The picture of a run's losses.

use std::path::Path;

use plotters::prelude::{
    ChartBuilder, IntoDrawingArea, LineSeries, PathElement, RGBColor, SVGBackend, WHITE,
};

use crate::error::{Error, Result};

const SIZE: (u32, u32) = (800, 450);
const EACH: RGBColor = RGBColor(150, 170, 200);
const MEAN: RGBColor = RGBColor(20, 60, 140);
const HELD_OUT: RGBColor = RGBColor(190, 60, 30);
/// A step's weight in the running mean.
const WEIGHT: f64 = 0.1;

/// What is drawn.
pub struct Losses<'a> {
    /// The loss of each step.
    pub steps: &'a [f64],
    /// The loss on what is held out after the last step.
    pub held_out: f64,
    /// The text above the picture.
    pub title: &'a str,
}

/// Writes the picture as an SVG file.
///
/// # Errors
/// [`Error::Chart`] with what the drawing library says, [`Error::File`] where the file cannot be written.
pub fn draw(path: &Path, losses: &Losses<'_>) -> Result<()> {
    let name = path.display().to_string();
    let svg = svg(losses).map_err(|error| Error::Chart { path: name.clone(), why: error.to_string() })?;
    std::fs::write(path, svg).map_err(|error| Error::File { path: name, verb: "written", error })
}

fn svg(losses: &Losses<'_>) -> std::result::Result<String, Box<dyn std::error::Error>> {
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
    chart.configure_mesh().x_desc("step").y_desc("loss, nats a byte").x_label_formatter(&steps).draw()?;
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
        let losses = Losses { steps: &[5.5, 4.0, 3.0], held_out: 3.5, title: "a <run>" };
        let svg = svg(&losses).unwrap();
        assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.matches("<polyline").count() >= 3 && svg.contains("held out, at the end"), "{svg}");
        assert!(svg.contains("a &lt;run&gt;"), "{svg}");
    }
}
