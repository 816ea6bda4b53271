//! Ranks of a ring beside one rank that has whole sequences, in f64; what they compute and send; and how a ring ends.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use consort::ReduceOp;

use super::*;
use crate::layers::rope::{Rope, Turn};
use crate::random::Random;

const SEED: u64 = 20_261_129;

/// Queries, keys, values and the gradient of the outputs, or what is made of them in their places.
type Rows = [Vec<f64>; 4];

fn widths(attention: &Attention) -> [usize; 4] {
    let Attention { heads, kv_heads, head, .. } = *attention;
    [heads, kv_heads, kv_heads, heads].map(|heads| heads * head)
}

fn rows(attention: &Attention, sequences: usize) -> Rows {
    let mut widths = widths(attention).into_iter();
    ["q", "k", "v", "dy"].map(|name| {
        let random = Random::new(SEED, name);
        let count = sequences * attention.sequence * widths.next().expect("four widths");
        (0..count as u64).map(|index| random.normal(index)).collect()
    })
}

/// The rows of these positions of each sequence.
fn chosen(rows: &[f64], width: usize, sequence: usize, positions: &[usize]) -> Vec<f64> {
    let sequences = rows.chunks_exact(sequence * width);
    sequences
        .flat_map(|of| positions.iter().flat_map(move |at| &of[at * width..][..width]))
        .copied()
        .collect()
}

/// Outputs, gradients of queries, keys and values, and what forward and backward took.
type Passes = (Rows, [Effort; 2]);

fn passes(ring: &Ring<'_>, attention: &Attention, rows: &Rows) -> Result<Passes> {
    let [q, k, v, d_out] = rows;
    let tokens = q.len() / widths(attention)[0];
    let mut room = Room::new(ring.is_shared(), attention, tokens);
    let mut logs = vec![f64::NAN; tokens * attention.heads];
    let [mut d_q, mut d_k, mut d_v, mut out] = rows.each_ref().map(|rows| vec![f64::NAN; rows.len()]);
    let inputs = Inputs { q, k, v };
    let forward = ring.forward(attention, inputs, (&mut out, &mut logs), &mut room)?;
    let gradients = InputGradients { q: &mut d_q, k: &mut d_k, v: &mut d_v };
    let backward = ring.backward(attention, inputs, (&out, d_out, &logs), gradients, &mut room)?;
    Ok(([d_q, d_k, d_v, out], [forward, backward]))
}

/// What `body` gives on each of `ranks` ranks.
fn on_ranks<R: Send>(ranks: u32, body: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    let comms = Communicator::local(ranks).expect("ranks");
    std::thread::scope(|threads| {
        let body = &body;
        let threads: Vec<_> = comms.into_iter().map(|comm| threads.spawn(move || body(&comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

/// The attention of a rank, and its part of all rows.
fn share(ring: &Ring<'_>, attention: &Attention, all: &Rows) -> (Attention, Rows) {
    let positions = ring.positions();
    let mut widths = widths(attention).into_iter();
    let own = all
        .each_ref()
        .map(|rows| chosen(rows, widths.next().expect("four widths"), attention.sequence, positions));
    (Attention { sequence: positions.len(), ..*attention }, own)
}

/// Ranks have what one rank has, each its part of it, to `bound`. Returns what each rank's passes took.
fn compare(ranks: u32, attention: &Attention, all: &Rows, bound: f64) -> Vec<[Effort; 2]> {
    let alone = Ring::new(None, attention.sequence).unwrap();
    let expected = passes(&alone, attention, all).unwrap().0;
    assert!(expected.iter().flatten().all(|value| value.is_finite()));
    on_ranks(ranks, |comm| {
        let ring = Ring::new(Some(comm), attention.sequence).unwrap();
        let (local, own) = share(&ring, attention, all);
        let (found, efforts) = passes(&ring, &local, &own).unwrap();
        let expected = share(&ring, attention, &expected).1;
        for (name, (found, expected)) in ["d_q", "d_k", "d_v", "out"].iter().zip(found.iter().zip(&expected))
        {
            let error = |(a, b): (&f64, &f64)| (a - b).abs() / (1.0 + b.abs());
            // A value that is no number counts as wrong.
            let right = found.iter().zip(expected).all(|pair| error(pair) <= bound);
            let worst = found.iter().zip(expected).map(error).fold(0.0, f64::max);
            assert!(right, "seed {SEED}: rank {} of {ranks}, {attention:?}, {name}: {worst:e}", comm.rank());
        }
        efforts
    })
}

#[test]
fn ranks_compute_what_one_computes_and_send_what_is_said() {
    let lengths = [
        // One token in a chunk; one sequence, and heads of their own.
        (1, 1, 2, 2, 2),
        (3, 2, 4, 2, 4),
        (3, 2, 6, 2, 2),
        // More queries of a rank, and of one of its chunks, than there are in a block.
        (35, 1, 2, 1, 2),
        (66, 2, 2, 1, 3),
    ];
    for ranks in [2u32, 3, 4] {
        for (chunk, sequences, heads, kv_heads, head) in lengths {
            let sequence = 2 * ranks as usize * chunk;
            let attention = Attention { heads, kv_heads, head, sequence };
            let efforts = compare(ranks, &attention, &rows(&attention, sequences), 1e-12);

            let own = Attention { sequence: 2 * chunk, ..attention };
            let lone =
                passes(&Ring::new(None, own.sequence).unwrap(), &own, &rows(&own, sequences)).unwrap().1;
            let others = ranks as usize - 1;
            let block = 2 * sequences * (sequence / ranks as usize) * kv_heads * head;
            let scores = lone[0].scores + others * 2 * chunk * chunk * sequences * heads;
            let forward = Effort { scores, sent: block * others };
            let backward = Effort { scores, sent: block * others + block * ranks as usize };
            for (rank, found) in efforts.iter().enumerate() {
                assert_eq!(*found, [forward, backward], "rank {rank} of {ranks}, chunks of {chunk}");
            }
        }
    }
}

#[test]
fn a_ring_of_one_gives_the_bits_of_attention() {
    let attention = Attention { heads: 4, kv_heads: 2, head: 4, sequence: 71 };
    let all = rows(&attention, 2);
    let [q, k, v, d_out] = &all;
    let inputs = Inputs { q, k, v };
    let mut scratch = Scratch::new(attention.sequence);
    let mut logs = vec![0.0; 2 * 71 * 4];
    let [mut d_q, mut d_k, mut d_v, mut out] = all.each_ref().map(|rows| vec![0.0; rows.len()]);
    attention.forward(inputs, &mut out, &mut logs, &mut scratch);
    let gradients = InputGradients { q: &mut d_q, k: &mut d_k, v: &mut d_v };
    attention.backward(inputs, (&out, d_out, &logs), gradients, &mut scratch);
    let expected = [d_q, d_k, d_v, out];
    on_ranks(1, |comm| {
        let ring = Ring::new(Some(comm), 71).unwrap();
        let (found, efforts) = passes(&ring, &attention, &all).unwrap();
        assert!(
            found.iter().flatten().zip(expected.iter().flatten()).all(|(a, b)| a.to_bits() == b.to_bits())
        );
        assert!(efforts.iter().all(|effort| effort.sent == 0 && effort.scores > 0));
    });
}

#[test]
fn gradients_are_those_of_the_ring_itself() {
    const CHANGE: f64 = 1e-5;
    for ranks in [2u32, 3] {
        let attention = Attention { heads: 2, kv_heads: 1, head: 2, sequence: 2 * ranks as usize };
        let all = rows(&attention, 1);
        on_ranks(ranks, |comm| {
            let ring = Ring::new(Some(comm), attention.sequence).unwrap();
            let (local, own) = share(&ring, &attention, &all);
            let gradients = passes(&ring, &local, &own).unwrap().0;
            for (of, values) in all.iter().take(3).enumerate() {
                // Which of all elements each of this rank's elements is.
                let indices: Vec<f64> = (0..values.len()).map(|index| index as f64).collect();
                let width = widths(&attention)[of];
                let places = chosen(&indices, width, attention.sequence, ring.positions());
                for index in 0..values.len() {
                    let mine = places.iter().position(|place| *place == index as f64);
                    // The loss of all ranks is the product of outputs and what is taken as their gradient.
                    let loss = |change: f64| {
                        let mut own = own.clone();
                        mine.into_iter().for_each(|mine| own[of][mine] += change);
                        let out = &passes(&ring, &local, &own).unwrap().0[3];
                        let mut loss = [out.iter().zip(&own[3]).map(|(a, b)| a * b).sum::<f64>()];
                        comm.all_reduce(&mut loss, ReduceOp::Sum).unwrap();
                        loss[0]
                    };
                    let difference = (loss(CHANGE) - loss(-CHANGE)) / (2.0 * CHANGE);
                    let found = mine.map_or(difference, |mine| gradients[of][mine]);
                    assert!(
                        (found - difference).abs() <= 1e-7 * (1.0 + difference.abs()),
                        "seed {SEED}: {of}[{index}] on {ranks} ranks: {found} and by difference {difference}"
                    );
                }
            }
        });
    }
}

#[test]
fn large_scores_of_either_sign_are_joined() {
    // Keys at every third position are far more probable than the others: at -1000 and 1000, a power of e is 0 or none.
    for (ranks, large) in [(2u32, 0), (3, 1), (3, 2), (4, 2)] {
        let attention = Attention { heads: 2, kv_heads: 1, head: 4, sequence: 6 * ranks as usize };
        let mut all = rows(&attention, 2);
        all[0].chunks_exact_mut(4).for_each(|q| q[3] = 2000.0);
        for (token, k) in all[1].chunks_exact_mut(4).enumerate() {
            k[3] = if token % 3 == large { 1.0 } else { -1.0 };
        }
        // The scores' own rounding is 1000 times what it was.
        compare(ranks, &attention, &all, 1e-9);
        all[1].chunks_exact_mut(4).for_each(|k| k[3] = -1.0);
        compare(ranks, &attention, &all, 1e-9);
    }
}

#[test]
fn positions_are_shared_out_and_parts_are_what_they_see() {
    for ranks in 1..=6u32 {
        for chunk in 1..=3 {
            let sequence = 2 * ranks as usize * chunk;
            let all: Vec<Vec<usize>> =
                (0..ranks).map(|rank| positions(sequence, rank, ranks).unwrap()).collect();
            let mut sorted: Vec<usize> = all.iter().flatten().copied().collect();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..sequence).collect::<Vec<_>>());
            for (rank, queries) in (0..).zip(&all) {
                assert!(queries.len() == 2 * chunk && queries.is_sorted());
                for (from, keys) in (0..).zip(&all) {
                    let part = part(rank, from, 2 * chunk);
                    for (query, query_at) in queries.iter().enumerate() {
                        for (key, key_at) in keys.iter().enumerate() {
                            let made = match &part {
                                Part::Causal => key <= query,
                                Part::Full { queries, keys } => {
                                    queries.contains(&query) && keys.contains(&key)
                                }
                            };
                            assert_eq!(made, key_at <= query_at, "{rank} of {ranks}: {query_at} {key_at}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn sequences_that_do_not_give_equal_chunks_are_refused() {
    for (sequence, ranks) in [(6, 2), (0, 2), (8, 3), (2, 4)] {
        let error = positions(sequence, 0, ranks).expect_err("no chunks");
        let text = error.to_string();
        assert!(matches!(error, Error::Configuration { .. }), "{text}");
        assert!(
            text.contains(&format!("{sequence} tokens")) && text.contains(&format!("{ranks} ranks")),
            "{text}"
        );
    }
    // A rank that is alone has whole sequences of any length.
    assert_eq!(positions(5, 0, 1).unwrap(), [0, 1, 2, 3, 4]);
    let refused = on_ranks(2, |comm| Ring::new(Some(comm), 10).err().map(|error| error.to_string()));
    assert!(refused.iter().all(|error| error.as_ref().is_some_and(|text| text.contains("10 tokens"))));
}

#[test]
fn ranks_turn_their_tokens_by_their_positions() {
    let (width, sequence) = (8, 12);
    let rope = Rope::<f64>::new(sequence, 4, 100.0);
    let random = Random::new(SEED, "x");
    let all: Vec<f64> = (0..2 * 12 * 8).map(|index| random.normal(index)).collect();
    let mut turned = all.clone();
    rope.turn(&mut turned, width, &positions(sequence, 0, 1).unwrap(), Turn::On);
    for rank in 0..3 {
        let positions = positions(sequence, rank, 3).unwrap();
        let original = chosen(&all, width, sequence, &positions);
        let mut own = original.clone();
        rope.turn(&mut own, width, &positions, Turn::On);
        assert_eq!(own, chosen(&turned, width, sequence, &positions), "rank {rank}");
        rope.turn(&mut own, width, &positions, Turn::Back);
        assert!(own.iter().zip(&original).all(|(a, b)| (a - b).abs() < 1e-12), "rank {rank}");
    }
}

/// A pass of a small ring.
fn small(comm: &Communicator, sequences: usize) -> Result<Passes> {
    let ring = Ring::new(Some(comm), 12).unwrap();
    let attention = Attention { heads: 2, kv_heads: 1, head: 2, sequence: 12 / comm.size() as usize };
    passes(&ring, &attention, &rows(&attention, sequences))
}

#[test]
fn a_ring_that_lost_a_rank_or_has_other_lengths_ends_with_the_library_s_error() {
    for fault in ["leaves", "aborts", "has other lengths"] {
        // A rank may have what it needs of the first pass before the others have.
        let all = std::sync::Barrier::new(3);
        let errors = on_ranks(3, |comm| {
            small(comm, 2).expect("all ranks are there");
            all.wait();
            let sequences = match (comm.rank(), fault) {
                (1, "leaves") => return None,
                (1, "aborts") => {
                    comm.abort("the test says so");
                    2
                }
                (1, _) => 3,
                _ => 2,
            };
            Some(small(comm, sequences).map(|_| ()).expect_err("the ring is broken"))
        });
        for (rank, error) in errors.iter().enumerate() {
            match error {
                None => assert_eq!((rank, fault), (1, "leaves")),
                Some(Error::Library(error)) => {
                    assert!(error.to_string().contains("rank 1"), "{fault}: {error}")
                }
                Some(other) => panic!("{fault}: rank {rank} has {other}"),
            }
        }
    }
}

/// A rank process that is killed when it is no longer needed.
struct Member(Child);

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_rank_that_is_killed_is_named() {
    // The module's path begins with the crate.
    let (_, module) = module_path!().split_once("::").expect("a module");
    const PARENT: &str = "RING_PARENT";
    const ROUND: &str = "the ring has gone round";
    if let Ok(parent) = std::env::var(PARENT) {
        crate::launch::enter(parent.parse().expect("an id")).expect("the parent is there");
        let comm = Communicator::from_launcher().expect("two ranks");
        small(&comm, 2).expect("both ranks are there");
        println!("\n{ROUND}");
        let error = (0..).find_map(|_| small(&comm, 2).err()).expect("it goes on until it cannot");
        println!("{error:?}");
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let parent = std::process::id();
    let start = |rank: u32| {
        let mut command = Command::new(&program);
        command
            .args([&format!("{module}::a_rank_that_is_killed_is_named"), "--exact", "--nocapture"])
            .env(PARENT, parent.to_string());
        let here = [("RANK", rank), ("SIZE", 2), ("LOCAL_RANK", rank), ("LOCAL_SIZE", 2)];
        command.envs(here.map(|(name, value)| (format!("CONSORT_{name}"), value.to_string())));
        command.env("CONSORT_JOB", format!("ring-{parent}")).stdin(Stdio::null()).stdout(Stdio::piped());
        Member(command.spawn().expect("a process"))
    };
    let [mut first, second] = [0, 1].map(start);
    let mut lines =
        BufReader::new(first.0.stdout.take().expect("a pipe")).lines().map_while(std::io::Result::ok);
    assert!(lines.any(|line| line == ROUND), "rank 0 ended early");
    drop(second);
    let rest: Vec<String> = lines.collect();
    assert!(rest.iter().any(|line| line.contains("Library(PeerLost { rank: 1")), "{rest:?}");
}
