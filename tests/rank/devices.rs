//! Ranks on devices: `threads=N` of them in each process.

use std::time::Duration;

use crate::devices::{Case, Seat, cases, check_alone, check_together, each};
use crate::difference::{Difference, variant};
use crate::heard;
use crate::matrix::collectives;
use crate::system::Random;
use consort::device::{Device, DeviceBuffer, DeviceCommunicator, group};
use consort::planning::Candidate;
use consort::{
    Blocks, Call, CallV, Communicator, DataType, Element, FlightEntry, ReduceOp, Result, Scalar, UniqueId,
};

use crate::rank::Context;
use crate::rank::fork::fork_aside;

/// The ranks of this process.
pub(super) fn join(context: &Context) -> Result<Vec<Communicator>> {
    let here = context.number("threads").max(1) as u32;
    if context.size == 1 {
        return Communicator::local(here);
    }
    let ranks: Vec<u32> = (context.rank * here..(context.rank + 1) * here).collect();
    let id = context.id()?;
    each(&ranks, |rank| Communicator::join(*rank, context.size * here, &id)).into_iter().collect()
}

/// The same on devices; prints the path.
pub(super) fn seats(context: &Context) -> Result<Vec<Seat>> {
    let here = context.number("threads").max(1) as u32;
    let seats: Vec<Seat> =
        each(join(context)?, |joined| Seat::new(joined, here)).into_iter().collect::<Result<_>>()?;
    println!("path {}", seats[0].comm.path());
    Ok(seats)
}

/// Runs `body` on each rank, a thread each. A rank that fails prints that at once: others may wait for it until their
/// deadline.
pub(super) fn on_each(seats: &[Seat], body: impl Fn(&Seat) -> Result<()> + Sync) -> Result<()> {
    let printed = |seat: &Seat| body(seat).inspect_err(|error| eprintln!("rank {}: {error}", seat.place().0));
    each(seats, printed).into_iter().collect()
}

/// Prints how a call of a rank ended.
fn report(rank: u32, result: &Result<()>) {
    match result {
        Ok(()) => println!("rank {rank} passed"),
        Err(error) => {
            println!("rank {rank} failed {}: {}", variant(error), error.to_string().replace('\n', " "))
        }
    }
}

/// All calls, by a thread a rank or in one thread by groups of `together` calls.
pub(crate) fn everything(context: &Context) -> Result<()> {
    let seats = seats(context)?;
    let (seed, one_of) = (context.text("seed").parse().expect("a seed"), context.number("one_of") as u64);
    let cases = cases(seats[0].place().1, seed, one_of);
    println!("{} cases", cases.len());
    match context.number("together") {
        0 => on_each(&seats, |seat| check_alone(seat, &cases)),
        together => check_together(&seats, &cases, together),
    }
}

/// Bytes of the calls of [`plans`]: for packets, for one exchange, and beyond.
const PLAN_BYTES: [usize; 3] = [8 << 10, 64 << 10, 300 << 10];

/// Every collective of every size class, and a message; prints which plans ran on each rank of this process.
pub(crate) fn plans(context: &Context) -> Result<()> {
    heard::listen();
    let seats = seats(context)?;
    let seed = context.text("seed").parse().expect("a seed");
    let ran = |seat: &Seat, what: &str| {
        let rank = seat.place().0;
        println!("plan {what} on {rank}: {}", heard::of(rank).join(" "));
    };
    on_each(&seats, |seat| {
        let (rank, size) = seat.place();
        heard::of(rank);
        for collective in collectives() {
            for bytes in PLAN_BYTES {
                check_alone(seat, &[Case::plain(collective, bytes / size_of::<i32>(), seed)])?;
                ran(seat, &format!("{collective} {bytes}"));
                let explained = seat.comm.explain(collective, bytes)?;
                let program = explained.chosen().map_or("none".into(), Candidate::name);
                println!("explained {collective} {bytes} on {rank}: {program}");
            }
        }
        let (mine, theirs) =
            (seat.device.copy_of(&values(rank, 1000))?, seat.device.copy_of(&[-1i64; 1000])?);
        group(|group| {
            group.send(&seat.comm, &mine, (rank + 1) % size, &seat.streams[0])?;
            group.receive(&seat.comm, &theirs, (rank + size - 1) % size, &seat.streams[0])
        })?;
        seat.finish()?;
        assert_eq!(theirs.to_vec()?, values((rank + size - 1) % size, 1000));
        ran(seat, "message");
        Ok(())
    })
}

/// A second communicator of its own id, on the same devices; prints how often the driver loaded images for each.
pub(crate) fn second(context: &Context) -> Result<()> {
    let log = std::env::var_os("CONSORT_STANDIN_LOG").expect("the stand-in's log");
    let loads = || {
        let log = std::fs::read_to_string(&log).expect("a log");
        log.lines().filter(|line| line.contains("cuModuleLoad")).count()
    };
    let first = seats(context)?;
    first[0].host().barrier()?;
    let before = loads();
    let (rank, size) = first[0].place();
    // Other ranks meet where it listens, for as long as it lives.
    let created = (rank == 0).then(UniqueId::create).transpose()?;
    let mut id = created.as_ref().map_or([0; UniqueId::BYTES], UniqueId::to_bytes);
    first[0].host().broadcast(&mut id, 0)?;
    let joined = Communicator::join(rank, size, &UniqueId::from_bytes(&id)?)?;
    let second = Seat::new(joined, 1)?;
    println!("second path {}", second.comm.path());
    second.host().barrier()?;
    println!("loads {before} and {}", loads() - before);
    first[0].host().barrier()
}

/// A forked child drops what it has of the devices, and the ranks go on.
pub(crate) fn fork(context: &Context) -> Result<()> {
    let mut seats = Some(seats(context)?);
    let works = |seats: &Option<Vec<Seat>>| {
        let seats = seats.as_deref().expect("no child");
        let cases = cases(seats[0].place().1, 1, 40);
        on_each(seats, |seat| check_alone(seat, &cases))?;
        on_each(seats, |seat| seat.host().barrier())
    };
    works(&seats)?;
    fork_aside("consort-words", || {
        drop(seats.take());
        0
    });
    // Ranks whose calls come next store words.
    on_each(seats.as_deref().expect("no child"), |seat| seat.host().barrier())?;
    works(&seats)
}

/// The values of rank `rank`.
pub(super) fn values(rank: u32, count: usize) -> Vec<i64> {
    (0..count).map(|at| (at as i64 + 1) * 1000 + i64::from(rank)).collect()
}

/// The typed calls, each once, compared with the expected results.
pub(crate) fn typed(context: &Context) -> Result<()> {
    let all_seats = seats(context)?;
    on_each(&all_seats, |seat| {
        let ((rank, size), stream) = (seat.place(), &seat.streams[0]);
        let (n, own, count) = (size as usize, rank as usize, 100);
        let (mine, root) = (values(rank, count), size - 1);
        let sum: Vec<i64> =
            (0..count).map(|at| (0..size).map(|rank| values(rank, count)[at]).sum()).collect();
        let from = seat.device.copy_of(&mine)?;
        let to = |count: usize| seat.device.copy_of(&vec![-1i64; count]);
        let out = to(count)?;
        seat.comm.all_reduce(&from, &out, ReduceOp::Sum, stream)?;
        let reduced = to(count)?;
        seat.comm.reduce(&from, &reduced, ReduceOp::Max, root, stream)?;
        let cast = to(count)?;
        seat.comm.broadcast(&from, &cast, root, stream)?;
        let gathered = to(count * n)?;
        seat.comm.all_gather(&from, &gathered, stream)?;
        let scattered = to(count)?;
        seat.comm.reduce_scatter(&gathered, &scattered, ReduceOp::Sum, stream)?;
        let turned = to(count * n)?;
        seat.comm.all_to_all(&gathered, &turned, stream)?;
        let collected = to(count * n)?;
        seat.comm.gather(&from, &collected, root, stream)?;
        let dealt = to(count)?;
        seat.comm.scatter(&gathered, &dealt, root, stream)?;
        seat.finish()?;
        let all_values: Vec<i64> = (0..size).flat_map(|rank| values(rank, count)).collect();
        let times: Vec<i64> =
            all_values[own * count..][..count].iter().map(|value| value * n as i64).collect();
        let nothing = |count: usize| vec![-1i64; count];
        assert_eq!(out.to_vec()?, sum);
        assert_eq!(reduced.to_vec()?, if rank == root { values(root, count) } else { nothing(count) });
        assert_eq!(cast.to_vec()?, values(root, count));
        assert_eq!(gathered.to_vec()?, all_values);
        assert_eq!(scattered.to_vec()?, times);
        assert_eq!(turned.to_vec()?, values(rank, count).repeat(n));
        assert_eq!(collected.to_vec()?, if rank == root { all_values } else { nothing(count * n) });
        assert_eq!(dealt.to_vec()?, mine);
        Ok(())
    })
}

/// Blocks that differ, with gaps between them, against the same calls on the host.
pub(crate) fn vectors(context: &Context) -> Result<()> {
    let all_seats = seats(context)?;
    let seed: u64 = context.text("seed").parse().expect("a seed");
    on_each(&all_seats, |seat| {
        let mut random = Random::new(seed);
        (0..4).try_for_each(|round| blocks(seat, &mut random, if round == 0 { 1 } else { 1500 }))
    })
}

/// Makes a call on the host and on the device.
fn both<T: Element + Default + PartialEq + std::fmt::Debug>(
    seat: &Seat,
    call: &CallV<'_>,
    input: &[T],
    before: &[T],
) -> Result<()> {
    let mut output = before.to_vec();
    let (from, to) = (seat.device.copy_of(input)?, seat.device.copy_of(before)?);
    seat.comm.execute_v(call, &from, &to, &seat.streams[0])?;
    seat.host().execute_v(call, consort::Span::of(input), consort::SpanMut::of(&mut output))?;
    seat.finish()?;
    assert_eq!(to.to_vec()?, output, "{call:?} on rank {}", seat.place().0);
    assert_eq!(from.to_vec()?, input, "the input of {call:?}");
    Ok(())
}

fn blocks(seat: &Seat, random: &mut Random, longest: u64) -> Result<()> {
    let (rank, size) = seat.place();
    let (own, all) = (rank as usize, size as usize);
    // The number of elements that each rank sends to each.
    let matrix: Vec<Vec<usize>> =
        (0..all).map(|_| (0..all).map(|_| (random.draw() % (longest + 1)) as usize).collect()).collect();
    let gap = (random.draw() % 4) as usize;
    let starts = |counts: &[usize]| {
        let mut at = 0;
        let starts: Vec<usize> = counts
            .iter()
            .map(|count| {
                let start = at + gap;
                at = start + count;
                start
            })
            .collect();
        (starts, at)
    };
    let counts = &matrix[0];
    let (places, total) = starts(counts);
    let placed = Blocks::at(counts, &places);
    let mine = counts[own];
    let nothing = |count: usize| vec![-1i64; count];
    let call = CallV::all_gather(DataType::Int64, placed);
    both(seat, &call, &values(rank, mine), &nothing(total))?;
    let call = CallV::reduce_scatter(DataType::Int64, ReduceOp::Sum, placed);
    both(seat, &call, &values(rank, total), &nothing(mine))?;
    let call = call.scaled_by(Scalar::of(i64::from(rank) + 3));
    both(seat, &call, &values(rank, total), &nothing(mine))?;
    let root = (random.draw() % u64::from(size)) as u32;
    let (many, few) = if rank == root { (total, placed) } else { (0, Blocks::from(&[])) };
    let call = CallV::gather(DataType::Int64, mine, few, root);
    both(seat, &call, &values(rank, mine), &nothing(many))?;
    let call = CallV::scatter(DataType::Int64, few, mine, root);
    both(seat, &call, &values(rank, many), &nothing(mine))?;
    let received: Vec<usize> = matrix.iter().map(|sent| sent[own]).collect();
    let ((out, sent), (back, come)) = (starts(&matrix[own]), starts(&received));
    let (sends, receives) = (Blocks::at(&matrix[own], &out), Blocks::at(&received, &back));
    let call = CallV::all_to_all(DataType::Int64, sends, receives);
    both(seat, &call, &values(rank, sent), &nothing(come))
}

/// Operations that need each other's results, in two streams and on two communicators, without a wait between them,
/// and with calls on the host between them.
pub(crate) fn interleaved(context: &Context) -> Result<()> {
    let seats = seats(context)?;
    on_each(&seats, |seat| {
        let (rank, size) = seat.place();
        let another = seat.host().split(Some(0), 0)?.expect("a colour was given");
        let other = another.on_device(&seat.device)?;
        let half = seat.host().split(Some(rank % 2), 0)?.expect("a colour was given");
        let half_on = half.on_device(&seat.device)?;
        let count = 3001;
        for round in 0..8u64 {
            let a = seat.device.copy_of(&vec![1u64 + round; count])?;
            let b = seat.device.buffer::<u64>(count)?;
            let comms: [&DeviceCommunicator; 2] = [&seat.comm, &other];
            let [first, second] = &seat.streams;
            // One communicator in two streams: the communicator keeps the order.
            comms[0].all_reduce(&a, &b, ReduceOp::Sum, first)?;
            comms[0].all_reduce(&b, &a, ReduceOp::Sum, second)?;
            let mut on_host = [1u64; 100];
            seat.host().all_reduce(&mut on_host, ReduceOp::Sum)?;
            assert_eq!(on_host, [u64::from(size); 100]);
            comms[0].all_reduce(&a, &b, ReduceOp::Sum, first)?;
            // Other communicators in the same stream: the stream keeps the order.
            comms[1].all_reduce(&b, &a, ReduceOp::Max, first)?;
            half_on.all_reduce(&a, &b, ReduceOp::Sum, first)?;
            let mut of_half = [u64::from(rank)];
            half.all_reduce(&mut of_half, ReduceOp::Max)?;
            assert_eq!(of_half[0] % 2, u64::from(rank % 2));
            seat.comm.broadcast(&b, &b, 0, first)?;
            seat.finish()?;
            other.synchronize()?;
            half_on.synchronize()?;
            let expected = (1 + round) * u64::from(size).pow(3) * u64::from(size.div_ceil(2));
            assert_eq!(b.to_vec()?, vec![expected; count], "round {round} on rank {rank}");
        }
        Ok(())
    })
}

/// Pairs of ranks that need each other, each pair with a kernel of its own. On each device the first of two ranks
/// belongs to another pair. A rank that loads its kernel only then waits for the device, and so for the other pair,
/// which does the same.
pub(crate) fn crossing(context: &Context) -> Result<()> {
    let seats = seats(context)?;
    let first_is_in = std::sync::Barrier::new(seats.len());
    on_each(&seats, |seat| {
        let (rank, size) = seat.place();
        // Across processes that share a device, or across the devices of one.
        let is_one_process = seats.len() == size as usize;
        let colour = if is_one_process { rank / 2 } else { rank % 2 };
        let pair = seat.host().split(Some(colour), 0)?.expect("a colour was given");
        let on = pair.on_device(&seat.device)?;
        // Making a communicator may wait for the device too.
        seat.host().barrier()?;
        let is_first = rank == 0 || rank == size - 1;
        match (is_one_process, colour) {
            (true, 0) => cross(seat, &on, ReduceOp::Max, is_first, &first_is_in, [1.0f32, 2.0]),
            (true, _) => cross(seat, &on, ReduceOp::Min, is_first, &first_is_in, [1.0f32, 1.0]),
            // Types that the driver has to compile.
            (false, 0) => cross(seat, &on, ReduceOp::Max, is_first, &first_is_in, [1i32, 2]),
            (false, _) => cross(seat, &on, ReduceOp::Sum, is_first, &first_is_in, [1.5f64, 3.0]),
        }
    })
}

/// One of the calls of [`crossing`], with a rank's values and the expected result.
fn cross<T: Element + Default + PartialEq + std::fmt::Debug + std::ops::Add<Output = T>>(
    seat: &Seat,
    on: &DeviceCommunicator,
    op: ReduceOp,
    is_first: bool,
    first_is_in: &std::sync::Barrier,
    [one, expected]: [T; 2],
) -> Result<()> {
    let is_lower = on.communicator().rank() == 0 || op == ReduceOp::Sum;
    let buffer = seat.device.copy_of(&[if is_lower { one } else { one + one }; 1000])?;
    if !is_first {
        first_is_in.wait();
    }
    let called = on.all_reduce(&buffer, &buffer, op, &seat.streams[0]);
    if is_first {
        first_is_in.wait();
    }
    called?;
    on.synchronize()?;
    assert_eq!(buffer.to_vec()?, [expected; 1000]);
    Ok(())
}

/// Rank 0 has an operation in its stream that waits for rank 1, and one before it whose memory is to be freed, for which a
/// driver waits for its device. Neither its own next call nor rank 1's, for which its device waits, must free it then.
pub(crate) fn discarded(context: &Context) -> Result<()> {
    let seats = seats(context)?;
    let [is_in, is_next_in] = [(); 2].map(|()| std::sync::Barrier::new(seats.len()));
    let has_ended = |seat: &Seat| -> Result<bool> {
        let of = |entry: &FlightEntry| entry.call.name == "all_reduce" && entry.ended.is_some();
        Ok(seat.host().flight_record()?.operations.iter().any(of))
    };
    on_each(&seats, |seat| {
        let rank = seat.place().0;
        let buffer = |value: f32| seat.device.copy_of(&[value; 1000]);
        let (first, second, third) = (buffer(1.0)?, buffer(2.0)?, buffer(3.0)?);
        let called = |buffer: &DeviceBuffer<f32>| {
            seat.comm.all_reduce(buffer, buffer, ReduceOp::Sum, &seat.streams[0])
        };
        seat.finish()?;
        if rank == 0 {
            let both = called(&first).and_then(|()| called(&second));
            drop(first);
            is_in.wait();
            both?;
        } else {
            is_in.wait();
            called(&first)?;
        }
        // Seen by the thread that watches streams, which leaves the memory to others.
        while !has_ended(&seats[0])? {
            seat.comm.communicator().status()?;
            std::thread::yield_now();
        }
        if rank == 0 {
            let called = called(&third);
            is_next_in.wait();
            called?;
        } else {
            is_next_in.wait();
            called(&second).and_then(|()| called(&third))?;
        }
        seat.finish()?;
        assert_eq!((second.to_vec()?, third.to_vec()?), (vec![4.0; 1000], vec![6.0; 1000]));
        Ok(())
    })
}

/// Many operations in streams before any wait, more than there are slots, events or hardware queues.
pub(crate) fn many(context: &Context) -> Result<()> {
    let seats = seats(context)?;
    on_each(&seats, |seat| {
        let size = u64::from(seat.place().1);
        let streams: Vec<_> = (0..8).map(|_| seat.device.stream()).collect::<Result<_>>()?;
        let buffers: Vec<_> =
            (0..8).map(|at| seat.device.copy_of(&vec![at as u64; 65])).collect::<Result<_>>()?;
        for _ in 0..10 {
            for (buffer, stream) in buffers.iter().zip(&streams) {
                seat.comm.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
            }
        }
        streams.iter().try_for_each(|stream| stream.synchronize())?;
        seat.comm.synchronize()?;
        for (at, buffer) in buffers.iter().enumerate() {
            assert_eq!(buffer.to_vec()?, vec![at as u64 * size.pow(10); 65]);
        }
        Ok(())
    })
}

/// Makes the usual call, or the deviant's.
fn differ_on(seat: &Seat, difference: Difference, deviant: bool) -> Result<()> {
    let float = DataType::Float32;
    let usual = Call::all_reduce(float, ReduceOp::Sum, 1000);
    let call = match (difference, deviant) {
        (Difference::Root, false) => Call::broadcast(float, 1000, 0),
        (_, false) => usual,
        (Difference::Count, _) => Call::all_reduce(float, ReduceOp::Sum, 1001),
        (Difference::LargeCount, _) => Call::all_reduce(float, ReduceOp::Sum, 3_000_000),
        (Difference::Zero, _) => Call::all_reduce(float, ReduceOp::Sum, 0),
        (Difference::Operator, _) => Call::all_reduce(float, ReduceOp::Max, 1000),
        (Difference::Scaled, _) => usual.scaled_by(Scalar::of(2.0f32)),
        (Difference::DataType, _) => Call::all_reduce(DataType::Int32, ReduceOp::Sum, 1000),
        (Difference::Root, _) => Call::broadcast(float, 1000, 1),
        (Difference::Collective, _) => Call::broadcast(float, 1000, 0),
        (Difference::Barrier, _) => return seat.host().barrier(),
    };
    let (rank, size) = seat.place();
    let bytes = |bytes: usize| seat.device.copy_of(&vec![1u8; bytes]);
    let longest = call.input_bytes(rank, size).max(call.output_bytes(rank, size));
    seat.comm.execute(&call, &bytes(longest)?, &bytes(longest)?, &seat.streams[0])?;
    seat.finish()?;
    // A rank that called nothing, or was through early, gets the error here.
    seat.host().barrier()
}

pub(crate) fn differ(context: &Context) -> Result<()> {
    let difference = Difference::parse(context.text("difference")).expect("a difference");
    let seats = seats(context)?;
    println!("begin");
    each(&seats, |seat| {
        let rank = seat.place().0;
        let deviant = context.number("deviant") as u32 == rank;
        let result = seat.host().barrier().and_then(|()| differ_on(seat, difference, deviant));
        report(rank, &result);
        assert!(seat.host().status().is_err(), "the failure stays");
        let buffer = seat.device.copy_of(&[1.0f32; 4]).expect("memory");
        let again = seat.comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &seat.streams[0]);
        assert_eq!(format!("{again:?}"), format!("{result:?}"), "and stays the same");
        // The streams end, whatever happened to their operations.
        seat.streams.iter().for_each(|stream| stream.synchronize().expect("a stream ends"));
    });
    context.listen();
    Ok(())
}

/// The last rank does not make the call (`how=absent`), aborts from another thread (`abort`), or leaves (`leave`).
pub(crate) fn without(context: &Context) -> Result<()> {
    let how = context.text("how");
    let mut seats = seats(context)?;
    let last = seats[0].place().1 - 1;
    on_each(&seats, |seat| {
        let buffer = seat.device.copy_of(&[1.0f32; 1000])?;
        seat.comm.all_reduce(&buffer, &buffer, ReduceOp::Max, &seat.streams[0])?;
        seat.finish()?;
        seat.host().barrier()
    })?;
    println!("begin");
    let gone = (how == "leave").then(|| seats.pop_if(|seat| seat.place().0 == last)).flatten();
    drop(gone);
    each(&seats, |seat| {
        let rank = seat.place().0;
        if rank == last {
            std::thread::sleep(Duration::from_millis(100));
            if how == "abort" {
                println!("rank {rank} aborts");
                seat.host().abort("the test says so");
            } else {
                context.listen();
            }
            return;
        }
        let buffer = seat.device.copy_of(&[1.0f32; 1000]).expect("memory");
        let result = seat
            .comm
            .all_reduce(&buffer, &buffer, ReduceOp::Sum, &seat.streams[0])
            .and_then(|()| seat.finish());
        report(rank, &result);
        seat.streams.iter().for_each(|stream| stream.synchronize().expect("a stream ends"));
    });
    context.listen();
    Ok(())
}

/// Asks for more memory than there is, then for less.
pub(crate) fn memory(context: &Context) -> Result<()> {
    let seats = seats(context)?;
    let seat = &seats[0];
    let (bytes, rank) = (seat.device.memory_bytes() as usize, seat.place().0);
    println!("memory {bytes}");
    report(rank, &seat.device.buffer::<u8>(2 * bytes).map(drop));
    let error = seat.device.buffer::<u64>(usize::MAX / 8).map(drop);
    report(rank, &error);
    let buffer = seat.device.copy_of(&[rank; 1000])?;
    seat.comm.all_reduce(&buffer, &buffer, ReduceOp::Max, &seat.streams[0])?;
    seat.finish()?;
    assert_eq!(buffer.to_vec()?, [seat.place().1 - 1; 1000]);
    Ok(())
}

/// Prints the path, or why there is none; the communicator stays as it was.
pub(crate) fn path(context: &Context) -> Result<()> {
    let comms = join(context)?;
    let device = Device::open(0)?;
    each(&comms, |comm| match comm.on_device(&device) {
        Ok(on) => println!("rank {} path {}", comm.rank(), on.path()),
        Err(error) => report(comm.rank(), &Err(error)),
    });
    context.listen();
    each(&comms, |comm| {
        let mut value = [1u32];
        comm.all_reduce(&mut value, ReduceOp::Sum)?;
        assert_eq!(value, [comm.size()]);
        println!("rank {} works", comm.rank());
        Ok(())
    })
    .into_iter()
    .collect()
}

/// Works through the host although copies between the devices never end.
pub(crate) fn hang(context: &Context) -> Result<()> {
    let seats = seats(context)?;
    on_each(&seats, |seat| {
        let (rank, size) = seat.place();
        let buffer = seat.device.copy_of(&[rank; 1000])?;
        seat.comm.all_reduce(&buffer, &buffer, ReduceOp::Max, &seat.streams[0])?;
        seat.finish()?;
        assert_eq!(buffer.to_vec()?, [size - 1; 1000]);
        // Freeing device memory waits for all its copies, also for this one.
        std::mem::forget(buffer);
        Ok(())
    })
}
