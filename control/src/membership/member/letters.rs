//! Messages between ranks of one process.
//!
//! Invariant: one is handed over after those that are being handed over on the same thread, not in the middle of one. A rank
//! that answers, or passes a failure on, would otherwise nest as deep as there are ranks.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Weak;

use super::Member;
use crate::membership::wire::Message;
use consort_types::Rank;

/// A message to a rank of this process.
pub(super) struct Letter {
    pub(super) to: Weak<Member>,
    pub(super) from: Rank,
    pub(super) communicator: u64,
    pub(super) message: Message,
}

/// Hands a letter over on this thread.
pub(super) fn deliver(letter: Letter) {
    thread_local! {
        static LETTERS: RefCell<Option<VecDeque<Letter>>> = const { RefCell::new(None) };
    }
    let mut next = Some(letter);
    let queued = LETTERS.try_with(|letters| match &mut *letters.borrow_mut() {
        Some(letters) => letters.extend(next.take()),
        letters => *letters = Some(VecDeque::new()),
    });
    // A thread that ends, in its last destructors or in the process's, has no queue any more.
    debug_assert!(queued.is_ok() || next.is_some());
    while let Some(Letter { to, from, communicator, message }) = next {
        if let Some(to) = to.upgrade() {
            to.receive(from, communicator, message);
        }
        next = LETTERS
            .try_with(|letters| {
                let mut letters = letters.borrow_mut();
                let letter = letters.as_mut().and_then(VecDeque::pop_front);
                if letter.is_none() {
                    *letters = None;
                }
                letter
            })
            .unwrap_or_default();
    }
}
