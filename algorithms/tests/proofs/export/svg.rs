//! Pictures of schedules, read as XML: no message is missing, no line covers a name, everything is on the sheet.

use consort_algorithms::builders::{RingOptions, doubling, pair, ring};
use consort_algorithms::export::schedule_svg;
use consort_algorithms::{Collective, Rank, Schedule};

use super::xml::{Element, elements, on_the_sheet};
use super::{direct, schedules, through_a_switch};

fn large(schedule: &Schedule) -> bool {
    schedule.messages() > 2000
}

/// The titles of transfers; the first title is the picture's.
fn drawn(elements: &[Element]) -> Vec<String> {
    let titles = elements.iter().filter(|element| element.name == "title").skip(1);
    titles.map(|title| title.text.clone()).filter(|title| title.starts_with("ch")).collect()
}

/// A sign of the legend or an arrow: everything in one group.
fn folds(elements: &[Element]) -> usize {
    let legend = elements.iter().filter(|element| element.name == "title" && element.text == "fold").count();
    let marks = elements.iter().filter(|element| element.name == "circle" && element.get("fill").is_some());
    marks.count() - legend
}

#[test]
fn every_transfer_is_drawn_once() {
    for schedule in schedules().iter().filter(|schedule| !large(schedule)) {
        let elements = elements(&schedule_svg(schedule));
        on_the_sheet(&elements);
        let transfers = || schedule.rounds.iter().flat_map(|round| &round.transfers);
        let drawn = drawn(&elements);
        let expected = transfers().count();
        assert_eq!(drawn.len(), expected, "{}", schedule.name);
        assert_eq!(folds(&elements), transfers().filter(|transfer| transfer.fold.is_some()).count());
        for transfer in transfers() {
            let start = format!("{} {} -> {}: ", transfer.channel, transfer.from, transfer.to);
            assert!(drawn.iter().any(|title| title.starts_with(&start)), "{start} is not drawn");
        }
    }
}

/// The grounds under the names: `x`, `y`, `width`, `height`.
fn names(elements: &[Element]) -> Vec<[f64; 4]> {
    let grounds = elements.iter().filter(|element| element.get("fill-opacity").is_some());
    grounds.map(|ground| ["x", "y", "width", "height"].map(|key| ground.number(key))).collect()
}

#[test]
fn no_name_covers_another() {
    for schedule in schedules() {
        let names = names(&elements(&schedule_svg(&schedule)));
        for (index, [x, y, width, height]) in names.iter().enumerate() {
            for [other_x, other_y, other_width, other_height] in &names[..index] {
                let across = x + width > other_x + 0.15 && other_x + other_width > x + 0.15;
                let upwards = y + height > other_y + 0.15 && other_y + other_height > y + 0.15;
                assert!(!(across && upwards), "{}: two names at {x}, {y}", schedule.name);
            }
        }
    }
}

/// In the pictures of the document every message has its name.
#[test]
fn small_pictures_name_every_message() {
    let rings = (2..=16).map(|ranks| ring(Collective::AllReduce, ranks, RingOptions::default()));
    let others = [2, 4, 8].map(doubling).into_iter().chain([pair(), through_a_switch()]);
    for schedule in rings.chain(others) {
        let names = names(&elements(&schedule_svg(&schedule))).len();
        assert_eq!(names, schedule.messages(), "{} over {}", schedule.name, schedule.ranks);
    }
}

#[test]
fn switches_have_names_and_lines_of_their_own() {
    let elements = elements(&schedule_svg(&through_a_switch()));
    assert!(elements.iter().any(|element| element.name == "text" && element.text == "sw0"));
    assert_eq!(elements.iter().filter(|element| element.get("stroke-dasharray").is_some()).count(), 1);
}

#[test]
fn what_does_not_fit_is_said() {
    let said = |schedule: &Schedule| {
        let elements = elements(&schedule_svg(schedule));
        on_the_sheet(&elements);
        assert!(names(&elements).is_empty());
        let notes = elements.into_iter().filter(|element| element.text.starts_with("Only the first"));
        notes.map(|note| note.text).collect::<Vec<_>>()
    };
    let long = ring(Collective::AllReduce, 64, RingOptions::default());
    assert_eq!(said(&long), ["Only the first 32 of 126 rounds are drawn."]);
    let wide = ring(Collective::Broadcast, 100, RingOptions::default());
    assert_eq!(said(&wide), ["Only the first 64 of 100 ranks and switches are drawn."]);
    assert_eq!(said(&direct(64)), [""; 0], "one round is always drawn");
}

#[test]
fn names_cannot_break_the_picture() {
    let mut schedule = pair();
    schedule.name = "</text>\"<&>'\u{1}\u{ffff}\n".into();
    let elements = elements(&schedule_svg(&schedule));
    assert!(elements.iter().any(|element| element.text == "</text>\"<&>'\u{fffd}\u{fffd} "));
    // A transfer to a rank that does not exist, which the verifier refuses, is drawn up to the edge.
    schedule.rounds[0].transfers[0].to = Rank(1000);
    assert!(schedule_svg(&schedule).contains("Only the first 64 of 1001 ranks and switches are drawn."));
}
