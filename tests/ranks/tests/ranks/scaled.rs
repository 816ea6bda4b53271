//! Sums of contributions that are multiplied first: refusals, groups, scalars that change between calls, and products
//! that wrap. The collectives themselves are with the others (`collectives`, `vectors`, `algorithms`, `folds`).

use std::time::Duration;

use consort::{
    Call, Communicator, DataType, Error, F8E4m3, Options, ReduceOp, Result, Scalar, Span, SpanMut,
    TransportChoice, group,
};
use consort_tests::{Links, on_ranks, results_of_ranks};

fn options() -> Options {
    Options::default().timeout(Duration::from_secs(20))
}

/// An all-reduce of `count` elements in place.
fn all_reduce(comm: &Communicator, scalar: Scalar, buffer: &mut [u8]) -> Result<()> {
    let data_type = scalar.data_type();
    let call = Call::all_reduce(data_type, ReduceOp::Sum, buffer.len() / data_type.size()).scaled_by(scalar);
    let both = SpanMut::of(buffer);
    comm.execute(&call, both.read(), both)
}

/// The plan of a shape is bound once, whichever scalar its first call has.
#[test]
fn every_call_takes_its_own_scalar() {
    for (links, transport) in [(Links::Local, TransportChoice::Auto), (Links::Joined, TransportChoice::Tcp)] {
        for size in [1, 2, 3] {
            on_ranks(size, links, &options().transport(transport), |comm| {
                for count in [1, 33, 50_001] {
                    for round in 0..4u32 {
                        let scalar = |rank: u32| (round * 7 + rank).wrapping_mul(0x8765_4321);
                        let mut buffer = vec![comm.rank() + 1; count];
                        comm.scaled_by(scalar(comm.rank())).all_reduce(&mut buffer)?;
                        let products = (0..size).map(|rank| scalar(rank).wrapping_mul(rank + 1));
                        let sum = products.fold(0, u32::wrapping_add);
                        assert_eq!(buffer, vec![sum; count], "{count} elements, round {round} on {size}");
                        // The plain sum of that shape is another plan.
                        let mut buffer = vec![comm.rank(); count];
                        comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
                        assert_eq!(buffer, vec![size * (size - 1) / 2; count]);
                    }
                }
                Ok(())
            });
        }
    }
}

#[test]
fn small_integers_wrap_and_small_floats_round() {
    on_ranks(2, Links::Local, &options(), |comm| {
        let rank = comm.rank() as usize;
        let mut buffer = [100u8; 9];
        all_reduce(comm, Scalar::of([3i8, -2][rank]), &mut buffer)?;
        assert_eq!(buffer, [100; 9], "300 - 200");
        let mut buffer = [200u8; 9];
        all_reduce(comm, Scalar::of([2u8, 255][rank]), &mut buffer)?;
        assert_eq!(buffer, [200; 9], "600 modulo 256");
        // 1.125 * 1.125 rounds to 1.25 before 1.25 * -1 is added.
        let code = |value: f32| F8E4m3::from_f32(value);
        let mut buffer = vec![[code(1.125).0, code(1.25).0][rank]; 9];
        all_reduce(comm, Scalar::of([code(1.125), code(-1.0)][rank]), &mut buffer)?;
        assert_eq!(buffer, [0; 9]);
        Ok(())
    });
}

#[test]
fn scaled_sums_run_in_groups_beside_plain_ones() {
    on_ranks(3, Links::Local, &options(), |comm| {
        let (mut scaled, mut plain, input) = ([0f64; 700], [1f64; 700], [2f64; 700]);
        let scalar = Scalar::of(0.5 + f64::from(comm.rank()));
        let call = Call::all_reduce(DataType::Float64, ReduceOp::Sum, 700).scaled_by(scalar);
        group(|group| {
            group.execute(comm, &call, Span::of(&input), SpanMut::of(&mut scaled))?;
            group.all_reduce(comm, &mut plain, ReduceOp::Sum)
        })?;
        assert_eq!((scaled, plain), ([9.0; 700], [3.0; 700]));
        Ok(())
    });
}

#[test]
fn what_cannot_be_scaled_is_refused_and_nothing_happens() {
    on_ranks(2, Links::Local, &options(), |comm| {
        let refused = |call: Call, scalar, words: &str| {
            let mut data = [7u8; 32];
            let both = SpanMut::of(&mut data);
            let error = comm.execute(&call.scaled_by(scalar), both.read(), both).expect_err("refused");
            assert!(matches!(error, Error::InvalidArgument { .. }) && !error.is_fatal());
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(data, [7; 32]);
        };
        let (data_type, two) = (DataType::Float32, Scalar::of(2f32));
        for op in [ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg] {
            refused(Call::all_reduce(data_type, op, 8), two, &format!("folds with {op} has no scalar"));
        }
        refused(Call::broadcast(data_type, 8, 0), two, "folds nothing has no scalar");
        refused(Call::all_gather(data_type, 8), two, "scale sums alone");
        let sum = Call::all_reduce(data_type, ReduceOp::Sum, 8);
        refused(sum, Scalar::of(2i32), "elements of type float cannot be scaled by one of int32");
        comm.barrier()
    });
}

/// A plain sum among scaled ones is found, and the error names which rank has which; scalars may differ.
#[test]
fn a_rank_that_does_not_scale_is_named() {
    for (links, transport) in [(Links::Local, TransportChoice::Auto), (Links::Joined, TransportChoice::Tcp)] {
        let results = results_of_ranks(3, links, &options().transport(transport), |comm| {
            let mut buffer = [1i32; 100];
            let scales = comm.scaled_by(1 + comm.rank() as i32);
            scales.all_reduce(&mut buffer)?;
            assert_eq!(buffer, [6; 100]);
            if comm.rank() == 1 {
                comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
            } else {
                scales.all_reduce(&mut buffer)?;
            }
            comm.barrier()
        });
        for result in results {
            let Err(Error::Mismatch { difference, .. }) = result else { panic!("{result:?}") };
            let named = difference.contains("rank 1: all_reduce of 100 int32 (sum)");
            assert!(named && difference.contains("all_reduce of 100 int32 (mulsum)"), "{difference}");
        }
    }
}
