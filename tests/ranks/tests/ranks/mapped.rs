//! Buffers that the ranks of a host map: the same bits as with any other memory, for any mix of memory, at any
//! offset.

use consort::planning::Algorithm;
use consort::{Call, Communicator, DataType, Determinism, Options, Rank, ReduceOp, Span, SpanMut};
use consort_tests::bytes::Bytes;
use consort_tests::system::Random;
use consort_tests::{Links, results_of_ranks};

/// Every collective with an in-place form or without.
fn calls(data_type: DataType, op: ReduceOp, count: usize, root: Rank) -> Vec<(&'static str, Call)> {
    vec![
        ("all_reduce", Call::all_reduce(data_type, op, count)),
        ("reduce", Call::reduce(data_type, op, count, root)),
        ("broadcast", Call::broadcast(data_type, count, root)),
        ("all_gather", Call::all_gather(data_type, count)),
        ("reduce_scatter", Call::reduce_scatter(data_type, op, count)),
        ("all_to_all", Call::all_to_all(data_type, count)),
        ("gather", Call::gather(data_type, count, root)),
        ("scatter", Call::scatter(data_type, count, root)),
    ]
}

/// Bytes that every rank can make of any rank: small numbers in any of the formats used here.
fn content(seed: u64, rank: Rank, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed ^ u64::from(rank) << 32);
    (0..bytes).map(|at| if at % 2 == 1 { 0x3c } else { random.draw() as u8 & 0x7f }).collect()
}

/// The memory of a rank's call: its kind, and the buffers' distance from its beginning.
#[derive(Clone, Copy, Debug)]
struct How {
    shared: [bool; 2],
    shift: usize,
    in_place: bool,
}

/// The content of the output, and of the input, after a call.
fn outcome(comm: &Communicator, name: &str, call: &Call, how: How, seed: u64) -> (Vec<u8>, Vec<u8>) {
    const MARGIN: usize = 64;
    let (rank, size) = (comm.rank(), comm.size());
    let (read, written) = (call.input_bytes(rank, size), call.output_bytes(rank, size));
    let block = read.min(written);
    let mine = content(seed, rank, read);
    let room = |bytes: usize, shared: bool| Bytes::new(vec![0xa5; bytes + how.shift + MARGIN], shared);
    let [from, to] = match name {
        "all_gather" | "gather" => [rank as usize * block, 0],
        "reduce_scatter" | "scatter" => [0, rank as usize * block],
        _ => [0, 0],
    };
    let has_both = read != 0 && written != 0;
    if how.in_place && has_both && name != "all_to_all" {
        let mut buffer = room(read.max(written), how.shared[1]);
        let whole = SpanMut::of(&mut buffer[how.shift..]);
        whole.slice(from, read).copy_from(Span::of(&mine));
        comm.execute(call, whole.slice(from, read).read(), whole.slice(to, written)).expect("all call it");
        let output = buffer[how.shift + to..][..written].to_vec();
        assert!(
            buffer[how.shift + read.max(written)..].iter().all(|byte| *byte == 0xa5),
            "{name}: the margin"
        );
        return (output, mine);
    }
    let (mut input, mut output) = (room(read, how.shared[0]), room(written, how.shared[1]));
    input[how.shift..][..read].copy_from_slice(&mine);
    let (from, to) = (&input[how.shift..][..read], &mut output[how.shift..][..written]);
    comm.execute(call, Span::of(from), SpanMut::of(to)).expect("all call it");
    assert!(
        output[..how.shift].iter().chain(&output[how.shift + written..]).all(|byte| *byte == 0xa5),
        "{name}"
    );
    (output[how.shift..][..written].to_vec(), input[how.shift..][..read].to_vec())
}

/// Compares with the same calls on ordinary memory with folds in the order of ranks.
fn compare(size: u32, counts: &[usize], types: &[(DataType, ReduceOp)], seed: u64) {
    let invariant = Options::default().determinism(Determinism::Invariant);
    let plain = How { shared: [false; 2], shift: 0, in_place: false };
    // Where some rank has other memory, plans run, which may fold in another order.
    let hows = |random: &mut Random, rank: Rank, is_exact: bool| {
        let all = !random.draw().is_multiple_of(4) || !is_exact;
        let mixed = random.draw() >> (rank % 60) & 1 == 1;
        let shift = (random.draw() % 9) as usize * 8;
        How { shared: [all || mixed, all || !mixed], shift, in_place: random.draw().is_multiple_of(2) }
    };
    let body = |comm: &Communicator, is_plain: bool| {
        let mut random = Random::new(seed);
        let mut all = Vec::new();
        for (count, (data_type, op)) in
            counts.iter().flat_map(|count| types.iter().map(move |of| (*count, *of)))
        {
            let root = (random.draw() % u64::from(size)) as u32;
            for (name, call) in calls(data_type, op, count, root) {
                let is_exact = size == 2 || matches!(data_type, DataType::Int32 | DataType::Int8);
                let how = hows(&mut random, comm.rank(), is_exact);
                // All ranks call in place, or none.
                let how = How { in_place: random.draw().is_multiple_of(2), ..how };
                let salt = random.draw();
                let how = if is_plain { plain } else { how };
                // Short calls do not depend on memory, and fold in the planner's order.
                if !is_exact && count * data_type.size() <= 16 << 10 {
                    continue;
                }
                all.push((
                    format!("{name} of {count} {data_type} {how:?}"),
                    outcome(comm, name, &call, how, salt),
                ));
            }
        }
        all
    };
    let expected = results_of_ranks(size, Links::Local, &invariant, |comm| body(comm, true));
    let found = results_of_ranks(size, Links::Local, &Options::default(), |comm| body(comm, false));
    for (rank, (expected, found)) in expected.iter().zip(&found).enumerate() {
        for ((_, expected), (what, found)) in expected.iter().zip(found) {
            assert!(expected == found, "rank {rank} of {size}, seed {seed}: {what}");
        }
    }
}

#[test]
fn every_collective_gives_the_bits_of_ordinary_memory() {
    let mut random = Random::announced("every_collective_gives_the_bits_of_ordinary_memory");
    let types = [
        (DataType::Int32, ReduceOp::Sum),
        (DataType::Float32, ReduceOp::Avg),
        (DataType::Float16, ReduceOp::Sum),
        (DataType::Bfloat16, ReduceOp::Max),
        (DataType::Int8, ReduceOp::Avg),
    ];
    for size in [2, 3, 4, 7] {
        // On both sides of the longest message, and of the first streaming store.
        compare(size, &[1, 7, 4096, 16_384, 16_385, 70_001], &types, random.draw());
    }
    compare(2, &[3 << 20], &types[1..3], random.draw());
}

#[test]
fn buffers_come_and_go() {
    // More areas than are mapped, and than are known, at a time.
    results_of_ranks(2, Links::Local, &Options::default(), |comm| {
        let mut kept = Vec::new();
        for round in 0..300usize {
            let mut buffer = consort::alloc::<f32>(20_000 + round).expect("memory");
            buffer.fill(comm.rank() as f32 + round as f32);
            comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("both call it");
            assert!(buffer.iter().all(|value| *value == 1.0 + 2.0 * round as f32), "round {round}");
            if round % 5 == comm.rank() as usize {
                kept.push(buffer);
            }
            if round % 50 == 49 {
                for buffer in &mut kept {
                    buffer.fill(1.0);
                    // Ranks have kept as many, of other lengths.
                    comm.all_reduce(&mut buffer[..20_000], ReduceOp::Sum).expect("both call it");
                    assert!(buffer[..20_000].iter().all(|value| *value == 2.0));
                }
            }
        }
    });
}

#[test]
fn one_area_holds_many_buffers() {
    results_of_ranks(3, Links::Local, &Options::default(), |comm| {
        let mut area = consort::alloc::<u64>(1 << 18).expect("memory");
        for (round, buffer) in area.chunks_mut(30_011).enumerate() {
            buffer.fill(u64::from(comm.rank()) + round as u64);
            comm.all_reduce(buffer, ReduceOp::Max).expect("all call it");
            assert!(buffer.iter().all(|value| *value == 2 + round as u64));
        }
    });
}

#[test]
fn a_scaled_sum_and_a_named_algorithm_take_any_memory() {
    results_of_ranks(2, Links::Local, &Options::default(), |comm| {
        let mut buffer = consort::alloc::<f32>(100_000).expect("memory");
        buffer.fill(3.0);
        let both = SpanMut::of(&mut buffer[..]);
        let call = Call::all_reduce(DataType::Float32, ReduceOp::Sum, 100_000)
            .scaled_by(consort::Scalar::of(comm.rank() as f32 + 1.0));
        comm.execute(&call, both.read(), both).expect("both call it");
        assert!(buffer.iter().all(|value| *value == 9.0));
        let ring = Algorithm::Ring { channels: 1, bidirectional: false };
        comm.with_algorithm(ring).all_reduce(&mut buffer, ReduceOp::Sum).expect("both call it");
        assert!(buffer.iter().all(|value| *value == 18.0));
    });
}

#[test]
fn started_operations_and_groups_use_it_too() {
    results_of_ranks(2, Links::Local, &Options::default(), |comm| {
        let (mut one, mut two) = (consort::alloc::<i32>(50_000), consort::alloc::<i32>(60_000));
        let (one, two) = (one.as_mut().expect("memory"), two.as_mut().expect("memory"));
        one.fill(1);
        two.fill(2);
        comm.scope(|scope| {
            scope.all_reduce(one, ReduceOp::Sum)?;
            scope.all_reduce(two, ReduceOp::Sum).map(drop)
        })
        .expect("both call it");
        consort::group(|group| {
            group.all_reduce(comm, one, ReduceOp::Sum)?;
            group.broadcast(comm, two, 1)
        })
        .expect("both call it");
        assert!(one.iter().all(|value| *value == 4) && two.iter().all(|value| *value == 4));
    });
}
