//! Jobs whose root gives the table of ranks to few of them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use consort_control::bootstrap::{Spread, UniqueId};
use consort_types::Rank;
use consort_types::error::Error;

use crate::{Communicator, Options, ReduceOp};

const SIZE: u32 = 9;

/// A root that gives it to one rank.
fn id() -> UniqueId {
    UniqueId::create_spreading(Spread { whole_max: 2, fanout: 2 }).expect("an id")
}

#[test]
fn ranks_that_take_the_table_from_each_other_join_and_have_one() {
    let id = id();
    let tables: Vec<_> = thread::scope(|threads| {
        let join = |rank: Rank| {
            let id = id.clone();
            threads.spawn(move || {
                let comm = Communicator::join(rank, SIZE, &id).expect("a communicator");
                let mut sum = [f64::from(rank)];
                comm.all_reduce(&mut sum, ReduceOp::Sum).expect("a sum");
                assert_eq!(sum, [36.0]);
                comm.core().group.member.table.clone()
            })
        };
        // Those that take it come first.
        let ranks: Vec<_> = (0..SIZE).rev().map(join).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    assert!(tables.iter().all(|table| Arc::ptr_eq(table, &tables[0]) && table.len() == SIZE as usize));
}

#[test]
fn a_rank_that_does_not_come_is_named_where_ranks_would_take_the_table_from_each_other() {
    let id = id();
    let options = Options::default().join_timeout(Duration::from_millis(300));
    thread::scope(|threads| {
        for rank in (0..SIZE).filter(|rank| *rank != 4) {
            let (id, options) = (id.clone(), options.clone());
            threads.spawn(move || {
                let error = Communicator::join_with(rank, SIZE, &id, &options).expect_err("one is missing");
                let Error::MissingRanks { missing, .. } = &error else { panic!("{error}") };
                assert_eq!(*missing, [4]);
            });
        }
    });
}
