//! Which of a session's paths are lost.
//!
//! Invariant: only paths that have led to the peer count. Absent: when a path is lost (`streams/soundness`), and what follows from it.

use std::time::Duration;

use super::Session;
use crate::Way;

impl Session {
    /// The paths that have ever led to the peer, with those that are lost, which have been down for `after`.
    pub(in crate::tcp) fn paths(&mut self, after: Duration, each: &mut dyn FnMut(Way)) {
        let now = self.now();
        for number in 0..self.ways.len() as u8 {
            if self.has_led >> number & 1 == 0 {
                continue;
            }
            let open =
                |socket: &super::Socket| socket.path.number == number && self.peering.is_open(socket.path);
            let is_open = self.sockets.iter().any(open);
            let (from, to) = self.ways[usize::from(number)];
            let is_lost = self.sound[usize::from(number)].look(is_open, now, after);
            each(Way { number, from: from.to_canonical(), to: to.ip().to_canonical(), is_lost });
        }
    }
}
