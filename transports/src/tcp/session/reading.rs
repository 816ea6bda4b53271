//! What comes in on a session's sockets.
//!
//! Invariant: whatever arrived on a socket before this side closes its end has been read first: its sender keeps no copy of what
//! this side's system has acknowledged.

use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{Shutdown, shutdown};

use super::super::socket::{Item, Read};
use super::{NAME, Session};
use crate::counters::raise;
use crate::mapped::check_bounds;
use crate::streams::{Landing, STREAM, Word};

/// Reads of one look at a socket.
const READS_MAX: usize = 16;

/// Why a socket is of no use any more: None where the peer's system ended it.
pub(super) type Ended = Option<Errno>;

impl Session {
    /// Reads what is there. Whether something was.
    pub(super) fn read(&mut self) -> bool {
        let mut has_come = false;
        let mut at = 0;
        while at < self.sockets.len() && self.is_reading() {
            let (came, ended) = self.read_socket(at, READS_MAX);
            has_come |= came;
            match ended {
                Some(error) if self.is_reading() => self.broke_at(at, error),
                _ => at += 1,
            }
        }
        self.hear_fences();
        has_come
    }

    fn is_reading(&self) -> bool {
        !self.ended && self.wrong.is_none()
    }

    /// Reads everything that has arrived on a socket, which is to be closed. Its system acknowledges nothing more from here on: what
    /// came between the last read and the close would be lost, and its sender keep no copy.
    pub(super) fn drain(&mut self, at: usize) {
        let _ = shutdown(self.sockets[at].descriptor.as_raw_fd(), Shutdown::Both);
        if self.is_reading() {
            self.read_socket(at, usize::MAX);
        }
    }

    fn read_socket(&mut self, at: usize, most: usize) -> (bool, Option<Ended>) {
        let mut has_come = false;
        for _ in 0..most {
            let read = self.sockets[at].read(&self.mailbox);
            match read {
                Read::Nothing => break,
                Read::Ended(error) => return (has_come, Some(error)),
                Read::Some | Read::Full => {
                    has_come = true;
                    self.wrong = self.take(at).err();
                    if read == Read::Some || !self.is_reading() {
                        break;
                    }
                }
            }
        }
        (has_come, None)
    }

    /// Takes what a read has brought.
    fn take(&mut self, at: usize) -> Result<(), &'static str> {
        while let Some(item) = self.sockets[at].next(&self.mailbox)? {
            match item {
                Item::Begins(fragment, word) => {
                    const OUTSIDE: &str = "it put bytes outside the mailbox";
                    let room = self.mailbox.bytes();
                    check_bounds(NAME, fragment.offset, fragment.bytes, room).map_err(|_| OUTSIDE)?;
                    self.hear(word)?;
                    let landing = self.peering.stream(STREAM).1.accept(&fragment)?;
                    self.sockets[at].take_in(fragment, landing == Landing::Land);
                }
                Item::Landed(fragment) => {
                    let inbound = self.peering.stream(STREAM).1;
                    inbound.landed(&fragment);
                    while let Some(says) = inbound.release() {
                        says.map_or(Ok(()), |says| raise(&self.ready, says.value, says.tag))?;
                    }
                }
                Item::Word(word) => self.hear(word)?,
                Item::Fenced(fenced) => self.fences.push(fenced),
                Item::End(fills, word) => {
                    self.hear(word)?;
                    self.end_there = Some(fills);
                }
            }
            if let Some(fills) = self.end_there {
                let here = self.peering.stream(STREAM).1.acknowledged();
                if here > fills {
                    return Err("it has sent more than it says at its end");
                }
                if here == fills {
                    self.ended = true;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// What the peer says of what this side sends.
    fn hear(&mut self, word: Word) -> Result<(), &'static str> {
        match self.peering.heard(STREAM, word)? {
            Some(credit) => raise(&self.credit, credit.value, credit.tag),
            None => Ok(()),
        }
    }

    /// The peer has closed its end of sockets: what it had sent there is read first.
    pub(super) fn hear_fences(&mut self) {
        while let Some(fenced) = self.fences.pop().filter(|_| self.is_reading()) {
            let of_it = |path: crate::streams::Path| {
                path.number == fenced.path.number && path.epoch <= fenced.path.epoch
            };
            self.answer_before(fenced.path);
            if let Some(at) = self.sockets.iter().position(|socket| of_it(socket.path)) {
                self.drain(at);
            }
            let now = self.now();
            if let Err(what) = self.peering.fenced(&fenced, now) {
                self.wrong = self.wrong.or(Some(what));
            }
            self.carry_out();
            self.note_whole();
        }
    }
}
