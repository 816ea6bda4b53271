//! Reduction operators: the five built-in ones, and those that a program makes.

use std::ptr::{null, null_mut};

use super::*;

const HOST: c_int = 1;
const DEVICE: c_int = 0;
const PROD: c_int = 1;
const MAX: c_int = 2;
const MIN: c_int = 3;

fn create<T: Element>(scalar: &mut T, residence: c_int, comm: Comm) -> c_int {
    let mut op = -1;
    ok!(ncclRedOpCreatePreMulSum(&mut op, std::ptr::from_mut(scalar).cast(), T::CODE, residence, comm));
    assert!(op >= 5);
    op
}

#[test]
fn five_are_there() {
    ranks(3, |rank, comm| {
        for (op, expected) in [(SUM, 9), (PROD, 24), (MAX, 4), (MIN, 2), (AVG, 3)] {
            let (mut integer, mut float) = ([rank + 2; 5], [rank as f32 + 2.0; 5]);
            assert_eq!(reduce(&mut integer, op, comm, NO_STREAM), OK);
            assert_eq!(integer, [expected; 5], "operator {op}");
            assert_eq!(reduce(&mut float, op, comm, NO_STREAM), OK);
            assert!(float.iter().all(|value| (value - expected as f32).abs() < 1e-5), "{op}: {float:?}");
        }
    });
}

#[test]
fn an_average_of_integers_is_the_sum_divided() {
    ranks(3, |rank, comm| {
        // 2 + 2 + 1 = 5, and -2 - 2 - 1 = -5, which C divides towards zero.
        let mine = if rank == 2 { 1 } else { 2 };
        let mut values = [mine, -mine];
        assert_eq!(reduce(&mut values, AVG, comm, NO_STREAM), OK);
        assert_eq!(values, [1, -1]);
        let mut bytes = [100u8];
        assert_eq!(reduce(&mut bytes, AVG, comm, NO_STREAM), OK);
        // The sum is computed in the element type: 300 is 44 there.
        assert_eq!(bytes, [44 / 3]);
    });
}

#[test]
fn numbers_that_are_no_operators_are_refused() {
    ranks(1, |_, comm| {
        let mut buffer = [1];
        for op in [-1, 5, 6, 0x7fff_ffff, i32::MIN] {
            refused(reduce(&mut buffer, op, comm, NO_STREAM), "no reduction operator");
        }
        for op in [-1, SUM, AVG, 5, 0x7fff_ffff] {
            refused(c!(ncclRedOpDestroy(op, comm)), "no reduction operator");
        }
        refused(c!(ncclRedOpDestroy(7, null_mut())), "null, freed or foreign");
    });
}

#[test]
fn a_made_one_scales_and_sums() {
    ranks(3, |rank, comm| {
        let op = create(&mut (rank as f32 + 1.0), HOST, comm);
        let mut sum = [1.0f32, 2.0, -1.0];
        assert_eq!(reduce(&mut sum, op, comm, NO_STREAM), OK, "{}", last_error());
        assert_eq!(sum, [6.0, 12.0, -6.0]);
        // Every reducing call has it.
        let (input, mut part) = ([1.0f32; 3], [0.0f32]);
        ok!(ncclReduceScatter(from(&input), to(&mut part), 1, FLOAT32, op, comm, NO_STREAM));
        assert_eq!(part, [6.0]);
        let mut rooted = [0.0f32; 3];
        ok!(ncclReduce(from(&input), to(&mut rooted), 3, FLOAT32, op, 1, comm, NO_STREAM));
        assert_eq!(rooted, [if rank == 1 { 6.0 } else { 0.0 }; 3]);
        ok!(ncclRedOpDestroy(op, comm));
        refused(reduce(&mut sum, op, comm, NO_STREAM), "no reduction operator");
        refused(c!(ncclRedOpDestroy(op, comm)), "no reduction operator");
        works(rank, 3, comm);
    });
}

#[test]
fn one_rank_scales_too() {
    ranks(1, |_, comm| {
        let op = create(&mut 3i64, HOST, comm);
        let (input, mut output) = ([1i64, -2], [0i64; 2]);
        assert_eq!(reduce_into(&input, &mut output, op, comm, NO_STREAM), OK);
        assert_eq!((input, output), ([1, -2], [3, -6]), "the input is the caller's");
        assert_eq!(reduce(&mut output, op, comm, NO_STREAM), OK);
        assert_eq!(output, [9, -18]);
    });
}

#[test]
fn one_is_bound_to_its_communicator_and_type() {
    within(DEADLINE, || {
        let comms = [all(1)[0], all(1)[0]];
        let op = create(&mut 2.0f32, HOST, comms[0]);
        let mut buffer = [1.0f32];
        refused(reduce(&mut buffer, op, comms[1], NO_STREAM), "no reduction operator");
        refused(c!(ncclRedOpDestroy(op, comms[1])), "no reduction operator");
        refused(reduce(&mut [1.0f64], op, comms[0], NO_STREAM), "was made for");
        assert_eq!(reduce(&mut buffer, op, comms[0], NO_STREAM), OK);
        assert_eq!(buffer, [2.0]);
        destroy_all(&comms);
    });
}

#[test]
fn one_may_be_destroyed_before_the_end_of_the_group() {
    ranks(2, |rank, comm| {
        let mut scalar = 2i32;
        let op = create(&mut scalar, HOST, comm);
        // Read when the operator is made.
        scalar = 100;
        let mut sum = [rank + scalar - 99];
        ok!(ncclGroupStart());
        assert_eq!(reduce(&mut sum, op, comm, NO_STREAM), OK);
        ok!(ncclRedOpDestroy(op, comm));
        // Its number may be used again, which does not affect the call before.
        let next = create(&mut 50i32, HOST, comm);
        ok!(ncclGroupEnd());
        assert_eq!(sum, [6]);
        ok!(ncclRedOpDestroy(next, comm));
    });
}

#[test]
fn a_scalar_that_stays_is_read_when_a_call_is_made() {
    ranks(2, |rank, comm| {
        let mut scalar = Box::new(2.0f64);
        let place: *mut f64 = &mut *scalar;
        let mut op = -1;
        ok!(ncclRedOpCreatePreMulSum(&mut op, place.cast(), f64::CODE, DEVICE, comm));
        let mut sum = [rank as f64 + 1.0];
        assert_eq!(reduce(&mut sum, op, comm, NO_STREAM), OK);
        assert_eq!(sum, [6.0]);
        // SAFETY: the box is there and this thread's alone.
        unsafe { place.write(10.0) };
        sum = [1.0];
        assert_eq!(reduce(&mut sum, op, comm, NO_STREAM), OK);
        assert_eq!(sum, [20.0]);
        // The same in a group: the scalar may be freed before the group's end.
        sum = [1.0];
        ok!(ncclGroupStart());
        assert_eq!(reduce(&mut sum, op, comm, NO_STREAM), OK);
        // SAFETY: as above.
        unsafe { place.write(-1.0) };
        ok!(ncclRedOpDestroy(op, comm));
        drop(scalar);
        ok!(ncclGroupEnd());
        assert_eq!(sum, [20.0]);
    });
}

#[test]
fn wrong_makings_are_refused() {
    ranks(1, |_, comm| {
        let (mut op, mut scalar) = (77, [0u64; 2]);
        let place = to(&mut scalar);
        refused(c!(ncclRedOpCreatePreMulSum(&mut op, null_mut(), 7, HOST, comm)), "scalar is null");
        refused(c!(ncclRedOpCreatePreMulSum(null_mut(), place, 7, HOST, comm)), "op is null");
        refused(c!(ncclRedOpCreatePreMulSum(&mut op, place, 12, HOST, comm)), "no data type 12");
        refused(c!(ncclRedOpCreatePreMulSum(&mut op, place, -1, HOST, comm)), "no data type -1");
        refused(c!(ncclRedOpCreatePreMulSum(&mut op, place, 7, 2, comm)), "no residence 2");
        refused(c!(ncclRedOpCreatePreMulSum(&mut op, place, 7, HOST, null_mut())), "null, freed");
        assert_eq!(op, 77);
        // An element need not be aligned.
        let odd = c!(place.cast::<u8>().add(1).cast());
        ok!(ncclRedOpCreatePreMulSum(&mut op, odd, 8, HOST, comm));
        ok!(ncclRedOpDestroy(op, comm));
        assert_eq!(c!(ncclAllReduce(null(), null_mut(), 0, INT32, -1, comm, NO_STREAM)), INVALID);
    });
}
