//! What a stream sends, kept until it has arrived.

use std::collections::VecDeque;

use consort_memory::{Span, SpanMut};

use super::{Arrived, FILLS_MAX, FRAGMENTS_MAX, Fragment, Path, Ready};

/// As many fills are under way as may be; an acknowledgement makes room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

/// How far a fragment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    Unsent,
    Sent(Path),
    Arrived,
}

/// A fill that is not acknowledged.
#[derive(Debug)]
struct Going {
    offset: usize,
    bytes: usize,
    ready: Option<Ready>,
    /// Of each fragment but the last, which may be shorter.
    fragment_bytes: usize,
    fragments: Vec<Progress>,
    /// Its bytes, where they may be changed by now.
    copy: Option<Vec<u8>>,
}

/// The writer's side of a stream.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    /// Fills that were acknowledged.
    acknowledged: u64,
    going: VecDeque<Going>,
    /// Memory of copies that are not needed any more, and of the states of fragments.
    spare: Vec<Vec<u8>>,
    spare_states: Vec<Vec<Progress>>,
}

/// Copies whose memory is kept for the next ones: as many as slots are under way.
const SPARE_MAX: usize = 4;

impl Outbound {
    /// One more fill of `bytes` bytes at `offset` of the reader's mailbox, in fragments of about `fragment_bytes`; its number.
    /// A fill may be empty: it then says something alone.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn fill(
        &mut self,
        (offset, bytes): (usize, usize),
        ready: Option<Ready>,
        fragment_bytes: usize,
    ) -> Result<u64, Full> {
        if self.going.len() == FILLS_MAX {
            return Err(Full);
        }
        let fragment_bytes = fragment_bytes.max(bytes.div_ceil(FRAGMENTS_MAX)).max(1);
        let count = bytes.div_ceil(fragment_bytes).max(1);
        let mut fragments = self.spare_states.pop().unwrap_or_default();
        fragments.resize(count, Progress::Unsent);
        self.going.push_back(Going { offset, bytes, ready, fragment_bytes, fragments, copy: None });
        Ok(self.acknowledged + self.going.len() as u64 - 1)
    }

    fn at(&self, fill: u64) -> Option<usize> {
        let at = fill.checked_sub(self.acknowledged)? as usize;
        (at < self.going.len()).then_some(at)
    }

    /// The first fragment that is to be sent, perhaps again.
    pub(crate) fn next(&self) -> Option<Fragment> {
        let first = |(at, going): (usize, &Going)| {
            let index = going.fragments.iter().position(|fragment| *fragment == Progress::Unsent)?;
            Some(going.fragment(self.acknowledged + at as u64, index))
        };
        self.going.iter().enumerate().find_map(first)
    }

    /// A path has taken a fragment.
    pub(crate) fn sent(&mut self, fragment: &Fragment, path: Path) {
        if let Some(at) = self.at(fragment.fill) {
            self.going[at].fragments[fragment.index as usize] = Progress::Sent(path);
        }
    }

    /// The bytes of a fragment, where they were kept.
    pub(crate) fn kept(&self, fragment: &Fragment) -> Option<&[u8]> {
        let going = &self.going[self.at(fragment.fill)?];
        if going.bytes == 0 {
            return Some(&[]);
        }
        let from = fragment.index as usize * going.fragment_bytes;
        going.copy.as_ref().map(|copy| &copy[from..from + fragment.bytes])
    }

    /// Keeps a copy of a fill's bytes, unless it has one or is acknowledged: afterwards the source may be changed.
    ///
    /// # Panics
    /// When the fill has another length.
    pub(crate) fn keep(&mut self, fill: u64, source: Span<'_>) {
        let Some(at) = self.at(fill) else { return };
        let going = &mut self.going[at];
        assert_eq!(source.len(), going.bytes, "the bytes of a fill");
        if going.copy.is_none() {
            let mut copy = self.spare.pop().unwrap_or_default();
            copy.resize(copy.len().max(going.bytes), 0);
            SpanMut::of(&mut copy[..going.bytes]).copy_from(source);
            going.copy = Some(copy);
        }
    }

    /// Bytes of memory that copies take.
    pub(crate) fn kept_bytes(&self) -> usize {
        let copies = self.going.iter().filter_map(|going| going.copy.as_ref());
        copies.chain(&self.spare).map(Vec::capacity).sum()
    }

    /// Whether it has a copy of a fill.
    pub(crate) fn is_kept(&self, fill: u64) -> bool {
        self.at(fill).is_some_and(|at| self.going[at].copy.is_some() || self.going[at].bytes == 0)
    }

    /// Forgets the last fill, where no part of it has been sent. Whether it has.
    pub(crate) fn give_up(&mut self, fill: u64) -> bool {
        let is_unsent = |going: &Going| going.fragments.iter().all(|fragment| *fragment == Progress::Unsent);
        let is_last = fill + 1 == self.made() && self.going.back().is_some_and(is_unsent);
        is_last.then(|| self.going.pop_back()).is_some()
    }

    /// Fills that the peer has said it has.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Fills that were made since the beginning.
    pub(crate) fn made(&self) -> u64 {
        self.acknowledged + self.going.len() as u64
    }

    /// Whether all fragments of a fill have been taken over by paths, or have arrived.
    pub(crate) fn is_sent(&self, fill: u64) -> bool {
        let unsent = |at: usize| self.going[at].fragments.contains(&Progress::Unsent);
        !self.at(fill).is_some_and(unsent)
    }

    /// Whether each fragment of the fills from `fill` on has arrived, or is on a path for which that is so.
    pub(crate) fn is_on(&self, fill: u64, is_so: impl Fn(Path) -> bool) -> bool {
        let is_on = |fragment: &Progress| match fragment {
            Progress::Unsent => false,
            Progress::Sent(path) => is_so(*path),
            Progress::Arrived => true,
        };
        let from = fill.saturating_sub(self.acknowledged) as usize;
        self.going.iter().skip(from).flat_map(|going| &going.fragments).all(is_on)
    }

    /// Fills that are not acknowledged.
    #[cfg(test)]
    pub(crate) fn under_way(&self) -> std::ops::Range<u64> {
        self.acknowledged..self.acknowledged + self.going.len() as u64
    }

    /// The peer has all fills before this one.
    ///
    /// # Errors
    /// It cannot have them.
    pub(crate) fn acknowledge(&mut self, fills: u64) -> Result<(), &'static str> {
        // Of two that overtook each other the later says less.
        let Some(new) = fills.checked_sub(self.acknowledged) else { return Ok(()) };
        let is_sent = |going: &Going| going.fragments.iter().all(|fragment| *fragment != Progress::Unsent);
        if new > self.going.len() as u64 || !self.going.iter().take(new as usize).all(is_sent) {
            return Err("it acknowledges what was not sent");
        }
        for Going { mut fragments, copy, .. } in self.going.drain(..new as usize) {
            if self.spare_states.len() < SPARE_MAX {
                fragments.clear();
                self.spare_states.push(fragments);
            }
            if let Some(copy) = copy.filter(|_| self.spare.len() < SPARE_MAX) {
                self.spare.push(copy);
            }
        }
        self.acknowledged = fills;
        Ok(())
    }

    /// The peer has closed its end of a path up to an epoch, and has this of the stream: nothing more lands on those epochs. What
    /// was sent on them and has not arrived is to be sent again; how many fragments that is.
    ///
    /// # Errors
    /// It cannot have that.
    pub(crate) fn fenced(&mut self, path: Path, arrived: &Arrived) -> Result<usize, &'static str> {
        self.acknowledge(arrived.fills)?;
        // An acknowledgement on another path may have been quicker than the fence.
        let known = (self.acknowledged - arrived.fills) as usize;
        let landed = arrived.fragments.iter().skip(known).copied().chain(std::iter::repeat(0));
        let mut again = 0;
        for (going, landed) in self.going.iter_mut().zip(landed) {
            if going.fragments.len() < FRAGMENTS_MAX && landed >> going.fragments.len() != 0 {
                return Err("it has a fragment that there is not");
            }
            for (index, fragment) in going.fragments.iter_mut().enumerate() {
                match (landed >> index & 1 == 1, *fragment) {
                    (true, Progress::Unsent) => return Err("it has a fragment that was not sent"),
                    (true, _) => *fragment = Progress::Arrived,
                    (false, Progress::Sent(on)) if on.number == path.number && on.epoch <= path.epoch => {
                        *fragment = Progress::Unsent;
                        again += 1;
                    }
                    (false, _) => {}
                }
            }
        }
        Ok(again)
    }
}

impl Going {
    fn fragment(&self, fill: u64, index: usize) -> Fragment {
        let from = index * self.fragment_bytes;
        Fragment {
            fill,
            index: index as u32,
            count: self.fragments.len() as u32,
            offset: self.offset + from,
            bytes: self.fragment_bytes.min(self.bytes - from),
            ready: self.ready,
        }
    }
}
