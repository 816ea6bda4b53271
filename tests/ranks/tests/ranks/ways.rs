//! The same bits on every path of a call: in messages, on mapped buffers, by plan through slots, by plan over TCP.
//!
//! Between two ranks always, for any bits; among more where folds are set to the order of ranks.

use consort::{Call, Communicator, DataType, Determinism, Options, ReduceOp, Span, SpanMut, TransportChoice};
use consort_tests::bytes::Bytes;
use consort_tests::system::Random;
use consort_tests::{Links, results_of_ranks};

/// Bytes of a block: on both sides of a line, and of the shortest buffer that is offered.
const SHORT: [usize; 5] = [8, 56, 64, 1040, 16_384];
/// Bytes of a block: on both sides of the longest message; and slices.
const LONG: [usize; 3] = [16_400, 66_000, 300_000];

/// The path of a job, as far as it can be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Messages, or slots.
    Private,
    Mapped,
    Tcp,
}

/// Any bits: not numbers, infinities and denormals too.
fn content(seed: u64, rank: u32, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed ^ u64::from(rank) << 32);
    let words = (0..bytes.div_ceil(8)).flat_map(|_| random.draw().to_le_bytes());
    words.take(bytes).collect()
}

/// How many times the file of this buffer is mapped.
fn mappings_of(buffer: &[u8]) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let inode_of = |line: &str| line.split_ascii_whitespace().nth(4).map(str::to_owned);
    let holds = |line: &&str| {
        let range = line.split_ascii_whitespace().next().and_then(|range| range.split_once('-'));
        let number = |text: &str| usize::from_str_radix(text, 16).unwrap_or(0);
        range.is_some_and(|(start, end)| (number(start)..number(end)).contains(&(buffer.as_ptr() as usize)))
    };
    let inode = maps.lines().find(holds).and_then(inode_of);
    maps.lines().filter(|line| inode.is_some() && inode_of(line) == inode).count()
}

/// The result of every fold of these lengths on this rank.
fn folds(
    comm: &Communicator,
    way: Way,
    types: &[DataType],
    lengths: &[usize],
    seed: u64,
) -> Vec<(String, Vec<u8>)> {
    let (rank, size) = (comm.rank(), comm.size());
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for (data_type, op) in types.iter().flat_map(|of| ReduceOp::ALL.map(|op| (*of, op))) {
        for bytes in lengths {
            let count = bytes.div_ceil(data_type.size());
            let (root, salt) = ((random.draw() % u64::from(size)) as u32, random.draw());
            for (name, call) in [
                ("all_reduce", Call::all_reduce(data_type, op, count)),
                ("reduce", Call::reduce(data_type, op, count, root)),
                ("reduce_scatter", Call::reduce_scatter(data_type, op, count)),
            ] {
                let new = |bytes: Vec<u8>| Bytes::new(bytes, way == Way::Mapped);
                let input = new(content(salt, rank, call.input_bytes(rank, size)));
                let mut output = new(vec![0x5a; call.output_bytes(rank, size)]);
                let both = (Span::of(&input[..]), SpanMut::of(&mut output[..]));
                comm.execute(&call, both.0, both.1).expect("all call it");
                if *bytes > LONG[0] && way == Way::Mapped {
                    assert!(mappings_of(&input) > 1, "{name} of {count} {data_type}: no rank has mapped it");
                }
                all.push((format!("{name} of {count} {data_type} ({op:?}), root {root}"), output.to_vec()));
            }
        }
    }
    // No rank leaves while others count mappings.
    comm.barrier().expect("all call it");
    all
}

/// Calls by plan through slots first, then by the other paths, each with its options.
fn agree(size: u32, ways: &[(Way, Options)], types: &[DataType], lengths: &[usize], seed: u64) {
    let run = |(way, options): &(Way, Options)| {
        let (options, links) = match way {
            Way::Tcp => (options.clone().transport(TransportChoice::Tcp), Links::Joined),
            _ => (options.clone(), Links::Local),
        };
        results_of_ranks(size, links, &options, |comm| folds(comm, *way, types, lengths, seed))
    };
    let expected = run(&ways[0]);
    for way in &ways[1..] {
        for (rank, (expected, found)) in expected.iter().zip(run(way)).enumerate() {
            assert_eq!(expected.len(), found.len());
            for ((what, expected), (_, found)) in expected.iter().zip(&found) {
                let differs = expected.iter().zip(found).position(|(one, other)| one != other);
                assert_eq!(differs, None, "{:?}, rank {rank} of {size}, seed {seed}: {what}", way.0);
            }
        }
    }
}

#[test]
fn two_ranks_have_the_same_bits_every_way() {
    let mut random = Random::announced("two_ranks_have_the_same_bits_every_way");
    let ways = [Way::Private, Way::Mapped, Way::Tcp].map(|way| (way, Options::default()));
    for lengths in [&SHORT[..], &LONG] {
        agree(2, &ways, &DataType::ALL, lengths, random.draw());
    }
    agree(2, &ways, &[DataType::Bfloat16], &[5 << 20], random.draw());
}

/// Mapped buffers are folded in the order of ranks; where `invariant` is set, plans run instead.
#[test]
fn more_ranks_have_the_same_bits_every_way_if_folds_are_invariant() {
    let mut random = Random::announced("more_ranks_have_the_same_bits_every_way");
    let invariant = || Options::default().determinism(Determinism::Invariant);
    let planned = [(Way::Private, invariant()), (Way::Tcp, invariant())];
    let mapped = [(Way::Private, invariant()), (Way::Mapped, Options::default())];
    let types = [DataType::Float32, DataType::Float16, DataType::Float8E4m3, DataType::Float64];
    for size in [3, 5] {
        agree(size, &planned, &types, &SHORT, random.draw());
        let seed = random.draw();
        agree(size, &planned, &types, &LONG, seed);
        agree(size, &mapped, &types, &LONG, seed);
    }
}
