//! All-to-alls between groups of ranks whose inputs are alike: what each rank gets, in every form of call, and what is
//! refused.

use std::time::Duration;

use consort::{Communicator, Error, Options, Result, TransportChoice};
use consort_tests::system::Random;
use consort_tests::{Links, on_ranks, results_of_ranks};

/// What group `from` has for group `to` at a place of the block.
fn value(key: u64, from: u32, to: u32, at: usize) -> u64 {
    key ^ u64::from(from) << 48 ^ u64::from(to) << 32 ^ at as u64
}

/// Blocks of `length` elements, one for each group, as `of` says.
fn blocks(groups: u32, length: usize, of: impl Fn(u32, usize) -> u64) -> Vec<u64> {
    (0..groups)
        .flat_map(|group| (0..length).map(move |at| (group, at)))
        .map(|(group, at)| of(group, at))
        .collect()
}

/// A call in blocks of `length` elements, blocking, in a group and in a scope.
fn exchange(comm: &Communicator, key: u64, group: u32, length: usize) -> Result<()> {
    let (groups, own) = (comm.size() / group, comm.rank() / group);
    let input = blocks(groups, length, |to, at| value(key, own, to, at));
    let expected = blocks(groups, length, |from, at| value(key, from, own, at));
    let mut outputs = [(); 3].map(|()| vec![!0u64; input.len()]);
    let [blocking, grouped, scoped] = &mut outputs;
    comm.all_to_all_replicated(&input, blocking, group)?;
    consort::group(|calls| calls.all_to_all_replicated(comm, &input, grouped, group))?;
    comm.scope(|scope| scope.all_to_all_replicated(&input, scoped, group).map(drop))?;
    let what = format!("rank {} of {}, groups of {group}, blocks of {length}", comm.rank(), comm.size());
    for output in outputs {
        assert!(output == expected, "{what}");
    }
    Ok(())
}

fn every_group(comm: &Communicator, key: u64, lengths: &[usize]) -> Result<()> {
    for group in (1..=comm.size()).filter(|group| comm.size().is_multiple_of(*group)) {
        for length in lengths {
            exchange(comm, key, group, length * group as usize)?;
        }
    }
    Ok(())
}

#[test]
fn every_rank_of_a_group_gets_whole_blocks() {
    let key = Random::announced("every_rank_of_a_group_gets_whole_blocks").seed();
    for size in [1, 2, 3, 4, 6, 8, 12] {
        on_ranks(size, Links::Local, &Options::default(), |comm| every_group(comm, key, &[0, 1, 7, 4099]));
    }
}

#[test]
fn every_rank_of_a_group_gets_whole_blocks_over_tcp() {
    let key = Random::announced("every_rank_of_a_group_gets_whole_blocks_over_tcp").seed();
    let options = Options::default().transport(TransportChoice::Tcp);
    for size in [2, 4, 6] {
        on_ranks(size, Links::Joined, &options, |comm| every_group(comm, key, &[0, 3, 30_011]));
    }
}

#[test]
fn groups_and_lengths_that_do_not_fit_are_refused() {
    on_ranks(4, Links::Local, &Options::default(), |comm| {
        let refused = |result: Result<()>, words: &str| match result {
            Err(Error::InvalidArgument { what, .. }) => assert!(what.contains(words), "{words} in: {what}"),
            other => panic!("{words}: {other:?}"),
        };
        let (input, mut output) = ([1u32; 8], [0u32; 8]);
        for group in [0, 3, 5, 8] {
            refused(comm.all_to_all_replicated(&input, &mut output, group), "4 ranks are not in groups of");
        }
        refused(comm.all_to_all_replicated(&input[..6], &mut output, 2), "6 elements has no 4 equal blocks");
        refused(comm.all_to_all_replicated(&input, &mut output[..4], 2), "16 bytes and must have 32");
        comm.all_to_all_replicated(&input, &mut output, 2)
    });
}

#[test]
fn ranks_that_differ_in_groups_or_lengths_are_named() {
    type Asked = (u32, usize);
    let pairs: [(Asked, Asked, [&str; 2]); 2] = [
        (
            (2, 64),
            (4, 64),
            ["of 16 uint8 in groups of 2", "rank 2: all_to_all_replicated of 16 uint8 in groups of 4"],
        ),
        (
            (2, 64),
            (2, 32),
            ["of 16 uint8 in groups of 2", "rank 2: all_to_all_replicated of 8 uint8 in groups of 2"],
        ),
    ];
    for (usual, other, words) in pairs {
        let options = Options::default().timeout(Duration::from_secs(20));
        let results = results_of_ranks(4, Links::Local, &options, |comm| {
            let (group, length) = if comm.rank() == 2 { other } else { usual };
            let (input, mut output) = (vec![1u8; length], vec![0u8; length]);
            comm.barrier()?;
            comm.all_to_all_replicated(&input, &mut output, group).and_then(|()| comm.barrier())
        });
        for (rank, result) in results.into_iter().enumerate() {
            let Err(Error::Mismatch { difference, .. }) = result else { panic!("rank {rank}: {result:?}") };
            assert!(words.iter().all(|word| difference.contains(word)), "{words:?} in: {difference}");
        }
    }
}

#[test]
fn a_rank_that_leaves_in_place_of_the_call_is_named() {
    let options = Options::default().timeout(Duration::from_secs(20));
    let results = results_of_ranks(4, Links::Local, &options, |comm| {
        let (input, mut output) = ([1u32; 8], [0u32; 8]);
        comm.all_to_all_replicated(&input, &mut output, 2)?;
        if comm.rank() == 2 {
            return Ok(());
        }
        comm.all_to_all_replicated(&input, &mut output, 2).and_then(|()| comm.barrier())
    });
    for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 2) {
        let error = result.expect_err("a rank has left").to_string();
        assert!(error.contains("rank 2"), "rank {rank}: {error}");
    }
}
