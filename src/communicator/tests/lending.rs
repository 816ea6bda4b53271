//! Sends whose source an adapter reads where the program has it: over the stand-in for adapters, each rank with a transport of its own.

use std::sync::Arc;
use std::time::Duration;

use consort_control::membership::group::Group;
use consort_kernels::ReduceOp;
use consort_memory::{Buffer, SharedBuffer, UserBuffer};
use consort_testing::Random;
use consort_transports::{Transport, Verbs};

use crate::engine::routes::Routes;
use crate::{Communicator, Error, Options, Rank, Result};

/// An adapter, and nothing beside it.
struct ByAdapter(Arc<Verbs>);

impl Routes for ByAdapter {
    fn is_mapped(&self, _: &Group, _: Rank) -> bool {
        false
    }

    fn transport(&mut self, _: &Group, _: Rank) -> Result<Arc<dyn Transport>> {
        Ok(self.0.clone())
    }

    fn abandon(&mut self) {}
}

fn ranks(count: u32, network: u8, adapters: u8, options: &Options) -> Vec<Communicator> {
    let all = Communicator::local_with(count, options).expect("ranks in a process");
    for comm in &all {
        let verbs = Arc::new(Verbs::over_standin(network, adapters));
        comm.core().idle_engine().links.reroute(Box::new(ByAdapter(verbs)));
    }
    all
}

/// What a rank gives as its element `at` in a call.
fn value(call: u64, rank: u32, at: usize) -> u64 {
    let of = call.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(rank) << 40);
    of.wrapping_add(at as u64).wrapping_mul(0xd1b5_4a32_d192_ed03) >> 20
}

/// Of a rank's block: several slots, the last of them short.
const COUNT: usize = 300_001;

/// The calls of a rank, one after the other, on memory that adapters can read. All of it is written again as soon as a call is over.
fn calls(comm: &Communicator, number: u64) {
    let (me, size) = (comm.rank(), comm.size() as usize);
    let mut input = SharedBuffer::<u64>::new(size * COUNT).expect("memory");
    let mut output = SharedBuffer::<u64>::new(size * COUNT).expect("memory");
    let sum =
        |call: u64, at: usize| (0..comm.size()).map(|rank| value(call, rank, at)).fold(0, u64::wrapping_add);
    let fill = |buffer: &mut [u64], call: u64| {
        buffer.iter_mut().enumerate().for_each(|(at, element)| *element = value(call, me, at));
    };
    let check = |what: &str, found: &[u64], meant: &dyn Fn(usize) -> u64| {
        for (at, element) in found.iter().enumerate() {
            assert!(*element == meant(at), "{what} {number}: rank {me}, element {at}");
        }
    };
    let mut call = number * 100;
    fill(&mut input, call);
    comm.all_reduce_into(&input[..COUNT], &mut output[..COUNT], ReduceOp::Sum).expect("all ranks call it");
    check("all-reduce", &output[..COUNT], &|at| sum(call, at));

    call += 1;
    fill(&mut output, call);
    comm.all_reduce(&mut output[..COUNT], ReduceOp::Sum).expect("all ranks call it");
    check("all-reduce in place", &output[..COUNT], &|at| sum(call, at));

    call += 1;
    fill(&mut input, call);
    comm.all_gather(&input[..COUNT], &mut output).expect("all ranks call it");
    check("all-gather", &output, &|at| value(call, (at / COUNT) as u32, at % COUNT));

    call += 1;
    fill(&mut input, call);
    comm.reduce_scatter(&input, &mut output[..COUNT], ReduceOp::Sum).expect("all ranks call it");
    check("reduce-scatter", &output[..COUNT], &|at| sum(call, me as usize * COUNT + at));

    call += 1;
    fill(&mut output, call);
    comm.broadcast(&mut output[..COUNT], 1).expect("all ranks call it");
    check("broadcast", &output[..COUNT], &|at| value(call, 1, at));

    call += 1;
    fill(&mut input, call);
    comm.all_to_all(&input, &mut output).expect("all ranks call it");
    let from = |at: usize| value(call, (at / COUNT) as u32, me as usize * COUNT + at % COUNT);
    check("all-to-all", &output, &from);

    call += 1;
    fill(&mut input, call);
    let (next, last) = ((me + 1) % comm.size(), (me + comm.size() - 1) % comm.size());
    comm.exchange_into(&input[..COUNT], next, &mut output[..COUNT], last).expect("all ranks call it");
    check("send and receive", &output[..COUNT], &|at| value(call, last, at));
    assert!(
        Verbs::standin_was_given(input.as_ptr() as usize, input.len() * 8),
        "what was sent last was copied"
    );
}

/// What arrives is what was there, for one adapter and for several, and though all memory is written again at once.
#[test]
fn what_adapters_read_of_programs_arrives() {
    let seed = Random::announced("what_adapters_read_of_programs_arrives").below(1 << 20) as u64;
    let jobs = [(3, 1, "ring"), (4, 1, "doubling,bruck"), (3, 1, "tree,direct,pairwise"), (3, 2, "ring")];
    for (size, adapters, algorithms) in jobs {
        let options = Options::default().timeout(Duration::from_secs(60)).algorithms(algorithms);
        let all = ranks(size, 1, adapters, &options);
        std::thread::scope(|threads| {
            for comm in &all {
                threads.spawn(move || (0..3).for_each(|round| calls(comm, seed + round)));
            }
        });
    }
}

/// Makes the connections.
fn meet(comm: &Communicator) {
    let comm = comm.with_timeout(Duration::from_secs(60));
    comm.all_reduce(&mut vec![1u8; 1 << 20], ReduceOp::Sum).expect("all ranks call it");
}

/// A call that fails gives memory back that no adapter reads any more, though nothing of what they sent was answered.
#[test]
fn no_adapter_reads_for_a_call_that_has_failed() {
    const NETWORK: u8 = 2;
    for adapters in [1, 2] {
        let options = Options::default().timeout(Duration::from_secs(3)).algorithms("ring");
        let all = ranks(2, NETWORK, adapters, &options);
        std::thread::scope(|threads| all.iter().for_each(|comm| _ = threads.spawn(move || meet(comm))));
        Verbs::silence_standin(NETWORK);
        let fail = |comm: &Communicator| {
            let buffer = SharedBuffer::<u8>::new(4 << 20).expect("memory");
            let mut other = SharedBuffer::<u8>::new(4 << 20).expect("memory");
            let outcome = comm.all_reduce_into(&buffer, &mut other, ReduceOp::Sum);
            assert!(outcome.is_err(), "rank {} heard something", comm.rank());
            assert!(Verbs::standin_was_given(buffer.as_ptr() as usize, buffer.len()), "it was copied");
            for memory in [&buffer, &other] {
                assert!(!Verbs::standin_reads(memory.as_ptr() as usize, memory.len()), "it is still read");
            }
            outcome
        };
        std::thread::scope(|threads| {
            let failing: Vec<_> = all.iter().map(|comm| threads.spawn(move || fail(comm))).collect();
            for outcome in failing {
                let error = outcome.join().expect("no panic").expect_err("a failure");
                assert!(matches!(error, Error::Timeout { .. }), "{error}");
            }
        });
    }
}

/// The same of a started call whose communicator is dropped: the buffer comes back when no adapter reads it. One rank has a vector
/// that is registered, the other memory that ranks can map.
#[test]
fn no_adapter_reads_for_a_communicator_that_was_dropped() {
    const NETWORK: u8 = 3;
    const BYTES: usize = 4 << 20;
    for adapters in [1, 2] {
        let options = Options::default().timeout(Duration::from_secs(3)).algorithms("ring");
        let all = ranks(2, NETWORK, adapters, &options);
        std::thread::scope(|threads| all.iter().for_each(|comm| _ = threads.spawn(move || meet(comm))));
        Verbs::silence_standin(NETWORK);
        let fail = |comm: Communicator| {
            if comm.rank() == 0 {
                let buffer = vec![1u8; BYTES];
                let start = buffer.as_ptr() as usize;
                let _registered = UserBuffer::new(start, BYTES).expect("a buffer");
                return fail_unread(comm, buffer, start, BYTES);
            }
            let buffer = SharedBuffer::<u8>::new(BYTES).expect("memory");
            let start = buffer.as_ptr() as usize;
            fail_unread(comm, buffer, start, BYTES);
        };
        std::thread::scope(|threads| all.into_iter().for_each(|comm| _ = threads.spawn(move || fail(comm))));
    }
}

fn fail_unread<B: Buffer<Element = u8>>(comm: Communicator, buffer: B, start: usize, bytes: usize) {
    let work = comm.start_all_reduce(buffer, ReduceOp::Sum).expect("it is started");
    // The control thread sends.
    while !Verbs::standin_was_given(start, bytes) {
        assert!(!work.is_done(), "it was copied");
        std::thread::yield_now();
    }
    drop(comm);
    let (buffer, outcome) = work.wait_with_buffer();
    assert!(outcome.is_err(), "it heard something");
    assert!(!Verbs::standin_reads(start, bytes), "it is still read");
    drop(buffer);
}
