//! A schedule as a table of text: a row for each round, a column for each rank.
//!
//! Invariant: a cell lists what its rank sends (`c0→r1`), receives (`c3←r7`, `+c3←r7` where it folds) and copies
//! within itself (`c0↺`, `+c0↺`), in the order of the list; channels but the first are named (`c1→r2/1`). A line
//! below the table says what a limit leaves out. Deliberately absent: places; the listing has them.

use super::figures::{labels, node_name, nodes};
use crate::{Rank, Schedule, Transfer};

/// The most columns that fit on a page.
const NODES_MAX: u32 = 12;
const LINES_MAX: usize = 48;

/// The table. At most 12 ranks and switches and 48 lines are written, always a whole round.
pub fn schedule_table(schedule: &Schedule) -> String {
    let shown = nodes(schedule).min(NODES_MAX);
    let mut rows = vec![vec!["round".to_owned()]];
    rows[0].extend((0..shown).map(|node| node_name(schedule, Rank(node))));
    let names = labels(schedule);
    let mut rounds_shown = 0;
    for (number, round) in schedule.rounds.iter().enumerate() {
        let cells: Vec<RankRound> = (0..shown)
            .map(|node| RankRound::of(schedule, &round.transfers, &names[number], Rank(node)))
            .collect();
        let lines = cells.iter().map(RankRound::lines).max().unwrap_or(0).max(1);
        if number > 0 && rows.len() + lines > LINES_MAX {
            break;
        }
        rounds_shown += 1;
        for line in 0..lines {
            let mut row = vec![if line == 0 { number.to_string() } else { String::new() }];
            row.extend(cells.iter().map(|cell| cell.line(line)));
            rows.push(row);
        }
    }
    let mut text = aligned(&rows);
    if rounds_shown < schedule.rounds.len() {
        text += &format!("the first {rounds_shown} of {} rounds\n", schedule.rounds.len());
    }
    if shown < nodes(schedule) {
        text += &format!("the first {shown} of {} ranks and switches\n", nodes(schedule));
    }
    text
}

/// The transfers of one rank in one round.
struct RankRound {
    sends: Vec<String>,
    arrivals: Vec<String>,
}

impl RankRound {
    /// A copy within the rank stands with the arrivals: it changes the rank's memory.
    fn of(schedule: &Schedule, transfers: &[Transfer], names: &[String], node: Rank) -> RankRound {
        let channel = |transfer: &Transfer| match transfer.channel.0 {
            0 => String::new(),
            number => format!("/{number}"),
        };
        let mut cell = RankRound { sends: Vec::new(), arrivals: Vec::new() };
        for (transfer, name) in transfers.iter().zip(names) {
            let (channel, plus) = (channel(transfer), if transfer.fold.is_some() { "+" } else { "" });
            if transfer.from == node && transfer.to == node {
                cell.arrivals.push(format!("{plus}{name}↺{channel}"));
            } else if transfer.from == node {
                cell.sends.push(format!("{name}→{}{channel}", node_name(schedule, transfer.to)));
            } else if transfer.to == node {
                cell.arrivals.push(format!("{plus}{name}←{}{channel}", node_name(schedule, transfer.from)));
            }
        }
        cell
    }

    fn lines(&self) -> usize {
        self.sends.len().max(self.arrivals.len())
    }

    /// The `line`-th message in each direction.
    fn line(&self, line: usize) -> String {
        let both = [self.sends.get(line), self.arrivals.get(line)];
        both.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" ")
    }
}

/// Columns as wide as their widest cell, two spaces apart; numbers of rounds to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut widths = vec![0; columns];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:>width$}"),
            _ => format!("{cell:width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}
