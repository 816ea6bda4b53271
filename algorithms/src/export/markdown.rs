//! The document that draws schedules, and the pictures that it shows.
//!
//! Invariant: the document follows from the schedules alone; every figure is counted from the transfers. A schedule's
//! picture is a file beside the document, because viewers of Markdown show no SVG within it; the table of text has
//! the same content where pictures are not shown. Deliberately absent: the list of schedules, which the caller has.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::figures::{Figures, counted, what_over_whom};
use super::svg::schedule_svg;
use super::table::schedule_table;
use crate::Schedule;

/// The document: how to read it, an index with the cost of each schedule, then each with its cost, its picture
/// and its table, under the headings of their sections. A section goes on as long as its title is repeated.
pub fn schedules_document(schedules: &[(&str, Schedule)]) -> String {
    let anchors = anchors(schedules);
    let mut text = String::from(INTRODUCTION);
    text += "\n| schedule | rounds | messages | out of the busiest rank | into the busiest rank |\n";
    text += "|---|---|---|---|---|\n";
    for ((_, schedule), anchor) in schedules.iter().zip(&anchors) {
        let Figures { rounds, messages, out, into } = Figures::of(schedule);
        let title = cell(&title(schedule));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| [{title}](#{anchor}) | {rounds} | {messages} | {out} | {into} |");
    }
    let mut section = None;
    for (here, schedule) in schedules {
        if section != Some(here) {
            let _ = writeln!(text, "\n## {here}");
            section = Some(here);
        }
        text += &entry(schedule);
    }
    text
}

/// The document as `SCHEDULES.md` and the pictures that it shows, by their paths from the document's folder.
pub fn schedules_files(schedules: &[(&str, Schedule)]) -> BTreeMap<String, String> {
    let pictures = schedules.iter().map(|(_, schedule)| (picture(schedule), schedule_svg(schedule)));
    let mut files: BTreeMap<String, String> = pictures.collect();
    files.insert("SCHEDULES.md".into(), schedules_document(schedules));
    files
}

const INTRODUCTION: &str = "\
# Schedules

Written by the exporter from the schedules that the builders make; not to be edited by hand.

How to read the tables: a row is a round, a column a rank (`r0`) or an aggregating switch (`sw0`). `c0→r1`
sends chunk 0 to rank 1; `c3←r7` receives chunk 3 from rank 7, `+c3←r7` folds it into what is there; `c0↺`
copies within the rank. What travels on another channel than the first names it at the end: `c1→r2/1`.
Everything in a round reads what was there before the round. In the pictures time runs down, colours are
channels, and a plus at the end of an arrow is a fold. Rank 0 is the root of rooted collectives.

Cost: rounds, messages, and the bytes out of and into the busiest rank, with `M` the bytes of the largest
buffer of a rank, all chunks of one length.
";

fn entry(schedule: &Schedule) -> String {
    let Figures { rounds, messages, out, into } = Figures::of(schedule);
    let heading = title(schedule);
    let mut traffic = format!("{out} out of the busiest rank");
    if out.to_string() == into.to_string() {
        traffic = format!("{out} out of and into the busiest rank");
    } else {
        traffic += &format!(", {into} into the busiest rank");
    }
    let channels = match schedule.channels() {
        1 => String::new(),
        count => format!(" on {count} channels"),
    };
    let (rounds, messages) = (counted(rounds, "round"), counted(messages, "message"));
    let (picture, table) = (picture(schedule), schedule_table(schedule));
    format!(
        "\n### {heading}\n\n{rounds}, {messages}{channels}; {traffic}.\n\n\
         ![{heading}]({picture})\n\n```text\n{table}```\n"
    )
}

/// `ring: all_reduce over 4 ranks`.
fn title(schedule: &Schedule) -> String {
    format!("{}: {}", schedule.name, what_over_whom(schedule))
}

/// Text for a cell of a table, whose edge is a bar.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The path of a schedule's picture from the document's folder. Builders put their parameters into names, so equal
/// paths mean equal schedules.
fn picture(schedule: &Schedule) -> String {
    let words = title(schedule).to_lowercase();
    let words = words.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    format!("schedules/{}.svg", words.collect::<Vec<_>>().join("-"))
}

/// The name that GitHub gives each schedule's heading: lower case, spaces as hyphens, punctuation left out, and
/// a number behind the second of the same name.
fn anchors(schedules: &[(&str, Schedule)]) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchor = |heading: &str| {
        let kept = heading.to_lowercase().replace(' ', "-");
        let kept: String = kept.chars().filter(|&c| c.is_alphanumeric() || c == '-' || c == '_').collect();
        let count = seen.entry(kept.clone()).or_default();
        *count += 1;
        if *count == 1 { kept } else { format!("{kept}-{}", *count - 1) }
    };
    anchor("Schedules");
    let mut section = None;
    let mut anchors = Vec::with_capacity(schedules.len());
    for (here, schedule) in schedules {
        if section != Some(here) {
            anchor(here);
            section = Some(here);
        }
        anchors.push(anchor(&title(schedule)));
    }
    anchors
}
