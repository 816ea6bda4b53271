//! A schedule as a space-time picture: ranks are vertical lines, time runs down, a round is a band.
//!
//! Invariant: one arrow a message, in its channel's colour, from the sender's line to the receiver's; messages
//! of one rank in one round leave and arrive in the order of the list, one below the other. A copy ends in a
//! head, a fold in a head before a plus; a copy within a rank is a loop. A chunk's name stands on an arrow
//! where it covers neither another name nor an end of an arrow. A line below the picture says what a limit leaves
//! out. Deliberately absent: durations; a round is as high as its arrows need.

use super::canvas::{Anchor, BAND, Canvas, GROUND, HUES_COUNT, INK, QUIET, hue, text_width};
use super::figures::{counted, labels, node_name, nodes, what_over_whom};
use super::text::Shown;
use crate::{Rank, Round, Schedule, Transfer};

/// The most ranks and switches; more of their lines would touch each other.
const NODES_MAX: u32 = 64;
const ROUNDS_MAX: usize = 128;
/// Transfers after which no further round begins: a picture of almost a megabyte.
const TRANSFERS_MAX: usize = 2048;

const MARGIN: f64 = 16.0;
const FIRST_COLUMN: f64 = 72.0;
const FIRST_ROUND: f64 = 84.0;
const LABEL_SIZE: f64 = 10.0;

/// The picture of a schedule as an SVG file. Legible in full for 2 to 16 ranks; beyond that without names on
/// the arrows, and only the first 64 ranks and switches, 128 rounds or about 2048 transfers are drawn.
pub fn schedule_svg(schedule: &Schedule) -> String {
    let shown = nodes(schedule).min(NODES_MAX);
    let scale = Distances::of(shown, schedule.rounds.len());
    let names = labels(schedule);
    let drawn = bounded(&schedule.rounds).zip(&names);
    let rounds: Vec<Lines> = drawn.map(|(round, names)| Lines::of(round, names, shown)).collect();
    let mut drawing = Drawing { schedule, shown, scale, canvas: Canvas::default() };
    let bottom = FIRST_ROUND + rounds.iter().map(|round| scale.height(round)).sum::<f64>();

    let legend = drawing.legend();
    let heading = drawing.heading();
    let needed = [
        scale.column(shown.saturating_sub(1)) + 36.0,
        MARGIN + text_width(&heading[0], 15.0),
        MARGIN + text_width(&heading[1], 12.0),
        legend.iter().map(|(_, name)| legend_width(name)).sum(),
    ];
    let width = needed.into_iter().fold(0.0, f64::max) + MARGIN;

    drawing.canvas.text([MARGIN, 28.0], 15.0, Anchor::Start, "font-weight=\"bold\"", &heading[0]);
    drawing.canvas.text([MARGIN, 47.0], 12.0, Anchor::Start, &format!("fill=\"{QUIET}\""), &heading[1]);
    let mut top = FIRST_ROUND;
    for (number, round) in rounds.iter().enumerate() {
        drawing.band(number, top, scale.height(round), width);
        top += scale.height(round);
    }
    drawing.nodes(bottom);
    let mut top = FIRST_ROUND;
    for round in &rounds {
        drawing.round(round, top);
        top += scale.height(round);
    }
    let mut line = bottom + 34.0;
    for note in drawing.notes(rounds.len()) {
        drawing.canvas.text([MARGIN, line], 11.0, Anchor::Start, &format!("fill=\"{QUIET}\""), &note);
        line += 16.0;
    }
    drawing.draw_legend(&legend, line);
    drawing.canvas.finish(&heading.join(": "), width, line + MARGIN)
}

/// The rounds from the first on that the limits allow; at least one.
fn bounded(rounds: &[Round]) -> impl Iterator<Item = &Round> {
    let mut drawn = 0;
    rounds.iter().take(ROUNDS_MAX).take_while(move |round| {
        let room = drawn < TRANSFERS_MAX;
        drawn += round.transfers.len();
        room
    })
}

/// The distances of a drawing.
#[derive(Clone, Copy)]
struct Distances {
    column: f64,
    labels: bool,
    /// The lowest slope of arrows, and the height that a column of their mean length adds.
    rise: f64,
    slope: f64,
    /// Distance between the tails (or heads) of one rank in a round.
    stagger: f64,
    /// Radius of the mark of a fold.
    radius: f64,
    pad: f64,
}

impl Distances {
    fn of(nodes: u32, rounds: usize) -> Distances {
        let column = match nodes {
            0..=8 => 92.0,
            9..=16 => 72.0,
            17..=32 => 40.0,
            _ => 24.0,
        };
        let labels = nodes <= 16 && rounds <= 64;
        if labels {
            Distances { column, labels, rise: 38.0, slope: 6.0, stagger: 14.0, radius: 5.0, pad: 10.0 }
        } else {
            Distances { column, labels, rise: 24.0, slope: 1.0, stagger: 7.0, radius: 3.0, pad: 6.0 }
        }
    }

    fn column(&self, node: u32) -> f64 {
        FIRST_COLUMN + f64::from(node) * self.column
    }

    /// The height at which the tails of a round begin: loops stand above them.
    fn tails(&self, round: &Lines) -> f64 {
        self.pad + self.stagger * round.loop_rows as f64
    }

    /// The height of an arrow's head below its tail. Long arrows need more room to stay apart, and a rank's heads
    /// stand below its tails.
    fn rise(&self, round: &Lines) -> f64 {
        let apart = (self.rise + self.slope * round.span).min(2.5 * self.rise);
        apart.max(self.stagger * round.rows as f64)
    }

    fn height(&self, round: &Lines) -> f64 {
        let messages = match round.rows {
            0 => self.pad,
            rows => self.rise(round) + self.stagger * (rows - 1) as f64 + self.pad,
        };
        self.tails(round) + messages
    }
}

/// A round with the row of every tail, head and loop.
struct Lines<'a> {
    /// With the name of what is carried, and the rows of tail and head.
    arrows: Vec<(&'a Transfer, &'a str, [usize; 2])>,
    loops: Vec<(&'a Transfer, usize)>,
    rows: usize,
    loop_rows: usize,
    /// Columns that an arrow passes on average.
    span: f64,
}

impl<'a> Lines<'a> {
    /// The lines of a round, without transfers of nodes that are not shown.
    fn of(round: &'a Round, names: &'a [String], nodes: u32) -> Lines<'a> {
        let mut lines = Lines { arrows: Vec::new(), loops: Vec::new(), rows: 0, loop_rows: 0, span: 0.0 };
        let mut used = vec![[0usize; 3]; nodes as usize];
        for (transfer, name) in round.transfers.iter().zip(names) {
            let (from, to) = (transfer.from, transfer.to);
            if from.0.max(to.0) >= nodes {
                continue;
            }
            let mut next = |node: Rank, kind: usize| {
                used[node.index()][kind] += 1;
                used[node.index()][kind] - 1
            };
            if from == to {
                lines.loops.push((transfer, next(from, 0)));
            } else {
                lines.arrows.push((transfer, name, [next(from, 1), next(to, 2)]));
            }
        }
        lines.loop_rows = used.iter().map(|used| used[0]).max().unwrap_or(0);
        lines.rows = used.iter().map(|used| used[1].max(used[2])).max().unwrap_or(0);
        let spans = lines.arrows.iter().map(|(transfer, ..)| transfer.from.0.abs_diff(transfer.to.0));
        lines.span = spans.map(f64::from).sum::<f64>() / lines.arrows.len().max(1) as f64;
        lines
    }
}

struct Drawing<'a> {
    schedule: &'a Schedule,
    shown: u32,
    scale: Distances,
    canvas: Canvas,
}

impl Drawing<'_> {
    fn heading(&self) -> [String; 2] {
        let schedule = self.schedule;
        let rounds = counted(schedule.rounds.len(), "round");
        let messages = counted(schedule.messages(), "message");
        [schedule.name.clone(), format!("{}, {rounds}, {messages}", what_over_whom(schedule))]
    }

    fn band(&mut self, number: usize, top: f64, height: f64, width: f64) {
        if number.is_multiple_of(2) {
            self.canvas.rectangle([0.0, top], [width, height], &format!("fill=\"{BAND}\""));
        }
        let style = format!("fill=\"{QUIET}\"");
        self.canvas.text([40.0, top + height / 2.0 + 4.0], 11.0, Anchor::End, &style, &number.to_string());
    }

    fn nodes(&mut self, bottom: f64) {
        let quiet = format!("fill=\"{QUIET}\"");
        self.canvas.text([40.0, FIRST_ROUND - 10.0], 11.0, Anchor::End, &quiet, "round");
        let size = if self.shown <= 32 { 12.0 } else { 9.0 };
        for node in 0..self.shown {
            let (x, name) = (self.scale.column(node), node_name(self.schedule, Rank(node)));
            let dashes = if node < self.schedule.ranks { "" } else { " stroke-dasharray=\"5 3\"" };
            let style = format!("stroke=\"{QUIET}\"{dashes}");
            self.canvas.line([x, FIRST_ROUND - 5.0], [x, bottom + 5.0], &style);
            self.canvas.text([x, FIRST_ROUND - 10.0], size, Anchor::Middle, "", &name);
            // Repeated below, for readers who have scrolled down.
            if bottom > 500.0 {
                self.canvas.text([x, bottom + 17.0], size, Anchor::Middle, "", &name);
            }
        }
    }

    fn round(&mut self, round: &Lines, top: f64) {
        let scale = self.scale;
        for &(transfer, row) in &round.loops {
            self.local_copy(transfer, top + scale.pad + scale.stagger * row as f64);
        }
        let (tails, rise) = (top + scale.tails(round), scale.rise(round));
        let arrows: Vec<Arrow> = round
            .arrows
            .iter()
            .map(|&(transfer, name, [tail, head])| {
                let start = tails + scale.stagger * tail as f64;
                let end = tails + rise + scale.stagger * head as f64;
                let tail = [scale.column(transfer.from.0), start];
                Arrow { transfer, name, tail, head: [scale.column(transfer.to.0), end] }
            })
            .collect();
        for arrow in &arrows {
            self.message(arrow);
        }
        if scale.labels {
            self.labels(&arrows);
        }
    }

    fn message(&mut self, arrow: &Arrow) {
        let Arrow { transfer, tail, head, .. } = *arrow;
        let radius = self.scale.radius;
        let color = hue(transfer.channel.index());
        let tip = if transfer.fold.is_some() { arrow.before_end(radius + 0.5) } else { head };
        let long = if self.scale.labels { 9.0 } else { 6.0 };
        self.canvas.open(&Shown(transfer).to_string(), &format!("stroke=\"{color}\" fill=\"{color}\""));
        let neck = arrow.before_end(arrow.end_distance(tip) + long * 0.8);
        self.canvas.line(tail, neck, "stroke-width=\"1.4\"");
        self.canvas.circle(tail, 1.8, "stroke=\"none\"");
        self.arrow_head(arrow.direction(), tip, long);
        if transfer.fold.is_some() {
            self.plus(head);
        }
        self.canvas.close();
    }

    fn arrow_head(&mut self, [along_x, along_y]: [f64; 2], tip: [f64; 2], long: f64) {
        let wide = long * 0.38;
        let [x, y] = [tip[0] - along_x * long, tip[1] - along_y * long];
        let sides = [[x - along_y * wide, y + along_x * wide], [x + along_y * wide, y - along_x * wide]];
        self.canvas.path(&[tip, sides[0], sides[1], tip], "stroke=\"none\"");
    }

    fn plus(&mut self, [x, y]: [f64; 2]) {
        let radius = self.scale.radius;
        self.canvas.circle([x, y], radius, &format!("fill=\"{GROUND}\" stroke-width=\"1.4\""));
        if radius > 4.0 {
            let arm = radius - 2.2;
            self.canvas.line([x - arm, y], [x + arm, y], "stroke-width=\"1.4\"");
            self.canvas.line([x, y - arm], [x, y + arm], "stroke-width=\"1.4\"");
        }
    }

    /// A loop beside the line; one that folds carries the mark of a fold.
    fn local_copy(&mut self, transfer: &Transfer, y: f64) {
        let x = self.scale.column(transfer.from.0);
        let (out, half) = (self.scale.stagger * 1.2, self.scale.stagger * 0.4);
        let color = hue(transfer.channel.index());
        self.canvas.open(&Shown(transfer).to_string(), &format!("stroke=\"{color}\" fill=\"{color}\""));
        let points = [[x, y - half], [x + out, y - half * 1.4], [x + out, y + half * 1.4], [x, y + half]];
        self.canvas.curve(points, "fill=\"none\" stroke-width=\"1.4\"");
        if transfer.fold.is_some() {
            self.plus([x, y + half]);
        } else {
            self.arrow_head([-1.0, 0.0], [x, y + half], self.scale.stagger * 0.4);
        }
        self.canvas.close();
    }

    fn labels(&mut self, arrows: &[Arrow]) {
        let ends = arrows.iter().flat_map(|arrow| [(arrow.tail, 3.0), (arrow.head, 7.0)]);
        let mut taken: Vec<Area> =
            ends.map(|(at, half)| Area { middle: at, half: [half, half - 1.0] }).collect();
        for (index, arrow) in arrows.iter().enumerate() {
            let half = [text_width(arrow.name, LABEL_SIZE) / 2.0 + 1.0, 6.0];
            let others = || arrows.iter().enumerate().filter(|(other, _)| *other != index);
            let crossed = |area: &Area| others().filter(|(_, other)| area.is_crossed_by(other)).count();
            // Places near the sender come first: there the arrows of one rank are still apart from those of others.
            let places = [0.28, 0.72, 0.35, 0.65, 0.22, 0.78, 0.42, 0.58, 0.5, 0.16, 0.84];
            let free = places.map(|part| Area { middle: arrow.at(part), half });
            let free = free.into_iter().filter(|area| !taken.iter().any(|other| area.meets(other)));
            // The place that the fewest arrows cross, off the ranks' lines if possible.
            let columns =
                |area: &Area| (0..self.shown).filter(|&node| area.spans(self.scale.column(node))).count();
            let cost = |area: &Area| (crossed(area), columns(area));
            let Some(((crossings, _), area)) =
                free.map(|area| (cost(&area), area)).min_by_key(|(cost, _)| *cost)
            else {
                continue;
            };
            // Where many arrows cross, a name is not legible; the viewer shows it when pointed at the arrow.
            if crossings > 2 {
                continue;
            }
            let [x, y] = area.middle;
            let style = format!("fill=\"{GROUND}\" fill-opacity=\"0.85\" rx=\"2\"");
            self.canvas.rectangle([x - half[0], y - half[1]], [2.0 * half[0], 2.0 * half[1]], &style);
            let color = format!("fill=\"{}\"", hue(arrow.transfer.channel.index()));
            self.canvas.text([x, y + 3.5], LABEL_SIZE, Anchor::Middle, &color, arrow.name);
            taken.push(area);
        }
    }

    fn notes(&self, rounds: usize) -> Vec<String> {
        let (schedule, all) = (self.schedule, nodes(self.schedule));
        let mut notes = Vec::new();
        if rounds < schedule.rounds.len() {
            notes.push(format!("Only the first {rounds} of {} rounds are drawn.", schedule.rounds.len()));
        }
        if self.shown < all {
            let shown = self.shown;
            notes.push(format!("Only the first {shown} of {all} ranks and switches are drawn."));
        }
        notes
    }

    fn legend(&self) -> Vec<(Sign, String)> {
        let transfers = || self.schedule.rounds.iter().flat_map(|round| &round.transfers);
        let any = |wanted: &dyn Fn(&Transfer) -> bool| transfers().any(wanted);
        let mut legend = Vec::new();
        if any(&|t| t.from != t.to && t.fold.is_none()) {
            legend.push((Sign::Copy, "copy".into()));
        }
        if any(&|t| t.fold.is_some()) {
            legend.push((Sign::Fold, "fold".into()));
        }
        if any(&|t| t.from == t.to) {
            legend.push((Sign::Local, "within a rank".into()));
        }
        let channels = usize::from(self.schedule.channels());
        if channels > 1 {
            let named =
                (0..channels.min(HUES_COUNT)).map(|index| (Sign::Channel(index), format!("ch{index}")));
            legend.extend(named);
        }
        if channels > HUES_COUNT {
            legend.push((Sign::Channel(HUES_COUNT), "and so on".into()));
        }
        legend
    }

    fn draw_legend(&mut self, legend: &[(Sign, String)], y: f64) {
        let mut x = MARGIN;
        let style = format!("stroke=\"{INK}\" fill=\"{INK}\"");
        for (sign, name) in legend {
            let middle = y - 4.0;
            match sign {
                Sign::Copy | Sign::Fold => {
                    let end = [x + 22.0, middle];
                    let tip = if matches!(sign, Sign::Fold) { [x + 16.5, middle] } else { end };
                    self.canvas.open(name, &style);
                    self.canvas.line([x, middle], [tip[0] - 6.0, middle], "stroke-width=\"1.4\"");
                    self.arrow_head([1.0, 0.0], tip, 8.0);
                    if matches!(sign, Sign::Fold) {
                        self.plus(end);
                    }
                    self.canvas.close();
                }
                Sign::Local => {
                    let [near, far] = [x + 4.0, x + 24.0];
                    let [over, under] = [middle - 5.0, middle + 5.0];
                    let points = [[near, over], [far, over - 2.0], [far, under + 2.0], [near, under]];
                    self.canvas.open(name, &style);
                    self.canvas.curve(points, "fill=\"none\" stroke-width=\"1.4\"");
                    self.arrow_head([-1.0, 0.0], [near, under], 5.6);
                    self.canvas.close();
                }
                Sign::Channel(index) => {
                    let color = format!("stroke=\"{}\" stroke-width=\"3\"", hue(*index));
                    self.canvas.line([x + 2.0, middle], [x + 22.0, middle], &color);
                }
            }
            self.canvas.text([x + 32.0, y], 11.0, Anchor::Start, "", name);
            x += legend_width(name);
        }
    }
}

fn legend_width(name: &str) -> f64 {
    46.0 + text_width(name, 11.0)
}

enum Sign {
    Copy,
    Fold,
    Local,
    Channel(usize),
}

/// A message with where it starts and ends.
#[derive(Clone, Copy)]
struct Arrow<'a> {
    transfer: &'a Transfer,
    name: &'a str,
    tail: [f64; 2],
    head: [f64; 2],
}

impl Arrow<'_> {
    fn at(&self, part: f64) -> [f64; 2] {
        let between = |axis: usize| self.tail[axis] + part * (self.head[axis] - self.tail[axis]);
        [between(0), between(1)]
    }

    fn length(&self) -> f64 {
        self.end_distance(self.tail)
    }

    fn end_distance(&self, [x, y]: [f64; 2]) -> f64 {
        ((self.head[0] - x).powi(2) + (self.head[1] - y).powi(2)).sqrt()
    }

    fn direction(&self) -> [f64; 2] {
        let length = self.length();
        [(self.head[0] - self.tail[0]) / length, (self.head[1] - self.tail[1]) / length]
    }

    fn before_end(&self, distance: f64) -> [f64; 2] {
        self.at(1.0 - distance / self.length())
    }
}

/// A rectangle that a label covers, or that one must not cover.
struct Area {
    middle: [f64; 2],
    half: [f64; 2],
}

impl Area {
    fn meets(&self, other: &Area) -> bool {
        let apart = |axis: usize| (self.middle[axis] - other.middle[axis]).abs();
        (0..2).all(|axis| apart(axis) < self.half[axis] + other.half[axis])
    }

    fn spans(&self, x: f64) -> bool {
        (self.middle[0] - x).abs() < self.half[0]
    }

    /// Whether the arrow passes through: its part between the left and the right edge is neither above nor
    /// below. No arrow is vertical.
    fn is_crossed_by(&self, arrow: &Arrow) -> bool {
        let [dx, dy] = [arrow.head[0] - arrow.tail[0], arrow.head[1] - arrow.tail[1]];
        let ends = [arrow.tail[0].min(arrow.head[0]), arrow.tail[0].max(arrow.head[0])];
        let left = (self.middle[0] - self.half[0]).max(ends[0]);
        let right = (self.middle[0] + self.half[0]).min(ends[1]);
        if left > right {
            return false;
        }
        let height = |x: f64| arrow.tail[1] + (x - arrow.tail[0]) / dx * dy;
        let (a, b) = (height(left), height(right));
        a.max(b) > self.middle[1] - self.half[1] && a.min(b) < self.middle[1] + self.half[1]
    }
}
