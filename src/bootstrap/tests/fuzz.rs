//! Whatever the bytes are: decoders do not panic, reserve no more than the bytes warrant, and read back what was written.

use super::*;

/// Reproducible noise (splitmix64).
pub(super) struct Noise(u64);

impl Noise {
    pub(super) fn new(seed: u64) -> Self {
        Noise(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(super) fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = self.below(most + 1);
        (0..count).map(|_| self.next() as u8).collect()
    }
}

fn errors() -> Vec<Error> {
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
    let body = wire::encode_table(&[5; 32], members.iter());
    assert_eq!(wire::decode_table(&body, 2).unwrap(), ([5; 32], members.to_vec()));
    assert!(wire::decode_table(&body, 3).is_err());
    assert!(body.len() <= wire::table_max(2));
    for error in errors() {
        let body = wire::encode_failure(&error);
        assert!(!wire::decode_failure(&body).unwrap().to_string().is_empty());
        if !matches!(error, Error::Internal { .. }) {
            assert_eq!(format!("{:?}", wire::decode_failure(&body).unwrap()), format!("{error:?}"));
        }
    }
}

#[test]
fn the_longest_failure_fits_its_bound() {
    let missing = (0..wire::SIZE_MAX).filter(|rank| rank % 2 == 1).collect();
    let error =
        Error::MissingRanks { missing, size: wire::SIZE_MAX, waited: LONG, address: "é".repeat(20_000) };
    let body = wire::encode_failure(&error);
    assert!(body.len() + 32 <= wire::FAILURE_MAX);
    assert!(matches!(wire::decode_failure(&body), Ok(Error::MissingRanks { .. })));
    let mut wide = member(0);
    wide.host = "h".repeat(1000);
    wide.unix = vec![1; 108];
    wide.tcp = vec!["[fd00::1]:1".parse().unwrap(); 8];
    assert!(wire::encode_table(&[0; 32], vec![wide; 3].iter()).len() + 32 <= wire::table_max(3));
}

#[test]
fn noise_and_mutants_never_panic_and_never_reserve_more_than_their_bytes_warrant() {
    let seed: [u8; 8] = random().unwrap();
    eprintln!("seed {seed:?}");
    let mut noise = Noise::new(u64::from_le_bytes(seed));
    let mut originals = vec![
        wire::encode_hello(&hello(1, 2), LONG).unwrap(),
        wire::encode_table(&[1; 32], [member(0), member(1)].iter()),
        wire::encode_greeting(&[1; 32]),
        wire::encode_proof(&Proof { job: 1, nonce: [2; 32], proof: [3; 32] }),
    ];
    originals.extend(errors().iter().map(wire::encode_failure));
    let begun = Instant::now();
    let mut rounds = 0;
    while rounds < 40_000 && begun.elapsed() < Duration::from_secs(5) {
        rounds += 1;
        let mut bytes = if noise.below(8) == 0 {
            noise.bytes(300)
        } else {
            let at = noise.below(originals.len());
            originals[at].clone()
        };
        for _ in 0..noise.below(4) {
            if !bytes.is_empty() {
                let at = noise.below(bytes.len());
                match noise.below(4) {
                    0 => bytes[at] = noise.next() as u8,
                    1 => bytes[at] = 0xff,
                    2 => bytes.truncate(at),
                    _ => bytes.insert(at, noise.next() as u8),
                }
            }
        }
        if let Ok(seen) = wire::decode_hello(&bytes)
            && let Ok((settings, member)) = seen.rest
        {
            assert!(seen.rank < seen.size && seen.size <= wire::SIZE_MAX);
            assert!(settings.capacity() * 4 <= bytes.len() && member.tcp.capacity() <= 8);
        }
        if let Ok((_, members)) = wire::decode_table(&bytes, 2) {
            assert!(members.capacity() <= 2);
        }
        if let Ok(Error::MissingRanks { missing, size, .. }) = wire::decode_failure(&bytes) {
            assert!(missing.len() <= size as usize && size <= wire::SIZE_MAX);
        }
        let _ = (wire::decode_greeting(&bytes), wire::decode_proof(&bytes));
        let mut socket = bytes.as_slice();
        let _ = Incoming::default().read(&mut socket, |kind| (kind < 8).then_some(64));
        if let Ok(id) = <&[u8; 128]>::try_from(bytes.as_slice()) {
            let _ = UniqueId::from_bytes(id);
        }
    }
    // Ids that are damaged and carry a right checksum nevertheless.
    let valid = UniqueId::at(free_address(), SECRET).unwrap().to_bytes();
    for _ in 0..2000 {
        let mut bytes = valid;
        for _ in 0..=noise.below(3) {
            bytes[noise.below(124)] = noise.next() as u8;
        }
        let sum = crate::bootstrap::proof::digest(&bytes[..124]);
        bytes[124..].copy_from_slice(&sum[..4]);
        if let Ok(id) = UniqueId::from_bytes(&bytes) {
            assert_eq!(id.to_bytes(), bytes, "one meaning, one form");
        }
    }
    eprintln!("{rounds} rounds");
}
