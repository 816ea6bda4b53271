//! Two sides, their paths and all that can happen to them, by seed: paths break while fragments are on the way, either side
//! finds out first, fragments that were given up arrive late, and slots are used again.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use consort_memory::Span;
use consort_testing::Random;

use super::*;

const SLOTS: u64 = 4;
const SLOT_BYTES: usize = 48;

/// What a shell may do wrong, to see that the seeds find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Defect {
    None,
    /// A side says what it has, and leaves its end open.
    LeavesOpen,
    /// A side sends again as soon as it finds a path broken.
    ReplaysEarly,
    /// What was said on a path that broke is not said again.
    ForgetsWords,
}

/// How fragments land.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wire {
    /// A program reads them in order and decides for each.
    Socket,
    /// An adapter writes them in any order, and the program hears of it.
    Adapter,
}

#[derive(Clone, Debug)]
enum Item {
    Fragment(StreamId, Fragment, Word, Vec<u8>),
    Word(StreamId, Word),
    Fenced(Fenced),
}

/// One direction of one epoch of a path.
#[derive(Debug)]
struct Pipe {
    path: Path,
    to: usize,
    items: VecDeque<Item>,
}

/// What one side does with one stream.
#[derive(Debug)]
struct Work {
    id: StreamId,
    total: u64,
    filled: u64,
    credited: u64,
    /// Fills of the peer's that were released, and that were read.
    emptied: u64,
    ready: u64,
    mailbox: Vec<u8>,
}

#[derive(Debug)]
struct Side {
    peering: Peering,
    /// This end of each path that is open.
    ends: Vec<Path>,
    dialling: Vec<Path>,
    work: Vec<Work>,
}

struct World {
    random: Random,
    wire: Wire,
    defect: Defect,
    sides: [Side; 2],
    pipes: Vec<Pipe>,
    now: Duration,
    breaks_left: usize,
    /// The one path that comes back whatever happens: others may stay away for good once enough has broken.
    lasting: Option<u8>,
    /// Whether the callee sees the others open now and then.
    is_seen: bool,
    /// Paths that are open for the caller, and not yet for the callee.
    late: Vec<Path>,
}

/// The bytes of a fill.
fn pattern(side: usize, id: StreamId, fill: u64, bytes: usize) -> Vec<u8> {
    let seed = (side as u64) << 40 | u64::from(id.0) << 32 | fill;
    let mut random = Random::new(seed);
    (0..bytes).map(|_| random.below(255) as u8 + 1).collect()
}

fn length(id: StreamId, fill: u64) -> usize {
    Random::new(u64::from(id.0) << 32 ^ fill).below(SLOT_BYTES + 1)
}

impl World {
    fn new(seed: u64, wire: Wire, defect: Defect) -> Self {
        let mut random = Random::new(seed);
        let (paths, streams) = (1 + random.below(3) as u8, 1 + random.below(3) as u32);
        let totals: Vec<[u64; 2]> =
            (0..streams).map(|_| [random.below(60), random.below(60)].map(|n| n as u64)).collect();
        let side = |at: usize| Side {
            peering: Peering::new(paths, at == 0),
            ends: Vec::new(),
            dialling: Vec::new(),
            work: (0..streams)
                .map(|id| Work {
                    id: StreamId(id),
                    total: totals[id as usize][at],
                    filled: 0,
                    credited: 0,
                    emptied: 0,
                    ready: 0,
                    mailbox: vec![0; SLOTS as usize * SLOT_BYTES],
                })
                .collect(),
        };
        let breaks_left = random.below(20);
        let sides = [side(0), side(1)];
        let lasting = (random.below(2) == 0).then(|| random.below(usize::from(paths)) as u8);
        let is_seen = random.below(2) == 0;
        let (pipes, now) = (Vec::new(), Duration::ZERO);
        World { random, wire, defect, sides, pipes, now, breaks_left, lasting, is_seen, late: Vec::new() }
    }

    /// Does what the peering wants.
    fn obey(&mut self, at: usize) {
        while let Some(order) = self.sides[at].peering.order() {
            match order {
                Order::Close(path) => {
                    if self.defect == Defect::ReplaysEarly {
                        // As if the peer had said that it has nothing more.
                        let Side { peering, work, .. } = &mut self.sides[at];
                        for work in work {
                            let (outbound, _) = peering.stream(work.id);
                            let known = Arrived { fills: outbound.under_way().start, fragments: vec![] };
                            outbound.fenced(path, &known).expect("it is known");
                        }
                    }
                    if self.defect != Defect::LeavesOpen {
                        self.sides[at].ends.retain(|end| *end != path);
                    }
                    self.sides[at].dialling.retain(|dialled| *dialled != path);
                }
                Order::Say(on, fenced) => self.push(at, on, Item::Fenced(fenced)),
                Order::Dial(path) => self.sides[at].dialling.push(path),
            }
        }
    }

    fn is_open(&self, at: usize, path: Path) -> bool {
        self.sides[at].ends.contains(&path)
    }

    /// Whether a path comes to nothing from now on.
    fn is_dead(&self, path: Path) -> bool {
        self.breaks_left == 0 && self.lasting.is_some_and(|number| number != path.number)
    }

    /// Dialling comes to an end: at both sides, at the callee alone, at the caller first, or at none.
    fn dialled(&mut self) {
        let Some(path) = self.sides[0].dialling.pop() else { return };
        let fate = match (self.is_dead(path), self.breaks_left) {
            (true, _) => self.random.below(1 + usize::from(self.is_seen)),
            (false, 0) => 3 + self.random.below(2),
            (false, _) => self.random.below(5),
        };
        if fate == 4 {
            if self.sides[0].peering.opened(path, self.now) {
                self.obey(0);
                self.sides[0].ends.push(path);
                self.late.push(path);
            }
            return;
        }
        if fate > 0 && self.sides[1].peering.opened(path, self.now) {
            self.obey(1);
            self.sides[1].ends.push(path);
            if fate > 1 && self.sides[0].peering.opened(path, self.now) {
                self.obey(0);
                self.sides[0].ends.push(path);
                return;
            }
        }
        self.breaks_left = self.breaks_left.saturating_sub(1);
        self.sides[0].peering.not_opened(path, self.now);
    }

    /// A caller reaches the callee.
    fn reaches(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let path = self.late.swap_remove(self.random.below(self.late.len()));
        if !self.is_dead(path) && self.sides[1].peering.opened(path, self.now) {
            self.obey(1);
            self.sides[1].ends.push(path);
        }
    }

    /// A side finds that a path is broken: out of the blue, or because the other end is closed.
    fn breaks(&mut self, at: usize) {
        let found = self.sides[at].ends.iter().copied().find(|path| {
            let is_late = at == 0 && self.late.contains(path);
            !self.is_open(1 - at, *path) && !is_late
        });
        let path = match found {
            Some(path) => path,
            None if self.breaks_left > 0 && !self.sides[at].ends.is_empty() => {
                self.breaks_left -= 1;
                self.sides[at].ends[self.random.below(self.sides[at].ends.len())]
            }
            None => return,
        };
        self.sides[at].peering.broken(path, self.now);
        self.obey(at);
    }

    /// A side that has slots fills one.
    fn fill(&mut self, at: usize) {
        let stream = self.random.below(self.sides[at].work.len());
        let Side { peering, work, .. } = &mut self.sides[at];
        let work = &mut work[stream];
        if work.filled == work.total || work.filled >= work.credited + SLOTS {
            return;
        }
        let bytes = length(work.id, work.filled);
        let offset = (work.filled % SLOTS) as usize * SLOT_BYTES;
        let ready = Ready { value: work.filled + 1, tag: work.filled * 3 };
        let (outbound, _) = peering.stream(work.id);
        let number = outbound.fill((offset, bytes), Some(ready), 1 + self.random.below(20)).expect("room");
        assert_eq!(number, work.filled);
        outbound.keep(number, Span::of(&pattern(at, work.id, number, bytes)));
        work.filled += 1;
    }

    /// A path takes something.
    fn send(&mut self, at: usize) {
        if self.sides[at].ends.is_empty() {
            return;
        }
        let path = self.sides[at].ends[self.random.below(self.sides[at].ends.len())];
        let Side { peering, .. } = &mut self.sides[at];
        if !peering.is_open(path) {
            return;
        }
        let item = if let Some((id, fragment)) = peering.next(path) {
            let bytes = peering.stream(id).0.kept(&fragment).expect("they were kept").to_vec();
            let word = peering.word(id);
            peering.sent(id, &fragment, path);
            Item::Fragment(id, fragment, word, bytes)
        } else if let Some(id) = peering.owing() {
            let word = peering.word(id);
            let forgets = self.defect == Defect::ForgetsWords;
            peering.said(id, if forgets { Path { number: u8::MAX, epoch: 0 } } else { path });
            Item::Word(id, word)
        } else {
            return;
        };
        self.push(at, path, item);
    }

    fn push(&mut self, at: usize, path: Path, item: Item) {
        match self.pipes.iter_mut().find(|pipe| (pipe.path, pipe.to) == (path, 1 - at)) {
            Some(pipe) => pipe.items.push_back(item),
            None => self.pipes.push(Pipe { path, to: 1 - at, items: [item].into() }),
        }
    }

    /// Something arrives, long after its path was given up perhaps.
    fn deliver(&mut self) {
        if self.pipes.is_empty() {
            return;
        }
        let which = self.random.below(self.pipes.len());
        let Pipe { path, to, items } = &mut self.pipes[which];
        let (path, to) = (*path, *to);
        if to == 1 && self.late.contains(&path) {
            return;
        }
        let at = if self.wire == Wire::Socket { 0 } else { self.random.below(items.len()) };
        let item = items.remove(at).expect("none is empty");
        if items.is_empty() {
            self.pipes.swap_remove(which);
        }
        if !self.is_open(to, path) {
            return;
        }
        let heard = match item {
            Item::Fenced(fenced) => {
                self.sides[to].peering.fenced(&fenced, self.now).expect("a true fence");
                self.obey(to);
                None
            }
            Item::Word(id, word) => Some((id, word)),
            Item::Fragment(id, fragment, word, bytes) => {
                self.land(to, id, &fragment, &bytes);
                Some((id, word))
            }
        };
        if let Some((id, word)) = heard {
            let Side { peering, work, .. } = &mut self.sides[to];
            if let Some(credit) = peering.heard(id, word).expect("a true word") {
                work[id.0 as usize].credited = credit.value;
            }
        }
    }

    fn land(&mut self, to: usize, id: StreamId, fragment: &Fragment, bytes: &[u8]) {
        let Side { peering, work, .. } = &mut self.sides[to];
        let work = &mut work[id.0 as usize];
        let (_, inbound) = peering.stream(id);
        let landing = inbound.accept(fragment).expect("a true fragment");
        if landing == Landing::Land || self.wire == Wire::Adapter {
            work.mailbox[fragment.offset..fragment.offset + fragment.bytes].copy_from_slice(bytes);
        }
        if landing == Landing::Land {
            inbound.landed(fragment);
        }
        while let Some(ready) = inbound.release() {
            work.ready += 1;
            assert_eq!(ready, Some(Ready { value: work.ready, tag: (work.ready - 1) * 3 }), "in order");
        }
    }

    /// A side reads a slot, some time after it was released.
    fn empty(&mut self, at: usize) {
        let stream = self.random.below(self.sides[at].work.len());
        let Side { peering, work, .. } = &mut self.sides[at];
        let work = &mut work[stream];
        if work.emptied == work.ready {
            return;
        }
        let (fill, bytes) = (work.emptied, length(work.id, work.emptied));
        let offset = (fill % SLOTS) as usize * SLOT_BYTES;
        let right = pattern(1 - at, work.id, fill, bytes);
        assert_eq!(work.mailbox[offset..offset + bytes], right, "the bytes of fill {fill}");
        work.emptied += 1;
        peering.credit(work.id, Ready { value: work.emptied, tag: fill });
    }

    fn is_done(&self) -> bool {
        (0..2).all(|at| {
            let other = &self.sides[1 - at].work;
            self.sides[at]
                .work
                .iter()
                .zip(other)
                .all(|(work, there)| work.credited == work.total && there.emptied == work.total)
        })
    }

    fn play(&mut self) {
        for turn in 0..200_000 {
            if self.is_done() {
                assert!(
                    turn > 0 || self.sides.iter().all(|side| side.work.iter().all(|work| work.total == 0))
                );
                return;
            }
            let at = self.random.below(2);
            match self.random.below(16) {
                0 => {
                    self.now += Duration::from_micros(self.random.below(20_000) as u64);
                    for at in 0..2 {
                        let _ = self.sides[at].peering.tick(self.now);
                        self.obey(at);
                    }
                }
                1 => self.dialled(),
                2 if self.random.below(4) == 0 => self.breaks(at),
                3..=7 => self.fill(at),
                8..=10 => self.send(at),
                13 if self.random.below(4) == 0 => self.reaches(),
                11 | 12 => self.empty(at),
                _ => self.deliver(),
            }
        }
        panic!("it does not end: {:?}", self.sides);
    }
}

#[test]
fn bytes_arrive_once_and_in_order_whatever_breaks() {
    let (mut broken, mut replayed) = (0, 0);
    for seed in 0..1500 {
        for wire in [Wire::Socket, Wire::Adapter] {
            let mut world = World::new(seed, wire, Defect::None);
            let outcome = catch_unwind(AssertUnwindSafe(|| world.play()));
            assert!(outcome.is_ok(), "seed {seed}, {wire:?}");
            let counts = world.sides[0].peering.counts();
            (broken, replayed) = (broken + counts.0, replayed + counts.1);
        }
    }
    assert!(broken > 1000 && replayed > 1000, "{broken} breaks, {replayed} fragments again");
}

#[test]
fn seeds_find_what_a_shell_does_wrong() {
    for (defect, wire) in [
        (Defect::LeavesOpen, Wire::Adapter),
        (Defect::ReplaysEarly, Wire::Adapter),
        (Defect::ForgetsWords, Wire::Socket),
    ] {
        let found = (0..1500).find(|seed| {
            let mut world = World::new(*seed, wire, defect);
            catch_unwind(AssertUnwindSafe(|| world.play())).is_err()
        });
        assert!(found.is_some(), "{defect:?}");
    }
}

const ID: StreamId = StreamId(7);

fn fragment(fill: u64, index: u32, count: u32) -> Fragment {
    Fragment { fill, index, count, offset: 0, bytes: 1, ready: None }
}

#[test]
fn what_no_peer_sends_is_refused_and_little_is_kept() {
    let mut inbound = Inbound::default();
    for (fill, index, count) in [(0, 0, 0), (0, 2, 2), (0, 0, 65), (64, 0, 1), (u64::MAX, 0, 1)] {
        assert!(inbound.accept(&fragment(fill, index, count)).is_err(), "{fill}, {index} of {count}");
    }
    assert_eq!(inbound.accept(&fragment(0, 0, 2)), Ok(Landing::Land));
    assert!(inbound.accept(&fragment(0, 1, 3)).is_err(), "another count");
    assert!(
        inbound.accept(&Fragment { ready: Some(Ready { value: 1, tag: 1 }), ..fragment(0, 1, 2) }).is_err()
    );
    // Until its bytes are there it may come once more; afterwards it is dropped, released or not.
    assert_eq!(inbound.accept(&fragment(0, 0, 2)), Ok(Landing::Land));
    inbound.landed(&fragment(0, 0, 2));
    assert_eq!((inbound.accept(&fragment(0, 0, 2)), inbound.release()), (Ok(Landing::Drop), None));
    inbound.landed(&fragment(0, 1, 2));
    assert_eq!((inbound.release(), inbound.acknowledged()), (Some(None), 1));
    assert_eq!(inbound.accept(&fragment(0, 1, 2)), Ok(Landing::Drop));
    assert_eq!(inbound.accept(&fragment(64, 0, 1)), Ok(Landing::Land));
    assert_eq!(inbound.arrived().fragments.len(), FILLS_MAX);
}

#[test]
fn what_a_peer_cannot_have_is_refused() {
    let path = Path { number: 0, epoch: 0 };
    let mut outbound = Outbound::default();
    assert!(outbound.acknowledge(1).is_err());
    outbound.fill((0, 10), None, 4).expect("room");
    outbound.fill((16, 0), None, 4).expect("room for a fill without bytes");
    assert!(outbound.acknowledge(1).is_err(), "it was not sent");
    let arrived = |fills, fragments: &[u64]| Arrived { fills, fragments: fragments.to_vec() };
    for wrong in [arrived(3, &[]), arrived(1, &[]), arrived(0, &[1]), arrived(0, &[8])] {
        assert!(outbound.fenced(path, &wrong).is_err(), "{wrong:?}");
    }
    let mut lengths = Vec::new();
    while let Some(fragment) = outbound.next() {
        lengths.push((fragment.fill, fragment.offset, fragment.bytes));
        outbound.sent(&fragment, path);
    }
    assert_eq!(lengths, [(0, 0, 4), (0, 4, 4), (0, 8, 2), (1, 16, 0)]);
    assert_eq!(outbound.fenced(path, &arrived(0, &[0b101, 1])), Ok(1));
    assert_eq!(outbound.next(), Some(Fragment { offset: 4, bytes: 4, ..fragment(0, 1, 3) }));
    assert_eq!(
        (outbound.under_way(), outbound.acknowledge(2)),
        (0..2, Err("it acknowledges what was not sent"))
    );
    assert_eq!(
        (1..=63).map_while(|_| outbound.fill((0, 1), None, 1).ok()).count(),
        62,
        "{FILLS_MAX} at most"
    );
    assert_eq!(outbound.fill((0, 1), None, 1), Err(super::outbound::Full));
}

#[test]
fn a_path_is_fenced_before_it_is_used_again() {
    let path = |number, epoch| Path { number, epoch };
    let fence = |path| Fenced { path, arrived: Vec::new() };
    let at = Duration::from_secs(1);
    let mut peering = Peering::new(2, false);
    assert!(!peering.is_open(path(0, 1)) && peering.next(path(0, 1)).is_none());
    assert!(peering.opened(path(0, 1), at) && !peering.opened(path(0, 1), at), "an epoch opens once");
    assert!(peering.opened(path(1, 1), at) && !peering.opened(path(2, 1), at), "there are two");
    assert!(peering.is_open(path(0, 1)) && peering.order().is_none(), "the first has none before it");
    assert!(peering.fenced(&fence(path(2, 1)), at).is_err());
    let foreign =
        Fenced { path: path(0, 0), arrived: vec![(ID, Arrived { fills: 1, fragments: Vec::new() })] };
    assert!(peering.fenced(&foreign, at).is_err(), "a stream that there is not");
    // Another epoch comes before this side has found the one before broken.
    assert!(peering.opened(path(0, 3), at) && !peering.is_open(path(0, 3)));
    let orders: Vec<Order> = std::iter::from_fn(|| peering.order()).collect();
    let say = |on, of| Order::Say(on, fence(of));
    let expected = [Order::Close(path(0, 1)), say(path(1, 1), path(0, 1)), say(path(0, 3), path(0, 2))];
    assert_eq!(orders, expected, "it closes before it speaks");
    peering.fenced(&fence(path(0, 1)), at).expect("an old fence changes nothing");
    assert!(!peering.is_open(path(0, 3)));
    peering.fenced(&fence(path(0, 2)), at).expect("the fence before this epoch");
    assert!(peering.is_open(path(0, 3)) && !peering.opened(path(0, 2), at), "what was late is refused");
    // A fence that came on the other path closes this one.
    peering.fenced(&fence(path(0, 3)), at).expect("the present epoch");
    assert_eq!((peering.is_open(path(0, 3)), peering.order()), (false, Some(Order::Close(path(0, 3)))));
    assert_eq!(peering.counts(), (2, 0));
}

#[test]
fn attempts_wait_longer_and_longer() {
    let path = |epoch| Path { number: 0, epoch };
    let mut peering = Peering::new(1, true);
    let mut now = Duration::from_secs(1);
    let mut waits = Vec::new();
    for epoch in 1..=10 {
        assert_eq!((peering.tick(now), peering.order()), (None, Some(Order::Dial(path(epoch)))));
        peering.not_opened(path(epoch), now);
        let due = peering.tick(now).expect("a time to try again");
        waits.push((due - now).as_millis());
        now = due;
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 250, 250, 250, 250, 250]);
    peering.tick(now);
    assert!(peering.opened(path(11), now));
    peering.broken(path(11), now);
    assert_eq!(peering.tick(now), Some(now + Duration::from_millis(10)), "from the beginning");
    assert_eq!(Peering::new(1, false).tick(now), None, "one side dials");
}

#[test]
fn streams_take_turns() {
    let path = Path { number: 0, epoch: 1 };
    let mut peering = Peering::new(1, false);
    assert!(peering.opened(path, Duration::ZERO));
    for id in 0..3 {
        for _ in 0..2 {
            peering.stream(StreamId(id)).0.fill((0, 1), None, 1).expect("room");
        }
    }
    let mut turns = Vec::new();
    while let Some((id, fragment)) = peering.next(path) {
        turns.push(id.0);
        peering.sent(id, &fragment, path);
    }
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn what_is_to_be_acknowledged_soon_is_owed_until_it_is_said_and_again_where_the_word_is_lost() {
    let mut peering = Peering::new(2, false);
    let path = |number| Path { number, epoch: 1 };
    assert!((0..2).all(|number| peering.opened(path(number), Duration::ZERO)));
    peering.acknowledge_soon(STREAM, 1);
    for fill in 0..2 {
        assert!(!peering.owes_soon(STREAM), "fill {fill} has not come, or is not to be");
        let inbound = peering.stream(STREAM).1;
        let fragment = Fragment { fill, index: 0, count: 1, offset: 0, bytes: 8, ready: None };
        assert_eq!(inbound.accept(&fragment), Ok(Landing::Land));
        inbound.landed(&fragment);
        assert!(inbound.release().is_some());
        if fill == 0 {
            assert!(peering.owes_soon(STREAM));
            peering.said(STREAM, path(0));
        }
    }
    assert!(!peering.owes_soon(STREAM), "the second is in no hurry");
    let lost = Fenced { path: path(0), arrived: Vec::new() };
    peering.fenced(&lost, Duration::ZERO).expect("nothing was sent");
    assert!(peering.owes_soon(STREAM), "the word may be lost");
}
