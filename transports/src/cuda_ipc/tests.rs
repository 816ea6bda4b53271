//! What an offer may be, without a driver.

use consort_cuda::IpcHandle;

use super::address::{OfferedArena, Way};
use crate::TransportError;

fn offers() -> Vec<OfferedArena> {
    let ways = [
        Way::Process,
        Way::Legacy(IpcHandle(std::array::from_fn(|at| at as u8))),
        Way::Shareable { desk: [3; 16], nonce: [4; 16], mapped_bytes: 1 << 21 },
    ];
    let offer = |way| OfferedArena {
        process: [1; 16],
        process_id: 4711,
        device: [2; 16],
        bytes: 1 << 40,
        key: 7,
        way,
    };
    ways.into_iter().map(offer).collect()
}

#[test]
fn an_offer_comes_back_from_its_bytes() {
    for offer in offers() {
        let bytes = offer.encode();
        assert!(bytes.len() <= 256, "{}", bytes.len());
        assert_eq!(OfferedArena::decode(&bytes).expect("an offer"), offer);
    }
}

#[test]
fn what_is_no_offer_is_refused() {
    let refused = |bytes: &[u8]| {
        matches!(OfferedArena::decode(bytes), Err(TransportError::BadAddress { transport: "cuda-ipc", .. }))
    };
    for offer in offers() {
        let bytes = offer.encode();
        assert!((0..bytes.len()).all(|length| refused(&bytes[..length])), "cut short");
        assert!(refused(&[&bytes[..], &[0]].concat()), "too long");
        let mut other = bytes.clone();
        other[0] ^= 1;
        assert!(refused(&other), "another magic");
        // Where the way is named: all before it has one length.
        let at = 4 + 16 + 4 + 16 + 8 + 8;
        for way in 0..=u8::MAX {
            let mut other = bytes.clone();
            other[at] = way;
            assert_eq!(refused(&other), way != bytes[at], "way {way}");
        }
    }
}
