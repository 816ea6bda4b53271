//! Charts, read as XML: also with points that have no place, and with random numbers.

use consort_algorithms::export::{Axis, Chart, Mark, Series, Unit, chart_svg};

use super::xml::{Element, elements, on_the_sheet};
use crate::common::{Random, seed, snapshot};

fn chart(units: [Unit; 2], series: Vec<Series>) -> Chart {
    let axis = |label: &str, unit| Axis { label: label.into(), unit };
    Chart { title: "all_reduce".into(), x: axis("message", units[0]), y: axis("time", units[1]), series }
}

fn series(name: &str, mark: Mark, color: usize, points: &[(f64, f64)]) -> Series {
    Series { name: name.into(), mark, color, points: points.to_vec() }
}

/// Circles before the legend: those of the points.
fn dots(elements: &[Element]) -> Vec<[f64; 2]> {
    let circles = elements.iter().filter(|element| element.name == "circle");
    circles.map(|circle| [circle.number("cx"), circle.number("cy")]).collect()
}

fn texts(elements: &[Element]) -> Vec<&str> {
    let texts = elements.iter().filter(|element| element.name == "text");
    texts.map(|element| element.text.as_str()).collect()
}

#[test]
fn a_chart_is_the_committed_one() {
    let predicted: Vec<(f64, f64)> =
        (10..=26).map(|power| f64::from(1u32 << power)).map(|bytes| (bytes, 4e-6 + bytes * 1e-10)).collect();
    let measured: Vec<(f64, f64)> = predicted.iter().step_by(4).map(|&(x, y)| (x, 1.25 * y)).collect();
    let list = vec![
        series("ring, predicted", Mark::Line, 0, &predicted),
        series("ring, measured", Mark::Points, 0, &measured),
        series("nothing yet", Mark::LineAndPoints, 1, &[]),
    ];
    let text = chart_svg(&chart([Unit::Bytes, Unit::Seconds], list));
    on_the_sheet(&elements(&text));
    snapshot("chart.svg", &text);
}

/// Equal factors are equal distances, on both axes.
#[test]
fn distances_are_logarithms() {
    let points = [(1.0, 1.0), (10.0, 100.0), (100.0, 10.0), (1000.0, 1000.0)];
    let list = vec![series("a", Mark::Points, 0, &points)];
    let elements = elements(&chart_svg(&chart([Unit::Number, Unit::Number], list)));
    let dots = dots(&elements);
    let [left, bottom] = dots[0];
    let [right, top] = dots[3];
    let third = |from: f64, to: f64, thirds: f64| from + (to - from) * thirds / 3.0;
    for (dot, [across, upwards]) in [(dots[1], [1.0, 2.0]), (dots[2], [2.0, 1.0])] {
        assert!((dot[0] - third(left, right, across)).abs() < 0.11, "{dots:?}");
        assert!((dot[1] - third(bottom, top, upwards)).abs() < 0.11, "{dots:?}");
    }
    assert!(right > left && top < bottom, "upwards is up");
}

#[test]
fn ticks_are_written_with_their_units() {
    let list = vec![series("a", Mark::Line, 0, &[(64.0, 2e-6), (65536.0, 3e-2)])];
    let bytes = elements(&chart_svg(&chart([Unit::Bytes, Unit::Seconds], list)));
    for tick in ["64 B", "1 KiB", "4 KiB", "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms"] {
        assert!(texts(&bytes).contains(&tick), "{tick} is not in {:?}", texts(&bytes));
    }
    let list = vec![series("a", Mark::Line, 0, &[(0.3, 3e-11), (12.0, 4e-10)])];
    let numbers = elements(&chart_svg(&chart([Unit::Number, Unit::Seconds], list)));
    for tick in ["0.2", "0.5", "1", "2", "5", "10", "20", "2·10^-11 s", "10^-10 s"] {
        assert!(texts(&numbers).contains(&tick), "{tick} is not in {:?}", texts(&numbers));
    }
}

#[test]
fn points_without_a_place_are_left_out_and_counted() {
    let points = [(0.0, 1.0), (1.0, -1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (8.0, 4.0)];
    let list = vec![series("a", Mark::Points, 0, &points), series("b", Mark::Line, 1, &points[4..])];
    let elements = elements(&chart_svg(&chart([Unit::Bytes, Unit::Seconds], list)));
    on_the_sheet(&elements);
    // One of each series (a line of one point is a dot), and the legend's for the first.
    assert_eq!(dots(&elements).len(), 3);
    assert!(texts(&elements).contains(&"4 points without a logarithm left out"));
}

#[test]
fn nothing_to_draw_is_no_fault() {
    for list in [vec![], vec![series("<a> & \"b\"", Mark::Line, 0, &[])]] {
        let elements = elements(&chart_svg(&chart([Unit::Bytes, Unit::Number], list.clone())));
        on_the_sheet(&elements);
        assert!(dots(&elements).is_empty());
        assert_eq!(texts(&elements).contains(&"<a> & \"b\""), !list.is_empty());
    }
}

#[test]
fn any_numbers_make_a_picture() {
    let mut random = Random(seed(0xc4a7));
    for _ in 0..2000 {
        let mut number = || match random.below(8) {
            0 => f64::from_bits(random.draw()),
            1 => [0.0, -1.0, f64::MAX, f64::MIN_POSITIVE, 5e-324, f64::INFINITY][random.below(6)],
            _ => 10f64.powf(random.below(1200) as f64 / 100.0 - 6.0),
        };
        let points: Vec<(f64, f64)> = (0..5).map(|_| (number(), number())).collect();
        let unit = [Unit::Bytes, Unit::Seconds, Unit::Number][random.below(3)];
        let list: Vec<Series> = (0..random.below(4))
            .map(|index| series("a", Mark::LineAndPoints, 7 * index, &points[..random.below(6)]))
            .collect();
        let given = chart([unit, Unit::Seconds], list);
        let text = chart_svg(&given);
        let elements = elements(&text);
        on_the_sheet(&elements);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{given:?}");
        // Not more ticks than have room, and at least the two ends of each axis.
        let lines = elements.iter().filter(|element| element.name == "line").count();
        assert!((4..=20).contains(&lines), "{lines} ticks: {given:?}");
    }
}
