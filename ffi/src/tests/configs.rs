//! Configs of clients of every version.

use std::ptr::{null, null_mut};

use super::*;

/// A client's `ncclConfig_t`: all fields undefined but these ints at these offsets; longer ones end in bytes without
/// a meaning here.
pub(super) fn config(size: usize, version: u32, ints: &[(usize, i32)]) -> Vec<u64> {
    let mut words = vec![0u64; size.div_ceil(8).max(2)];
    let undefined = u64::from_ne_bytes([0, 0, 0, 0x80, 0, 0, 0, 0x80]);
    for (at, word) in words.iter_mut().enumerate().skip(2) {
        *word = match at {
            // The two pointers.
            4 | 6 => 0,
            _ if at * 8 < 120 => undefined,
            _ => u64::MAX,
        };
    }
    words[0] = size as u64;
    words[1] = u64::from(version) << 32 | 0xcafe_beef;
    for (offset, value) in ints {
        let (word, shift) = (&mut words[offset / 8], offset % 8 * 8);
        *word = *word & !(0xffff_ffff << shift) | u64::from(*value as u32) << shift;
    }
    words
}

fn join_with(config: &[u64]) -> (c_int, Comm) {
    let mut comm = null_mut();
    let status = c!(ncclCommInitRankConfig(&mut comm, 1, unique_id(), 0, from(config)));
    (status, comm)
}

#[test]
fn clients_of_every_version_join() {
    within(DEADLINE, || {
        let known = [
            (24, 21_400),
            (40, 21_700),
            (48, 21_800),
            (48, 22_600),
            (72, 22_700),
            (80, 22_800),
            (88, 22_900),
            (96, 23_004),
            (96, 23_007),
            (112, 23_102),
            (120, 23_203),
            // Clients of future versions.
            (128, 23_300),
            (400, 24_000),
        ];
        for (size, version) in known {
            let (status, comm) = join_with(&config(size, version, &[(16, 1)]));
            assert_eq!(status, OK, "{size} bytes of {version}: {}", last_error());
            works(0, 1, comm);
            assert_eq!(destroy(comm), OK);
        }
        let mut comm = null_mut();
        ok!(ncclCommInitRankConfig(&mut comm, 1, unique_id(), 0, null()));
        assert_eq!(destroy(comm), OK);
    });
}

#[test]
fn padding_of_older_clients_is_not_looked_at() {
    within(DEADLINE, || {
        // trafficClass (44) was padding in 2.18, graphStreamOrdering (92) in 2.30.4, where any bytes may stand.
        for (size, version, at) in [(48, 21_800, 44), (96, 23_004, 92)] {
            let (status, comm) = join_with(&config(size, version, &[(at, 0x5a5a_5a5a)]));
            assert_eq!(status, OK, "{}", last_error());
            assert_eq!(destroy(comm), OK);
        }
        assert_eq!(join_with(&config(96, 23_007, &[(92, 0x5a5a_5a5a)])).0, INVALID);
        // A field that the client's version does not have.
        let (status, comm) = join_with(&config(120, 21_400, &[(56, 9)]));
        assert_eq!((status, destroy(comm)), (OK, OK));
    });
}

#[test]
fn what_the_rules_forbid_is_refused() {
    within(DEADLINE, || {
        let wrong: [&[(usize, i32)]; 20] = [
            &[(16, 2)],
            &[(16, -1)],
            &[(20, -1)],
            &[(24, 0), (28, 4)],
            &[(24, 5), (28, 4)],
            &[(28, 0)],
            &[(24, 4)],
            &[(40, 2)],
            &[(56, 2)],
            &[(60, 4)],
            &[(60, -1)],
            &[(64, 7)],
            &[(68, 0)],
            &[(72, 0)],
            &[(72, 65)],
            &[(76, 3)],
            &[(80, 3)],
            &[(84, -1)],
            &[(88, 0)],
            &[(92, 2)],
        ];
        for ints in wrong {
            let (status, comm) = join_with(&config(120, 23_203, ints));
            assert_eq!(status, INVALID, "{ints:?}");
            assert!(comm.is_null());
        }
        for size in [0, 8, 16, 20, 23] {
            assert_eq!(join_with(&config(size, 21_400, &[])).0, INVALID, "{size} bytes");
        }
        let mut unmarked = config(120, 23_203, &[]);
        unmarked[1] = 23_203 << 32;
        assert_eq!(join_with(&unmarked).0, INVALID);
    });
}

#[test]
fn what_the_rules_allow_is_accepted() {
    within(DEADLINE, || {
        let right: [&[(usize, i32)]; 12] = [
            &[(20, 0)],
            &[(24, 1), (28, 1)],
            &[(28, 32)],
            &[(40, 1)],
            &[(56, 0)],
            &[(60, 2)],
            &[(60, 3)],
            &[(64, 1), (68, 1)],
            &[(72, 64), (76, 1)],
            &[(80, 0), (84, 0)],
            &[(88, 1), (92, 0)],
            &[(44, 105), (112, i32::MAX)],
        ];
        for ints in right {
            let (status, comm) = join_with(&config(120, 23_203, ints));
            assert_eq!(status, OK, "{ints:?}: {}", last_error());
            works(0, 1, comm);
            assert_eq!(destroy(comm), OK);
        }
    });
}

#[test]
fn a_name_is_in_the_errors() {
    within(DEADLINE, || {
        let mut named = config(120, 23_203, &[]);
        named[6] = c"the pipeline".as_ptr().expose_provenance() as u64;
        let (status, comm) = join_with(&named);
        assert_eq!(status, OK, "{}", last_error());
        refused(reduce(&mut [0], 99, comm, NO_STREAM), "the pipeline");
        // A child without a config has its parent's.
        let mut child = null_mut();
        ok!(ncclCommSplit(comm, 0, 0, &mut child, null()));
        refused(reduce(&mut [0], 99, child, NO_STREAM), "the pipeline");
        destroy_all(&[child, comm]);
        let mut network = config(120, 23_203, &[]);
        network[4] = c"no such network".as_ptr().expose_provenance() as u64;
        assert_eq!(join_with(&network).0, INVALID);
    });
}

#[test]
fn a_child_has_its_own_config_if_it_has_one() {
    ranks(2, |rank, comm| {
        let (mut child, own) = (null_mut(), config(120, 23_203, &[(16, 0)]));
        ok!(ncclCommSplit(comm, 0, rank, &mut child, from(&own)));
        assert_eq!(settled(child), OK);
        // It does not block, its parent does.
        let mut sum = [rank + 1];
        let status = reduce(&mut sum, SUM, child, NO_STREAM);
        assert!(status == OK || status == PENDING, "{status}");
        assert_eq!(settled(child), OK);
        assert_eq!(sum, [3]);
        let mut other = null_mut();
        refused(
            c!(ncclCommSplit(comm, 0, rank, &mut other, from(&config(120, 23_203, &[(40, 5)])))),
            "splitShare",
        );
        assert_eq!(destroy(child), OK);
        works(rank, 2, comm);
    });
}

/// A client's `ncclCollConfig_t`.
fn call_config(size: usize, version: u32, algorithm: *const std::ffi::c_char, forced: i32) -> [u64; 10] {
    let undefined = u64::from_ne_bytes([0, 0, 0, 0x80, 0, 0, 0, 0x80]);
    let mut words = [undefined; 10];
    words[0] = size as u64;
    words[1] = u64::from(version) << 32 | 0xcafe_beef;
    words[2] = 0;
    words[5] = algorithm.expose_provenance() as u64;
    words[6] = 0x8000_0000 << 32 | u64::from(forced as u32);
    words[7] = 0;
    words[8] = 0;
    words
}

#[test]
fn a_call_may_have_a_config() {
    ranks(2, |rank, comm| {
        for (size, version) in [(64, 23_102), (72, 23_203), (80, 23_300)] {
            let own = call_config(size, version, null(), 1);
            let (mut sum, config) = ([rank + 1], from(&own));
            let place = to(&mut sum);
            ok!(ncclAllReduceConfig(place, place, 1, INT32, SUM, comm, NO_STREAM, config));
            assert_eq!(sum, [3]);
            let (mine, mut both) = ([rank; 2], [9; 4]);
            ok!(ncclAllGatherConfig(from(&mine), to(&mut both), 2, INT32, comm, NO_STREAM, config));
            assert_eq!(both, [0, 0, 1, 1]);
        }
        let mut sum = [rank + 1];
        let place = to(&mut sum);
        ok!(ncclAllReduceConfig(place, place, 1, INT32, SUM, comm, NO_STREAM, null()));
        assert_eq!(sum, [3]);
        // An algorithm by name, and one that does not exist, forced and as a hint.
        let ring = call_config(72, 23_203, c"ring".as_ptr(), 1);
        ok!(ncclAllReduceConfig(place, place, 1, INT32, SUM, comm, NO_STREAM, from(&ring)));
        let unknown = call_config(72, 23_203, c"no such thing".as_ptr(), 1);
        refused(
            c!(ncclAllReduceConfig(place, place, 1, INT32, SUM, comm, NO_STREAM, from(&unknown))),
            "no such thing",
        );
        let wish = call_config(72, 23_203, c"no such thing".as_ptr(), 0);
        ok!(ncclAllReduceConfig(place, place, 1, INT32, SUM, comm, NO_STREAM, from(&wish)));
        assert_eq!(sum, [12]);
        let mut broken = call_config(72, 23_203, null(), 1);
        broken[1] = 0;
        assert_eq!(
            c!(ncclAllReduceConfig(place, place, 1, INT32, SUM, comm, NO_STREAM, from(&broken))),
            INVALID
        );
        works(rank, 2, comm);
    });
}

#[test]
fn every_collective_has_a_form_with_a_config() {
    ranks(1, |_, comm| {
        let own = call_config(72, 23_203, null(), 1);
        let (mut input, mut output, config, none) = ([4], [0], from(&own), NO_STREAM);
        let (input, place) = (to(&mut input).cast_const(), to(&mut output));
        let statuses = [
            c!(ncclAllReduceConfig(input, place, 1, INT32, SUM, comm, none, config)),
            c!(ncclBroadcastConfig(input, place, 1, INT32, 0, comm, none, config)),
            c!(ncclReduceConfig(input, place, 1, INT32, SUM, 0, comm, none, config)),
            c!(ncclAllGatherConfig(input, place, 1, INT32, comm, none, config)),
            c!(ncclReduceScatterConfig(input, place, 1, INT32, SUM, comm, none, config)),
            c!(ncclAlltoAllConfig(input, place, 1, INT32, comm, none, config)),
            c!(ncclGatherConfig(input, place, 1, INT32, 0, comm, none, config)),
            c!(ncclScatterConfig(input, place, 1, INT32, 0, comm, none, config)),
        ];
        assert_eq!((statuses, output), ([OK; 8], [4]));
    });
}
