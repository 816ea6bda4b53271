//! Whatever the bytes are: decoders do not panic, reserve no more than the bytes warrant, and read back what was written.

use std::sync::Arc;

use super::*;
use crate::bootstrap::relay::{Referral, Spread};
use crate::handshake::Claim;

pub(super) use consort_transports::fuzzing::Random;
use consort_transports::fuzzing::{Seen, Target, fuzz};

const SPREAD: Spread = Spread { whole_max: 7, fanout: 3 };

/// Texts are kept as they are, addresses and settings in lists of twice their number at most; a range of ranks (8 bytes)
/// becomes each of its ranks, 65,536 at most, in a list that grows by doubling.
const WIRE: Target = Target {
    name: "bootstrap-wire",
    command: "-p consort-control --lib bootstrap::tests::fuzz::noise",
    bytes_max: 2 << 20,
    inputs: 40_000,
};

pub(super) fn errors() -> Vec<Error> {
    vec![
        Error::Settings { difference: "a: ranks 0, 1 say 1".into() },
        Error::MissingRanks {
            missing: vec![0, 1, 2, 5, 9],
            size: 10,
            waited: Duration::from_millis(1234),
            address: "10.0.0.1:4".into(),
        },
        Error::Join { rank: 3, cause: "cause".into(), hint: "hint".into() },
        Error::PeerLost { rank: 4, place: "here".into(), operation: None, cause: "gone".into() },
        Error::internal("x"),
    ]
}

#[test]
fn what_was_written_is_read_back() {
    let seen =
        wire::decode_hello(&wire::encode_hello(&hello(2, 3), Duration::from_millis(77)).unwrap()).unwrap();
    assert_eq!((seen.rank, seen.size, seen.timeout), (2, 3, Duration::from_millis(77)));
    assert_eq!(seen.rest.unwrap(), (hello(2, 3).settings, member(2)));
    let members = [member(0), member(1)];
    let body = wire::encode_table(&[5; 32], SPREAD, members.iter());
    assert_eq!(wire::decode_table(&body, 2).unwrap(), ([5; 32], SPREAD, members.to_vec()));
    assert!(wire::decode_table(&body, 3).is_err());
    assert!(body.len() <= wire::table_max(2));
    for error in errors() {
        assert_eq!(format!("{:?}", Error::whole(&bytes_of(&error)).unwrap()), format!("{error:?}"));
    }
}

fn referral(ranks: &[Rank]) -> Referral {
    let sources = ranks.iter().map(|rank| (*rank, member(*rank))).collect();
    Referral { nonce: [1; 32], digest: [2; 32], sources }
}

#[test]
fn a_referral_names_one_or_two_ranks_of_the_job() {
    let read = |ranks: &[Rank]| Referral::decode(&referral(ranks).encode(), 3);
    assert_eq!(read(&[2, 0]), Ok(referral(&[2, 0])));
    assert_eq!(read(&[1]), Ok(referral(&[1])));
    assert!([&[][..], &[0, 1, 2], &[3], &[0, 3]].into_iter().all(|ranks| read(ranks).is_err()));
    let none = bytes_of(&([0u8; 32], Spread { fanout: 0, ..SPREAD }, Vec::<Member>::new()));
    assert!(wire::decode_table(&none, 0).is_err(), "given to no rank");
}

#[test]
fn what_is_in_a_host_travels_once_and_reaches_all_of_its_ranks() {
    let of = |rank: u32, host: u8, hardware: &str| Member {
        host_key: [host; 16],
        hardware: Arc::new(hardware.as_bytes().to_vec()),
        ..member(rank)
    };
    let long = "x".repeat(wire::HARDWARE_MAX);
    // The first rank of host 1 does not know; host 2 says nothing.
    let members = [of(0, 1, ""), of(1, 1, &long), of(2, 2, ""), of(3, 1, &long), of(4, 3, "three")];
    let body = wire::encode_table(&[5; 32], SPREAD, members.iter());
    assert!(body.len() < long.len() + 5 * 640 && body.len() <= wire::table_max(5), "{}", body.len());
    let read: Vec<usize> =
        wire::decode_table(&body, 5).expect("a table").2.iter().map(|member| member.hardware.len()).collect();
    assert_eq!(read, [long.len(), long.len(), 0, long.len(), 5]);
    // Said by another rank than a host's first, or of very many hosts, it is refused: one meaning has one form.
    let twice = |first: &str, second: &str| {
        let mut body = bytes_of(&([5u8; 32], SPREAD, 2u32));
        [of(0, 1, first), of(1, 1, second)].iter().for_each(|member| member.put(&mut body));
        wire::decode_table(&body, 2).map(|_| ())
    };
    assert_eq!(twice("one", ""), Ok(()));
    assert!(twice("one", "one").is_err() && twice("", "one").is_err());
    let mut body = bytes_of(&([5u8; 32], SPREAD, 129u32));
    (0..129).for_each(|host| of(host, host as u8, "a host").put(&mut body));
    assert!(wire::decode_table(&body, 129).is_err());
    // Of very many hosts none is described, on any rank.
    let many: Vec<Member> =
        (0..129).map(|host| Member { process: [1; 16], ..of(host, host as u8, "a host") }).collect();
    let read =
        wire::decode_table(&wire::encode_table(&[5; 32], SPREAD, many.iter()), 129).expect("a table").2;
    assert!(read.iter().all(|member| member.hardware.is_empty()));
    let mut hello = hello(0, 1);
    hello.member.hardware = Arc::new((long + "x").into_bytes());
    assert!(wire::encode_hello(&hello, LONG).is_err());
}

#[test]
fn the_longest_failure_fits_its_bound() {
    let missing = (0..wire::SIZE_MAX).filter(|rank| rank % 2 == 1).collect();
    let error =
        Error::MissingRanks { missing, size: wire::SIZE_MAX, waited: LONG, address: "é".repeat(20_000) };
    let body = bytes_of(&error);
    assert!(body.len() + 32 <= wire::FAILURE_MAX);
    assert!(matches!(Error::whole(&body), Ok(Error::MissingRanks { .. })));
    // Of this rank all is known.
    let mut wide = hello(2, 3);
    wide.member.host = "h".repeat(1000);
    wide.member.unix = vec![1; 108];
    wide.member.tcp = vec!["[fd00::1]:1".parse().unwrap(); 8];
    let heard = wire::decode_hello(&wire::encode_hello(&wide, LONG).unwrap()).unwrap();
    let member = heard.rest.unwrap().1;
    assert_eq!(member.host.len(), 255, "as much of it as fits");
    assert!(
        wire::encode_table(&[0; 32], SPREAD, vec![member.clone(); 3].iter()).len() + 32 <= wire::table_max(3)
    );
    let sources = vec![(0, member.clone()), (1, member)];
    let referral = Referral { nonce: [0; 32], digest: [0; 32], sources };
    assert!(referral.encode().len() + 32 <= wire::REFERRAL_MAX);
    // What does not fit into a table is refused when it is heard.
    let mut body = wire::encode_hello(&hello(0, 3), LONG).unwrap();
    let last = body.len() - 4 - 19;
    assert_eq!(body[last..last + 4], [1, 0, 0, 0], "how many addresses there are");
    body[last] = 9;
    for _ in 0..8 {
        body.extend_from_within(last + 4..last + 23);
    }
    assert!(wire::decode_hello(&body).is_err());
    wide.member.unix.push(1);
    assert!(wire::encode_hello(&wide, LONG).is_err());
}

#[test]
fn noise_and_mutants_never_panic_and_never_reserve_more_than_their_bytes_warrant() {
    let id = UniqueId::at("10.0.0.1:4".parse().unwrap(), SECRET).unwrap().to_bytes();
    let mut originals = vec![
        wire::encode_hello(&hello(1, 2), LONG).unwrap(),
        wire::encode_table(&[1; 32], SPREAD, [member(0), member(1)].iter()),
        wire::encode_table(
            &[1; 32],
            SPREAD,
            [member(0), member(1)]
                .map(|member| Member { hardware: Arc::new(b"a host".to_vec()), ..member })
                .iter(),
        ),
        marked(&[1; 32]),
        marked(&(1u64, [2; 32], [3; 32])),
        frame(7, &[&[1; 64]]),
        id.to_vec(),
    ];
    originals.push(referral(&[0, 1]).encode());
    originals.extend(errors().iter().map(bytes_of));
    let originals = originals.into_iter().map(|bytes| vec![bytes]).collect();
    fuzz(&WIRE, originals, |input, seen| decoders(&input.concat(), seen));
}

fn decoders(bytes: &[u8], seen: &mut Seen) {
    match wire::decode_hello(bytes) {
        Ok(hello) => {
            assert!(hello.rank < hello.size && hello.size <= wire::SIZE_MAX);
            if let Ok((settings, member)) = hello.rest {
                assert!(settings.len() * 4 <= bytes.len() && member.tcp.len() <= 8);
                seen.note(("hello", settings.len(), member.tcp.len()));
                // One meaning, one form.
                let again = Hello { rank: hello.rank, size: hello.size, settings, member };
                assert_eq!(wire::encode_hello(&again, hello.timeout).unwrap(), bytes);
            }
        }
        Err(what) => seen.note(("hello", what.0)),
    }
    match wire::decode_table(bytes, 2) {
        Ok((nonce, spread, members)) => {
            assert_eq!(members.len(), 2);
            assert_eq!(wire::encode_table(&nonce, spread, members.iter()), bytes);
        }
        Err(what) => seen.note(("table", what.0)),
    }
    match Referral::decode(bytes, 2) {
        Ok(referral) => {
            assert_eq!(referral.encode(), bytes);
            seen.note(("referral", referral.sources.len()));
        }
        Err(what) => seen.note(("referral", what.0)),
    }
    match Error::whole(bytes) {
        Ok(error) => {
            if let Error::MissingRanks { missing, .. } = &error {
                assert!(missing.len() <= wire::SIZE_MAX as usize && missing.is_sorted());
            }
            seen.note(("failure", std::mem::discriminant(&error), error.to_string().len().ilog2()));
            assert!(Error::whole(&bytes_of(&error)).is_ok());
        }
        Err(what) => seen.note(("failure", what.0)),
    }
    seen.note((unmarked::<[u8; 32]>(bytes).is_ok(), unmarked::<Claim<u64>>(bytes).is_ok()));
    let mut socket = bytes;
    let mut incoming = Incoming::default();
    while let Progress::Frame(kind, payload) = incoming.read(&mut socket, |kind| (kind < 8).then_some(64)) {
        assert!(payload.len() <= 64 && kind < 8);
        seen.note(("frame", kind));
    }
    // With a right checksum nevertheless.
    let mut id = [0; UniqueId::BYTES];
    let most = bytes.len().min(id.len());
    id[..most].copy_from_slice(&bytes[..most]);
    let _ = UniqueId::from_bytes(&id);
    let sum = crate::proof::digest(&id[..124]);
    id[124..].copy_from_slice(&sum[..4]);
    match UniqueId::from_bytes(&id) {
        Ok(read) => {
            assert_eq!(read.to_bytes(), id, "one meaning, one form");
            seen.note(("id", read.addresses.len()));
        }
        Err(error) => seen.note_text(&error.to_string()),
    }
}

#[test]
fn a_failure_that_names_no_ranks_of_too_many_is_refused() {
    let error = Error::MissingRanks { missing: vec![], size: 1 << 31, waited: LONG, address: "x".into() };
    assert!(Error::whole(&bytes_of(&error)).is_err());
}
