//! Bytes from rank to rank as a picture: a row a sender, a column a receiver.
//!
//! Invariant: a cell has the colour of the series with the most bytes in it, and is the darker the more bytes, on a
//! logarithmic scale; a cell without bytes is left blank. Of more ranks than [`CELLS_MAX`] as many neighbours as needed share
//! a cell, which the picture says. Deliberately absent: what the series mean.

use std::collections::BTreeMap;

use super::canvas::{Anchor, BAND, Canvas, FAINT, GROUND, INK, QUIET, hue, text_width};

/// The most rows and columns.
const CELLS_MAX: u32 = 256;
/// The side of the matrix, roughly.
const SIDE: f64 = 660.0;
/// Below this many cells each one says its ranks and bytes where the pointer is on it.
const TITLES_MAX: usize = 4096;
/// Shades of a colour.
const SHADES: u32 = 5;

/// Bytes of each series that one rank sends to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeatCell {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// Bytes of each series, in the order of the legend.
    pub bytes: Vec<u64>,
}

/// Ranks that belong together: every `ranks` of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeatGroup {
    /// Ranks of a group.
    pub ranks: u32,
    /// The name, which a number follows: `stage`.
    pub name: String,
}

/// A matrix with its legend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heat {
    /// The text above the picture.
    pub title: String,
    /// Lines below the title.
    pub notes: Vec<String>,
    /// Rows and columns.
    pub ranks: u32,
    /// The names of the series, and their colours: equal numbers are equal colours.
    pub series: Vec<(String, usize)>,
    /// Cells, in any order; those that are absent have no bytes.
    pub cells: Vec<HeatCell>,
    /// Nested groups, the smallest first; lines divide them, and the largest have names.
    pub groups: Vec<HeatGroup>,
}

/// Bytes with a decimal prefix and three digits: `1.07 GB`.
pub fn bytes_text(bytes: u64) -> String {
    const PREFIXES: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = bytes as f64;
    let mut prefix = 0;
    // 999.5 would be written as 1000.
    while value >= 999.5 && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    let decimals = if prefix == 0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.decimals$} {}", PREFIXES[prefix])
}

/// The matrix as an SVG file.
pub fn heat_svg(heat: &Heat) -> String {
    let drawing = Drawing::of(heat);
    let mut canvas = Canvas::default();
    canvas.text([16.0, 28.0], 15.0, Anchor::Start, "font-weight=\"bold\"", &heat.title);
    let quiet = format!("fill=\"{QUIET}\"");
    for (line, note) in (0..).zip(drawing.notes()) {
        canvas.text([16.0, 48.0 + 16.0 * f64::from(line)], 11.5, Anchor::Start, &quiet, &note);
    }
    drawing.ground(&mut canvas);
    drawing.cells(&mut canvas);
    drawing.axes(&mut canvas);
    let right = drawing.legend(&mut canvas);
    let texts = drawing.notes().iter().map(|note| 16.0 + text_width(note, 11.5)).fold(0.0, f64::max);
    let width = right.max(16.0 + text_width(&heat.title, 15.0)).max(texts) + 16.0;
    let legend = drawing.top + 40.0 + 20.0 * (heat.series.len() as f64 + f64::from(SHADES));
    canvas.finish(&heat.title, width, (drawing.top + drawing.side() + 24.0).max(legend))
}

/// A matrix on its sheet.
struct Drawing<'a> {
    heat: &'a Heat,
    /// Ranks of a cell.
    bin: u32,
    /// Rows and columns.
    count: u32,
    /// The side of a cell.
    size: f64,
    left: f64,
    top: f64,
    /// The series with the most bytes, and all bytes.
    cells: BTreeMap<(u32, u32), (usize, u64)>,
    /// Bytes of each series.
    totals: Vec<u64>,
    /// The fewest and the most bytes of a cell.
    least: u64,
    most: u64,
}

impl<'a> Drawing<'a> {
    fn of(heat: &'a Heat) -> Drawing<'a> {
        let bin = heat.ranks.div_ceil(CELLS_MAX).max(1);
        let count = heat.ranks.div_ceil(bin).max(1);
        let mut sums: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
        let mut totals = vec![0u64; heat.series.len()];
        for cell in &heat.cells {
            let sum = sums.entry((cell.from / bin, cell.to / bin)).or_insert_with(|| vec![0; totals.len()]);
            for ((sum, total), bytes) in sum.iter_mut().zip(&mut totals).zip(&cell.bytes) {
                *sum += bytes;
                *total += bytes;
            }
        }
        let most_of = |sum: Vec<u64>| {
            let all: u64 = sum.iter().sum();
            // The first series of those with equally many bytes.
            let main = (0..sum.len()).rev().max_by_key(|series| sum[*series]).unwrap_or(0);
            (main, all)
        };
        let cells: BTreeMap<(u32, u32), (usize, u64)> =
            sums.into_iter().map(|(at, sum)| (at, most_of(sum))).filter(|(_, (_, all))| *all > 0).collect();
        let least = cells.values().map(|(_, all)| *all).min().unwrap_or(0);
        let most = cells.values().map(|(_, all)| *all).max().unwrap_or(0);
        let size = (SIDE / f64::from(count)).clamp(2.0, 36.0);
        let lines = heat.notes.len() + usize::from(bin > 1);
        let top = 48.0 + 16.0 * lines as f64 + 66.0;
        Drawing { heat, bin, count, size, left: 96.0, top, cells, totals, least, most }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.heat.notes.clone();
        if self.bin > 1 {
            notes.push(format!("A cell is {0} senders by {0} receivers.", self.bin));
        }
        notes
    }

    fn side(&self) -> f64 {
        f64::from(self.count) * self.size
    }

    /// The place of a rank's first edge, from the corner.
    fn edge(&self, rank: u32) -> f64 {
        f64::from(rank) / f64::from(self.bin) * self.size
    }

    /// The shade of a cell, 0 for the fewest bytes.
    fn shade(&self, bytes: u64) -> u32 {
        let [bytes, least, most] = [bytes, self.least, self.most].map(|bytes| (bytes.max(1) as f64).ln());
        let part = if most > least { (bytes - least) / (most - least) } else { 1.0 };
        ((part * f64::from(SHADES)) as u32).min(SHADES - 1)
    }

    fn opacity(shade: u32) -> f64 {
        0.4 + 0.6 * f64::from(shade) / f64::from(SHADES - 1)
    }

    /// The blank matrix; ranks of one largest group have a band along the diagonal.
    fn ground(&self, canvas: &mut Canvas) {
        let side = self.side();
        canvas.rectangle(
            [self.left, self.top],
            [side, side],
            &format!("fill=\"{GROUND}\" stroke=\"{FAINT}\""),
        );
        let Some(largest) = self.heat.groups.last() else { return };
        for first in (0..self.heat.ranks).step_by(largest.ranks.max(1) as usize) {
            let last = first.saturating_add(largest.ranks).min(self.heat.ranks);
            let [near, far] = [self.edge(first), self.edge(last)];
            let place = [self.left + near, self.top + near];
            canvas.rectangle(place, [far - near, far - near], &format!("fill=\"{BAND}\""));
        }
    }

    fn cells(&self, canvas: &mut Canvas) {
        let has_titles = self.cells.len() <= TITLES_MAX;
        let mut cells = self.cells.iter().peekable();
        while let Some((&(row, column), &(series, bytes))) = cells.next() {
            let shade = self.shade(bytes);
            let mut end = column + 1;
            // Cells that look alike and have no titles are one rectangle.
            while let Some(&(&next, &(other, more))) = cells.peek() {
                if has_titles || next != (row, end) || other != series || self.shade(more) != shade {
                    break;
                }
                end += 1;
                cells.next();
            }
            let place = [self.left + f64::from(column) * self.size, self.top + f64::from(row) * self.size];
            let size = [f64::from(end - column) * self.size, self.size];
            let opacity = Self::opacity(shade);
            let (name, color) = &self.heat.series[series];
            let style = format!("fill=\"{}\" fill-opacity=\"{opacity:.2}\"", hue(*color));
            if has_titles {
                let [from, to] = [row, column].map(|cell| self.ranks_of(cell));
                canvas.open(&format!("{from} to {to}: {}, most of it {name}", bytes_text(bytes)), &style);
                canvas.rectangle(place, size, "");
                canvas.close();
            } else {
                canvas.rectangle(place, size, &style);
            }
        }
    }

    /// `rank 3`, `ranks 8-15`.
    fn ranks_of(&self, cell: u32) -> String {
        let (first, last) = (cell * self.bin, ((cell + 1) * self.bin).min(self.heat.ranks) - 1);
        if first == last { format!("rank {first}") } else { format!("ranks {first}-{last}") }
    }

    fn axes(&self, canvas: &mut Canvas) {
        let (left, top, side) = (self.left, self.top, self.side());
        let quiet = format!("fill=\"{QUIET}\"");
        for (depth, group) in self.heat.groups.iter().enumerate() {
            let is_largest = depth + 1 == self.heat.groups.len();
            let width = self.edge(group.ranks.min(self.heat.ranks));
            // Lines nearer than that would cover the cells.
            if width < 8.0 || group.ranks >= self.heat.ranks {
                continue;
            }
            let style = if is_largest {
                format!("stroke=\"{QUIET}\" stroke-width=\"1\"")
            } else {
                format!("stroke=\"{FAINT}\" stroke-width=\"0.6\"")
            };
            for rank in (group.ranks..self.heat.ranks).step_by(group.ranks as usize) {
                let at = self.edge(rank);
                canvas.line([left + at, top], [left + at, top + side], &style);
                canvas.line([left, top + at], [left + side, top + at], &style);
            }
        }
        canvas.rectangle([left, top], [side, side], &format!("fill=\"none\" stroke=\"{INK}\""));
        for rank in (0..self.heat.ranks).step_by(self.tick() as usize) {
            let at = self.edge(rank);
            canvas.line([left + at, top - 4.0], [left + at, top], &format!("stroke=\"{INK}\""));
            canvas.line([left - 4.0, top + at], [left, top + at], &format!("stroke=\"{INK}\""));
            canvas.text([left + at + 2.0, top - 6.0], 10.0, Anchor::Start, "", &rank.to_string());
            canvas.text([left - 7.0, top + at + 9.0], 10.0, Anchor::End, "", &rank.to_string());
        }
        self.names(canvas);
        canvas.text([left, top - 44.0], 12.0, Anchor::Start, &quiet, "receiver");
        canvas.text([16.0, top - 6.0], 12.0, Anchor::Start, &quiet, "sender");
    }

    /// The names of the largest groups, above the columns and left of the rows.
    fn names(&self, canvas: &mut Canvas) {
        let Some(group) = self.heat.groups.last().filter(|group| group.ranks < self.heat.ranks) else {
            return;
        };
        let quiet = format!("fill=\"{QUIET}\"");
        let width = self.edge(group.ranks);
        for first in (0..self.heat.ranks).step_by(group.ranks as usize) {
            let number = first / group.ranks;
            let name = format!("{} {number}", group.name);
            let middle = self.edge(first) + width / 2.0;
            // A number alone where the name has no room, and nothing where that has none either.
            let across = if text_width(&name, 11.0) < width { name.clone() } else { number.to_string() };
            if text_width(&across, 11.0) < width {
                let place = [self.left + middle, self.top - 22.0];
                canvas.text(place, 11.0, Anchor::Middle, &quiet, &across);
            }
            if width > 12.0 {
                canvas.text([16.0, self.top + middle + 4.0], 11.0, Anchor::Start, &quiet, &name);
            }
        }
    }

    /// Ranks between two labels: a group, or a multiple of the smallest, that leaves room for a label.
    fn tick(&self) -> u32 {
        let is_wide = |ranks: u32| self.edge(ranks) >= 26.0;
        let group = self.heat.groups.iter().map(|group| group.ranks.max(1)).find(|ranks| is_wide(*ranks));
        let unit = self.heat.groups.first().map_or(1, |group| group.ranks.max(1));
        let step = group.unwrap_or(unit);
        let mut tick = step;
        while !is_wide(tick) && tick < self.heat.ranks {
            tick = tick.saturating_mul(2);
        }
        if self.size >= 26.0 { 1 } else { tick }
    }

    /// The series that have bytes and the shades, right of the matrix; gives the right end.
    fn legend(&self, canvas: &mut Canvas) -> f64 {
        let x = self.left + self.side() + 28.0;
        let caption = "bytes in all; a cell has the colour of its largest part";
        let mut right = x + text_width(caption, 11.0);
        let all: u64 = self.totals.iter().sum();
        let mut y = self.top + 10.0;
        let quiet = format!("fill=\"{QUIET}\"");
        canvas.text([x, y - 22.0], 11.0, Anchor::Start, &quiet, caption);
        let mut line = |canvas: &mut Canvas, y: f64, style: &str, text: &str| {
            if !style.is_empty() {
                canvas.rectangle([x, y - 10.0], [14.0, 12.0], style);
            }
            canvas.text([x + 22.0, y], 12.0, Anchor::Start, "", text);
            right = right.max(x + 22.0 + text_width(text, 12.0));
        };
        for (series, (name, color)) in
            self.heat.series.iter().enumerate().filter(|(series, _)| self.totals[*series] > 0)
        {
            let total = self.totals[series];
            let share = total as f64 / all as f64 * 100.0;
            let text = format!("{name}: {} ({share:.1} %)", bytes_text(total));
            line(canvas, y, &format!("fill=\"{}\"", hue(*color)), &text);
            y += 20.0;
        }
        y += 16.0;
        canvas.text([x, y], 11.0, Anchor::Start, &quiet, "bytes of a cell, logarithmic");
        y += 20.0;
        for shade in (0..SHADES).rev().filter(|_| all > 0) {
            let edge = |shade: u32| {
                let part = f64::from(shade) / f64::from(SHADES);
                let [least, most] = [self.least, self.most].map(|bytes| (bytes.max(1) as f64).ln());
                bytes_text((least + (most - least) * part).exp().round() as u64)
            };
            let style = format!("fill=\"{INK}\" fill-opacity=\"{:.2}\"", Self::opacity(shade));
            line(canvas, y, &style, &format!("{} to {}", edge(shade), edge(shade + 1)));
            y += 20.0;
            if self.least == self.most {
                break;
            }
        }
        line(canvas, y, &format!("fill=\"{GROUND}\" stroke=\"{FAINT}\""), "no bytes");
        right
    }
}
