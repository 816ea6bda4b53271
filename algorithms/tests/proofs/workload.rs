//! Workloads: parameters and traffic against small cases worked out by hand, closed forms, and what the flags refuse.

use consort_algorithms::Rank;
use consort_algorithms::workload::{Kind, Traffic, Workload};

use crate::common::{Random, seed};

/// Two layers of 4 elements on one rank: 592 parameters, 64 bytes of activation for the 8 tokens.
fn small() -> Workload {
    Workload {
        layers: 2,
        hidden: 4,
        heads: 2,
        sequence: 8,
        vocabulary: 16,
        experts: 0,
        top_k: 2,
        micro_batch: 1,
        micro_batches: 1,
        element_bytes: 2,
        tensor: 1,
        pipeline: 1,
        data: 1,
        expert: 1,
        context: 1,
        zero: 0,
        sequence_parallel: false,
    }
}

fn traffic(workload: &Workload) -> Traffic {
    workload.check().unwrap_or_else(|fault| panic!("{fault}"));
    workload.traffic()
}

/// Pairs with their bytes of a kind.
fn of(traffic: &Traffic, kind: Kind) -> Vec<(u32, u32, u64)> {
    let pairs = traffic.pairs().map(|((from, to), bytes)| (from.0, to.0, bytes[kind as usize]));
    pairs.filter(|(_, _, bytes)| *bytes > 0).collect()
}

#[test]
fn the_default_is_a_decoder_of_102_billion_parameters() {
    let workload = Workload::default();
    assert_eq!(workload.check(), Ok(()));
    assert_eq!(workload.ranks(), 128);
    let parameters = workload.parameters().total();
    // 12 l h^2 (1 + 13/12h + (V + s)/12lh), and the last layer norm.
    let [l, h, v, s] = [80.0, 10_240.0, 128_256.0, 4096.0f64];
    let formula = 12.0 * l * h * h * (1.0 + 13.0 / (12.0 * h) + (v + s) / (12.0 * l * h)) + 2.0 * h;
    assert!((parameters as f64 - formula).abs() < 1.0, "{parameters} and {formula}");
    assert!((parameters as f64 / 102e9 - 1.0).abs() < 0.01, "{parameters}");
    let (talking, all) = workload.traffic().talking();
    // Rings of 8 and of 4, three borders of stages, and both copies of the embedding.
    assert_eq!((talking, all), (128 + 128 + 96 + 32, 128 * 127 / 2));
    assert_eq!(small().traffic(), Traffic::new(1));
}

#[test]
fn parameters_of_ranks_are_those_of_the_model() {
    assert_eq!(small().parameters().total(), 592);
    for (tensor, pipeline) in [(1, 1), (1, 4), (2, 2), (8, 4)] {
        let workload = Workload { tensor, pipeline, ..Workload::default() };
        let [h, s, layers, t] = [10_240u64, 4096, 80 / u64::from(pipeline), u64::from(tensor)];
        let mut sum = 0;
        for stage in 0..pipeline {
            // Tensor ranks have copies of norms, of the biases behind cut rows, and of positions.
            let first = if stage == 0 { s * h } else { 0 };
            let last = if stage + 1 == pipeline { 2 * h } else { 0 };
            let copied = layers * 6 * h + first + last;
            sum += t * (workload.parameters_of_stage(stage).dense - copied) + copied;
        }
        let twice = if pipeline > 1 { 128_256 * h } else { 0 };
        assert_eq!(sum, workload.parameters().total() + twice, "tensor {tensor}, pipeline {pipeline}");
    }
    let experts = Workload { experts: 8, expert: 4, data: 4, pipeline: 1, tensor: 1, ..Workload::default() };
    let of_rank = experts.parameters_of_stage(0);
    assert_eq!(of_rank.dense, experts.parameters().dense);
    assert_eq!(of_rank.expert * 4, experts.parameters().expert);
    assert_eq!(experts.parameters().expert, 80 * 8 * (8 * 10_240 * 10_240 + 5 * 10_240));
}

#[test]
fn tensor_ranks_reduce_what_they_computed() {
    // An all-reduce of S bytes over two ranks is S bytes each way. 4 a layer of 64 bytes, one behind the embedding, one
    // before the head, 3 of the loss of 8 tokens in float32.
    let traffic = traffic(&Workload { tensor: 2, ..small() });
    let bytes = 2 * 4 * 64 + 64 + 64 + 3 * 32;
    assert_eq!(of(&traffic, Kind::Tensor), [(0, 1, bytes), (1, 0, bytes)]);
    assert_eq!(traffic.between(Rank(0), Rank(1)), bytes);
    let again = Workload { tensor: 2, micro_batches: 3, micro_batch: 2, ..small() }.traffic();
    assert_eq!(again.between(Rank(0), Rank(1)), 6 * bytes);
}

#[test]
fn tensor_ranks_that_share_tokens_gather_and_scatter() {
    let traffic = traffic(&Workload { tensor: 2, sequence_parallel: true, ..small() });
    // Halves of 64 bytes: 4 + 4 + 2 a layer; 2 at the embedding, 3 at the head; the loss as before; the gradients of
    // (2 layers * 6 + 2) * 4 elements that both ranks have.
    let bytes = 32 * (2 * 10 + 2 + 3) + 3 * 32 + 14 * 4 * 2;
    assert_eq!(of(&traffic, Kind::Tensor), [(0, 1, bytes), (1, 0, bytes)]);
}

#[test]
fn stages_hand_activations_on() {
    let traffic = traffic(&Workload { pipeline: 2, micro_batches: 3, ..small() });
    assert_eq!(of(&traffic, Kind::Pipeline), [(0, 1, 3 * 64), (1, 0, 3 * 64)]);
    // 16 tokens of 4 elements of 2 bytes.
    assert_eq!(of(&traffic, Kind::Embedding), [(0, 1, 128), (1, 0, 128)]);
    let shared = Workload { pipeline: 2, tensor: 2, sequence_parallel: true, ..small() }.traffic();
    assert_eq!(of(&shared, Kind::Pipeline), [(0, 2, 32), (1, 3, 32), (2, 0, 32), (3, 1, 32)]);
    let three = Workload { pipeline: 3, layers: 3, ..small() }.traffic();
    assert_eq!(of(&three, Kind::Pipeline).len(), 4, "stages talk to the next and to the one before");
    assert_eq!(of(&three, Kind::Embedding), [(0, 2, 128), (2, 0, 128)]);
}

#[test]
fn data_ranks_share_by_the_stage_of_zero() {
    // 592 parameters are 1184 bytes; over a link of a ring of four pass three quarters.
    for (zero, batches, times) in [(0, 3, 2), (1, 3, 2), (2, 3, 3 + 1), (3, 3, 3 * 3), (3, 1, 3)] {
        let traffic = traffic(&Workload { data: 4, zero, micro_batches: batches, ..small() });
        let bytes = 888 * times;
        let ring = [(0, 1, bytes), (1, 2, bytes), (2, 3, bytes), (3, 0, bytes)];
        assert_eq!(of(&traffic, Kind::Data), ring, "ZeRO-{zero}, {batches} micro-batches");
        assert_eq!(traffic.pairs().count(), 4);
    }
}

#[test]
fn context_ranks_pass_keys_and_values() {
    let traffic = traffic(&Workload { context: 4, ..small() });
    // 2 tokens a rank, so 32 bytes of keys and values; 3 links forward, 3 backward, 4 for the gradients; 2 layers.
    let bytes = 32 * (3 + 3 + 4) * 2;
    assert_eq!(of(&traffic, Kind::Context), [(0, 1, bytes), (1, 2, bytes), (2, 3, bytes), (3, 0, bytes)]);
    // Context ranks have the same parameters.
    assert_eq!(of(&traffic, Kind::Data)[0], (0, 1, 888 * 2));
}

#[test]
fn tokens_go_to_their_experts_directly() {
    let workload = Workload { experts: 4, expert: 2, data: 4, ..small() };
    let traffic = traffic(&workload);
    // Each of 8 tokens twice, 128 bytes, half of them to the other rank; 4 times in each of 2 layers.
    let bytes = 64 * 4 * 2;
    assert_eq!(of(&traffic, Kind::Expert), [(0, 1, bytes), (1, 0, bytes), (2, 3, bytes), (3, 2, bytes)]);
    // Experts of 148 parameters, two on a rank, in two layers: 1184 bytes, all-reduced over ranks 0 and 2, 1 and 3. The
    // rest is 328 parameters, 656 bytes, over all four.
    let ring = 656 * 3 / 4 * 2;
    let data = of(&traffic, Kind::Data);
    assert!(data.contains(&(0, 2, 1184)) && data.contains(&(3, 1, 1184)), "{data:?}");
    assert!(data.contains(&(0, 1, ring)) && data.contains(&(3, 0, ring)), "{data:?}");
    assert_eq!(data.len(), 8);
}

#[test]
fn ranks_are_numbered_tensor_context_data_pipeline() {
    let workload = Workload { tensor: 2, context: 2, data: 2, pipeline: 2, ..small() };
    let first = |axis: consort_algorithms::workload::Axis| {
        axis.groups(16).next().expect("a group").iter().map(|rank| rank.0).collect::<Vec<_>>()
    };
    assert_eq!(first(workload.tensor_axis()), [0, 1]);
    assert_eq!(first(workload.context_axis()), [0, 2]);
    assert_eq!(first(workload.data_axis()), [0, 2, 4, 6]);
    assert_eq!(first(workload.pipeline_axis()), [0, 8]);
    let experts = Workload { experts: 2, expert: 2, ..workload };
    assert_eq!((first(experts.expert_axis()), first(experts.expert_data_axis())), (vec![0, 2], vec![0, 4]));
    for axis in [experts.tensor_axis(), experts.data_axis(), experts.expert_axis(), experts.pipeline_axis()] {
        let mut ranks: Vec<u32> = axis.groups(16).flatten().map(|rank| rank.0).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, (0..16).collect::<Vec<_>>(), "every rank is in one group: {axis:?}");
    }
}

/// A workload of seeded numbers.
fn any(random: &mut Random) -> Workload {
    let mut power = |most: usize| 1u32 << random.below(most + 1);
    let [tensor, context, data, pipeline, expert] = [power(2), power(2), power(2), power(2), power(2)];
    let has_experts = expert <= context * data && power(1) == 2;
    Workload {
        layers: pipeline * power(2),
        hidden: 16 * power(2),
        heads: 4 * power(1),
        sequence: 64 * power(2),
        vocabulary: 64,
        experts: if has_experts { 4 * power(1) } else { 0 },
        top_k: power(1),
        micro_batch: power(1),
        micro_batches: power(3),
        element_bytes: power(2),
        tensor,
        pipeline,
        data,
        expert: if has_experts { expert } else { 1 },
        context,
        sequence_parallel: power(1) == 2,
        zero: random.below(4) as u32,
    }
}

#[test]
fn totals_are_the_closed_forms() {
    let seed = seed(0x7aff);
    let mut random = Random(seed);
    for _ in 0..300 {
        let workload = any(&mut random);
        let traffic = traffic(&workload);
        let [l, h, b, m, e] = [
            workload.layers,
            workload.hidden,
            workload.micro_batch,
            workload.micro_batches,
            workload.element_bytes,
        ]
        .map(u64::from);
        let [t, c, d, p, x] =
            [workload.tensor, workload.context, workload.data, workload.pipeline, workload.expert]
                .map(u64::from);
        let ranks = t * c * d * p;
        let activation = u64::from(workload.sequence) / c * b * h * e;
        let passes = l / p * m;
        let total = |kind| traffic.total(kind);
        assert_eq!(
            total(Kind::Context),
            if c == 1 { 0 } else { ranks * 2 * activation / t * (3 * c - 2) * passes }
        );
        let experts = if workload.experts == 0 { 0 } else { activation * u64::from(workload.top_k) };
        assert_eq!(total(Kind::Expert), ranks * experts / x * (x - 1) * 4 * passes, "{workload:?}");
        let shared = if workload.sequence_parallel { activation / t } else { activation };
        assert_eq!(total(Kind::Pipeline), 2 * (p - 1) * (ranks / p) * shared * m);
        // A reduce-scatter or an all-gather moves n - 1 times its bytes.
        let halves = match workload.zero {
            0 | 1 => 2,
            2 => m + 1,
            _ => 3 * m,
        };
        let data: u64 = (0..workload.pipeline)
            .map(|stage| {
                let parameters = workload.parameters_of_stage(stage);
                let dense = t * (c * d - 1) * parameters.dense;
                dense + t * x * (c * d / x - 1) * parameters.expert
            })
            .sum();
        assert_eq!(total(Kind::Data), data * e * halves, "{workload:?}");
        // Without shared tokens two halves for each all-reduce.
        let columns = c * d;
        let loss = 3 * 2 * activation / h / e * 4 * m;
        let copies = (6 * l + 2) * h * e * 2;
        let of_columns = if workload.sequence_parallel {
            activation * (10 * l * m + 2 * m + 3 * m) + loss + copies
        } else {
            activation * 2 * (4 * l * m + 2 * m) + loss
        };
        assert_eq!(total(Kind::Tensor), columns * (t - 1) * of_columns, "{workload:?}");
        let (sent, received) = traffic.of_ranks();
        let all: u64 = Kind::ALL.iter().map(|kind| total(*kind)).sum();
        assert_eq!((sent.iter().sum::<u64>(), received.iter().sum::<u64>()), (all, all));
        assert!(traffic.pairs().all(|((from, to), _)| from != to && from.0.max(to.0) < workload.ranks()));
        let (talking, pairs) = traffic.talking();
        assert!(talking <= pairs && talking <= traffic.pairs().count() as u64);
    }
}

#[test]
fn tables_have_a_line_for_each_pair_that_talks() {
    let traffic = traffic(&Workload { tensor: 2, pipeline: 2, ..small() });
    let text = traffic.csv();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("from,to,bytes,tensor,context,expert,data,pipeline,embedding"));
    assert_eq!(lines.next(), Some("0,1,320,320,0,0,0,0,0"));
    assert_eq!(lines.next(), Some("0,2,128,0,0,0,0,64,64"));
    assert_eq!(lines.count() + 2, traffic.pairs().count());
}

#[test]
fn impossible_meshes_name_the_flags_to_change() {
    let w = Workload::default;
    for (workload, says) in [
        (
            Workload { tensor: 12, ..w() },
            "--heads 80 is no multiple of --tp 12: take --tp 10 or 16, or --heads 72 or 84",
        ),
        (
            Workload { pipeline: 3, ..w() },
            "--layers 80 is no multiple of --pp 3: take --pp 2 or 4, or --layers 78 or 81",
        ),
        (Workload { heads: 96, ..w() }, "--hidden 10240 is no multiple of --heads 96"),
        (Workload { vocabulary: 50_257, ..w() }, "or --vocabulary 50256 or 50264"),
        (Workload { context: 3, ..w() }, "--sequence 4096 is no multiple of --cp 3: take --cp 2 or 4"),
        (Workload { expert: 2, ..w() }, "--ep 2 without experts: add --experts, or take --ep 1"),
        (Workload { experts: 6, expert: 4, ..w() }, "--experts 6 is no multiple of --ep 4: take --ep 3 or 6"),
        (
            Workload { experts: 8, expert: 8, ..w() },
            "--ep 8 does not divide the 4 ranks of --cp 1 times --dp 4, which share the experts: take --ep 4",
        ),
        (Workload { experts: 8, top_k: 9, ..w() }, "--top-k 9: a token passes 1 to 8 experts"),
        (Workload { zero: 4, ..w() }, "--zero 4"),
        (Workload { micro_batches: 0, ..w() }, "--micro-batches 0: there must be at least 1"),
        (Workload { data: 4096, ..w() }, "are more than 65536 ranks"),
        (
            Workload { data: u32::MAX, tensor: u32::MAX, context: u32::MAX, ..w() },
            "are more than 65536 ranks",
        ),
        (
            Workload { experts: 65_536, expert: 65_536, data: 65_536, tensor: 1, pipeline: 1, ..w() },
            "--ep 65536 on 65536 ranks are 4294967296 pairs that exchange tokens, and at most 4194304 are counted: lower --ep",
        ),
        (
            Workload { vocabulary: u32::MAX - 1, tensor: 4, ..w() },
            "--vocabulary 4294967294 is no multiple of --tp 4: take --tp 2 or 2147483647",
        ),
        (
            Workload { experts: 6, expert: u32::MAX, data: 1, ..w() },
            "--experts 6 is no multiple of --ep 4294967295: take --ep 6",
        ),
        (Workload { micro_batches: u32::MAX, ..w() }, "more than 2^64 bytes: lower --micro-batches"),
        (Workload { sequence: 4100, sequence_parallel: true, ..w() }, "the 4100 tokens of a context rank"),
    ] {
        let fault = workload.check().expect_err(says).to_string();
        assert!(fault.contains(says), "{fault}\n{says}");
    }
    // What people train today fits.
    let large = Workload {
        layers: 128,
        hidden: 16_384,
        heads: 128,
        sequence: 8192,
        micro_batches: 128,
        pipeline: 16,
        data: 128,
        ..w()
    };
    assert_eq!((large.check(), large.ranks()), (Ok(()), 16_384));
}
