//! What an operation asks of its links about sources that they were lent.

use super::{LinkState, Links};

impl Links {
    /// Whether a source that a link was lent for this fill is free.
    pub(crate) fn is_free(&self, number: usize, fill: u64) -> bool {
        match &self.table[number].state {
            LinkState::Up(up) => up.connection.is_free(fill),
            _ => true,
        }
    }

    /// Moves what is under way on a link, whether its peer or its communicator is still there or not.
    pub(crate) fn go_on(&mut self, number: usize) {
        if let LinkState::Up(up) = &mut self.table[number].state {
            let _ = up.connection.progress();
        }
    }

    /// Ends a link at once, as [`Connection::fence`](consort_transports::Connection::fence) does.
    pub(crate) fn fence(&mut self, number: usize) {
        if let LinkState::Up(up) = &mut self.table[number].state {
            let _ = up.connection.fence();
        }
    }
}
