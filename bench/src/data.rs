//! One rank's test data for one type and operator: what goes in, what must come out, what must stay.
//!
//! Invariant: no second copy of anything is made; what is expected is compared piece by piece with a table.
//! Every round has data of its own, so a result of an earlier round never passes for one of this round. What
//! is checked: each element of the output; where a rank gets no output, that its buffer is as it was; the
//! input, if it is apart from the output; the guard bytes around both buffers.

use std::ops::Range;

use crate::buffers::Guarded;
use crate::collective::{Collective, Work};
use crate::group::Buffers;
use crate::operator::Operator;
use crate::pattern::{Differences, Pattern};
use crate::values::{Rule, mix, moved};
use consort::DataType;

/// Where input and output are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placement {
    OutOfPlace,
    InPlace,
}

impl Placement {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Placement::OutOfPlace => "out of place",
            Placement::InPlace => "in place",
        }
    }
}

/// A rank's two buffers.
pub(crate) struct Pair {
    pub(crate) send: Guarded,
    pub(crate) receive: Guarded,
}

/// What one rank's check of one result found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Finding {
    /// Wrong elements of the output, changed elements of the input, changed guard bytes.
    pub(crate) wrong: u64,
    pub(crate) text: Vec<String>,
}

impl Finding {
    /// Adds bytes on a device that were to stay as they were.
    pub(crate) fn note_strays(&mut self, bytes: u64) {
        if bytes > 0 {
            self.wrong += bytes;
            self.text
                .push(format!("{bytes} bytes of the input or next to the buffers changed on the device"));
        }
    }
}

/// Which table a piece of memory comes from.
#[derive(Clone, Copy)]
enum Source {
    /// This rank's contribution to a fold.
    Input,
    /// The result of a fold.
    Expected,
    /// Elements that are only moved.
    Moved,
}

/// A run of elements that is known.
#[derive(Clone, Copy)]
struct Piece {
    source: Source,
    stream: u64,
    /// Index in the stream of the first element.
    first: usize,
    /// Index in the buffer of the first element.
    at: usize,
    count: usize,
}

/// The data of one rank for one collective, type and operator.
pub(crate) struct Data {
    rule: Rule,
    rank: u32,
    moved: Pattern,
    input: Option<Pattern>,
    expected: Option<Pattern>,
}

impl Data {
    pub(crate) fn new(
        collective: Collective,
        data_type: DataType,
        op: Operator,
        rank: u32,
        ranks: u32,
        seed: u64,
    ) -> Self {
        let rule = Rule { data_type, op, ranks, seed };
        let bytes = data_type.size();
        let folds = collective.folds();
        Self {
            rule,
            rank,
            moved: Pattern::new(bytes, |place| moved(seed, place)),
            input: folds.then(|| Pattern::new(bytes, |place| rule.input(rank, place))),
            expected: folds.then(|| Pattern::new(bytes, |place| rule.expected(place))),
        }
    }

    fn pattern(&self, source: Source) -> &Pattern {
        match source {
            Source::Input => self.input.as_ref(),
            Source::Expected => self.expected.as_ref(),
            Source::Moved => None,
        }
        .unwrap_or(&self.moved)
    }

    /// The stream of all ranks' contributions to a fold, which must lie at the same places in all tables.
    fn shared(&self, round: u64) -> u64 {
        mix(mix(self.rule.seed, round), 0)
    }

    fn of_rank(&self, round: u64, rank: u32) -> u64 {
        mix(mix(self.rule.seed, round), 1 + u64::from(rank))
    }

    /// What lies in an output before it is written.
    fn background(&self, round: u64, range: Range<usize>) -> Piece {
        Piece {
            source: Source::Moved,
            stream: mix(mix(self.rule.seed, round), u64::MAX),
            first: range.start,
            at: range.start,
            count: range.len(),
        }
    }

    /// This rank's block of the whole vector.
    fn own(&self, work: &Work) -> Range<usize> {
        let (cut, rank) = (work.cut(self.rule.ranks), self.rank as usize);
        cut.start(rank)..cut.start(rank + 1)
    }

    /// Elements that this rank puts in, where it does.
    fn sends(&self, work: &Work) -> usize {
        if work.collective.gathers() { self.own(work).len() } else { work.shape.elements() }
    }

    /// Elements that this rank gets out, where it does.
    fn receives(&self, work: &Work) -> usize {
        if work.collective.scatters() { self.own(work).len() } else { work.shape.elements() }
    }

    /// Whether this rank's input matters.
    fn gives(&self, work: &Work) -> bool {
        let one_gives =
            matches!(work.collective, Collective::Broadcast | Collective::Scatter | Collective::ScatterV);
        !one_gives || self.rank == work.root
    }

    /// Whether this rank's output is written.
    fn takes(&self, work: &Work) -> bool {
        let one_takes =
            matches!(work.collective, Collective::Reduce | Collective::Gather | Collective::GatherV);
        !one_takes || self.rank == work.root
    }

    /// This rank's input, as a piece of the buffer that holds it.
    fn input(&self, work: &Work, placement: Placement, round: u64) -> Piece {
        let (source, stream) = match work.collective.folds() {
            true => (Source::Input, self.shared(round)),
            false => (Source::Moved, self.of_rank(round, self.rank)),
        };
        let at = match placement {
            Placement::InPlace if work.collective.gathers() => self.own(work).start,
            _ => 0,
        };
        Piece { source, stream, first: 0, at, count: self.sends(work) }
    }

    /// A block of what a rank puts in, at its place.
    fn from(&self, round: u64, rank: u32, first: usize, at: usize, count: usize) -> Piece {
        Piece { source: Source::Moved, stream: self.of_rank(round, rank), first, at, count }
    }

    /// A piece of a buffer, with the background around it.
    fn alone(&self, work: &Work, round: u64, piece: Piece) -> Vec<Piece> {
        let after = piece.at + piece.count..work.shape.elements();
        vec![self.background(round, 0..piece.at), piece, self.background(round, after)]
    }

    /// Everything that is known of the output buffer after the call.
    fn output(&self, work: &Work, placement: Placement, round: u64) -> Vec<Piece> {
        let in_place = placement == Placement::InPlace;
        let (rank, ranks, all) = (self.rank, self.rule.ranks, work.shape.elements());
        let (cut, own) = (work.cut(ranks), self.own(work));
        let folded = |range: Range<usize>, at| Piece {
            source: Source::Expected,
            stream: self.shared(round),
            first: range.start,
            at,
            count: range.len(),
        };
        if !self.takes(work) {
            return match in_place {
                true => self.alone(work, round, self.input(work, placement, round)),
                false => vec![self.background(round, 0..all)],
            };
        }
        match work.collective {
            Collective::AllReduce | Collective::Reduce => vec![folded(0..all, 0)],
            // The other blocks are unspecified.
            Collective::ReduceScatter | Collective::ReduceScatterV => {
                let at = if in_place { own.start } else { 0 };
                vec![folded(own, at)]
            }
            Collective::Broadcast => vec![self.from(round, work.root, 0, 0, all)],
            Collective::Scatter | Collective::ScatterV => match in_place {
                true if rank == work.root => vec![self.input(work, placement, round)],
                true => {
                    let block = self.from(round, work.root, own.start, own.start, own.len());
                    self.alone(work, round, block)
                }
                false => vec![self.from(round, work.root, own.start, 0, own.len())],
            },
            Collective::AllGather
            | Collective::AllGatherV
            | Collective::Gather
            | Collective::GatherV
            | Collective::HyperCube => (0..ranks)
                .map(|other| {
                    let block = other as usize;
                    self.from(round, other, 0, cut.start(block), cut.count(block))
                })
                .collect(),
            Collective::AllToAll | Collective::AllToAllV => (0..ranks)
                .map(|other| {
                    let (from, to) = (other as usize, rank as usize);
                    let (first, at) = (cut.sent_start(from, to), cut.received_start(from, to));
                    self.from(round, other, first, at, cut.message(from, to))
                })
                .collect(),
            Collective::SendRecv => vec![self.from(round, (rank + ranks - 1) % ranks, 0, 0, all)],
        }
    }

    /// The bytes of a run of elements.
    fn bytes(&self, at: usize, count: usize) -> Range<usize> {
        let size = self.rule.data_type.size();
        at * size..(at + count) * size
    }

    fn write(&self, piece: Piece, memory: &mut [u8]) {
        let range = self.bytes(piece.at, piece.count);
        self.pattern(piece.source).fill(piece.stream, piece.first, &mut memory[range]);
    }

    fn compare(&self, piece: Piece, memory: &[u8]) -> Differences {
        let tolerance = match piece.source {
            Source::Expected => self.rule.tolerance_ulps(),
            _ => 0,
        };
        let memory = &memory[self.bytes(piece.at, piece.count)];
        let mut found = Differences::default();
        let pattern = self.pattern(piece.source);
        found.add(
            pattern.compare(piece.stream, piece.first, memory, self.rule.data_type, tolerance),
            piece.at,
        );
        found
    }

    /// The buffer that holds both in place: the larger of the two.
    fn home<'a>(work: &Work, pair: &'a mut Pair) -> &'a mut Guarded {
        if work.collective.scatters() { &mut pair.send } else { &mut pair.receive }
    }

    /// Writes inputs, backgrounds and guards.
    pub(crate) fn fill(&self, work: &Work, placement: Placement, round: u64, pair: &mut Pair) {
        let (sends, receives, all) = (self.sends(work), self.receives(work), work.shape.elements());
        // In place, one of them is the home of all.
        pair.send.arm(self.bytes(0, sends).end);
        pair.receive.arm(self.bytes(0, receives).end);
        let input = self.input(work, placement, round);
        match placement {
            Placement::OutOfPlace => {
                self.write(self.background(round, 0..receives), pair.receive.data_mut());
                self.write(input, pair.send.data_mut());
            }
            Placement::InPlace => {
                let memory = Self::home(work, pair).data_mut();
                // Whatever the input will cover need not be written twice.
                if input.count < all || !self.gives(work) {
                    self.write(self.background(round, 0..all), memory);
                }
                if self.gives(work) {
                    self.write(input, memory);
                }
            }
        }
    }

    /// The memory of the call.
    pub(crate) fn buffers<'a>(&self, work: &Work, placement: Placement, pair: &'a mut Pair) -> Buffers<'a> {
        if placement == Placement::OutOfPlace {
            return Buffers::Apart { input: pair.send.data(), output: pair.receive.data_mut() };
        }
        let (own, whole) = (self.own(work), self.bytes(0, work.shape.elements()));
        let own = self.bytes(own.start, own.len());
        let (input, output) = match work.collective {
            collective if collective.gathers() => (own, whole),
            collective if collective.scatters() => (whole, own),
            _ => (whole.clone(), whole),
        };
        Buffers::Together { memory: Self::home(work, pair).data_mut(), input, output }
    }

    /// Looks at every element that is known.
    pub(crate) fn check(&self, work: &Work, placement: Placement, round: u64, pair: &mut Pair) -> Finding {
        let mut finding = Finding::default();
        let mut note = |what: &str, found: Differences| {
            let Some((index, got, want)) = found.first else { return };
            finding.wrong += found.count;
            let digits = self.rule.data_type.size() * 2;
            finding.text.push(format!(
                "{} {what}, first at element {index}: 0x{got:0digits$x} instead of 0x{want:0digits$x}",
                found.count
            ));
        };
        let mut found = Differences::default();
        let output = match placement {
            Placement::OutOfPlace => pair.receive.data(),
            Placement::InPlace => Self::home(work, pair).data(),
        };
        for piece in self.output(work, placement, round) {
            found.add(self.compare(piece, output), 0);
        }
        note("wrong elements in the output", found);
        if placement == Placement::OutOfPlace {
            let input = self.compare(self.input(work, placement, round), pair.send.data());
            note("elements of the input changed", input);
        }
        let guards = pair.send.broken_guards() + pair.receive.broken_guards();
        if guards > 0 {
            finding.wrong += guards;
            finding.text.push(format!("{guards} bytes next to the buffers changed"));
        }
        finding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> Pair {
        Pair {
            send: Guarded::new(1 << 20, 0, false).unwrap(),
            receive: Guarded::new(1 << 20, 3, false).unwrap(),
        }
    }

    fn work(collective: Collective, bytes: u64, ranks: u32) -> Work {
        let data_type = DataType::Float32;
        Work { collective, data_type, op: Operator::Sum, root: 1, shape: collective.shape(bytes, 4, ranks) }
    }

    fn data(collective: Collective, rank: u32) -> Data {
        Data::new(collective, DataType::Float32, Operator::Sum, rank, 3, 7)
    }

    #[test]
    fn doing_nothing_is_found_except_where_nothing_is_to_be_done() {
        for collective in Collective::ALL {
            let both = [Placement::OutOfPlace, Placement::InPlace];
            for placement in both.into_iter().take(1 + usize::from(collective.has_in_place())) {
                for rank in 0..3 {
                    let (work, mut pair) = (work(collective, 50_000, 3), pair());
                    let data = data(collective, rank);
                    data.fill(&work, placement, 1, &mut pair);
                    let finding = data.check(&work, placement, 1, &mut pair);
                    let in_place = placement == Placement::InPlace;
                    let nothing = match collective {
                        Collective::Reduce | Collective::Gather | Collective::GatherV => rank != 1,
                        Collective::Broadcast | Collective::Scatter => in_place && rank == 1,
                        _ => false,
                    };
                    assert_eq!(finding.wrong == 0, nothing, "{collective} {placement:?} {rank} {finding:?}");
                }
            }
        }
    }

    #[test]
    fn writes_where_nothing_belongs_are_found() {
        let (work, mut pair) = (work(Collective::Reduce, 4096, 3), pair());
        let data = data(Collective::Reduce, 0);
        data.fill(&work, Placement::OutOfPlace, 1, &mut pair);
        pair.receive.damage(0);
        pair.receive.data_mut()[5] ^= 1;
        pair.send.data_mut()[9] ^= 1;
        let finding = data.check(&work, Placement::OutOfPlace, 1, &mut pair);
        assert_eq!(finding.wrong, 3);
        let text = finding.text.join("\n");
        assert!(text.contains("first at element 1:") && text.contains("first at element 2:"), "{text}");
        assert!(text.contains("1 bytes next to the buffers"), "{text}");
    }

    /// Where a rank has nothing to get, or a block alone, the rest of the memory in place must stay.
    #[test]
    fn writes_around_the_own_block_are_found() {
        for (collective, rank) in
            [(Collective::Gather, 0), (Collective::Scatter, 0), (Collective::Scatter, 1)]
        {
            let (work, mut pair) = (work(collective, 50_000, 3), pair());
            let data = data(collective, rank);
            data.fill(&work, Placement::InPlace, 1, &mut pair);
            let own = data.own(&work);
            for piece in data.output(&work, Placement::InPlace, 1) {
                data.write(piece, Data::home(&work, &mut pair).data_mut());
            }
            assert_eq!(data.check(&work, Placement::InPlace, 1, &mut pair).wrong, 0, "{collective} {rank}");
            for index in [own.start.wrapping_sub(1), own.start, own.end - 1, own.end, 3 * own.len() - 1] {
                if let Some(byte) = Data::home(&work, &mut pair).data_mut().get_mut(index.wrapping_mul(4)) {
                    *byte ^= 1;
                    let finding = data.check(&work, Placement::InPlace, 1, &mut pair);
                    assert_eq!(finding.wrong, 1, "{collective} {rank} {index}");
                    Data::home(&work, &mut pair).data_mut()[index * 4] ^= 1;
                }
            }
        }
    }

    #[test]
    fn the_result_of_an_earlier_round_is_found() {
        let (work, mut pair) = (work(Collective::Broadcast, 65_536, 3), pair());
        let (root, other) = (data(Collective::Broadcast, 1), data(Collective::Broadcast, 0));
        root.fill(&work, Placement::InPlace, 1, &mut pair);
        assert_eq!(other.check(&work, Placement::InPlace, 1, &mut pair).wrong, 0);
        assert!(other.check(&work, Placement::InPlace, 2, &mut pair).wrong > 10_000);
    }

    #[test]
    fn tolerance_is_for_results_only() {
        let collective = Collective::AllReduce;
        let work = Work { op: Operator::Avg, ..work(collective, 64, 3) };
        let data = Data::new(collective, DataType::Float32, Operator::Avg, 0, 3, 7);
        let mut pair = pair();
        data.fill(&work, Placement::OutOfPlace, 1, &mut pair);
        for piece in data.output(&work, Placement::OutOfPlace, 1) {
            data.write(piece, pair.receive.data_mut());
        }
        pair.receive.data_mut()[0] ^= 1;
        assert_eq!(data.check(&work, Placement::OutOfPlace, 1, &mut pair).wrong, 0);
        pair.send.data_mut()[0] ^= 1;
        assert_eq!(data.check(&work, Placement::OutOfPlace, 1, &mut pair).wrong, 1);
    }
}
