//! Boards over connections inside this process, for tests: both ends are in one thread's hands.

use std::task::Poll;

use consort_memory::Outbox;
use consort_transports::{Connection, Layout, Loopback, Transport};

use super::{Board, PAYLOADS, Peer, Store, Trial, mailbox_bytes, slots};
use crate::Rank;
use crate::eager::ROWS;

/// Both ends of a connection.
pub(crate) fn connected(mailbox_bytes: usize) -> [Box<dyn Connection>; 2] {
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
    let mut ends = connected(mailbox_bytes(2)).into_iter();
    [0, 1].map(|me| of(me, 2, |_| ends.next().expect("two ends")))
}

/// The board of one rank of `size`, and the other ends of its connections, by rank.
pub(super) fn board(me: Rank, size: u32) -> (Board, Vec<Option<Box<dyn Connection>>>) {
    let mut others: Vec<Option<Box<dyn Connection>>> = (0..size).map(|_| None).collect();
    let board = of(me, size, |peer| {
        let [own, other] = connected(mailbox_bytes(size));
        others[peer as usize] = Some(other);
        own
    });
    (board, others)
}

fn of(me: Rank, size: u32, mut end: impl FnMut(Rank) -> Box<dyn Connection>) -> Board {
    let mut peer = |rank: Rank| {
        (rank != me).then(|| Peer::over(end(rank), size).expect("its mailbox is as long as agreed"))
    };
    Board {
        me,
        peers: (0..size).map(&mut peer).collect(),
        operations: 0,
        long: Trial::default(),
        store: Store::Cached,
    }
}

/// Where the other end of a connection fills the rows of a board of `size` ranks.
pub(crate) fn outboxes(other: &dyn Connection, size: u32) -> [Outbox; ROWS] {
    let mut offset = 0;
    std::array::from_fn(|row| {
        let (slots, payload_bytes) = (slots(size)[row], PAYLOADS[row]);
        let [_, theirs] = other.rows(offset, slots, payload_bytes).expect("it is as long as agreed");
        offset += consort_memory::Row::bytes(slots, payload_bytes);
        Outbox::new(theirs)
    })
}

/// The other end of a connection, for a board of two ranks of which rank 0 is tested.
pub(crate) fn against() -> (Board, Box<dyn Connection>) {
    let (board, mut others) = board(0, 2);
    (board, others.pop().flatten().expect("the end of rank 1"))
}
