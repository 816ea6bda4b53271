//! Exchanges of unequal counts between boxes, in stages in which every box sends to one other and receives from one.
//!
//! A box sends as fast as its adapters go only while they are busy and no receiver is shared. So the bytes between
//! boxes are taken apart into one-to-one stages; the sum of their lengths is the larger of the most that a box sends
//! and the most that one receives, which no order of messages undercuts. Inside a box the bytes of a stage are spread
//! evenly over its ranks first ([`balance`]), so that every adapter carries the same.
//!
//! Source: G. Birkhoff, "Tres observaciones sobre el algebra lineal" (1946), for the decomposition; "FAST: an
//! efficient scheduler for all-to-all GPU communication" (arXiv 2505.09764) for its use between boxes. Cost: at most
//! one stage for each entry of the filled-up matrix, `b^2`; each takes one augmenting path, `b^2 / 64` words.
//!
//! Invariant: whole numbers; the same matrix gives the same stages. Absent: what travels within a box, whose rows and
//! columns of the matrix are ignored.

/// What one box sends to another in a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parcel {
    /// The box that sends.
    pub from: u32,
    /// The box that receives.
    pub to: u32,
    /// Above 0, at most the length of the stage.
    pub bytes: u64,
}

/// A time in which every box sends to at most one other and receives from at most one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    /// The time it takes, as the bytes that one box could send in it.
    pub length: u64,
    /// In the order of the boxes that send.
    pub parcels: Vec<Parcel>,
}

/// The largest sum of a row or of a column off the diagonal: no exchange is shorter.
///
/// # Panics
///
/// As [`stages`].
pub fn makespan(matrix: &[Vec<u64>]) -> u64 {
    let off = |row: usize, column: usize| if row == column { 0 } else { matrix[row][column] };
    let boxes = matrix.len();
    let row = |row: usize| sum((0..boxes).map(|column| off(row, column)));
    let column = |column: usize| sum((0..boxes).map(|row| off(row, column)));
    (0..boxes).map(|at| row(at).max(column(at))).max().unwrap_or(0)
}

fn sum(mut values: impl Iterator<Item = u64>) -> u64 {
    values.try_fold(0u64, u64::checked_add).expect("what a box sends or receives fits 64 bits")
}

/// The stages of an exchange; `matrix[from][to]` are the bytes from one box to another, and those of a box to itself
/// are ignored. The lengths add up to [`makespan`]. Long stages come first.
///
/// # Panics
///
/// When the matrix is not square, or what a box sends or receives does not fit 64 bits.
pub fn stages(matrix: &[Vec<u64>]) -> Vec<Stage> {
    let boxes = matrix.len();
    assert!(matrix.iter().all(|row| row.len() == boxes), "a matrix of boxes is square");
    let mut left = Left::new(matrix);
    let mut stages = Vec::new();
    let mut matching = Matching::new(boxes);
    // Entries below the floor are left for later, so that stages are long and few.
    let mut floor = left.largest().checked_ilog2().map_or(0, |bits| 1u64 << bits);
    while left.total > 0 {
        matching.allow(boxes, |row, column| left.all[row * boxes + column] >= floor);
        while matching.complete() {
            stages.push(left.take(&mut matching, floor));
            if left.total == 0 {
                break;
            }
        }
        floor /= 2;
    }
    stages
}

/// What is not in a stage yet. All rows and columns have one sum: what is missing is filled up with bytes that are
/// not sent.
struct Left {
    boxes: usize,
    /// With what fills up.
    all: Vec<u64>,
    /// Without.
    real: Vec<u64>,
    /// The sum of each row, and of each column.
    total: u64,
}

impl Left {
    fn new(matrix: &[Vec<u64>]) -> Left {
        let boxes = matrix.len();
        let mut real: Vec<u64> = matrix.concat();
        (0..boxes).for_each(|at| real[at * boxes + at] = 0);
        let total = makespan(matrix);
        let of_row = |row: usize| real[row * boxes..(row + 1) * boxes].iter().sum::<u64>();
        let of_column = |column: usize| (0..boxes).map(|row| real[row * boxes + column]).sum::<u64>();
        let mut rows: Vec<u64> = (0..boxes).map(|row| total - of_row(row)).collect();
        let mut columns: Vec<u64> = (0..boxes).map(|column| total - of_column(column)).collect();
        let mut all = real.clone();
        let (mut row, mut column) = (0, 0);
        while row < boxes && column < boxes {
            let both = rows[row].min(columns[column]);
            all[row * boxes + column] += both;
            rows[row] -= both;
            columns[column] -= both;
            if rows[row] == 0 {
                row += 1;
            } else {
                column += 1;
            }
        }
        Left { boxes, all, real, total }
    }

    fn largest(&self) -> u64 {
        self.all.iter().copied().max().unwrap_or(0)
    }

    /// The stage of a complete matching, as long as its smallest entry; entries that fall below the floor leave the
    /// matching.
    fn take(&mut self, matching: &mut Matching, floor: u64) -> Stage {
        let at = |row: usize, matching: &Matching| row * self.boxes + matching.column_of[row] as usize;
        let length = (0..self.boxes).map(|row| self.all[at(row, matching)]).min().unwrap_or(0);
        let mut parcels = Vec::new();
        for row in 0..self.boxes {
            let entry = at(row, matching);
            let column = matching.column_of[row];
            let bytes = self.real[entry].min(length);
            self.real[entry] -= bytes;
            self.all[entry] -= length;
            if bytes > 0 {
                parcels.push(Parcel { from: row as u32, to: column, bytes });
            }
            if self.all[entry] < floor {
                matching.forbid(row, column as usize);
            }
        }
        self.total -= length;
        Stage { length, parcels }
    }
}

const FREE: u32 = u32::MAX;

/// A matching of rows and columns along allowed entries.
struct Matching {
    words: usize,
    /// Per row a bit for each column.
    allowed: Vec<u64>,
    column_of: Vec<u32>,
    row_of: Vec<u32>,
    /// Working memory: columns seen, the row that saw each, and rows to look from.
    seen: Vec<u64>,
    seen_by: Vec<u32>,
    queue: Vec<u32>,
}

impl Matching {
    fn new(boxes: usize) -> Matching {
        let words = boxes.div_ceil(64);
        Matching {
            words,
            allowed: vec![0; boxes * words],
            column_of: vec![FREE; boxes],
            row_of: vec![FREE; boxes],
            seen: vec![0; words],
            seen_by: vec![FREE; boxes],
            queue: Vec::with_capacity(boxes),
        }
    }

    fn allow(&mut self, boxes: usize, is_allowed: impl Fn(usize, usize) -> bool) {
        for row in 0..boxes {
            for column in (0..boxes).filter(|column| is_allowed(row, *column)) {
                self.allowed[row * self.words + column / 64] |= 1 << (column % 64);
            }
        }
    }

    /// Takes an entry out; its row is free if it was matched by it.
    fn forbid(&mut self, row: usize, column: usize) {
        self.allowed[row * self.words + column / 64] &= !(1 << (column % 64));
        if self.column_of[row] == column as u32 {
            self.column_of[row] = FREE;
            self.row_of[column] = FREE;
        }
    }

    /// Matches free rows by augmenting paths; whether all are matched.
    fn complete(&mut self) -> bool {
        (0..self.column_of.len()).all(|row| self.column_of[row] != FREE || self.augment(row as u32))
    }

    fn augment(&mut self, from: u32) -> bool {
        self.seen.fill(0);
        self.queue.clear();
        self.queue.push(from);
        let mut next = 0;
        while let Some(&row) = self.queue.get(next) {
            next += 1;
            for word in 0..self.words {
                let mut fresh = self.allowed[row as usize * self.words + word] & !self.seen[word];
                self.seen[word] |= fresh;
                while fresh != 0 {
                    let column = word * 64 + fresh.trailing_zeros() as usize;
                    fresh &= fresh - 1;
                    self.seen_by[column] = row;
                    if self.row_of[column] == FREE {
                        self.turn(from, column);
                        return true;
                    }
                    self.queue.push(self.row_of[column]);
                }
            }
        }
        false
    }

    /// Matches along the path that ends at a free column.
    fn turn(&mut self, from: u32, mut column: usize) {
        loop {
            let row = self.seen_by[column];
            let before = self.column_of[row as usize];
            self.column_of[row as usize] = column as u32;
            self.row_of[column] = row;
            if row == from {
                return;
            }
            column = before as usize;
        }
    }
}

/// Bytes that move from one rank of a box to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The rank's number in its box.
    pub from: u32,
    /// The other rank's number in the box.
    pub to: u32,
    /// Above 0.
    pub bytes: u64,
}

/// The moves after which all ranks of a box have equally many of the bytes (up to one): as few bytes as possible
/// move, from those that have too many to those that have too few, in the order of their numbers.
pub fn balance(bytes: &[u64]) -> Vec<Move> {
    let all: u128 = bytes.iter().map(|bytes| u128::from(*bytes)).sum();
    let ranks = bytes.len().max(1) as u128;
    let (each, more) = ((all / ranks) as u64, (all % ranks) as usize);
    // The ranks that have most keep the bytes that do not divide evenly.
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    order.sort_by_key(|at| (std::cmp::Reverse(bytes[*at]), *at));
    let mut goal = vec![each; bytes.len()];
    order.iter().take(more).for_each(|at| goal[*at] += 1);
    let mut missing: Vec<(usize, u64)> = (0..bytes.len())
        .map(|at| (at, goal[at].saturating_sub(bytes[at])))
        .filter(|(_, less)| *less > 0)
        .collect();
    missing.reverse();
    let mut moves = Vec::new();
    for from in 0..bytes.len() {
        let mut excess = bytes[from].saturating_sub(goal[from]);
        while excess > 0 {
            let (to, less) = missing.last_mut().expect("excess and lack are equal");
            let moved = excess.min(*less);
            moves.push(Move { from: from as u32, to: *to as u32, bytes: moved });
            excess -= moved;
            *less -= moved;
            if *less == 0 {
                missing.pop();
            }
        }
    }
    moves
}
