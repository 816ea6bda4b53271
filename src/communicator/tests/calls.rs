//! Calls that programs make themselves.

use std::time::Duration;

use consort_kernels::{DataType, ReduceOp};
use consort_memory::{Span, SpanMut};
use consort_types::call::{Call, Kind};

use crate::{Communicator, Error, Options};

/// An empty call is of one size class with a call of one byte, whose messages it must not wait for.
#[test]
fn an_empty_call_waits_for_nothing_whatever_ran_before() {
    let options = Options::default().timeout(Duration::from_secs(10));
    let mut ranks = Communicator::local_with(2, &options).expect("two ranks");
    std::thread::scope(|threads| {
        for comm in &ranks {
            threads.spawn(move || {
                for _ in 0..3 {
                    comm.all_reduce(&mut [comm.rank() as u8 + 1], ReduceOp::Sum).expect("both call it");
                }
            });
        }
    });
    // Only one rank makes it: what it waits for would never come.
    let first = ranks.remove(0);
    first.all_reduce::<u8>(&mut [], ReduceOp::Sum).expect("nothing moves");
}

#[test]
fn what_is_no_collective_of_equal_blocks_is_refused() {
    let comm = Communicator::local(1).expect("one rank").remove(0);
    let refused = |call: Call| {
        let (input, mut output) = ([0u8; 64], [0u8; 64]);
        let error = comm.execute(&call, Span::of(&input), SpanMut::of(&mut output)).expect_err("refused");
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        error.to_string()
    };
    for kind in [
        Kind::Send,
        Kind::Receive,
        Kind::Split,
        Kind::Grow,
        Kind::Devices,
        Kind::Replan,
        Kind::Mesh,
        Kind::AllGatherV,
    ] {
        let text = refused(Call::new(kind, DataType::Uint8, None, 0, 64));
        assert!(text.contains("not a collective of equal blocks"), "{kind:?}: {text}");
    }
    let text = refused(Call { root: 3, ..Call::all_gather(DataType::Uint8, 64) });
    assert!(text.contains("has no root"), "{text}");
}
