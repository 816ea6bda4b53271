//! Every level gives the bits of the scalar reference, for every type, operator, length, alignment, number of
//! sources and targets, kind of store, and in place.

use consort_kernels::{DataType, Level, ReduceOp, Reducer, Source, Store, Target, copy};
use consort_memory::{Span, SpanMut};

use crate::support::{Random, elements, fast_levels, fold, scalar, seed};

const CANARY: u8 = 0xc7;
const MARGIN: usize = 80;

/// A buffer with room around its bytes, which start `offset` past a multiple of 64.
struct Room {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Room {
    fn new(content: &[u8], offset: usize) -> Self {
        let mut bytes = vec![CANARY; content.len() + 3 * MARGIN];
        let start = MARGIN + (64 - (bytes.as_ptr() as usize + MARGIN) % 64) % 64 + offset % 16;
        assert!(offset < 16 && start + content.len() + 1 < bytes.len());
        bytes[start..start + content.len()].copy_from_slice(content);
        Self { bytes, start, length: content.len() }
    }

    fn span(&mut self) -> SpanMut<'static> {
        let content = &mut self.bytes[self.start..self.start + self.length];
        // SAFETY: used within one call of the kernel while the room lives and is not otherwise touched.
        unsafe { SpanMut::from_raw(content.as_mut_ptr(), content.len()) }
    }

    fn content(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    fn margins_are_intact(&self) -> bool {
        let (before, after) = (&self.bytes[..self.start], &self.bytes[self.start + self.length..]);
        before.iter().chain(after).all(|&byte| byte == CANARY)
    }
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    offsets: [usize; 3],
    stores: [Store; 2],
    targets: usize,
    in_place: bool,
}

fn check(reducer: &Reducer, inputs: &[(Vec<u8>, bool)], finish: bool, expected: &[u8], shape: Shape) {
    let mut rooms: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(index, (bytes, _))| Room::new(bytes, shape.offsets[index % 3]))
        .collect();
    let blank = vec![0x11; expected.len()];
    let mut outputs: Vec<_> =
        (0..shape.targets).map(|index| Room::new(&blank, shape.offsets[(index + 1) % 3])).collect();

    let sources: Vec<_> = rooms
        .iter_mut()
        .zip(inputs)
        .map(|(room, &(_, raw))| Source { span: room.span().read(), raw })
        .collect();
    let mut targets: Vec<_> = outputs
        .iter_mut()
        .zip(shape.stores)
        .map(|(room, store)| Target { span: room.span(), store })
        .collect();
    if shape.in_place {
        targets[0].span = rooms.last_mut().unwrap().span();
    }
    reducer.fold(&targets, &sources, finish);

    let context = || {
        format!(
            "{reducer:?}, {} bytes, raw {:?}, finish {finish}, {shape:?}, CONSORT_TEST_SEED={}",
            expected.len(),
            inputs.iter().map(|input| input.1).collect::<Vec<_>>(),
            seed()
        )
    };
    let in_place = shape.in_place.then(|| rooms.last().unwrap());
    for (index, output) in outputs.iter().enumerate() {
        let output = if index == 0 { in_place.unwrap_or(output) } else { output };
        assert!(output.content() == expected, "target {index} differs: {}", context());
    }
    let kept = rooms.len() - usize::from(shape.in_place);
    for (room, input) in rooms.iter().zip(inputs).take(kept) {
        assert!(room.content() == input.0, "a source was written: {}", context());
    }
    for room in rooms.iter().chain(&outputs) {
        assert!(room.margins_are_intact(), "written out of bounds: {}", context());
    }
}

/// Lengths in elements, with the alignments to try for each.
fn sweep(lengths: impl Iterator<Item = usize> + Clone, offsets: &[[usize; 3]], stores: &[[Store; 2]]) {
    let mut random = Random(seed());
    for data_type in DataType::ALL {
        let size = data_type.size();
        // None is the pre-multiplied sum.
        for op in ReduceOp::ALL.into_iter().map(Some).chain([None]) {
            for (count, sources) in lengths.clone().flat_map(|count| (1..=3).map(move |n| (count, n))) {
                let contributions = 1 + random.below(9) as u32;
                let factor = scalar(&mut random, data_type);
                let reducer = |level| match op {
                    Some(op) => Reducer::with_level(data_type, op, contributions, level).unwrap(),
                    None => Reducer::pre_mul_sum_with_level(factor, level).unwrap(),
                };
                let reference = reducer(Level::Scalar);
                let modes: &[(u32, bool)] = match op {
                    Some(ReduceOp::Avg) | None => {
                        &[(0, false), (0, true), (0b101, true), (0b010, false), (0b111, true)]
                    }
                    _ => &[(0b101, true)],
                };
                for &(raw, finish) in modes {
                    let inputs: Vec<_> = (0..sources)
                        .map(|index| (elements(&mut random, data_type, count), raw >> index & 1 == 1))
                        .collect();
                    let views: Vec<_> = inputs.iter().map(|(bytes, raw)| (&bytes[..], *raw)).collect();
                    let expected = fold(&reference, &views, finish);
                    for level in fast_levels() {
                        let reducer = reducer(level);
                        for (index, &offsets) in offsets.iter().enumerate() {
                            // Some alignments fall on whole elements, some between them.
                            let offsets =
                                if index % 2 == 0 { offsets.map(|o| o * size % 16) } else { offsets };
                            for targets in 1..=2 {
                                let stores = stores[random.below(stores.len())];
                                let in_place = random.draw() & 1 == 0;
                                let shape = Shape { offsets, stores, targets, in_place };
                                check(&reducer, &inputs, finish, &expected, shape);
                            }
                        }
                    }
                }
            }
        }
    }
}

const STORES: [[Store; 2]; 4] = [
    [Store::Cached, Store::Cached],
    [Store::Streaming, Store::Cached],
    [Store::Cached, Store::Streaming],
    [Store::Streaming, Store::Streaming],
];

#[test]
fn short_lengths() {
    sweep(0..=130, &[[0, 0, 0], [1, 2, 3]], &STORES);
}

#[test]
fn long_lengths() {
    let lengths = [255, 256, 257, 511, 515, 1024, 1031, 2053];
    sweep(lengths.into_iter(), &[[0, 0, 0], [3, 5, 11], [1, 1, 1], [0, 7, 0]], &STORES);
}

#[test]
fn copies() {
    let mut random = Random(seed());
    for bytes in (0..=300).chain([1023, 1024, 1025, 4096, 4133, 70_001]) {
        for targets in 1..=3 {
            for stores in STORES {
                let content = elements(&mut random, DataType::Uint8, bytes);
                let offsets: [usize; 4] = std::array::from_fn(|_| random.below(16));
                let mut source = Room::new(&content, offsets[3]);
                let blank = vec![0x11; bytes];
                let mut rooms: Vec<_> = (0..targets).map(|index| Room::new(&blank, offsets[index])).collect();
                let mut to: Vec<_> = rooms
                    .iter_mut()
                    .enumerate()
                    .map(|(index, room)| Target { span: room.span(), store: stores[index % 2] })
                    .collect();
                let in_place = random.draw() & 1 == 0;
                let same = random.below(2) * (targets - 1);
                if in_place {
                    to[same].span = source.span();
                }
                copy(&to, source.span().read());
                let others = rooms.iter().enumerate().filter(|(at, _)| !(in_place && *at == same));
                for room in others.map(|(_, room)| room).chain([&source]) {
                    assert!(room.content() == content, "{bytes} bytes, CONSORT_TEST_SEED={}", seed());
                    assert!(room.margins_are_intact(), "{bytes} bytes, CONSORT_TEST_SEED={}", seed());
                }
            }
        }
    }
}

#[test]
fn what_is_there_is_not_written_again() {
    // Read-only pages.
    static CONTENT: [u8; 70_001] = [7; 70_001];
    for store in [Store::Cached, Store::Streaming] {
        let mut bytes = vec![0; CONTENT.len()];
        // SAFETY: the pages cannot be written, and the test is that no kernel writes there; a write would end this
        // process.
        let there = unsafe { SpanMut::from_raw(CONTENT.as_ptr().cast_mut(), CONTENT.len()) };
        let [there, other] = [there, SpanMut::of(&mut bytes)].map(|span| Target { span, store });
        for targets in [&[there][..], &[there, other], &[other, there]] {
            copy(targets, Span::of(&CONTENT));
        }
        assert_eq!(bytes, CONTENT);
    }
}

#[test]
fn many_sources_and_targets() {
    let mut random = Random(seed());
    for level in fast_levels() {
        let reducer = Reducer::with_level(DataType::Float16, ReduceOp::Sum, 1, level).unwrap();
        let scalar = Reducer::with_level(DataType::Float16, ReduceOp::Sum, 1, Level::Scalar).unwrap();
        let inputs: Vec<_> = (0..17).map(|_| elements(&mut random, DataType::Float16, 777)).collect();
        let views: Vec<_> = inputs.iter().map(|bytes| (&bytes[..], false)).collect();
        let expected = fold(&scalar, &views, true);
        let mut outputs = vec![vec![0u8; expected.len()]; 5];
        let targets: Vec<_> = outputs
            .iter_mut()
            .map(|output| Target { span: SpanMut::of(output), store: Store::Streaming })
            .collect();
        let sources: Vec<_> =
            inputs.iter().map(|bytes| Source { span: Span::of(bytes), raw: false }).collect();
        reducer.fold(&targets, &sources, true);
        assert!(outputs.iter().all(|output| *output == expected), "CONSORT_TEST_SEED={}", seed());
    }
}

/// Folding in turn is folding two at a time, with the result rounded each time; the output may be any of the sources.
#[test]
fn in_turn_is_two_at_a_time() {
    let mut random = Random(seed());
    for data_type in DataType::ALL {
        let reducer = Reducer::new(data_type, ReduceOp::Sum, 1);
        let mut differs = false;
        for (count, sources) in [(1, 3), (5, 4), (700, 3), (9001, 5)] {
            let inputs: Vec<_> = (0..sources).map(|_| elements(&mut random, data_type, count)).collect();
            let step =
                |folded: Vec<u8>, next: &Vec<u8>| fold(&reducer, &[(&folded, false), (next, false)], false);
            let expected = inputs[1..].iter().fold(inputs[0].clone(), step);
            let views: Vec<_> = inputs.iter().map(|bytes| (&bytes[..], false)).collect();
            differs |= fold(&reducer, &views, true) != expected;
            for in_place in 0..sources {
                let mut buffers = inputs.clone();
                let mut other = vec![0u8; expected.len()];
                let spans: Vec<SpanMut<'_>> = buffers.iter_mut().map(|bytes| SpanMut::of(bytes)).collect();
                let sources: Vec<_> =
                    spans.iter().map(|span| Source { span: span.read(), raw: false }).collect();
                let to = |span| Target { span, store: Store::Streaming };
                reducer.fold_in_turn(&[to(spans[in_place]), to(SpanMut::of(&mut other))], &sources, true);
                assert!(
                    buffers[in_place] == expected && other == expected,
                    "{data_type}, {count}: {}",
                    seed()
                );
            }
        }
        use DataType::{Bfloat16, Float8E4m3, Float8E5m2, Float16};
        let rounds = matches!(data_type, Float16 | Bfloat16 | Float8E4m3 | Float8E5m2);
        assert_eq!(differs, rounds, "{data_type}: CONSORT_TEST_SEED={}", seed());
    }
}
