//! One round of notes between all ranks: each may send the same few bytes to all others.
//!
//! Invariant: as of an [exchange](super::exchange); all ranks know which of them send.

use consort_memory::{Arrival, Span};

use super::Board;
use crate::Rank;
use crate::eager::{ROWS, row_of};
use crate::engine::Progress;
use consort_control::report::evidence::Want;

/// A round under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    row: usize,
    mark: u64,
    operation: u64,
    /// Ranks below this one have been sent to.
    sent: Rank,
    /// What ranks below this one sent is here.
    here: Rank,
}

impl Round {
    /// The next operation of a board, of notes of at most `bytes_max` bytes.
    ///
    /// # Panics
    /// If there is no row for as many.
    pub(crate) fn begin(board: &mut Board, bytes_max: usize, mark: u64) -> Self {
        let row = row_of(bytes_max);
        assert!(row < ROWS, "notes of {bytes_max} bytes");
        board.operations += 1;
        Round { row, mark, operation: board.operations, sent: 0, here: 0 }
    }

    /// Goes on as far as possible: sends `note`, if there is one, and hands over what others send, each once, in the
    /// order of ranks. `sends` says which ranks do.
    ///
    /// # Errors
    /// A rank that sent a message of another operation.
    pub(crate) fn advance(
        &mut self,
        board: &mut Board,
        note: Option<&[u8]>,
        sends: impl Fn(Rank) -> bool,
        mut hand_over: impl FnMut(Rank, Span<'_>),
    ) -> Result<Progress, Rank> {
        let ranks = board.ranks();
        let before = (self.sent, self.here);
        let stopped = |now: (Rank, Rank)| Ok(if now == before { Progress::Blocked } else { Progress::Moved });
        while self.sent < ranks {
            if let (Some(note), Some(Some(peer))) = (note, board.peers.get_mut(self.sent as usize)) {
                if !peer.has_room(self.row) {
                    return stopped((self.sent, self.here));
                }
                let out = &mut peer.out[self.row];
                out.payload().slice(0, note.len()).copy_from(Span::of(note));
                out.send(self.operation, self.mark);
                peer.unanswered = 0;
            }
            self.sent += 1;
        }
        while self.here < ranks {
            if let Some(Some(peer)) = board.peers.get_mut(self.here as usize)
                && sends(self.here)
            {
                match peer.inboxes[self.row].look(self.mark) {
                    Arrival::Here => {}
                    Arrival::Other => return Err(self.here),
                    Arrival::None => return stopped((self.sent, self.here)),
                }
                hand_over(self.here, peer.inboxes[self.row].payload());
                peer.take(self.row, note.map_or(0, <[u8]>::len), self.operation);
            }
            self.here += 1;
        }
        Ok(Progress::Done)
    }

    /// The rank that it waits for, and for what.
    pub(crate) fn wanted(&self, board: &Board) -> Option<(Rank, Want)> {
        let ranks = board.ranks();
        if self.sent < ranks {
            return Some((self.sent, Want::Room));
        }
        (self.here < ranks).then_some((self.here, Want::Data))
    }
}
