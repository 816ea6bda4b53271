//! What arrives of a stream, in any order and perhaps twice.

use std::collections::VecDeque;

use super::{Arrived, FILLS_MAX, FRAGMENTS_MAX, Fragment, Ready};

/// What is to be done with the bytes of a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Landing {
    /// They go to their place in the mailbox; [`Inbound::landed`] then says that all have come.
    Land,
    /// They have been here: they are read and dropped.
    Drop,
}

/// A fill that has begun to come, or that waits for those before it.
#[derive(Clone, Copy, Debug)]
struct Coming {
    /// 0: nothing is known of it.
    count: u32,
    /// Bits of the fragments that have landed.
    landed: u64,
    ready: Option<Ready>,
}

impl Coming {
    const UNKNOWN: Self = Coming { count: 0, landed: 0, ready: None };

    fn is_whole(self) -> bool {
        self.count > 0 && self.landed.count_ones() == self.count
    }
}

/// The reader's side of a stream.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    /// Fills that were released.
    released: u64,
    coming: VecDeque<Coming>,
}

impl Inbound {
    /// A fragment has come or begins to come.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn accept(&mut self, fragment: &Fragment) -> Result<Landing, &'static str> {
        let &Fragment { fill, index, count, ready, .. } = fragment;
        if count == 0 || count as usize > FRAGMENTS_MAX || index >= count {
            return Err("a fragment is none of its fill");
        }
        let Some(ahead) = fill.checked_sub(self.released) else { return Ok(Landing::Drop) };
        if ahead >= FILLS_MAX as u64 {
            return Err("a fill is further ahead than it may be");
        }
        let at = ahead as usize;
        let known = self.coming.len().max(at + 1);
        self.coming.resize(known, Coming::UNKNOWN);
        let coming = &mut self.coming[at];
        if coming.count == 0 {
            (coming.count, coming.ready) = (count, ready);
        } else if (coming.count, coming.ready) != (count, ready) {
            return Err("the fragments of a fill disagree");
        }
        Ok(if coming.landed >> index & 1 == 1 { Landing::Drop } else { Landing::Land })
    }

    /// All bytes of a fragment that was to land are there.
    pub(crate) fn landed(&mut self, fragment: &Fragment) {
        let ahead = fragment.fill.checked_sub(self.released).map(|ahead| ahead as usize);
        if let Some(coming) = ahead.and_then(|ahead| self.coming.get_mut(ahead)) {
            coming.landed |= 1 << fragment.index;
        }
    }

    /// Releases the next fill if all of it is there: what it says, if it says anything.
    pub(crate) fn release(&mut self) -> Option<Option<Ready>> {
        let whole = *self.coming.front().filter(|coming| coming.is_whole())?;
        self.coming.pop_front();
        self.released += 1;
        Some(whole.ready)
    }

    /// Fills that were released: the acknowledgement that travels.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.released
    }

    /// What has arrived.
    pub(crate) fn arrived(&self) -> Arrived {
        Arrived { fills: self.released, fragments: self.coming.iter().map(|coming| coming.landed).collect() }
    }
}
