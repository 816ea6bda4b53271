//! How long the segments of a path are: short ones where long packets do not get through while short ones do (an MTU black hole).
//!
//! ```text
//!   Full ── a socket opens, and stands still with nothing long acknowledged, as the one before it stood still ──► Trial
//!   Trial ── short segments carry something ──► Short
//!     └── they stand still too, or a call is not answered ──► Full
//! ```
//!
//! A link that is down does not let the next socket open, so nothing that stands still follows there.
//!
//! Invariant: a path whose segments are short stays so: that is slower, and right. Absent: sockets, clocks (time comes as an
//! argument), and who may end a socket.

use std::net::IpAddr;
use std::time::Duration;

use crate::info::Info;

/// Short segments: what every path that carries tunnels lets through, in packets of 1240 bytes. The smaller of the two is for the longer
/// header of IPv6.
const SHORT_V4: u32 = 1200;
const SHORT_V6: u32 = 1180;
/// Sockets that stand still within this time of each other stand still in a row.
const IN_A_ROW: Duration = Duration::from_secs(30);
/// How long calls may go unanswered after a socket stood still: the first of them are given up sooner than a far peer answers.
const SILENCE: Duration = Duration::from_secs(3);
/// What short segments have carried where they get through: more than the frames that begin every socket.
const CARRIED_BYTES: u64 = 4096;
/// How often in a row the system has sent the same bytes again, where a socket stands still.
const RETRANSMITS: u8 = 2;
/// How long the same is sent again and again where a socket stands still one way: twice in a row by the system's own timer. Where a
/// route has a quicker one, that may be a few lost packets.
const RESENDING: Duration = Duration::from_millis(600);
/// How long a peer is asked for short segments. The first of its calls are given up sooner than a far peer hears the answer.
const ASKING: Duration = Duration::from_secs(6);

/// The length of a short segment on the way to an address.
pub(in super::super) fn short(there: IpAddr) -> u32 {
    if there.is_ipv4() { SHORT_V4 } else { SHORT_V6 }
}

/// What the system says of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sight {
    pub(super) retransmits: u8,
    /// Bytes that the peer's system has acknowledged since the socket was made, and those that it has not.
    pub(super) acknowledged: u64,
    pub(super) outstanding: usize,
    /// The longest segment at present, and the longest packet that the path is said to take.
    pub(super) segment: u32,
    pub(super) path_mtu: u32,
    /// How long ago something has come from the peer's system.
    pub(super) heard: Duration,
    /// For how long the same has been sent again, at least.
    pub(super) resending: Duration,
}

impl Sight {
    pub(super) fn of(info: &Info, outstanding: Option<usize>) -> Self {
        Self {
            retransmits: info.retransmits,
            acknowledged: info.carried.map_or(0, |carried| carried.bytes),
            outstanding: outstanding.unwrap_or(0),
            segment: info.segment,
            path_mtu: info.path_mtu,
            heard: info.heard,
            resending: resending(info.resend, info.retransmits),
        }
    }

    /// Whether the system sends the same again and again.
    pub(super) fn stands_still(&self) -> bool {
        self.retransmits >= RETRANSMITS
    }

    /// Whether something that may be long stands still while the peer's packets still come: the link is not down.
    pub(super) fn is_one_way(&self) -> bool {
        self.stands_still() && self.is_long() && self.resending >= RESENDING && self.heard < self.resending
    }

    fn is_long(&self) -> bool {
        self.outstanding > SHORT_V4 as usize
    }

    /// Whether nothing but frames without payload can have been acknowledged.
    fn is_barren(&self) -> bool {
        self.acknowledged < 2 * u64::from(self.segment)
    }
}

/// For how long a system has sent the same, that does so again after `resend` and waits twice as long each time.
fn resending(resend: Duration, retransmits: u8) -> Duration {
    let doubled = 1u32 << retransmits.min(16);
    resend / doubled * (doubled - 1)
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Length {
    #[default]
    Full,
    /// Short, and nothing has shown yet that this helps.
    Trial,
    Short,
}

/// What is known of one path.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Segments {
    length: Length,
    /// When the first and the last socket of a row stood still, and how many have.
    stood: Option<(Duration, Duration)>,
    count: u32,
    /// The packets that did not get through.
    packet: u32,
    /// The peer has asked for short ones.
    is_asked: bool,
    /// Since when this side asks the peer for short ones.
    asking: Option<Duration>,
    /// Short ones have stood still in this row.
    short_stood: bool,
}

impl Segments {
    pub(super) fn is_short(&self) -> bool {
        self.length != Length::Full
    }

    pub(super) fn is_trial(&self) -> bool {
        self.length == Length::Trial
    }

    /// The packets that did not get through, once that is known.
    pub(super) fn hole(&self) -> Option<u32> {
        (self.length == Length::Short || self.count > 1).then_some(self.packet).filter(|packet| *packet > 0)
    }

    /// Whether short ones have stood still as well.
    pub(super) fn has_short_stood(&self) -> bool {
        self.short_stood
    }

    /// Since when each socket stands still, and how many have.
    pub(super) fn standing(&self) -> Option<(Duration, u32)> {
        self.stood.map(|(first, _)| (first, self.count))
    }

    /// Whether another socket may stand still as one has.
    pub(super) fn is_in_doubt(&self, now: Duration) -> bool {
        self.is_trial() || self.stood.is_some_and(|(_, last)| now.saturating_sub(last) < IN_A_ROW)
    }

    /// Whether sockets have stood still in a row for so long.
    pub(super) fn has_stood_for(&self, time: Duration, now: Duration) -> bool {
        self.stood.is_some_and(|(first, _)| self.count > 1 && now.saturating_sub(first) >= time)
    }

    /// A socket stands still.
    pub(super) fn stood_still(&mut self, now: Duration, sight: &Sight) {
        if !sight.is_long() {
            return;
        }
        let before = self.stood.filter(|(_, last)| sight.is_barren() && now.saturating_sub(*last) < IN_A_ROW);
        self.stood = Some((before.map_or(now, |(first, _)| first), now));
        self.count = if before.is_some() { self.count + 1 } else { 1 };
        self.short_stood = sight.segment <= SHORT_V4 || (self.short_stood && before.is_some());
        match self.length {
            Length::Full => {
                self.packet = sight.path_mtu;
                if before.is_some() && sight.segment > SHORT_V4 {
                    self.length = Length::Trial;
                }
            }
            Length::Trial => self.length = Length::Full,
            Length::Short => {}
        }
    }

    /// A call has not been answered in time: short packets do not get through either.
    pub(super) fn unanswered(&mut self, now: Duration) {
        if self.stood.is_some_and(|(_, last)| now.saturating_sub(last) < SILENCE) {
            return;
        }
        (self.stood, self.count) = (None, 0);
        if self.is_trial() {
            self.length = Length::Full;
        }
    }

    /// The peer has found that its long packets do not get through.
    pub(super) fn asked(&mut self, now: Duration) {
        if self.length == Length::Full {
            (self.length, self.is_asked, self.stood, self.count) = (Length::Trial, true, Some((now, now)), 1);
        }
    }

    /// Whether to ask a peer that has called with these segments for short ones. Not for ever: it may not be able to.
    pub(super) fn ask(&mut self, segment: u32, now: Duration) -> bool {
        if !self.is_short() || segment <= SHORT_V4 {
            self.asking = None;
            return false;
        }
        now.saturating_sub(*self.asking.get_or_insert(now)) < ASKING
    }

    /// Looks at an open socket: whether short segments carry what long ones did not.
    pub(super) fn look(&mut self, sight: &Sight) -> bool {
        let is_shown = self.is_trial() && sight.segment <= SHORT_V4 && sight.acknowledged >= CARRIED_BYTES;
        if is_shown {
            (self.length, self.stood, self.count) = (Length::Short, None, 0);
        } else if self.is_trial() && sight.segment > SHORT_V4 && !sight.is_barren() {
            *self = Self::default();
        }
        is_shown
    }

    /// Whether it is this side that has found it.
    pub(super) fn is_own(&self) -> bool {
        !self.is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLACK: Sight = Sight {
        retransmits: 2,
        acknowledged: 700,
        outstanding: 60_000,
        segment: 1448,
        path_mtu: 1500,
        heard: Duration::from_millis(250),
        resending: Duration::from_millis(600),
    };
    const SHORTER: Sight = Sight { segment: 1188, ..BLACK };

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn on_trial() -> Segments {
        let mut segments = Segments::default();
        segments.stood_still(at(600), &Sight { acknowledged: 1 << 30, ..BLACK });
        assert!(!segments.is_short(), "one socket may stand still");
        assert!(segments.is_in_doubt(at(30_500)) && !segments.is_in_doubt(at(30_600)));
        segments.stood_still(at(1300), &BLACK);
        assert!(segments.is_short(), "the second carried nothing long");
        assert!(segments.is_in_doubt(at(100_000)));
        segments
    }

    #[test]
    fn two_sockets_in_a_row_that_carry_nothing_long_make_segments_short() {
        let mut segments = on_trial();
        assert!(!segments.look(&Sight { acknowledged: 800, ..SHORTER }), "frames alone show nothing");
        assert!(segments.look(&Sight { acknowledged: 5000, ..SHORTER }) && segments.is_own());
        assert!(!segments.look(&Sight { acknowledged: 50_000, ..SHORTER }), "it is said once");
        assert_eq!((segments.hole(), segments.standing()), (Some(1500), None));
        // From then on, whatever the link does.
        segments.unanswered(at(80_000));
        segments.stood_still(at(90_000), &SHORTER);
        assert!(segments.is_short());
    }

    #[test]
    fn a_link_that_is_down_leaves_segments_as_they_are() {
        let twice = |change: &dyn Fn(&mut Segments), second: Duration, sight: Sight| {
            let mut segments = Segments::default();
            segments.stood_still(at(600), &BLACK);
            change(&mut segments);
            segments.stood_still(second, &sight);
            segments.is_short()
        };
        assert!(twice(&|_| (), at(1300), BLACK));
        assert!(
            twice(&|segments| segments.unanswered(at(900)), at(1300), BLACK),
            "a far peer's answer takes its time"
        );
        assert!(!twice(&|segments| segments.unanswered(at(3600)), at(5000), BLACK), "no call was answered");
        assert!(!twice(&|_| (), at(31_000), BLACK), "another outage, later");
        assert!(
            !twice(&|_| (), at(1300), Sight { acknowledged: 3000, ..BLACK }),
            "long segments got through"
        );
        assert!(!twice(&|_| (), at(1300), Sight { outstanding: 64, ..BLACK }), "nothing long was under way");
        assert!(!twice(&|_| (), at(1300), SHORTER), "the path's segments are short anyway");
    }

    #[test]
    fn a_trial_that_shows_nothing_ends() {
        let mut unanswered = on_trial();
        unanswered.unanswered(at(4300));
        assert_eq!((unanswered.is_short(), unanswered.standing()), (false, None));
        // Short ones stand still too: long ones again, and then short ones again, while the row goes on.
        let mut standing = on_trial();
        let is_short = [2000, 2700, 3400].map(|millis| {
            standing.stood_still(at(millis), if standing.is_short() { &SHORTER } else { &BLACK });
            standing.is_short()
        });
        assert_eq!(is_short, [false, true, false]);
        assert_eq!((standing.standing(), standing.hole()), (Some((at(600), 5)), Some(1500)));
        assert!(standing.has_short_stood() && !on_trial().has_short_stood());
        // The first of another row.
        standing.stood_still(at(40_000), &BLACK);
        assert!(!standing.has_short_stood());
    }

    #[test]
    fn a_row_goes_on_for_as_long_as_nothing_is_carried() {
        let mut segments = Segments::default();
        let patience = Duration::from_secs(30);
        for stall in 0..40 {
            segments.stood_still(at(600 + stall * 800), if segments.is_short() { &SHORTER } else { &BLACK });
            assert_eq!(segments.has_stood_for(patience, at(600 + stall * 800)), stall >= 38, "{stall}");
        }
        segments.stood_still(at(40_000), &Sight { acknowledged: 1 << 20, ..BLACK });
        assert!(
            !segments.has_stood_for(patience, at(80_000)),
            "one that carried something is the first of another row"
        );
    }

    #[test]
    fn the_side_that_is_called_asks_and_does_not_insist() {
        let mut called = Segments::default();
        assert!(!called.ask(1448, at(0)), "it has no reason");
        let mut called = on_trial();
        let mut asks = |segment: u32, millis: u64| called.ask(segment, at(millis));
        assert!(
            asks(1448, 2000) && asks(1448, 2250) && asks(1448, 7900),
            "its answer may not have been heard"
        );
        assert!(!asks(1448, 8000) && !asks(1448, 9000), "it does not do so");
        assert!(!asks(1188, 9500), "it has");
        assert!(asks(1448, 9600), "and does no more");
        let mut calls = Segments::default();
        calls.asked(at(5));
        assert!(calls.is_short() && calls.look(&Sight { acknowledged: 5000, ..SHORTER }) && !calls.is_own());
        // A peer that calls with long ones all the same, and they get through.
        assert!(!called.look(&Sight { acknowledged: 5000, ..BLACK }) && !called.is_short());
    }

    #[test]
    fn how_long_the_same_is_sent_again_follows_from_the_timer_that_doubles() {
        // After 200, 400 and 800 ms; the last one that runs is of 1600.
        assert_eq!(resending(at(1600), 3), at(1400));
        assert_eq!(resending(at(200), 0), at(0));
        assert_eq!(resending(Duration::from_secs(120), 200), Duration::from_secs(120) / 65_536 * 65_535);
    }

    #[test]
    fn a_socket_stands_still_one_way_while_the_peers_packets_come() {
        assert!(BLACK.is_one_way());
        assert!(!Sight { heard: at(601), ..BLACK }.is_one_way(), "they have come before");
        assert!(Sight { heard: at(601), resending: at(1400), ..BLACK }.is_one_way());
        assert!(!Sight { heard: at(10), resending: at(30), ..BLACK }.is_one_way(), "a quick timer");
        assert!(!Sight { outstanding: 64, ..BLACK }.is_one_way());
        assert!(!Sight { retransmits: 1, ..BLACK }.is_one_way());
    }
}
