//! A fold of two sources without targets to list gives the bits of the reference, of any length, in either order and in
//! place: eight bytes are folded in registers.

use consort_kernels::{DataType, Level, ReduceOp, Reducer};
use consort_memory::{Span, SpanMut};

use crate::support::{Random, elements, fold, seed};

#[test]
fn a_fold_of_two_is_the_reference_in_either_order() {
    let mut random = Random(seed());
    for data_type in DataType::ALL {
        for op in ReduceOp::ALL {
            let reference = Reducer::with_level(data_type, op, 2, Level::Scalar).expect("always there");
            let reducer = Reducer::new(data_type, op, 2);
            for count in (1..=8).chain([9, 17, 40]).cycle().take(400) {
                let [left, right] = [0; 2].map(|_| elements(&mut random, data_type, count));
                let expected = fold(&reference, &[(&left, false), (&right, false)], false);
                let whence = format!("{reducer:?}, {count} elements, CONSORT_TEST_SEED={}", seed());
                for [first, second] in [[&left, &right], [&right, &left]] {
                    let mut result = vec![0xa5; left.len()];
                    reducer.fold_two(SpanMut::of(&mut result), Span::of(first), Span::of(second));
                    assert!(result == expected, "{whence}");
                    let mut both = first.clone();
                    let target = SpanMut::of(&mut both);
                    reducer.fold_two(target, target.read(), Span::of(second));
                    assert!(both == expected, "in place: {whence}");
                }
            }
        }
    }
}
