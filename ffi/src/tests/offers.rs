//! The library's calls beside moving data, and the features that it reports as absent.

use std::ptr::{null, null_mut};

use super::*;

/// An `ncclCommProperties_t` with these first fields, otherwise full of a byte that no test writes.
fn properties(size: usize, magic: u32, version: u32) -> [u8; 160] {
    let mut bytes = [0x5a; 160];
    bytes[..8].copy_from_slice(&size.to_ne_bytes());
    bytes[8..12].copy_from_slice(&magic.to_ne_bytes());
    bytes[12..16].copy_from_slice(&version.to_ne_bytes());
    bytes
}

fn number(bytes: &[u8], at: usize) -> i32 {
    i32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"))
}

#[test]
fn properties_are_written_as_the_client_knows_them() {
    ranks(3, |rank, comm| {
        // The end of the structure in this version of a client: 2.29.2, 2.29.7, 2.30.3, 2.30.7, 2.31, 2.32, and
        // later.
        let ends = [
            (22_902, 48),
            (22_907, 56),
            (23_003, 64),
            (23_007, 144),
            (23_102, 152),
            (23_203, 152),
            (29_900, 152),
        ];
        for (version, end) in ends {
            let mut bytes = properties(152, 0xcafe_beef, version);
            ok!(ncclCommQueryProperties(comm, to(&mut bytes)));
            assert_eq!((number(&bytes, 16), number(&bytes, 20)), (rank, 3));
            assert_eq!(
                (bytes[32], bytes[33], bytes[44]),
                (0, 0, 0),
                "no device interface, no one-sided writes"
            );
            assert!(bytes[end..].iter().all(|byte| *byte == 0x5a), "{version} has {end} bytes");
        }
        let mut short = properties(24, 0xcafe_beef, 23_203);
        ok!(ncclCommQueryProperties(comm, to(&mut short)));
        assert_eq!(number(&short, 20), 3);
        assert!(short[24..].iter().all(|byte| *byte == 0x5a));
        for (size, magic) in [(152, 0), (8, 0xcafe_beef), (0, 0)] {
            let mut broken = properties(size, magic, 23_203);
            assert_eq!(c!(ncclCommQueryProperties(comm, to(&mut broken))), INVALID);
            assert!(broken[16..].iter().all(|byte| *byte == 0x5a));
        }
        refused(c!(ncclCommQueryProperties(comm, null_mut())), "props is null");
        refused(c!(ncclCommQueryProperties(null_mut(), to(&mut short))), "null, freed");
    });
}

#[test]
fn all_ranks_have_one_hash() {
    within(DEADLINE, || {
        let hash = |comm| {
            let mut bytes = properties(152, 0xcafe_beef, 23_203);
            ok!(ncclCommQueryProperties(comm, to(&mut bytes)));
            u64::from_ne_bytes(bytes[56..64].try_into().expect("eight"))
        };
        let (one, two) = (all(2), all(1));
        assert_eq!(hash(one[0]), hash(one[1]));
        assert_ne!(hash(one[0]), hash(two[0]));
        destroy_all(&one);
        destroy_all(&two);
    });
}

#[test]
fn teams_are_of_all_or_of_one() {
    ranks(3, |rank, comm| {
        let world = c!(ncclTeamWorld(comm));
        assert_eq!((world.ranks, world.rank, world.stride), (3, rank, 1));
        let near = c!(ncclTeamLsa(comm));
        assert!(near.ranks >= 1 && near.rank < near.ranks, "{near:?}");
        for member in 0..3 {
            assert_eq!(c!(ncclTeamRankToWorld(comm, world, member)), member);
        }
        assert_eq!(c!(ncclTeamRankToWorld(comm, near, near.rank)), rank, "this rank in its own team");
        let none = c!(ncclTeamWorld(null_mut()));
        assert_eq!((none.ranks, none.rank), (0, 0));
    });
}

#[test]
fn what_is_not_offered_is_refused_and_leaves_the_communicator() {
    ranks(2, |rank, comm| {
        let (mut data, mut window) = ([0u8; 4096], std::ptr::without_provenance_mut(7));
        let place = to(&mut data);
        // A window: null, by which a client knows that it gains nothing from one.
        ok!(ncclCommWindowRegister(comm, place, 4096, &mut window, 1));
        assert!(window.is_null());
        ok!(ncclCommWindowDeregister(comm, null_mut()));
        refused(c!(ncclCommWindowDeregister(null_mut(), null_mut())), "null, freed");
        let foreign = std::ptr::without_provenance_mut(64);
        assert_eq!(c!(ncclCommWindowDeregister(comm, foreign)), USAGE, "an unknown window");
        assert_ne!(c!(ncclWinGetUserPtr(comm, foreign, &mut window)), OK);
        let one_sided = [
            c!(ncclPutSignal(place, 1, INT32, 1 - rank, null_mut(), 0, 0, 0, 0, comm, NO_STREAM)),
            c!(ncclSignal(1 - rank, 0, 0, 0, comm, NO_STREAM)),
            c!(ncclWaitSignal(0, null_mut(), comm, NO_STREAM)),
            c!(ncclDevCommCreate(comm, null_mut(), null_mut())),
        ];
        assert_eq!(one_sided, [USAGE; 4]);
        works(rank, 2, comm);
    });
}

#[test]
fn memory_is_given_and_taken_back() {
    within(DEADLINE, || {
        let mut memory = null_mut();
        ok!(ncclMemAlloc(&mut memory, 10_000));
        assert!(!memory.is_null() && memory.addr().is_multiple_of(4096));
        // SAFETY: the allocation has that many bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), 10_000) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(7);
        let within = c!(memory.cast::<u8>().add(64).cast());
        assert_eq!(c!(ncclMemFree(within)), INVALID, "not the address that was given");
        ok!(ncclMemFree(memory));
        assert_eq!(c!(ncclMemFree(memory)), INVALID, "freed before");
        ok!(ncclMemFree(null_mut()));
        ok!(ncclMemAlloc(&mut memory, 0));
        ok!(ncclMemFree(memory));
        refused(c!(ncclMemAlloc(null_mut(), 100)), "ptr is null");
        let mut untouched = std::ptr::without_provenance_mut(3);
        assert_ne!(c!(ncclMemAlloc(&mut untouched, usize::MAX)), OK);
        assert_eq!(untouched.addr(), 3);
    });
}

#[test]
fn given_memory_is_a_buffer() {
    ranks(2, |rank, comm| {
        let mut memory = null_mut();
        ok!(ncclMemAlloc(&mut memory, 4_000_000));
        // SAFETY: the allocation has that many bytes, aligned to a page.
        let numbers = unsafe { std::slice::from_raw_parts_mut(memory.cast::<i32>(), 1_000_000) };
        numbers.fill(rank + 1);
        assert_eq!(reduce(numbers, SUM, comm, NO_STREAM), OK);
        assert!(numbers.iter().all(|number| *number == 3));
        ok!(ncclMemFree(memory));
    });
}

#[test]
fn buffers_are_registered_once_and_deregistered_once() {
    within(DEADLINE, || {
        let comms = all(2);
        let (mut data, mut handle) = ([0u8; 64], null_mut());
        ok!(ncclCommRegister(comms[0], to(&mut data), 64, &mut handle));
        assert!(!handle.is_null());
        assert_eq!(c!(ncclCommDeregister(comms[1], handle)), USAGE, "of another communicator");
        ok!(ncclCommDeregister(comms[0], handle));
        assert_eq!(c!(ncclCommDeregister(comms[0], handle)), USAGE, "unknown by now");
        ok!(ncclCommDeregister(comms[0], null_mut()));
        assert_eq!(c!(ncclCommDeregister(comms[0], std::ptr::without_provenance_mut(0xbeef))), USAGE);
        refused(c!(ncclCommDeregister(null_mut(), null_mut())), "null, freed");
        refused(c!(ncclCommRegister(null_mut(), to(&mut data), 64, &mut handle)), "null, freed");
        refused(c!(ncclCommRegister(comms[0], to(&mut data), 64, null_mut())), "handle is null");
        destroy_all(&comms);
    });
}

#[test]
fn memory_is_counted() {
    ranks(2, |rank, comm| {
        works(rank, 2, comm);
        let counted = |statistic| {
            let mut value = u64::MAX;
            ok!(ncclCommMemStats(comm, statistic, &mut value));
            value
        };
        let [can_be_suspended, suspended, persists, total] = [0, 1, 2, 3].map(counted);
        assert_eq!(suspended, 0);
        assert_eq!(total, can_be_suspended + persists);
        let mut value = 7;
        for statistic in [-1, 4] {
            refused(c!(ncclCommMemStats(comm, statistic, &mut value)), "no memory counter");
        }
        refused(c!(ncclCommMemStats(comm, 0, null_mut())), "value is null");
        refused(c!(ncclCommMemStats(null_mut(), 0, &mut value)), "null, freed");
        assert_eq!(value, 7);
    });
}

#[test]
fn encryption_is_none() {
    let config = |magic, mode, psk| NcclEncryptionConfig {
        size: size_of::<NcclEncryptionConfig>(),
        magic,
        version: 23_203,
        mode,
        psk,
    };
    within(DEADLINE, move || {
        ok!(ncclSetEncryption(&config(API_MAGIC, 0, null())));
        assert_eq!(c!(ncclSetEncryption(&config(API_MAGIC, 1, c"key".as_ptr()))), USAGE);
        assert_eq!(c!(ncclSetEncryption(&config(0, 0, null()))), INVALID);
        assert_eq!(c!(ncclSetEncryption(&config(API_MAGIC, 2, null()))), INVALID);
        assert_eq!(c!(ncclSetEncryption(null())), INVALID);
    });
}

#[test]
fn the_version_is_the_headers() {
    let (mut version, mut twin) = (0, 0);
    ok!(ncclGetVersion(&mut version));
    ok!(pncclGetVersion(&mut twin));
    assert_eq!((version, twin), (23_203, 23_203));
}
