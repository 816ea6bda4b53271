//! Curves over two logarithmic axes, as a picture.
//!
//! Invariant: points are drawn at their logarithms, in the order given; one without a logarithm (zero, negative, not
//! a number) is left out and counted below the picture. The axes end on ticks and hold all points. Deliberately
//! absent: linear axes, fits and statistics, and the meaning of the series.

use super::canvas::{Anchor, Canvas, FAINT, HUES_COUNT, INK, QUIET, hue, text_width};
use super::figures::counted;

/// The unit of an axis, which determines its ticks and how they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bytes: ticks at powers of 2, written `64 KiB`.
    Bytes,
    /// Seconds: ticks at powers of 10, written `10 us`.
    Seconds,
    /// A bare number, or one of a unit that the axis's label names: ticks at powers of 10.
    Number,
}

/// One axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// The quantity: `message size`.
    pub label: String,
    /// Its unit.
    pub unit: Unit,
}

/// How a series is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A line from point to point: a prediction.
    Line,
    /// A mark at every point: a measurement.
    Points,
    /// Both.
    LineAndPoints,
}

/// One curve.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// How it is drawn.
    pub mark: Mark,
    /// Its colour: series of equal number (a prediction and its measurement) share one.
    pub color: usize,
    /// `(x, y)` in the units of the axes.
    pub points: Vec<(f64, f64)>,
}

/// Curves with their axes.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// The text above the picture.
    pub title: String,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
    /// The curves, the later above the earlier.
    pub series: Vec<Series>,
}

/// The chart as an SVG file.
pub fn chart_svg(chart: &Chart) -> String {
    let kept = |series: &Series| -> Vec<(f64, f64)> {
        series.points.iter().copied().filter(|&(x, y)| has_logarithm(x) && has_logarithm(y)).collect()
    };
    let curves: Vec<Vec<(f64, f64)>> = chart.series.iter().map(kept).collect();
    let plot = Plot::of(chart, &curves);
    let legend = chart.series.iter().map(|series| 60.0 + text_width(&series.name, 12.0)).fold(0.0, f64::max);
    let heading = 16.0 + text_width(&chart.title, 15.0);
    let width = (plot.left + WIDTH + 16.0 + legend).max(heading) + 16.0;
    let height = TOP + HEIGHT.max(20.0 * chart.series.len() as f64) + 68.0;

    let mut canvas = Canvas::default();
    canvas.text([16.0, 28.0], 15.0, Anchor::Start, "font-weight=\"bold\"", &chart.title);
    plot.axes(&mut canvas, chart);
    for (series, points) in chart.series.iter().zip(&curves) {
        let places: Vec<[f64; 2]> = points.iter().map(|&point| plot.place(point)).collect();
        canvas.open(&series.name, &style(series));
        // A line needs two points to be seen.
        if series.mark != Mark::Points && places.len() > 1 {
            canvas.path(&places, LINE);
        }
        if series.mark != Mark::Line || places.len() == 1 {
            places.iter().for_each(|&place| canvas.circle(place, 3.2, DOT));
        }
        canvas.close();
    }
    for (row, series) in chart.series.iter().enumerate() {
        let [x, y] = [plot.left + WIDTH + 24.0, TOP + 8.0 + 20.0 * row as f64];
        canvas.open(&series.name, &style(series));
        if series.mark != Mark::Points {
            canvas.path(&[[x, y], [x + 28.0, y]], LINE);
        }
        if series.mark != Mark::Line {
            canvas.circle([x + 14.0, y], 3.2, DOT);
        }
        canvas.close();
        canvas.text([x + 36.0, y + 4.0], 12.0, Anchor::Start, "", &series.name);
    }
    let given: usize = chart.series.iter().map(|series| series.points.len()).sum();
    let left_out = given - curves.iter().map(Vec::len).sum::<usize>();
    if left_out > 0 {
        let note = format!("{} without a logarithm left out", counted(left_out, "point"));
        let quiet = format!("fill=\"{QUIET}\"");
        canvas.text([16.0, height - 12.0], 11.0, Anchor::Start, &quiet, &note);
    }
    canvas.finish(&chart.title, width, height)
}

const TOP: f64 = 72.0;
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 340.0;
/// The most steps between the labels of one axis; with more they would touch.
const STEPS_MAX: usize = 9;
const LINE: &str = "fill=\"none\" stroke-width=\"1.8\" stroke-linejoin=\"round\"";
const DOT: &str = "stroke=\"none\"";

/// Series whose colours repeat are dashed, more finely at each repetition.
fn style(series: &Series) -> String {
    let color = hue(series.color);
    let dashes = match series.color / HUES_COUNT {
        0 => String::new(),
        again => format!(" stroke-dasharray=\"{} 3\"", 12 / again.min(6)),
    };
    format!("stroke=\"{color}\" fill=\"{color}\"{dashes}")
}

/// The logarithm to the base of the unit's ticks.
fn logarithm(unit: Unit, value: f64) -> f64 {
    if unit == Unit::Bytes { value.log2() } else { value.log10() }
}

fn has_logarithm(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// A logarithmic axis in units of its own: powers of 2 or of 10.
struct LogAxis {
    unit: Unit,
    /// The ends, as logarithms.
    first: f64,
    last: f64,
    /// The ticks with a label.
    ticks: Vec<Tick>,
}

/// The value `mantissa * base^exponent`.
#[derive(Clone, Copy)]
struct Tick {
    /// Its logarithm.
    at: f64,
    mantissa: u32,
    exponent: i32,
}

impl LogAxis {
    fn of(unit: Unit, values: impl Iterator<Item = f64>) -> LogAxis {
        let (low, high) = values
            .map(|value| logarithm(unit, value))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)));
        // Without a point the axis has one step, so that there is a picture.
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let base = if unit == Unit::Bytes { 2.0f64 } else { 10.0 };
        // Within two decades, ticks at decades alone are too few.
        let mantissas: &[u32] = if unit == Unit::Bytes || high - low > 2.0 { &[1] } else { &[1, 2, 5] };
        let exponents = low.floor() as i32 - 1..=high.ceil() as i32 + 1;
        let tick = |exponent: i32, mantissa: u32| Tick {
            at: f64::from(exponent) + f64::from(mantissa).log(base),
            mantissa,
            exponent,
        };
        let ticks: Vec<Tick> = exponents
            .flat_map(|exponent| mantissas.iter().map(move |&mantissa| tick(exponent, mantissa)))
            .collect();
        // From the last tick at or below the lowest point to the first at or above the highest; logarithms of
        // round numbers may be off by a last bit.
        let start = ticks.iter().rposition(|tick| tick.at <= low + 1e-9).unwrap_or(0);
        let end = ticks.iter().position(|tick| tick.at >= high - 1e-9).unwrap_or(ticks.len() - 1);
        let end = end.max(start + 1).min(ticks.len() - 1);
        let labelled = ticks[start..=end].iter().step_by((end - start).div_ceil(STEPS_MAX));
        LogAxis { unit, first: ticks[start].at, last: ticks[end].at, ticks: labelled.copied().collect() }
    }

    fn logarithm(&self, value: f64) -> f64 {
        logarithm(self.unit, value)
    }

    /// 0 at the first end, 1 at the last.
    fn part(&self, logarithm: f64) -> f64 {
        (logarithm - self.first) / (self.last - self.first)
    }

    fn text(&self, tick: Tick) -> String {
        let Tick { mantissa, exponent, .. } = tick;
        match self.unit {
            Unit::Bytes => prefixed(mantissa, exponent, 10, &["B", "KiB", "MiB", "GiB", "TiB"], 0),
            Unit::Seconds => prefixed(mantissa, exponent, 3, &["ns", "us", "ms", "s"], -9),
            Unit::Number if (-3..0).contains(&exponent) => {
                format!("0.{}{mantissa}", "0".repeat(-exponent as usize - 1))
            }
            Unit::Number => prefixed(mantissa, exponent, 3, &["", "k", "M", "G", "T"], 0),
        }
    }
}

/// `mantissa * base^exponent` with a prefix for every `step` powers; the first stands for `base^first`.
/// Outside of the prefixes the power itself.
fn prefixed(mantissa: u32, exponent: i32, step: i32, prefixes: &[&str], first: i32) -> String {
    let base: u32 = if step == 10 { 2 } else { 10 };
    let index = (exponent - first).div_euclid(step);
    let Some(prefix) = usize::try_from(index).ok().and_then(|index| prefixes.get(index)) else {
        let unit = prefixes[usize::try_from(-first / step).unwrap_or(0)];
        let times = if mantissa == 1 { String::new() } else { format!("{mantissa}·") };
        return format!("{times}{base}^{exponent} {unit}").trim_end().into();
    };
    let number = mantissa * base.pow((exponent - first).rem_euclid(step) as u32);
    let space = if first == 0 && step == 3 { "" } else { " " };
    format!("{number}{space}{prefix}")
}

/// The axes and where they are on the sheet.
struct Plot {
    left: f64,
    across: LogAxis,
    upwards: LogAxis,
}

impl Plot {
    fn of(chart: &Chart, curves: &[Vec<(f64, f64)>]) -> Plot {
        let across = LogAxis::of(chart.x.unit, curves.iter().flatten().map(|point| point.0));
        let upwards = LogAxis::of(chart.y.unit, curves.iter().flatten().map(|point| point.1));
        let labels = upwards.ticks.iter().map(|&tick| text_width(&upwards.text(tick), 11.0));
        Plot { left: 24.0 + labels.fold(0.0, f64::max), across, upwards }
    }

    fn place(&self, (x, y): (f64, f64)) -> [f64; 2] {
        [self.column(self.across.logarithm(x)), self.row(self.upwards.logarithm(y))]
    }

    fn column(&self, logarithm: f64) -> f64 {
        self.left + WIDTH * self.across.part(logarithm)
    }

    fn row(&self, logarithm: f64) -> f64 {
        TOP + HEIGHT * (1.0 - self.upwards.part(logarithm))
    }

    fn axes(&self, canvas: &mut Canvas, chart: &Chart) {
        let [right, bottom] = [self.left + WIDTH, TOP + HEIGHT];
        let faint = format!("stroke=\"{FAINT}\"");
        for &tick in &self.across.ticks {
            let x = self.column(tick.at);
            canvas.line([x, TOP], [x, bottom], &faint);
            canvas.text([x, bottom + 17.0], 11.0, Anchor::Middle, "", &self.across.text(tick));
        }
        for &tick in &self.upwards.ticks {
            let y = self.row(tick.at);
            canvas.line([self.left, y], [right, y], &faint);
            canvas.text([self.left - 7.0, y + 4.0], 11.0, Anchor::End, "", &self.upwards.text(tick));
        }
        let frame = [[self.left, TOP], [self.left, bottom], [right, bottom]];
        canvas.path(&frame, &format!("fill=\"none\" stroke=\"{INK}\""));
        let quiet = format!("fill=\"{QUIET}\"");
        canvas.text([16.0, TOP - 16.0], 12.0, Anchor::Start, &quiet, &chart.y.label);
        canvas.text([self.left + WIDTH / 2.0, bottom + 38.0], 12.0, Anchor::Middle, &quiet, &chart.x.label);
    }
}
