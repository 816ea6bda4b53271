//! Structs of clients of every version, every rule, and random bytes.

use super::*;

/// A client's `ncclConfig_t`: its size, its version, all fields undefined but these ints.
fn struct_of(size: usize, code: u32, ints: &[(usize, i32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&size.to_ne_bytes());
    bytes.extend_from_slice(&reader::MAGIC.to_ne_bytes());
    bytes.extend_from_slice(&code.to_ne_bytes());
    while bytes.len() < size {
        let pointer = matches!(bytes.len(), 32 | 48);
        if pointer {
            bytes.extend_from_slice(&0u64.to_ne_bytes());
        } else {
            bytes.extend_from_slice(&i32::MIN.to_ne_bytes());
        }
    }
    bytes.truncate(size);
    for (at, value) in ints {
        bytes[*at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

fn pointer(bytes: &mut [u8], at: usize, address: u64) {
    bytes[at..at + 8].copy_from_slice(&address.to_ne_bytes());
}

fn texts(address: usize) -> Option<String> {
    match address {
        0x1000 => Some("Socket".into()),
        0x2000 => Some("my comm".into()),
        0x3000 => Some("Tree".into()),
        0x4000 => Some("rign".into()),
        0x5000 => Some("pairwise".into()),
        _ => None,
    }
}

fn decoded(bytes: &[u8]) -> Result<Config> {
    Config::decode(&bytes[..bytes.len().min(CONFIG_BYTES)], &mut texts)
}

const LATEST: (usize, u32) = (CONFIG_BYTES, 23_203);

/// The header of each version: version, size, and the last field with its offset.
const CLIENTS: [((u32, u32, u32), usize, usize); 12] = [
    ((2, 14, 3), 24, 16),
    ((2, 17, 1), 40, 28),
    ((2, 18, 1), 48, 40),
    ((2, 24, 3), 48, 40),
    ((2, 26, 2), 48, 44),
    ((2, 27, 3), 72, 68),
    ((2, 28, 3), 80, 76),
    ((2, 29, 2), 88, 84),
    ((2, 30, 3), 96, 88),
    ((2, 30, 5), 96, 92),
    ((2, 31, 2), 112, 108),
    ((2, 32, 3), 120, 112),
];

/// A value for every int, allowed everywhere.
fn ones(size: usize) -> Vec<(usize, i32)> {
    let last = if size == CONFIG_BYTES { 112 } else { size - 4 };
    (16..=last).step_by(4).filter(|at| !matches!(at, 32 | 36 | 48 | 52)).map(|at| (at, 1)).collect()
}

/// Number of ints that a config has.
fn ints(config: &Config) -> usize {
    let known = [config.blocking.map(i32::from), config.min_ctas, config.max_ctas];
    known.iter().flatten().count() + config.without_meaning.len()
}

#[test]
fn clients_of_every_version() {
    for ((major, minor, patch), size, last) in CLIENTS {
        let code = version(major, minor, patch);
        let config = decoded(&struct_of(size, code, &[])).expect("the initialiser's struct");
        assert_eq!(config, Config::default(), "2.{minor}.{patch}");
        // Every field up to the last is read, and no padding.
        let config = decoded(&struct_of(size, code, &ones(size))).expect("allowed values");
        let expected = (16..=last).step_by(4).filter(|at| !matches!(at, 32 | 36 | 48 | 52)).count();
        assert_eq!(ints(&config), expected, "2.{minor}.{patch}: {config:?}");
    }
}

#[test]
fn padding_is_no_field() {
    let traffic = |code| decoded(&struct_of(48, code, &[(44, 7)])).expect("a struct").without_meaning;
    assert_eq!((traffic(version(2, 18, 1)), traffic(version(2, 26, 2))), (vec![], vec![("trafficClass", 7)]));
    let ordering = |code| decoded(&struct_of(96, code, &[(92, 1)])).expect("a struct").without_meaning;
    assert_eq!(
        (ordering(version(2, 30, 4)), ordering(version(2, 30, 5))),
        (vec![], vec![("graphStreamOrdering", 1)])
    );
    // Padding that would be refused if it were a field.
    assert!(decoded(&struct_of(96, version(2, 30, 4), &[(92, 77)])).is_ok());
}

#[test]
fn larger_structs_are_cut_and_wrong_ones_refused() {
    let (size, code) = LATEST;
    let mut future = struct_of(size + 40, version(2, 40, 0), &[(16, 0)]);
    let config = decoded(&future).expect("a newer client");
    assert_eq!(config.blocking, Some(false));
    future[8] ^= 1;
    let error = decoded(&future).expect_err("no magic").to_string();
    assert!(error.contains("0xcafebeef") && error.contains("ncclConfig_t"), "{error}");
    for size in [0usize, 8, 15, 16, 23] {
        let mut bytes = struct_of(120, code, &[]);
        bytes[..8].copy_from_slice(&size.to_ne_bytes());
        let error = decoded(&bytes).expect_err("too short").to_string();
        assert!(error.contains(&format!("{size} bytes")), "{error}");
    }
    let whole = struct_of(size, code, &[]);
    assert!(decoded(&whole[..40]).is_err(), "fewer bytes than it says");
    assert!(decoded(&[]).is_err() && decoded(&whole[..7]).is_err());
    // A field that is cut in the middle is not read.
    let mut odd = struct_of(size, code, &[(24, 1), (28, 1)]);
    odd[..8].copy_from_slice(&30usize.to_ne_bytes());
    assert!(decoded(&odd).is_err(), "a minimum without a maximum");
    let mut odd = struct_of(size, code, &[(28, 1)]);
    odd[..8].copy_from_slice(&30usize.to_ne_bytes());
    assert_eq!(decoded(&odd).expect("half a field").max_ctas, None);
}

#[test]
fn every_rule_of_values() {
    let (size, code) = LATEST;
    let one = |at, value| decoded(&struct_of(size, code, &[(at, value)])).map(drop);
    for (name, at, good, wrong) in [
        ("blocking", 16, &[0, 1][..], &[-1, 2][..]),
        ("cgaClusterSize", 20, &[0, 8, 16], &[-1]),
        ("maxCTAs", 28, &[1, 64, i32::MAX], &[0, -1]),
        ("splitShare", 40, &[0, 1], &[2, -1]),
        ("trafficClass", 44, &[0, -5, 300], &[]),
        ("collnetEnable", 56, &[0, 1], &[2]),
        ("CTAPolicy", 60, &[0, 1, 2, 3], &[4, -1]),
        ("shrinkShare", 64, &[0, 1], &[2]),
        ("nvlsCTAs", 68, &[1], &[0, -1]),
        ("nChannelsPerNetPeer", 72, &[1, 64], &[0, 65]),
        ("nvlinkCentricSched", 76, &[0, 1], &[2]),
        ("graphUsageMode", 80, &[0, 1, 2], &[3, -1]),
        ("numRmaCtx", 84, &[0, 9], &[-1]),
        ("maxP2pPeers", 88, &[1], &[0, -1]),
        ("graphStreamOrdering", 92, &[0, 1], &[2]),
    ] {
        for value in good {
            assert!(one(at, *value).is_ok(), "{name} {value}");
        }
        for value in wrong {
            let error = one(at, *value).expect_err(name).to_string();
            assert!(error.contains(name) && error.contains(&value.to_string()), "{error}");
        }
    }
    let both = |least, most| decoded(&struct_of(size, code, &[(24, least), (28, most)])).is_ok();
    assert!(both(1, 1) && both(2, 8) && !both(3, 2) && !both(0, 2) && !both(-1, 2));
    let error = one(24, 2).expect_err("a minimum alone").to_string();
    assert!(error.contains("minCTAs is 2 and maxCTAs is unset"), "{error}");
}

#[test]
fn texts_are_read_where_pointers_lead() {
    let mut bytes = struct_of(LATEST.0, LATEST.1, &[]);
    pointer(&mut bytes, 32, 0x1000);
    pointer(&mut bytes, 48, 0x2000);
    let config = decoded(&bytes).expect("a struct");
    assert_eq!((config.net_name.as_deref(), config.comm_name.as_deref()), (Some("Socket"), Some("my comm")));
    bytes[12..16].copy_from_slice(&version(2, 18, 0).to_ne_bytes());
    assert_eq!(decoded(&bytes).expect("an older client").comm_name, None);
}

#[test]
fn children_and_blocking_and_options() {
    let parent = Config { blocking: Some(false), max_ctas: Some(2), ..Config::default() };
    assert_eq!(parent.inherit(None), parent);
    assert_eq!(parent.inherit(Some(Config::default())), Config::default());
    let blocking = |config: &Config, set: Option<&str>| {
        let lookup = |name: &str| set.filter(|_| name == "NCCL_COMM_BLOCKING").map(str::to_owned);
        config.blocking_in(&Environment::from_lookup(lookup))
    };
    assert!(blocking(&Config::default(), None) && !blocking(&parent, None));
    assert!(blocking(&parent, Some("1")) && !blocking(&Config::default(), Some("0")));
    assert!(!blocking(&parent, Some("2")) && blocking(&Config::default(), Some("maybe")));
    let options = Config { min_ctas: Some(2), max_ctas: Some(9), ..Config::default() }.to_options();
    assert_eq!(options.expect("options"), Options::default().channels_within(Some(2), Some(9)));
    let strange = Config { net_name: Some("IB".into()), ..Config::default() };
    assert!(strange.to_options().expect_err("no such network").to_string().contains("netName"));
    assert_eq!(parent.without_meaning, []);
    let (size, code) = LATEST;
    let policy = decoded(&struct_of(size, code, &[(60, 1)])).expect("a struct");
    assert_eq!(policy, Config { without_meaning: vec![("CTAPolicy", 1)], ..Config::default() });
}

/// A client's `ncclCollConfig_t` with all fields undefined but these ints.
fn call_of(size: usize, ints: &[(usize, i32)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes[..8].copy_from_slice(&size.to_ne_bytes());
    bytes[8..12].copy_from_slice(&reader::MAGIC.to_ne_bytes());
    bytes[12..16].copy_from_slice(&version(2, 31, 2).to_ne_bytes());
    let undefined = [24, 28, 32, 36, 52].map(|at| (at, i32::MIN));
    for (at, value) in undefined.iter().chain(&[(48, 1)]).chain(ints) {
        bytes[*at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

fn call(bytes: &[u8], extensions: &[Extension]) -> Result<CallConfig> {
    CallConfig::decode(bytes, extensions, &mut texts)
}

#[test]
fn calls_of_both_sizes() {
    let plain = CallConfig { forced: true, ..CallConfig::default() };
    assert_eq!(call(&call_of(64, &[]), &[]).expect("the first form"), plain);
    let mut newer = call_of(72, &[(24, 1), (28, 4), (32, 2), (36, 3), (52, 2)]);
    pointer(&mut newer, 56, 77);
    pointer(&mut newer, 64, 0xabc);
    assert_eq!(call(&newer, &[]).expect("the second form"), plain);
    assert!(call(&call_of(64, &[])[..63], &[]).is_err());
    for (at, value) in [(24, 0), (28, -1), (32, 0), (36, -1), (48, 2), (52, 4)] {
        assert!(call(&call_of(72, &[(at, value)]), &[]).is_err(), "{value} at {at}");
    }
    assert!(call(&call_of(72, &[(24, 3), (28, 2)]), &[]).is_err());
    assert!(call(&call_of(72, &[(24, 3)]), &[]).is_ok());
}

#[test]
fn algorithms_by_name_forced_or_as_a_hint() {
    use consort_algorithms::Collective::{AllReduce, AllToAll};
    use consort_algorithms::catalogue::Algorithm::{Pairwise, Tree};
    let named = |address, forced| {
        let mut bytes = call_of(72, &[(48, forced)]);
        pointer(&mut bytes, 40, address);
        call(&bytes, &[])
    };
    let tree = named(0x3000, 1).expect("NCCL's name");
    assert_eq!(tree.algorithm_for(AllReduce, 4), Some(Tree));
    assert_eq!(
        named(0x5000, 1).expect("ours").algorithm_for(AllReduce, 4),
        Some(Pairwise),
        "the call refuses it"
    );
    let hint = named(0x5000, 0).expect("a hint");
    assert_eq!((hint.algorithm_for(AllReduce, 4), hint.algorithm_for(AllToAll, 4)), (None, Some(Pairwise)));
    assert!(named(0x4000, 1).expect_err("no such").to_string().contains("known: pair, ring"));
    assert_eq!(named(0x4000, 0).expect("an unknown hint").algorithm, None);
}

#[test]
fn options_of_ours_in_ext() {
    let bytes = call_of(72, &[(48, 0)]);
    let ours = |option, value| (EXTENSION_VENDOR, option, value);
    let all = [(5, 1, 9), ours(EXTENSION_TIMEOUT_MS, 250), ours(EXTENSION_ALGORITHM, 0x3000)];
    let found = call(&bytes, &all).expect("options");
    assert_eq!(found.timeout, Some(std::time::Duration::from_millis(250)));
    assert!(found.forced && found.algorithm.is_some());
    // The bytes behind the int of a union have undefined content.
    let mut dirty = [0xff; 8];
    dirty[..4].copy_from_slice(&7i32.to_ne_bytes());
    let found = call(&bytes, &[ours(EXTENSION_TIMEOUT_MS, u64::from_ne_bytes(dirty))]).expect("an int");
    assert_eq!(found.timeout, Some(std::time::Duration::from_millis(7)));
    for wrong in [ours(1, 0), ours(1, u64::MAX), ours(2, 0), ours(2, 0x4000), ours(3, 1), ours(-1, 1)] {
        assert!(call(&bytes, &[wrong]).is_err(), "{wrong:?}");
    }
    assert!((1..1 << 24).contains(&EXTENSION_VENDOR));
}

#[test]
fn random_bytes_never_panic() {
    let mut random = consort_testing::Random::announced("random_bytes_never_panic");
    let mut next = || random.draw();
    let (mut good, mut wrong) = (0, 0);
    for _ in 0..20_000 {
        let length = (next() % 140) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| next() as u8).collect();
        // Most structs have a valid head, so that fields are read.
        if length >= 16 && !next().is_multiple_of(8) {
            bytes[..8].copy_from_slice(&(next() as usize % 150).to_ne_bytes());
            bytes[8..12].copy_from_slice(&reader::MAGIC.to_ne_bytes());
            bytes[12..16].copy_from_slice(&(21_000 + next() as u32 % 3000).to_ne_bytes());
            for at in (16..length.saturating_sub(4)).step_by(4) {
                if !next().is_multiple_of(8) {
                    bytes[at..at + 4].copy_from_slice(&i32::MIN.to_ne_bytes());
                }
            }
        }
        let extensions = [(EXTENSION_VENDOR, next() as i32 % 4, next())];
        let results = [decoded(&bytes).is_ok(), call(&bytes, &extensions).is_ok(), call(&bytes, &[]).is_ok()];
        good += results.iter().filter(|ok| **ok).count();
        wrong += results.iter().filter(|ok| !**ok).count();
    }
    assert!(good > 100 && wrong > 100, "{good} structs and {wrong} errors: nothing was tried");
}
