//! The links of a member by rank, and what waits for those that are still to be made.
//!
//! ```text
//! missing ──something is said──► called: words wait ──proved──► linked
//!    │                              ▲    │  └── no answer in time, or refused: it is lost to those who need it
//!    │                              │    └── its own call comes, and it is the higher rank ─┐
//!    └── its call comes ──► answered ◄──────────────────────────────────────────────────────┘
//!                              └── proved ──► linked
//! ```
//!
//! Invariant: of two ranks that call each other the higher one's call counts: the lower rank gives its own up when the other
//! comes, and the higher rank turns the other away while it calls itself. So no pair has two links, and a link that one end
//! counts on is never closed by the other for being the second. Words reach a rank in the order in which they were said.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Member;
use crate::membership::link::RemoteLink;
use crate::membership::wire::{self, Message};
use consort_types::Rank;

/// How a rank of the job is reached.
#[derive(Clone)]
pub enum Link {
    /// Not yet.
    Missing,
    /// It is this rank itself.
    Own,
    /// A rank of this process.
    Local(Weak<Member>),
    /// A rank of another process.
    Remote(Arc<RemoteLink>),
}

/// Bytes of words that wait for one link, at most; later ones are lost.
const WAITING_BYTES_MAX: usize = 2 * wire::FRAME_BYTES_MAX;
/// The pause before a rank that could not be called is called again.
const AGAIN: Duration = Duration::from_millis(20);
/// How long a rank that cannot be called counts as reachable.
const CALLED_MAX: Duration = Duration::from_secs(24);
/// How long one counts as reachable whose host says that nothing listens there: whether it left or died is heard of sooner.
const REFUSED_MAX: Duration = Duration::from_millis(300);
/// What is said of such a rank.
pub(super) const REFUSED: &str = "nothing answers any more where it took control connections, so it ended, or closed all its communicators";

pub(super) struct Links {
    slots: Vec<Link>,
    waiting: BTreeMap<Rank, Waiting>,
    /// The ranks that are to be called, and not before when.
    calls: VecDeque<(Rank, Instant)>,
    /// The ranks at whose place nothing listened when they were called last.
    refused: BTreeSet<Rank>,
}

/// What is to be said to a rank that is not linked yet.
struct Waiting {
    /// As it travels.
    words: Vec<u8>,
    /// Whether its own call is being answered, so that it is not to be called.
    is_answered: bool,
    /// Whether a call of it is due, or under way.
    is_called: bool,
    since: Instant,
    /// Since when its host says that nothing listens there.
    refused_since: Option<Instant>,
    /// The communicators whose calls need it: data are to go to it or to come from it.
    needed_by: BTreeSet<u64>,
}

/// Why no more calls of a rank follow.
pub(super) struct Uncalled {
    /// Whether nothing listens where it did.
    pub(super) refused: bool,
    /// The communicators whose calls need it.
    pub(super) needed_by: BTreeSet<u64>,
}

impl Waiting {
    fn since(since: Instant) -> Self {
        Waiting {
            words: Vec::new(),
            is_answered: false,
            is_called: false,
            since,
            refused_since: None,
            needed_by: BTreeSet::new(),
        }
    }
}

/// Whether a rank is to be called by who asks.
#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub enum Begun {
    /// It is linked.
    Linked,
    /// By who asks, who says how it ended.
    Own,
    /// Others are at it.
    Busy,
}

/// What becomes of a message.
pub(super) enum Said {
    /// It goes this way.
    By(Link),
    /// It waits for a link; whether the rank is to be called for it, which it was not before.
    Waits { calls: bool },
}

impl Links {
    pub(super) fn new(own: Rank, size: usize) -> Self {
        let mut slots = vec![Link::Missing; size];
        slots[own as usize] = Link::Own;
        Links { slots, waiting: BTreeMap::new(), calls: VecDeque::new(), refused: BTreeSet::new() }
    }

    pub(super) fn get(&self, rank: Rank) -> Option<&Link> {
        self.slots.get(rank as usize)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (Rank, &Link)> {
        (0..).zip(&self.slots)
    }

    pub(super) fn is_missing(&self, rank: Rank) -> bool {
        matches!(self.get(rank), None | Some(Link::Missing))
    }

    /// Whether words to this rank arrive without another call.
    pub(super) fn is_open(&self, rank: Rank) -> bool {
        !self.is_missing(rank) || self.waiting.contains_key(&rank)
    }

    /// Sets the link to `rank`, and sends what waited for it; a second one for the same rank is refused.
    pub(super) fn set(&mut self, rank: Rank, link: Link) -> bool {
        let Some(slot @ Link::Missing) = self.slots.get_mut(rank as usize) else { return false };
        *slot = link;
        self.refused.remove(&rank);
        if let (Link::Remote(link), Some(waiting)) = (&*slot, self.waiting.remove(&rank))
            && !waiting.words.is_empty()
        {
            link.send_framed(waiting.words);
        }
        true
    }

    /// Says something to a rank, which is called for it if it is not linked.
    pub(super) fn say(&mut self, to: Rank, communicator: u64, message: &Message, now: Instant) -> Said {
        let link = &self.slots[to as usize];
        if !matches!(link, Link::Missing) {
            return Said::By(link.clone());
        }
        let waiting = self.waiting.entry(to).or_insert_with(|| Waiting::since(now));
        let calls = !waiting.is_answered && !waiting.is_called;
        if calls {
            waiting.is_called = true;
            self.calls.push_back((to, now));
        }
        if matches!(message, Message::Address { .. }) {
            waiting.needed_by.insert(communicator);
        }
        if waiting.words.len() <= WAITING_BYTES_MAX {
            wire::encode(communicator, message, &mut waiting.words);
        } else {
            tracing::error!(to, "too many messages wait for a control link; later ones are lost");
        }
        Said::Waits { calls }
    }

    /// Whether the call of `from` is answered from now on; `own` is this rank.
    pub(super) fn answer(&mut self, from: Rank, own: Rank, now: Instant) -> bool {
        if !self.is_missing(from) || from as usize >= self.slots.len() {
            return false;
        }
        if self.waiting.get(&from).is_some_and(|waiting| waiting.is_answered || from < own) {
            return false;
        }
        let waiting = self.waiting.entry(from).or_insert_with(|| Waiting::since(now));
        waiting.is_answered = true;
        true
    }

    /// The call of `from` came to nothing; whether it is to be called because words wait.
    pub(super) fn give_up_answering(&mut self, from: Rank, now: Instant) -> bool {
        let Some(waiting) = self.waiting.get_mut(&from) else { return false };
        waiting.is_answered = false;
        // What is waited for begins now.
        (waiting.since, waiting.refused_since) = (now, None);
        if waiting.words.is_empty() {
            self.waiting.remove(&from);
            return false;
        }
        if !std::mem::replace(&mut waiting.is_called, true) {
            self.calls.push_back((from, now));
        }
        true
    }

    /// This thread calls a rank, unless it is linked, or called by another one, or its call answered.
    pub(super) fn begin_call(&mut self, rank: Rank, now: Instant) -> Begun {
        if !self.is_missing(rank) {
            return Begun::Linked;
        }
        let waiting = self.waiting.entry(rank).or_insert_with(|| Waiting::since(now));
        if waiting.is_answered || waiting.is_called {
            return Begun::Busy;
        }
        waiting.is_called = true;
        Begun::Own
    }

    /// That call came to nothing; whether the rank is to be called by others because words wait.
    pub(super) fn end_call(&mut self, rank: Rank, now: Instant) -> bool {
        let Some(waiting) = self.waiting.get_mut(&rank) else { return false };
        waiting.is_called = false;
        if waiting.is_answered {
            return false;
        }
        if waiting.words.is_empty() {
            self.waiting.remove(&rank);
            return false;
        }
        waiting.is_called = true;
        self.calls.push_back((rank, now));
        true
    }

    /// What waits for a link to this rank.
    pub(super) fn take_words(&mut self, rank: Rank) -> Vec<u8> {
        self.waiting.get_mut(&rank).map(|waiting| std::mem::take(&mut waiting.words)).unwrap_or_default()
    }

    /// Whether the rank has called, and the link does not count yet.
    pub(super) fn is_answered(&self, rank: Rank) -> bool {
        self.waiting.get(&rank).is_some_and(|waiting| waiting.is_answered)
    }

    /// The next rank to be called now, or else the time of the next call.
    pub(super) fn next_call(&mut self, now: Instant) -> Result<Rank, Option<Instant>> {
        let waiting = &mut self.waiting;
        self.calls.retain(|(rank, _)| {
            waiting.get_mut(rank).is_some_and(|waiting| {
                waiting.is_called = !waiting.is_answered;
                waiting.is_called
            })
        });
        match self.calls.iter().position(|(_, at)| *at <= now) {
            Some(due) => Ok(self.calls.remove(due).expect("a position in it").0),
            None => Err(self.calls.iter().map(|(_, at)| *at).min()),
        }
    }

    /// A call failed: another one follows, unless it is in vain.
    pub(super) fn call_failed(&mut self, rank: Rank, refused: bool, now: Instant) -> Option<Uncalled> {
        let waiting = self.waiting.get_mut(&rank)?;
        if waiting.is_answered {
            waiting.is_called = false;
            return None;
        }
        let refused_since = refused.then(|| waiting.refused_since.unwrap_or(now));
        waiting.refused_since = refused_since;
        let refused = refused_since.is_some_and(|since| now.saturating_duration_since(since) >= REFUSED_MAX);
        if !refused && now.saturating_duration_since(waiting.since) < CALLED_MAX {
            self.calls.push_back((rank, now + AGAIN));
            return None;
        }
        if refused {
            self.refused.insert(rank);
        }
        let needed_by = self.waiting.remove(&rank).map(|waiting| waiting.needed_by).unwrap_or_default();
        Some(Uncalled { refused, needed_by })
    }

    /// Whether the host of a rank that is called, or was, says that nothing listens there.
    pub(super) fn is_refused(&self, rank: Rank) -> bool {
        let waiting = self.waiting.get(&rank);
        self.refused.contains(&rank) || waiting.is_some_and(|waiting| waiting.refused_since.is_some())
    }

    /// Nothing reaches this rank any more.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.waiting.remove(&rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consort_transports::Address;

    const QUERY: Message = Message::Query { token: 1 };

    fn calls(said: Said) -> bool {
        matches!(said, Said::Waits { calls: true })
    }

    #[test]
    fn a_rank_is_called_once_for_what_is_said_to_it() {
        let now = Instant::now();
        let mut links = Links::new(0, 4);
        assert_eq!(links.next_call(now), Err(None));
        assert!(calls(links.say(3, 1, &QUERY, now)));
        assert!(!calls(links.say(3, 1, &QUERY, now)), "it is being called");
        assert_eq!(links.next_call(now), Ok(3));
        assert_eq!(links.next_call(now), Err(None));
        assert!(links.call_failed(3, false, now).is_none());
        assert_eq!(links.next_call(now), Err(Some(now + AGAIN)));
        assert_eq!(links.next_call(now + AGAIN), Ok(3));
        assert!(links.is_open(3) && links.is_missing(3));
        assert!(links.set(3, Link::Own) && !links.set(3, Link::Own));
        assert!(links.call_failed(3, false, now).is_none(), "it has called meanwhile");
        assert_eq!(links.next_call(now + AGAIN), Err(None));
    }

    #[test]
    fn of_two_that_call_each_other_the_higher_rank_s_call_counts() {
        let now = Instant::now();
        let (mut low, mut high) = (Links::new(1, 4), Links::new(2, 4));
        assert!(calls(low.say(2, 1, &QUERY, now)) && calls(high.say(1, 1, &QUERY, now)));
        assert!(!high.answer(1, 2, now), "it calls itself");
        assert!(low.answer(2, 1, now));
        assert!(!low.answer(2, 1, now), "one of its calls is being answered");
        assert_eq!(low.next_call(now), Err(None), "its own call is given up");
        assert!(low.call_failed(2, true, now).is_none());
        // What it had to say is not lost if the other's call comes to nothing.
        assert!(low.give_up_answering(2, now));
        assert_eq!(low.next_call(now), Ok(2));
        // Who has nothing to say answers either.
        assert!(Links::new(2, 4).answer(1, 2, now) && Links::new(1, 4).answer(2, 1, now));
        let mut idle = Links::new(2, 4);
        assert!(idle.answer(1, 2, now) && !idle.give_up_answering(1, now) && !idle.is_open(1));
        assert!(!idle.answer(4, 2, now), "there is no such rank");
    }

    #[test]
    fn who_cannot_be_called_is_lost_and_who_is_refused_is_lost_sooner() {
        let begin = Instant::now();
        let now = begin;
        let mut links = Links::new(0, 2);
        links.say(1, 1, &QUERY, now);
        let address = Address { transport: "tcp".into(), bytes: Vec::new() };
        links.say(1, 7, &Message::Address { channel: 0, address }, now);
        assert!(!links.is_refused(1));
        assert!(links.call_failed(1, true, begin).is_none());
        assert!(links.is_refused(1));
        // A host that is busy in between does not refuse.
        assert!(links.call_failed(1, false, begin + REFUSED_MAX / 2).is_none());
        assert!(links.call_failed(1, true, begin + REFUSED_MAX).is_none());
        let end = links.call_failed(1, true, begin + REFUSED_MAX * 2).expect("the last call");
        assert!(end.refused && links.is_refused(1) && !links.is_open(1));
        assert_eq!(end.needed_by, BTreeSet::from([7]), "a question needs nothing");
        let mut links = Links::new(0, 2);
        links.say(1, 1, &QUERY, now);
        assert!(links.call_failed(1, false, begin + CALLED_MAX / 2).is_none());
        let end = links.call_failed(1, false, now + CALLED_MAX).expect("the last call");
        assert!(!end.refused && !links.is_refused(1) && !links.is_open(1));
        links.say(1, 1, &QUERY, now);
        links.forget(1);
        assert!(!links.is_open(1));
    }

    #[test]
    fn a_rank_is_called_by_one_at_a_time() {
        let now = Instant::now();
        let mut links = Links::new(2, 4);
        assert_eq!(links.begin_call(1, now), Begun::Own);
        assert_eq!(links.begin_call(1, now), Begun::Busy);
        assert!(!links.answer(1, 2, now), "a lower rank is turned away meanwhile");
        assert!(!calls(links.say(1, 7, &QUERY, now)), "it is being called");
        assert!(links.end_call(1, now), "words wait");
        assert_eq!((links.begin_call(1, now), links.next_call(now)), (Begun::Busy, Ok(1)));
        assert!(!links.take_words(1).is_empty() && links.take_words(1).is_empty());
        assert_eq!(links.begin_call(3, now), Begun::Own);
        assert!(links.answer(3, 2, now) && links.is_answered(3), "a higher rank's call counts");
        assert!(!links.end_call(3, now));
        assert_eq!(links.begin_call(3, now), Begun::Busy);
        assert!(links.set(3, Link::Own));
        assert_eq!(links.begin_call(3, now), Begun::Linked);
    }
}
