//! Invalid calls: refused before anything is sent, and the communicator goes on.

use std::sync::Barrier;
use std::time::Duration;

use consort::{Call, Communicator, DataType, Error, Options, ReduceOp, Result, Span, SpanMut};
use consort_tests::own_process::in_own_process;
use consort_tests::system::{SOON, eventually};
use consort_tests::{Links, on_ranks};

fn options() -> Options {
    Options::default().timeout(Duration::from_secs(20))
}

/// Asserts that the call is refused with these words, and that the communicator still works.
#[track_caller]
fn assert_refused(comm: &Communicator, result: Result<()>, words: &[&str]) {
    match result {
        Err(error @ Error::InvalidArgument { .. }) => {
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{words:?} must be in: {text}");
            assert!(!error.is_fatal());
        }
        other => panic!("should be refused ({words:?}): {other:?}"),
    }
    comm.status().expect("still usable");
}

fn assert_works(comm: &Communicator) -> Result<()> {
    let mut value = [1u32; 5];
    comm.all_reduce(&mut value, ReduceOp::Sum)?;
    assert_eq!(value, [comm.size(); 5]);
    Ok(())
}

#[test]
fn roots_and_peers_out_of_range() {
    on_ranks(2, Links::Local, &options(), |comm| {
        let mut data = [1.0f32; 8];
        for root in [2, 3, u32::MAX] {
            let name = format!("rank {root} does not exist");
            assert_refused(comm, comm.broadcast(&mut data, root), &["broadcast", &name, "between 0 and 1"]);
            assert_refused(comm, comm.reduce(&mut data, ReduceOp::Sum, root), &["reduce", &name]);
            assert_refused(comm, comm.gather(&data, &mut [], root), &["gather", &name]);
            assert_refused(comm, comm.gather_in_place(&mut data, root), &["gather", &name]);
            assert_refused(comm, comm.scatter(&[], &mut data, root), &["scatter", &name]);
            assert_refused(comm, comm.scatter_in_place(&mut data, root), &["scatter", &name]);
            assert_refused(comm, comm.scatter_v(&[], &[], &mut data, root), &["scatter_v", &name]);
            assert_refused(comm, comm.send(&data, root), &["send", &name]);
            assert_refused(comm, comm.receive(&mut data, root), &["receive", &name]);
            assert_refused(comm, comm.exchange_into(&[1u8], root, &mut [1u8], 0), &[&name]);
            assert!(comm.start_broadcast(vec![1u8], root).is_err());
            assert!(comm.scope(|scope| scope.broadcast(&mut data, root).map(drop)).is_err());
        }
        let me = comm.rank();
        assert_refused(comm, comm.send(&data, me), &["is this rank"]);
        assert_refused(comm, comm.exchange_into(&[1u8], me, &mut [1u8], 1 - me), &["itself"]);
        assert_works(comm)
    });
}

#[test]
fn lengths_that_do_not_fit() {
    on_ranks(2, Links::Local, &options(), |comm| {
        let (mut short, long) = ([0.0f32; 7], [0.0f32; 8]);
        assert_refused(comm, comm.all_reduce_into(&long, &mut short, ReduceOp::Sum), &["28 bytes", "32"]);
        assert_refused(comm, comm.all_gather(&long, &mut short), &["28 bytes", "64"]);
        assert_refused(comm, comm.all_gather_in_place(&mut short), &["7 elements"]);
        assert_refused(
            comm,
            comm.reduce_scatter(&long, &mut short, ReduceOp::Sum),
            &["input", "32 bytes", "56"],
        );
        assert_refused(comm, comm.reduce_scatter_in_place(&mut short, ReduceOp::Sum), &["7 elements"]);
        assert_refused(comm, comm.all_to_all(&short, &mut [0.0; 7]), &["7 elements", "2 equal blocks"]);
        assert_refused(comm, comm.all_to_all(&long, &mut short), &["output", "28 bytes", "32"]);
        let mut odd = [0u8; 3];
        assert!(comm.scope(|scope| scope.all_to_all(&[1u8; 3], &mut odd).map(drop)).is_err());
        if comm.rank() == 0 {
            assert_refused(comm, comm.gather(&long, &mut short, 0), &["output", "28 bytes", "64"]);
            assert_refused(comm, comm.gather_in_place(&mut short, 0), &["7 elements"]);
            assert_refused(comm, comm.scatter(&long, &mut short, 0), &["input", "32 bytes", "56"]);
            assert_refused(comm, comm.scatter_in_place(&mut short, 0), &["7 elements"]);
            assert_refused(comm, comm.broadcast_into(&long, &mut short, 0), &["input"]);
            assert_refused(comm, comm.reduce_into(&long, &mut short, ReduceOp::Sum, 0), &["output"]);
        }
        let call = Call::all_reduce(DataType::Float32, ReduceOp::Sum, usize::MAX / 2);
        assert_refused(
            comm,
            comm.execute(&call, Span::of(&long), SpanMut::of(&mut short)),
            &["address space"],
        );
        let bytes = [0u8; 7];
        assert_refused(
            comm,
            comm.send_bytes(DataType::Float32, Span::of(&bytes), 1 - comm.rank()),
            &["7 bytes"],
        );
        assert!(comm.start_all_gather(vec![0u8; 3]).is_err());
        assert_works(comm)
    });
}

#[test]
fn buffers_that_overlap() {
    on_ranks(3, Links::Local, &options(), |comm| {
        let rank = comm.rank() as usize;
        let mut data = vec![0u8; 4096];
        let all = SpanMut::of(&mut data);
        let float = DataType::Float32;
        let overlap = ["overlap", "in-place form"];
        for shift in [1, 4, 396] {
            let call = Call::all_reduce(float, ReduceOp::Sum, 100);
            let refused = comm.execute(&call, all.read().slice(shift, 400), all.slice(0, 400));
            assert_refused(comm, refused, &overlap);
            let refused = comm.execute(&call, all.read().slice(0, 400), all.slice(shift, 400));
            assert_refused(comm, refused, &overlap);
            let gather = Call::all_gather(float, 100);
            let refused =
                comm.execute(&gather, all.read().slice(rank * 400 + shift, 400), all.slice(0, 1200));
            assert_refused(comm, refused, &overlap);
            let scatter = Call::reduce_scatter(float, ReduceOp::Sum, 100);
            let refused =
                comm.execute(&scatter, all.read().slice(0, 1200), all.slice(rank * 400 + shift, 400));
            assert_refused(comm, refused, &overlap);
            let gather = Call::gather(float, 100, comm.rank());
            let refused =
                comm.execute(&gather, all.read().slice(rank * 400 + shift, 400), all.slice(0, 1200));
            assert_refused(comm, refused, &overlap);
            let scatter = Call::scatter(float, 100, comm.rank());
            let refused =
                comm.execute(&scatter, all.read().slice(0, 1200), all.slice(rank * 400 + shift, 400));
            assert_refused(comm, refused, &overlap);
            let exchange = Call::all_to_all(float, 100);
            let refused = comm.execute(&exchange, all.read().slice(0, 1200), all.slice(shift - 1, 1200));
            assert_refused(comm, refused, &["overlap", "there is none"]);
            let (to, from) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
            let refused = comm.exchange(float, all.read().slice(0, 400), to, all.slice(shift, 400), from);
            assert_refused(comm, refused, &["overlap"]);
        }
        assert_works(comm)
    });
}

#[test]
fn unknown_types_and_operators() {
    for code in [12, 99, 255, u32::MAX] {
        assert_eq!(DataType::from_code(code), None);
    }
    for code in [5, 99, u32::MAX] {
        assert_eq!(ReduceOp::from_code(code), None);
    }
    assert!("float12".parse::<DataType>().is_err());
}

#[test]
fn zero_counts_count_as_calls() {
    on_ranks(3, Links::Local, &options(), |comm| {
        for _ in 0..3 {
            comm.all_reduce::<f32>(&mut [], ReduceOp::Avg)?;
            comm.broadcast::<f64>(&mut [], 2)?;
            comm.reduce::<i8>(&mut [], ReduceOp::Max, 1)?;
            comm.all_gather::<u64>(&[], &mut [])?;
            comm.reduce_scatter::<u64>(&[], &mut [], ReduceOp::Min)?;
            comm.all_to_all::<u32>(&[], &mut [])?;
            comm.gather::<u32>(&[], &mut [], 1)?;
            comm.scatter::<u32>(&[], &mut [], 2)?;
            comm.all_gather_v::<i8>(&[], &mut [], &[0; 3])?;
            comm.reduce_scatter_v::<i8>(&[], &mut [], &[0; 3], ReduceOp::Sum)?;
            comm.all_to_all_v::<i8>(&[], &[0; 3], &mut [], &[0; 3])?;
            comm.exchange_into::<u8>(&[], (comm.rank() + 1) % 3, &mut [], (comm.rank() + 2) % 3)?;
            assert_eq!(comm.start_all_reduce(Vec::<f32>::new(), ReduceOp::Sum)?.wait()?, Vec::<f32>::new());
            assert_works(comm)?;
        }
        Ok(())
    });
}

#[test]
fn ranks_and_sizes_that_make_no_sense() {
    let id = consort::UniqueId::create().expect("an id");
    for (rank, size) in [(0, 0), (1, 1), (7, 3)] {
        let refused = Communicator::join(rank, size, &id).map(drop);
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{rank} of {size}: {refused:?}");
    }
    assert!(matches!(Communicator::local(0), Err(Error::InvalidArgument { .. })));
    for options in [Options::default().channels(0), Options::default().slot_bytes(12345)] {
        assert!(matches!(Communicator::local_with(1, &options), Err(Error::InvalidArgument { .. })));
    }
    let mut bytes = id.to_bytes();
    bytes[90] ^= 1;
    assert!(matches!(consort::UniqueId::from_bytes(&bytes), Err(Error::InvalidArgument { .. })));
}

#[test]
fn two_threads_on_one_communicator() {
    let gate = Barrier::new(2);
    on_ranks(2, Links::Local, &options(), |comm| {
        if comm.rank() == 1 {
            gate.wait();
            return assert_works(comm);
        }
        std::thread::scope(|threads| {
            let first = threads.spawn(|| assert_works(comm));
            // The first call waits for rank 1, which waits for this. `memory_bytes` draws no sequence number.
            assert!(eventually(SOON, || comm.memory_bytes().is_err()), "it does not begin");
            let refused = comm.all_reduce(&mut [0u8; 3], ReduceOp::Sum);
            assert!(matches!(refused, Err(Error::ConcurrentUse)), "{refused:?}");
            let exchanged = comm.send(&[1u8], 1);
            assert!(matches!(exchanged, Err(Error::ConcurrentUse)), "{exchanged:?}");
            let started = comm.start_all_reduce(vec![1u8], ReduceOp::Sum).map(drop);
            assert!(matches!(started, Err(Error::ConcurrentUse)), "{started:?}");
            comm.status().expect("it survives");
            gate.wait();
            first.join().expect("no panic")
        })
    });
}

/// `CONSORT_CMA` had an effect in earlier versions.
#[test]
fn a_variable_that_no_longer_acts_is_said_once_a_process() {
    let file = std::env::temp_dir().join(format!("consort-without-effect-{}", std::process::id()));
    std::fs::write(&file, "CONSORT_CMA=always\n").expect("a file of variables");
    let test = "misuse::a_variable_that_no_longer_acts_is_said_once_a_process";
    for (variable, value) in [("CONSORT_CMA", "whatever"), ("NCCL_CONF_FILE", file.to_str().expect("a name"))]
    {
        let said = in_own_process(test, &[(variable, value)], || {
            for _ in 0..2 {
                for comm in Communicator::local(2).expect("it is no error") {
                    drop(comm);
                }
            }
        });
        let Some(said) = said else { return };
        assert_eq!(said.matches("CONSORT_CMA has no effect").count(), 1, "{variable}={value}: {said}");
    }
    let _ = std::fs::remove_file(file);
}
