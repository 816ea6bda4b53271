//! One leg of a route: rows go from each rank to some others, and what becomes of them comes back the same way.
//!
//! ```text
//! forward, a message      number of the dispatch │ how many rows, how many words │ words of choices │ rows      (bytes)
//!         of a refusal    number of the dispatch │ the refusal                                         (bytes; slots only)
//! forward again           number of the dispatch │ rows                                                         (bytes)
//! back                    number of the dispatch │ a row, or a number, for each that came               (elements)
//! ```
//!
//! Invariant: a message that has no row is not sent, but for slots, which always are. What a rank has for itself is not moved.
//! Absent: what rows are made of and what is done with them.

use consort_kernels::Element;
use consort_kernels::rows::Real;
use consort_memory::{Span, SpanMut};

use super::layout::{HEADER_BYTES, Layout, Stretch};
use super::refusal::{self, Refusal};
use super::stage::{Lists, Stage, starts_of};
use super::{Exchange, Traffic};
use crate::Rank;
use crate::communicator::Communicator;
use consort_types::blocks::Blocks;
use consort_types::error::{Error, Result};

/// Bytes of a dispatch's number.
const NUMBER_BYTES: usize = size_of::<u64>();

/// A communicator with what is agreed, and the number of the dispatch.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub(super) comm: &'a Communicator,
    pub(super) layout: &'a Layout,
    pub(super) number: u64,
}

/// The values of rows by their places.
pub(super) struct Places<'a> {
    row_bytes: usize,
    tokens: (Span<'a>, usize),
    /// What came in each leg, and where in it each row begins.
    received: Vec<(Span<'a>, Vec<usize>)>,
}

impl<'a> Places<'a> {
    pub(super) fn new(tokens: Span<'a>, row_bytes: usize) -> Self {
        Places { row_bytes, tokens: (tokens, tokens.len() / row_bytes.max(1)), received: Vec::new() }
    }

    pub(super) fn row(&self, at: u32) -> Span<'a> {
        let (mut at, bytes) = (at as usize, self.row_bytes);
        if at < self.tokens.1 {
            return self.tokens.0.slice(at * bytes, bytes);
        }
        at -= self.tokens.1;
        for (span, starts) in &self.received {
            if let Some(start) = starts.get(at) {
                return span.slice(*start, bytes);
            }
            at -= starts.len();
        }
        unreachable!("a row lies among the tokens or came in a leg")
    }

    fn count(&self) -> usize {
        self.tokens.1 + self.received.iter().map(|(_, starts)| starts.len()).sum::<usize>()
    }

    pub(super) fn add(&mut self, received: &'a [u8], starts: Vec<usize>) {
        self.received.push((Span::of(received), starts));
    }
}

/// Memory that a leg uses in each call.
#[derive(Debug)]
pub(super) struct Buffers<T> {
    sent: Vec<u8>,
    pub(super) received: Vec<u8>,
    pub(super) back: Vec<T>,
    pub(super) returned: Vec<T>,
}

impl<T> Buffers<T> {
    pub(super) fn new() -> Self {
        Buffers { sent: Vec::new(), received: Vec::new(), back: Vec::new(), returned: Vec::new() }
    }
}

/// A leg that rows have gone, as this rank remembers it. All lists and counts are by rank, what stays here included.
#[derive(Clone, Debug)]
pub(super) struct Leg {
    /// The places of the rows that are sent.
    sent_at: Vec<u32>,
    sent: Vec<usize>,
    received: Vec<usize>,
    /// The choices that are sent, as the stage before the leg numbers them.
    pub(super) choices: Vec<u32>,
    choices_sent: Vec<usize>,
    choices_received: Vec<usize>,
    /// For each row before the leg: what comes back for it, as places in the memory of what is returned, with the host; in the order
    /// in which it is added.
    back: Vec<(usize, u32)>,
    back_ends: Vec<u32>,
}

/// A leg that rows have gone for the first time.
pub(super) struct Gone<W> {
    pub(super) leg: Leg,
    /// The stage behind it, and where in the buffers each row begins that came from another rank.
    pub(super) stage: Stage<W>,
    pub(super) starts: Vec<usize>,
    pub(super) traffic: Traffic,
    /// What another rank said in place of its counts.
    pub(super) refusal: Option<Refusal>,
}

impl Leg {
    /// Sends the rows of a stage on, with their choices; or a refusal, where the stage has none.
    ///
    /// # Errors
    /// Those of the communicator; [`Error::Internal`] where what came makes no sense.
    pub(super) fn first<T: Real>(
        way: Way<'_>,
        stretch: Stretch,
        stage: &Stage<T::Sum>,
        places: &Places<'_>,
        refusal: Option<Refusal>,
        buffers: &mut Buffers<T>,
    ) -> Result<Gone<T::Sum>> {
        let layout = way.layout;
        let lists = stage.lists(layout, stretch);
        let mut traffic = Traffic::default();
        let words = words_of(layout, stage, &lists);
        let message = |rank: usize| match lists.row_counts[rank] {
            0 => 0,
            rows => HEADER_BYTES + words[rank].len() * size_of::<u32>() + rows * layout.row_bytes,
        };
        let own = layout.rank as usize;
        let (lengths, (expected, of_counts)) = match layout.exchange {
            Exchange::Slots => (layout.slots(stretch, true), (layout.slots(stretch, false), None)),
            Exchange::Counted => {
                let here: Vec<usize> =
                    (0..words.len()).map(|rank| if rank == own { 0 } else { message(rank) }).collect();
                let there = exchange_lengths(way, stretch, &here, refusal, &mut traffic)?;
                (here, there)
            }
        };
        let (starts, total) = (starts_of(&lengths), lengths.iter().sum());
        let sent = SpanMut::of(room(&mut buffers.sent, total));
        let first_rows = starts_of(&lists.row_counts);
        for (to, words) in words.iter().enumerate().filter(|(to, _)| *to != own && lengths[*to] > 0) {
            let rows = lists.row_counts[to];
            let mut at = starts[to];
            let mut put = |from: Span<'_>| {
                sent.slice(at, from.len()).copy_from(from);
                at += from.len();
            };
            put(Span::of(&[way.number]));
            put(Span::of(&refusal.map_or([rows as u32, words.len() as u32], Refusal::halves)));
            put(Span::of(words));
            for row in &lists.rows[first_rows[to]..][..rows] {
                put(places.row(stage.rows[*row as usize].at));
            }
        }
        traffic.add(layout, &lengths);
        let into = room(&mut buffers.received, expected.iter().sum());
        exchange(way.comm, &buffers.sent[..total], &lengths, into, &expected)?;
        let sent_at = lists.rows.iter().map(|row| stage.rows[*row as usize].at).collect();
        let Arrived { stage: next, starts, rows: received, choices: choices_received, refusal: of_slots } =
            arrivals(way, stretch, (stage, &lists), places.count() as u32, into, &expected)?;
        let (back, back_ends) = contributions::<T>(layout, stage.rows.len(), &lists);
        let Lists { row_counts: sent, choices, choice_counts: choices_sent, .. } = lists;
        let leg = Leg { sent_at, sent, received, choices, choices_sent, choices_received, back, back_ends };
        Ok(Gone { leg, stage: next, starts, traffic, refusal: refusal::first(of_counts, of_slots) })
    }

    /// Sends other rows along the leg: where in the buffers each begins.
    ///
    /// # Errors
    /// As [`Leg::first`].
    pub(super) fn again<T: Real>(
        &self,
        way: Way<'_>,
        places: &Places<'_>,
        buffers: &mut Buffers<T>,
    ) -> Result<(Vec<usize>, Traffic)> {
        let own = way.layout.rank as usize;
        let lengths = |counts: &[usize]| blocks_of(counts, own, places.row_bytes, NUMBER_BYTES, 0);
        let (sent, received) = (lengths(&self.sent), lengths(&self.received));
        let total = sent.iter().sum();
        let out = SpanMut::of(room(&mut buffers.sent, total));
        let (mut at, mut row) = (0, 0);
        for (to, rows) in self.sent.iter().enumerate() {
            if to != own && *rows > 0 {
                out.slice(at, NUMBER_BYTES).copy_from(Span::of(&[way.number]));
                at += NUMBER_BYTES;
                for place in &self.sent_at[row..row + rows] {
                    out.slice(at, places.row_bytes).copy_from(places.row(*place));
                    at += places.row_bytes;
                }
            }
            row += rows;
        }
        let into = room(&mut buffers.received, received.iter().sum());
        exchange(way.comm, &buffers.sent[..total], &sent, into, &received)?;
        let mut starts = Vec::new();
        for (from, start) in
            starts_of(&received).into_iter().enumerate().filter(|(from, _)| received[*from] > 0)
        {
            check_number(way, from as Rank, Span::of(&into[start..start + NUMBER_BYTES]))?;
            let row = |row| start + NUMBER_BYTES + row * places.row_bytes;
            starts.extend((0..self.received[from]).map(row));
        }
        let mut traffic = Traffic::default();
        traffic.add(way.layout, &sent);
        Ok((starts, traffic))
    }

    /// Room for what comes back along the leg, `unit` elements for each of these counts: what is sent back, and what is returned.
    pub(super) fn prepare<E: Element + Default>(
        [received, sent]: [&[usize]; 2],
        own: usize,
        unit: usize,
        back: &mut Vec<E>,
        returned: &mut Vec<E>,
    ) {
        room(back, blocks_of(received, own, unit, head::<E>(), 0).iter().sum());
        room(returned, blocks_of(sent, own, unit, head::<E>(), unit).iter().sum());
    }

    /// Where each of what came has its place on its way back: whether among what is returned, as it stays here, and from which element on.
    pub(super) fn targets<'a, E: Element>(
        [received, sent]: [&'a [usize]; 2],
        own: usize,
        unit: usize,
    ) -> impl Iterator<Item = (bool, usize)> + 'a {
        let back = starts_of(&blocks_of(received, own, unit, head::<E>(), 0));
        let returned = starts_of(&blocks_of(sent, own, unit, head::<E>(), unit))[own];
        received.iter().enumerate().flat_map(move |(from, count)| {
            let stays = from == own;
            let start = if stays { returned } else { back[from] + head::<E>() };
            (0..*count).map(move |number| (stays, start + number * unit))
        })
    }

    /// Sends back what has been put in its place.
    ///
    /// # Errors
    /// Those of the communicator.
    pub(super) fn send_back<E: Element>(
        way: Way<'_>,
        [received, sent]: [&[usize]; 2],
        unit: usize,
        back: &mut [E],
        returned: &mut [E],
    ) -> Result<Traffic> {
        let own = way.layout.rank as usize;
        let out = blocks_of(received, own, unit, head::<E>(), 0);
        let into = blocks_of(sent, own, unit, head::<E>(), unit);
        let total = out.iter().sum();
        for start in
            starts_of(&out).into_iter().zip(&out).filter(|(_, length)| **length > 0).map(|(at, _)| at)
        {
            SpanMut::of(&mut back[start..start + head::<E>()]).copy_from(Span::of(&[way.number]));
        }
        let starts = starts_of(&into);
        let mut counts = into.clone();
        counts[own] = 0;
        let returned = &mut returned[..into.iter().sum()];
        let blocks = Blocks::at(&counts, &starts);
        way.comm.all_to_all_v(&back[..total], &out, returned, blocks)?;
        for (from, start) in starts.iter().enumerate().filter(|(from, _)| counts[*from] > 0) {
            check_number(way, from as Rank, Span::of(&returned[*start..start + head::<E>()]))?;
        }
        let mut traffic = Traffic::default();
        traffic.add(way.layout, &out.iter().map(|length| length * size_of::<E>()).collect::<Vec<_>>());
        Ok(traffic)
    }

    /// Where each number is among those that are returned for the choices that were sent.
    pub(super) fn choice_places<E: Element>(&self, own: usize) -> impl Iterator<Item = usize> + '_ {
        let starts = starts_of(&blocks_of(&self.choices_sent, own, 1, head::<E>(), 1));
        self.choices_sent.iter().enumerate().flat_map(move |(to, count)| {
            let start = starts[to] + if to == own { 0 } else { head::<E>() };
            start..start + count
        })
    }

    /// Rows that came, and rows that were sent, by rank.
    pub(super) fn rows(&self) -> [&[usize]; 2] {
        [&self.received, &self.sent]
    }

    /// Choices that came, and choices that were sent, by rank.
    pub(super) fn choice_counts(&self) -> [&[usize]; 2] {
        [&self.choices_received, &self.choices_sent]
    }

    /// What comes back for a row before the leg.
    pub(super) fn back(&self, row: usize) -> &[(usize, u32)] {
        let begin = row.checked_sub(1).map_or(0, |before| self.back_ends[before]);
        &self.back[begin as usize..self.back_ends[row] as usize]
    }
}

/// Elements that hold a dispatch's number.
const fn head<E>() -> usize {
    NUMBER_BYTES / size_of::<E>()
}

/// The beginning of a memory that is made long enough.
fn room<E: Element + Default>(memory: &mut Vec<E>, length: usize) -> &mut [E] {
    if memory.len() < length {
        memory.resize(length, E::default());
    }
    &mut memory[..length]
}

/// The lengths of blocks of these counts: `unit` for each behind a head, and none of a count of zero. The own block has no head.
fn blocks_of(counts: &[usize], own: usize, unit: usize, head: usize, own_unit: usize) -> Vec<usize> {
    let length = |(rank, count): (usize, &usize)| match count {
        _ if rank == own => count * own_unit,
        0 => 0,
        count => head + count * unit,
    };
    counts.iter().enumerate().map(length).collect()
}

/// By destination: the words of its rows.
fn words_of<W: Real>(layout: &Layout, stage: &Stage<W>, lists: &Lists) -> Vec<Vec<u32>> {
    let starts = starts_of(&lists.row_counts);
    let words = |(to, rows): (usize, &usize)| {
        let mut words = Vec::new();
        if to != layout.rank as usize {
            stage.write(lists, starts[to]..starts[to] + rows, &mut words);
        }
        words
    };
    lists.row_counts.iter().enumerate().map(words).collect()
}

/// Lets each rank know how long the messages are that it gets, or that there are none because a rank refused.
fn exchange_lengths(
    way: Way<'_>,
    stretch: Stretch,
    lengths: &[usize],
    refusal: Option<Refusal>,
    traffic: &mut Traffic,
) -> Result<(Vec<usize>, Option<Refusal>)> {
    let (layout, own) = (way.layout, way.layout.rank);
    let meets = |from_here: bool| -> Vec<usize> {
        let one = |other| {
            let (from, to) = if from_here { (own, other) } else { (other, own) };
            usize::from(stretch == Stretch::Whole || layout.rows_max(stretch, from, to) > 0)
        };
        (0..layout.size()).map(one).collect()
    };
    let (sent, received) = (meets(true), meets(false));
    let words = lengths.iter().zip(&sent).filter(|(_, count)| **count > 0);
    let words: Vec<u64> = words.map(|(length, _)| refusal.map_or(*length as u64, Refusal::word)).collect();
    let mut heard = vec![0u64; received.iter().sum()];
    exchange(way.comm, &words, &sent, &mut heard, &received)?;
    traffic.add(layout, &sent.iter().map(|count| count * size_of::<u64>()).collect::<Vec<_>>());
    let (mut heard, mut refusal) = (heard.into_iter(), None);
    let mut lengths = Vec::new();
    for (from, count) in (0..).zip(&received) {
        let word = if *count > 0 { heard.next().unwrap_or(0) } else { 0 };
        let said = Refusal::of(word);
        refusal = refusal::first(refusal, said);
        let length = if said.is_some() { 0 } else { word as usize };
        let most = layout.message_bytes_max(layout.rows_max(stretch, from, own));
        let is_none = length == 0;
        if !is_none && (from == own || !(HEADER_BYTES..=most).contains(&length)) {
            return Err(broken(way, &format!("rank {from} has a message of {length} bytes, {most} at most")));
        }
        lengths.push(length);
    }
    Ok((lengths, refusal))
}

/// Blocks of these lengths, from all ranks to all ranks.
fn exchange<E: Element>(
    comm: &Communicator,
    sent: &[E],
    lengths: &[usize],
    received: &mut [E],
    expected: &[usize],
) -> Result<()> {
    let is_even = |lengths: &[usize]| lengths.iter().all(|length| *length == lengths[0]);
    let own = comm.rank() as usize;
    // Of fixed lengths between all ranks, as every rank knows: a block for itself is there only then.
    if lengths[own] > 0 && is_even(lengths) && is_even(expected) {
        return comm.all_to_all(sent, received);
    }
    comm.all_to_all_v(sent, lengths, received, expected)
}

/// What came in a leg.
struct Arrived<W> {
    stage: Stage<W>,
    /// Where the rows of other ranks begin.
    starts: Vec<usize>,
    /// How many rows and choices each rank sent.
    rows: Vec<usize>,
    choices: Vec<usize>,
    refusal: Option<Refusal>,
}

/// The stage behind a leg, read from what came.
fn arrivals<W: Real>(
    way: Way<'_>,
    stretch: Stretch,
    (stage, lists): (&Stage<W>, &Lists),
    first: u32,
    received: &[u8],
    lengths: &[usize],
) -> Result<Arrived<W>> {
    let (layout, own) = (way.layout, way.layout.rank as usize);
    let bytes = Span::of(received);
    let mut next = Stage::new();
    let (mut starts, mut rows, mut choices, mut refusal) = (Vec::new(), Vec::new(), Vec::new(), None);
    for (from, start) in starts_of(lengths).into_iter().enumerate() {
        let (rows_before, choices_before) = (next.rows.len(), next.experts.len());
        if from == own {
            let begin = lists.row_counts[..own].iter().sum::<usize>();
            next.keep(stage, lists, begin..begin + lists.row_counts[own]);
        } else if lengths[from] > 0 {
            let mut head = [0u32; HEADER_BYTES / size_of::<u32>()];
            SpanMut::of(&mut head).copy_from(bytes.slice(start, HEADER_BYTES));
            check_number(way, from as Rank, bytes.slice(start, NUMBER_BYTES))?;
            let said = Refusal::of_halves([head[2], head[3]]);
            refusal = refusal::first(refusal, said);
            let counts = if said.is_some() { [0; 2] } else { [head[2], head[3]] };
            let [count, words] = counts.map(|word| word as usize);
            let words_bytes = words.saturating_mul(size_of::<u32>());
            let needed = count.saturating_mul(layout.row_bytes).saturating_add(words_bytes);
            if needed > lengths[from] - HEADER_BYTES {
                let text = format!("rank {from} sent {count} rows in {} bytes", lengths[from]);
                return Err(broken(way, &text));
            }
            let mut read = vec![0u32; words];
            SpanMut::of(&mut read).copy_from(bytes.slice(start + HEADER_BYTES, words_bytes));
            next.read((layout, stretch), (from as Rank, count), &read, first + starts.len() as u32)
                .map_err(|error| broken(way, &error.to_string()))?;
            starts.extend((0..count).map(|row| start + HEADER_BYTES + words_bytes + row * layout.row_bytes));
        }
        rows.push(next.rows.len() - rows_before);
        choices.push(next.experts.len() - choices_before);
    }
    Ok(Arrived { stage: next, starts, rows, choices, refusal })
}

/// What comes back for each row before a leg: places among what is returned with the host, in the order of hosts and ranks; and
/// where those of each row end.
fn contributions<T: Real>(layout: &Layout, rows: usize, lists: &Lists) -> (Vec<(usize, u32)>, Vec<u32>) {
    let (hidden, own) = (layout.options.hidden, layout.rank as usize);
    let starts = starts_of(&blocks_of(&lists.row_counts, own, hidden, head::<T>(), hidden));
    let first_rows = starts_of(&lists.row_counts);
    let mut ends = vec![0u32; rows];
    lists.rows.iter().for_each(|row| ends[*row as usize] += 1);
    let mut begin = 0;
    for end in &mut ends {
        // Where the next of the row goes, until all are there.
        (*end, begin) = (begin, begin + *end);
    }
    let mut back = vec![(0, 0); lists.rows.len()];
    for to in layout.in_order() {
        let (to, host) = (to as usize, layout.host_of[to as usize]);
        let start = starts[to] + if to == own { 0 } else { head::<T>() };
        for (number, row) in lists.rows[first_rows[to]..][..lists.row_counts[to]].iter().enumerate() {
            let end = &mut ends[*row as usize];
            back[*end as usize] = (start + number * hidden, host);
            *end += 1;
        }
    }
    (back, ends)
}

/// That a message is of the same dispatch; otherwise the communicator ends, as rows would be mixed up.
fn check_number(way: Way<'_>, from: Rank, bytes: Span<'_>) -> Result<()> {
    let mut number = 0u64;
    SpanMut::of(std::slice::from_mut(&mut number)).copy_from(bytes);
    if number == way.number {
        return Ok(());
    }
    Err(broken(
        way,
        &format!(
            "rank {from} sent rows of {} to rank {}, which is at {}: all ranks must pass the handle of the same dispatch",
            named(number),
            way.layout.rank,
            named(way.number),
        ),
    ))
}

/// What came cannot be taken: ends the communicator, so that no rank waits for this one, with an error that is the same on
/// all ranks.
fn broken(way: Way<'_>, why: &str) -> Error {
    way.comm.abort(why);
    let end = way.comm.barrier();
    end.err().unwrap_or_else(|| Error::internal("a communicator that was aborted goes on"))
}

/// `dispatch 3 of group 1`: the number has the group of experts above.
fn named(number: u64) -> String {
    format!("dispatch {} of experts {}", number & u64::from(u32::MAX), number >> 32)
}
