//! The lanes of a rank: which transfers run side by side and which one after the other.
//!
//! Invariant: a value that passes from one channel to another on a rank does so within one lane, and a value from
//! before a round is read before the round overwrites it. Absent: steps.

use std::collections::BTreeMap;

use crate::Own;
use crate::aliasing::output_of_input;
use crate::numbers::Numbers;
use crate::{Channel, Place, Rank, Schedule, Transfer};

/// A transfer of a lane.
#[derive(Clone, Copy)]
pub(super) struct Mine<'a> {
    pub(super) own: &'a Own,
    /// Whether the lane sends it before everything else.
    pub(super) ahead: bool,
}

/// The lane of each channel of a rank. Channels between which a value passes on this rank (one writes a place that
/// another touches) share a lane, so that the order of the rounds holds; all others run side by side.
pub(super) fn lanes(own: &[Own], rank: Rank) -> BTreeMap<Channel, usize> {
    let mut leader: BTreeMap<Channel, Channel> = BTreeMap::new();
    for of in own {
        leader.insert(of.transfer.channel, of.transfer.channel);
    }
    if leader.len() > 1 {
        // For each place that is written, a channel that touches it.
        let mut written: Numbers<Place, Channel> = Numbers::default();
        for Own { transfer, .. } in own.iter().filter(|of| of.transfer.to == rank) {
            written.insert(transfer.target, transfer.channel);
        }
        for Own { transfer, .. } in own {
            let read = (transfer.from == rank).then_some(transfer.source);
            let received = (transfer.to == rank).then_some([Some(transfer.target), transfer.fold]);
            for place in read.into_iter().chain(received.into_iter().flatten().flatten()) {
                if let Some(&channel) = written.get(&place) {
                    let pair = [find(&leader, transfer.channel), find(&leader, channel)];
                    leader.insert(pair[0].max(pair[1]), pair[0].min(pair[1]));
                }
            }
        }
    }
    let mut numbers: BTreeMap<Channel, usize> = BTreeMap::new();
    let mut lanes = BTreeMap::new();
    for &channel in leader.keys() {
        let next = numbers.len();
        lanes.insert(channel, *numbers.entry(find(&leader, channel)).or_insert(next));
    }
    lanes
}

fn find(leader: &BTreeMap<Channel, Channel>, mut channel: Channel) -> Channel {
    while leader[&channel] != channel {
        channel = leader[&channel];
    }
    channel
}

/// The wave of each transfer of a round: the `k`-th message through a mailbox goes in wave `k / window`, the
/// same at both ends.
pub(super) fn waves(round: &[Mine<'_>], rank: Rank, window: u32) -> Vec<u32> {
    if round.len() <= window as usize {
        return vec![0; round.len()];
    }
    let mut sent: Numbers<(Rank, Rank, Channel)> = Numbers::default();
    let wave = |mine: &Mine<'_>| {
        let Transfer { from, to, channel, .. } = mine.own.transfer;
        if from == rank && to == rank {
            return 0;
        }
        let count = sent.entry((from, to, channel)).or_default();
        *count += 1;
        (*count - 1) / window
    };
    round.iter().map(wave).collect()
}

/// Whether a transfer of a lane, asked in the order of transfers, is a send that the lane does before everything
/// else. It is a send of the own input, which is complete from the start. At most `window` of them go to one peer, so
/// that the first wave of the rest finds free slots too, and none overtakes another send to that peer.
pub(super) fn goes_ahead(rank: Rank, window: u32) -> impl FnMut(&Own) -> bool {
    let mut sent: Numbers<(Rank, Channel)> = Numbers::default();
    move |own| {
        let Transfer { from, to, channel, source, .. } = own.transfer;
        if from != rank || to == rank {
            return false;
        }
        let sent = sent.entry((to, channel)).or_default();
        *sent = if matches!(source, Place::Input(_)) { sent.saturating_add(1) } else { u32::MAX };
        *sent <= window
    }
}

/// Whether a place is written in one wave and its value from before the round read in a later one, in place or out of
/// place.
pub(super) fn overwrites_early(schedule: &Schedule, round: &[Mine<'_>], waves: &[u32], rank: Rank) -> bool {
    let alias = |place: Place| match place {
        Place::Input(chunk) => {
            output_of_input(schedule.collective, schedule.partition, rank, chunk).map(Place::Output)
        }
        _ => None,
    };
    // The first wave that writes a place, and the first that changes it in place.
    let mut written: Numbers<(Place, bool)> = Numbers::default();
    for (mine, &wave) in round.iter().zip(waves).filter(|(mine, _)| mine.own.transfer.to == rank) {
        let Transfer { from, source, target, fold, .. } = mine.own.transfer;
        // A copy of a piece onto itself in place changes nothing.
        let stays = from == rank && fold.is_none() && alias(source) == Some(target);
        for in_place in [Some(false), (!stays).then_some(true)].into_iter().flatten() {
            let first = written.entry((target, in_place)).or_insert(wave);
            *first = wave.min(*first);
        }
    }
    let early = |place: Place, wave: u32| {
        let places = [Some((place, false)), alias(place).map(|alias| (alias, true))];
        places.iter().flatten().any(|place| written.get(place).is_some_and(|&first| first < wave))
    };
    round.iter().zip(waves).any(|(mine, &wave)| {
        let Transfer { from, to, source, fold, .. } = mine.own.transfer;
        (from == rank && early(source, wave)) || (to == rank && fold.is_some_and(|fold| early(fold, wave)))
    })
}
