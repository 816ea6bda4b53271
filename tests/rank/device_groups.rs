//! Groups of calls on devices: messages each way, and groups whose calls a peer makes one by one.

use consort::device::{DeviceBuffer, DeviceCommunicator, group};
use consort::{ReduceOp, Result};

use super::devices::{on_each, seats, values};
use crate::devices::{Seat, each};
use crate::rank::Context;

/// Messages around the ring and to oneself in one group, several each way.
pub(crate) fn ring(context: &Context) -> Result<()> {
    let all_seats = seats(context)?;
    let one_thread = context.number("together") != 0;
    for count in [0usize, 1, 1001, 70_001] {
        let buffers = |seat: &Seat| -> Result<Vec<DeviceBuffer<i64>>> {
            let (rank, size) = seat.place();
            let mut all = vec![seat.device.copy_of(&values(rank, count))?];
            all.push(seat.device.copy_of(&values(rank + size, count))?);
            (0..3).try_for_each(|_| seat.device.copy_of(&vec![-1; count]).map(|buffer| all.push(buffer)))?;
            Ok(all)
        };
        let buffers: Vec<Vec<DeviceBuffer<i64>>> =
            each(&all_seats, buffers).into_iter().collect::<Result<_>>()?;
        let paired: Vec<(&Seat, &Vec<DeviceBuffer<i64>>)> = all_seats.iter().zip(&buffers).collect();
        let call = |seats: &[(&Seat, &Vec<DeviceBuffer<i64>>)]| {
            group(|group| {
                for (seat, buffers) in seats {
                    let ((rank, size), [stream, other]) = (seat.place(), &seat.streams);
                    let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
                    let [first, second, from_last, then, from_self] = &buffers[..] else {
                        panic!("five buffers")
                    };
                    group.receive(&seat.comm, from_last, last, stream)?;
                    group.send(&seat.comm, first, next, stream)?;
                    group.send(&seat.comm, second, next, other)?;
                    group.receive(&seat.comm, then, last, other)?;
                    if size > 1 {
                        group.send(&seat.comm, first, rank, stream)?;
                        group.receive(&seat.comm, from_self, rank, stream)?;
                    }
                }
                Ok(())
            })
        };
        match one_thread {
            true => call(&paired)?,
            false => {
                each(&paired, |one| call(std::slice::from_ref(one))).into_iter().collect::<Result<()>>()?
            }
        }
        for (seat, buffers) in &paired {
            seat.finish()?;
            let (rank, size) = seat.place();
            let last = (rank + size - 1) % size;
            assert_eq!(buffers[2].to_vec()?, values(last, count), "the first to rank {rank}");
            assert_eq!(buffers[3].to_vec()?, values(last + size, count), "the second to rank {rank}");
            if size > 1 {
                assert_eq!(buffers[4].to_vec()?, values(rank, count), "rank {rank} to itself");
            }
        }
    }
    Ok(())
}

/// Every rank sends `messages` messages of `count` numbers to every other and receives as many from it, in one group.
pub(crate) fn exchange(context: &Context) -> Result<()> {
    let seats = seats(context)?;
    let (count, messages) = (context.number("count"), context.number("messages").max(1) as u32);
    let said = |from: u32, to: u32, nth: u32| values(from << 16 | to << 8 | nth, count);
    let others = |seat: &Seat| {
        let (rank, size) = seat.place();
        (0..messages)
            .flat_map(move |nth| (0..size).filter(move |peer| *peer != rank).map(move |peer| (peer, nth)))
    };
    let buffers = |seat: &Seat| -> Result<Vec<[DeviceBuffer<i64>; 2]>> {
        let rank = seat.place().0;
        let both = |(peer, nth)| -> Result<[DeviceBuffer<i64>; 2]> {
            Ok([seat.device.copy_of(&said(rank, peer, nth))?, seat.device.copy_of(&vec![-1; count])?])
        };
        others(seat).map(both).collect()
    };
    let buffers: Vec<_> = each(&seats, buffers).into_iter().collect::<Result<_>>()?;
    let paired: Vec<_> = seats.iter().zip(&buffers).collect();
    let call = |paired: &[(&Seat, &Vec<[DeviceBuffer<i64>; 2]>)]| {
        group(|group| {
            for (seat, buffers) in paired {
                for ((peer, nth), [from, to]) in others(seat).zip(*buffers) {
                    let stream = &seat.streams[nth as usize % 2];
                    group.send(&seat.comm, from, peer, stream)?;
                    group.receive(&seat.comm, to, peer, stream)?;
                }
            }
            Ok(())
        })
    };
    match context.number("together") {
        0 => each(&paired, |one| call(std::slice::from_ref(one))).into_iter().collect::<Result<()>>()?,
        _ => call(&paired)?,
    }
    for (seat, buffers) in &paired {
        seat.finish()?;
        let rank = seat.place().0;
        for ((peer, nth), [_, to]) in others(seat).zip(*buffers) {
            assert_eq!(to.to_vec()?, said(peer, rank, nth), "message {nth} of rank {peer} to rank {rank}");
        }
    }
    Ok(())
}

/// One of two ranks makes these calls in a group and the other one by one, as `how` chooses.
pub(crate) fn uneven(context: &Context) -> Result<()> {
    let seats = seats(context)?;
    let (how, count) = (context.text("how"), context.number("count"));
    on_each(&seats, |seat| {
        let (rank, stream) = (seat.place().0, &seat.streams[0]);
        let other = seat.host().split(Some(0), 0)?.expect("a colour was given").on_device(&seat.device)?;
        let [first, second, third] = [0, 1, 2].map(|nth| seat.device.copy_of(&values(rank + nth, count)));
        let (first, second, third) = (first?, second?, third?);
        let peer = 1 - rank;
        match (how, rank) {
            // Sums of two communicators; one rank's order is the opposite of the other's.
            ("sums" | "sums-swapped", _) => {
                let (one, two) = if how == "sums" { (&seat.comm, &other) } else { (&other, &seat.comm) };
                let call = |comm: &DeviceCommunicator, buffer| {
                    comm.all_reduce(buffer, buffer, ReduceOp::Sum, stream)
                };
                if rank == 0 {
                    group(|group| {
                        group.all_reduce(one, &first, &first, ReduceOp::Sum, stream)?;
                        group.all_reduce(two, &second, &second, ReduceOp::Sum, stream)?;
                        group.all_reduce(one, &third, &third, ReduceOp::Sum, stream)
                    })?;
                } else {
                    call(one, &first)?;
                    call(two, &second)?;
                    call(one, &third)?;
                }
            }
            ("both-ways", 0) => group(|group| {
                group.send(&seat.comm, &first, peer, stream)?;
                group.receive(&seat.comm, &second, peer, stream)
            })?,
            ("both-ways", _) => {
                seat.comm.receive(&second, peer, stream)?;
                seat.comm.send(&first, peer, stream)?;
            }
            ("two-one-way", 0) => group(|group| {
                group.send(&seat.comm, &first, peer, stream)?;
                group.send(&seat.comm, &second, peer, stream)?;
                group.receive(&seat.comm, &third, peer, stream)
            })?,
            ("two-one-way", _) => {
                seat.comm.receive(&first, peer, stream)?;
                seat.comm.receive(&second, peer, stream)?;
                seat.comm.send(&third, peer, stream)?;
            }
            _ => panic!("{how} is nothing"),
        }
        seat.finish()?;
        let found = [first.to_vec()?, second.to_vec()?, third.to_vec()?];
        let of = |rank: u32, nth: u32| values(rank + nth, count);
        let sum = |nth: u32| of(0, nth).iter().zip(of(1, nth)).map(|(a, b)| a + b).collect::<Vec<i64>>();
        let expected = match (how, rank) {
            ("sums" | "sums-swapped", _) => [sum(0), sum(1), sum(2)],
            ("both-ways", _) => [of(rank, 0), of(peer, 0), of(rank, 2)],
            (_, 0) => [of(0, 0), of(0, 1), of(1, 2)],
            (_, _) => [of(0, 0), of(0, 1), of(1, 2)],
        };
        assert!(found == expected, "{how} on rank {rank}");
        Ok(())
    })
}
