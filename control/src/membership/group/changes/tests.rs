//! Changes among ranks of one process, whose messages arrive at once; each rank takes up what it has heard when the test lets it.

use std::sync::{Arc, Weak};

use super::*;
use crate::bootstrap;
use crate::clock::Clock;
use crate::membership::member::{Link, Member};
use crate::membership::overlay::FULL_MAX;
use crate::recorder::{RECORDS, Snapshot};

/// A group of each rank, on these hosts.
fn job(hosts: &[u8]) -> Vec<Arc<Group>> {
    let info = |host: &u8| bootstrap::Member { host_key: [*host; 16], ..bootstrap::Member::unknown() };
    let table: Vec<bootstrap::Member> = hosts.iter().map(info).collect();
    let size = table.len() as u32;
    let member = |rank| {
        let (clock, registry) = (Clock::default(), Arc::default());
        Member::within(Weak::new(), clock, registry, [5; 16], [6; 32], rank, table.clone(), FULL_MAX)
    };
    let members: Vec<Arc<Member>> = (0..size).map(member).collect();
    for member in &members {
        for peer in &members {
            member.set_link(peer.rank, Link::Local(Arc::downgrade(peer)));
        }
    }
    members.into_iter().map(|member| Group::new(member, 7, (0..size).collect(), RECORDS)).collect()
}

fn lost(host: u32, left: u32, of: u32) -> LostPaths {
    LostPaths { host, left, of }
}

#[test]
fn ranks_go_over_at_one_number_past_what_all_have_promised() {
    let ranks = job(&[0, 0, 1]);
    ranks[1].say_paths(vec![(0, 1, 1), (2, 1, 2)]);
    for (rank, last) in ranks.iter().zip([30, 41, 12]) {
        assert_eq!(rank.take_change(), None, "rank {} has not promised", rank.rank);
        assert_eq!(rank.take_proposed(), Some(1));
        assert_eq!(rank.take_proposed(), None, "once");
        rank.promise(1, last);
    }
    let both = vec![lost(0, 1, 2), lost(1, 1, 2)];
    for rank in &ranks {
        assert!(rank.has_changes());
        assert_eq!(rank.take_change(), Some(Change { from: 42, lost: both.clone() }));
        assert_eq!((rank.take_change(), rank.has_changes()), (None, false));
    }
    // The other end says the same a moment later, and then the path is back.
    ranks[2].say_paths(vec![(0, 1, 2), (1, 1, 2)]);
    assert!(ranks.iter().all(|rank| !rank.has_changes()), "nothing is new");
    ranks[1].say_paths(vec![(0, 1, 1), (2, 2, 2)]);
    assert!(ranks.iter().all(|rank| !rank.has_changes()), "one end has it lost");
    ranks[2].say_paths(vec![(0, 2, 2), (1, 2, 2)]);
    for rank in &ranks {
        assert_eq!(rank.take_proposed(), Some(2));
        rank.promise(2, 20);
    }
    for rank in &ranks {
        assert_eq!(rank.take_change(), Some(Change { from: 42, lost: Vec::new() }), "numbers never fall");
    }
}

#[test]
fn the_host_whose_adapter_is_down_is_found_among_those_it_is_linked_to() {
    let lead = |said: &[(Rank, &[Sight])], hosts: &[u32]| {
        let sights = said.iter().map(|(rank, sights)| (*rank, sights.to_vec())).collect();
        Lead { sights, ..Lead::default() }.lost(hosts)
    };
    // Of two of three hosts it is known that they lost nothing between each other.
    assert_eq!(
        lead(&[(1, &[(0, 1, 2), (2, 1, 2)]), (0, &[(1, 1, 2), (2, 2, 2)])], &[0, 1, 2]),
        [lost(1, 1, 2)]
    );
    // Of the way between the other two nothing is known.
    assert_eq!(lead(&[(1, &[(0, 1, 2), (2, 1, 2)])], &[0, 1, 2]), [0, 1, 2].map(|host| lost(host, 1, 2)));
    assert_eq!(
        lead(
            &[(0, &[(1, 1, 2), (2, 2, 2)]), (1, &[(0, 1, 2), (2, 1, 2)]), (2, &[(0, 2, 2), (1, 1, 2)])],
            &[0, 1, 2]
        ),
        [lost(1, 1, 2)]
    );
    // A wire between two of three hosts is no adapter.
    assert_eq!(
        lead(
            &[(0, &[(1, 1, 2), (2, 2, 2)]), (1, &[(0, 1, 2), (2, 2, 2)]), (2, &[(0, 2, 2), (1, 2, 2)])],
            &[0, 1, 2]
        ),
        []
    );
    // Within a host, and without any path, nothing is planned for.
    assert_eq!(lead(&[(0, &[(1, 1, 2), (2, 0, 2)])], &[0, 0, 1]), []);
}

#[test]
fn one_change_follows_the_other_and_what_is_proposed_late_is_the_latest() {
    let ranks = job(&[0, 1]);
    ranks[0].say_paths(vec![(1, 2, 3)]);
    assert_eq!(ranks[1].take_proposed(), Some(1));
    ranks[1].promise(1, 16);
    ranks[0].say_paths(vec![(1, 1, 3)]);
    assert_eq!(ranks[1].take_proposed(), None, "one at a time");
    assert_eq!(ranks[0].take_proposed(), Some(1));
    ranks[0].promise(1, 18);
    for rank in &ranks {
        let change = rank.take_change().expect("all have promised");
        assert_eq!((change.from, change.lost), (19, vec![lost(0, 2, 3), lost(1, 2, 3)]));
        assert_eq!(rank.take_proposed(), Some(2), "what was said meanwhile");
    }
}

#[test]
fn a_rank_that_has_left_is_not_waited_for_and_without_rank_0_none_is() {
    let ranks = job(&[0, 1, 1]);
    ranks[0].say_paths(vec![(1, 1, 2)]);
    ranks.iter().take(2).for_each(|rank| {
        rank.take_proposed();
        rank.promise(1, 16);
    });
    assert_eq!(ranks[0].take_change(), None);
    ranks[0].receive(2, Message::Leave { snapshot: Snapshot::default() });
    assert!(ranks[0].take_change().is_some() && ranks[1].take_change().is_some());
    ranks[1].say_paths(vec![(0, 2, 2)]);
    ranks[0].say_paths(vec![(1, 2, 2)]);
    assert_eq!(ranks[1].take_proposed(), Some(2));
    assert!(!ranks[1].is_change_over());
    ranks[1].receive(0, Message::Leave { snapshot: Snapshot::default() });
    assert!(ranks[1].is_change_over());
}

#[test]
fn only_rank_0_proposes_and_agrees() {
    let ranks = job(&[0, 1, 2]);
    let change = || Message::Change { change: 1, from: 3, lost: vec![(0, 1, 2)] };
    ranks[2].receive(1, Message::Propose { change: 9 });
    ranks[2].receive(1, change());
    assert!(!ranks[2].has_changes());
    // A late promise, one of a change that there is not, and paths of ranks that there are not.
    ranks[0].receive(1, Message::Promise { change: 1, last: u64::MAX });
    ranks[0].receive(1, Message::Paths { sights: vec![(7, 1, 2), (2, 3, 2), (0, 1, 1 << 20)] });
    assert!(!ranks[0].has_changes());
    // One that sends the same again changes nothing.
    ranks[2].receive(0, change());
    ranks[2].receive(0, change());
    assert!(ranks[2].take_change().is_some() && ranks[2].take_change().is_none());
}
