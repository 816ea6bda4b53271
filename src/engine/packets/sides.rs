//! Boards over connections inside this process, for tests: both ends are in one thread's hands.

use std::task::Poll;

use consort_memory::{Counter, Outbox, Row};
use consort_transports::{Connection, Layout, Loopback, Transport};

use super::pieces::Pieces;
use super::{Board, FORBIDDING_BYTES, Peer, letters, mailbox_bytes, rows};
use crate::Rank;
use crate::eager::{ROWS, ROWS_BYTES, pool_slots};

/// Both ends of a connection.
pub(crate) type Ends = [Box<dyn Connection>; 2];

/// A connection, by both of its ends.
pub(crate) fn connected(mailbox_bytes: usize) -> Ends {
    let loopback = Loopback::new().expect("a registry");
    let end = || loopback.endpoint(Layout::new(mailbox_bytes)).expect("memory");
    let (one, other) = (end(), end());
    let addresses = [other.address().clone(), one.address().clone()];
    let mut halves = [one, other].into_iter().zip(&addresses);
    let mut connecting = [(); 2].map(|()| {
        let (end, peer) = halves.next().expect("two");
        end.connect(peer).expect("it is there")
    });
    [0, 1].map(|side| match connecting[side].poll().expect("both are here") {
        Poll::Ready(connection) => connection,
        Poll::Pending => panic!("both have connected"),
    })
}

/// The boards of two ranks.
pub(crate) fn boards() -> [Board; 2] {
    let ends = connected(mailbox_bytes(2));
    [0, 1].map(|me| of(me, 2, |_| &*ends[me as usize]))
}

/// The board of one rank of `size`, and its connections by rank: the other ends, and the own ones.
pub(super) fn board(me: Rank, size: u32) -> (Board, Vec<Option<Ends>>) {
    let end = |rank: Rank| (rank != me).then(|| connected(mailbox_bytes(size)));
    let ends: Vec<Option<Ends>> = (0..size).map(end).collect();
    let own = |peer: Rank| ends[peer as usize].as_ref().map(|[_, own]| &**own).expect("another rank");
    (of(me, size, own), ends)
}

fn of<'a>(me: Rank, size: u32, end: impl Fn(Rank) -> &'a dyn Connection) -> Board {
    let over = |rank| Peer::over(rank, end(rank), size).expect("its mailbox is as long as agreed");
    Board::new((0..size).map(|rank| (rank != me).then(|| over(rank))).collect())
}

/// What the other end of a connection has of the eager messages.
pub(crate) struct Other {
    /// Where it fills the rows.
    pub(crate) out: [Outbox; ROWS],
    pub(crate) pieces: Pieces,
    /// The bytes of a slot of pieces.
    pub(crate) longest: usize,
    /// Whether a counter of the pieces was raised by itself: those that count do not go on.
    pub(crate) is_spoiled: bool,
    /// What it raises: that pieces are here, and that they are emptied.
    pub(crate) lines: Vec<Counter>,
}

impl Other {
    fn over(other: &dyn Connection, at: usize, ranks: u32) -> Self {
        let [_, theirs] = other.rows(at, 2, Row::LINE_PAYLOAD_BYTES).expect("it is as long as agreed");
        Other {
            out: rows(other).expect("it is as long as agreed").0,
            pieces: Pieces::over(0, other, at, ranks).expect("it is as long as agreed"),
            longest: pool_slots(ranks).1,
            is_spoiled: false,
            lines: theirs.counters(),
        }
    }

    /// Of a board of `size` ranks.
    pub(crate) fn of_board(other: &dyn Connection, size: u32) -> Self {
        Self::over(other, ROWS_BYTES + FORBIDDING_BYTES, size)
    }

    /// Of letters.
    pub(crate) fn of_letters(other: &dyn Connection) -> Self {
        Self::over(other, ROWS_BYTES, letters::RANKS)
    }
}

/// Both ends of a connection, the other one first, for the board of rank 0 of two.
pub(crate) fn against() -> (Board, Ends) {
    let (board, mut ends) = board(0, 2);
    (board, ends.pop().flatten().expect("the ends of rank 1"))
}
