//! Streams: those of this library, into which calls are put, and all others, which are not used.

use std::ptr::null_mut;
use std::sync::mpsc::channel;

use super::*;

fn stream() -> *mut c_void {
    let mut stream = null_mut();
    ok!(consortStreamCreate(&mut stream));
    assert!(!stream.is_null());
    stream
}

#[test]
fn a_call_returns_after_it_was_put_into_the_stream() {
    within(DEADLINE, || {
        // One thread, ranks one after the other and no group: calls that wait would never end.
        let comms = all(3);
        let streams = [stream(), stream(), stream()];
        let mut buffers = [[1i32; 1000], [2; 1000], [3; 1000]];
        for ((comm, buffer), stream) in comms.iter().zip(&mut buffers).zip(streams) {
            assert_eq!(reduce(buffer, SUM, *comm, stream), OK, "{}", last_error());
        }
        for stream in streams {
            assert_eq!(consortStreamSynchronize(stream), OK, "{}", last_error());
            assert_eq!(consortStreamQuery(stream), OK);
        }
        assert_eq!(buffers, [[6; 1000]; 3]);
        for stream in streams {
            assert_eq!(consortStreamDestroy(stream), OK);
            refused(consortStreamSynchronize(stream), "destroyed");
            refused(consortStreamDestroy(stream), "destroyed");
        }
        destroy_all(&comms);
    });
}

#[test]
fn a_stream_says_whether_it_is_over() {
    within(DEADLINE, || {
        let comms = all(2);
        let streams = [stream(), stream()];
        assert_eq!(consortStreamQuery(streams[0]), OK, "nothing is in it");
        let (mut here, mut there) = ([1], [2]);
        assert_eq!(reduce(&mut here, SUM, comms[0], streams[0]), OK);
        assert_eq!(consortStreamQuery(streams[0]), PENDING);
        assert_eq!(here, [1], "the other rank has not come");
        assert_eq!(reduce(&mut there, SUM, comms[1], streams[1]), OK);
        assert_eq!(consortStreamSynchronize(streams[0]), OK);
        assert_eq!(consortStreamQuery(streams[0]), OK);
        // Destroying waits.
        assert_eq!(consortStreamDestroy(streams[1]), OK);
        assert_eq!((here, there), ([3], [3]));
        assert_eq!(consortStreamDestroy(streams[0]), OK);
        destroy_all(&comms);
    });
}

#[test]
fn what_is_no_stream_of_ours_is_not_looked_at() {
    ranks(2, |rank, comm| {
        for foreign in [1usize, 2, 0xdead_0000, usize::MAX] {
            let foreign = std::ptr::without_provenance_mut(foreign);
            let mut sum = [rank + 1];
            assert_eq!(reduce(&mut sum, SUM, comm, foreign), OK, "{}", last_error());
            assert_eq!(sum, [3], "over when it returns");
            let (sent, mut received) = ([rank], [9]);
            ok!(ncclGroupStart());
            ok!(ncclSend(from(&sent), 1, INT32, 1 - rank, comm, foreign));
            ok!(ncclRecv(to(&mut received), 1, INT32, 1 - rank, comm, foreign));
            ok!(ncclGroupEnd());
            assert_eq!(received, [1 - rank]);
        }
        for foreign in [null_mut(), std::ptr::without_provenance_mut(1), comm] {
            refused(consortStreamSynchronize(foreign), "not one of this library's");
            refused(consortStreamQuery(foreign), "not one of this library's");
        }
        assert_eq!(consortStreamDestroy(null_mut()), OK);
        refused(c!(consortStreamCreate(null_mut())), "stream is null");
    });
}

#[test]
fn one_communicator_keeps_its_order_over_streams() {
    ranks(2, |rank, comm| {
        let streams = [stream(), stream()];
        let mut value = [rank as i64 + 1];
        let place = to(&mut value);
        for round in 0..20 {
            let stream = streams[(round + rank as usize) % 2];
            // Doubles the value of both ranks, after the first call, which sums.
            ok!(ncclAllReduce(place, place, 1, INT64, SUM, comm, stream));
        }
        // A call without a stream comes after all of them.
        ok!(ncclAllReduce(place, place, 1, INT64, SUM, comm, NO_STREAM));
        assert_eq!(value, [3 << 20]);
        streams.into_iter().for_each(|stream| assert_eq!(consortStreamDestroy(stream), OK));
    });
}

#[test]
fn a_stream_keeps_its_order_over_communicators() {
    within(DEADLINE, || {
        let (pairs, alone) = (all(2), all(1));
        let streams = [stream(), stream()];
        let (mut here, mut there) = ([1], [2]);
        let (place, other) = (to(&mut here), to(&mut there));
        ok!(ncclAllReduce(place, place, 1, INT32, SUM, pairs[0], streams[0]));
        let op = {
            let (mut op, mut factor) = (0, 10i32);
            let factor: *mut i32 = &mut factor;
            ok!(ncclRedOpCreatePreMulSum(&mut op, factor.cast(), INT32, 1, alone[0]));
            op
        };
        ok!(ncclAllReduce(place, place, 1, INT32, op, alone[0], streams[0]));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(consortStreamQuery(streams[0]), PENDING, "the second waits for the first");
        ok!(ncclAllReduce(other, other, 1, INT32, SUM, pairs[1], streams[1]));
        streams.into_iter().for_each(|stream| assert_eq!(consortStreamDestroy(stream), OK));
        assert_eq!((here, there), ([30], [3]));
        destroy_all(&pairs);
        destroy_all(&alone);
    });
}

#[test]
fn a_group_on_streams_returns_after_it_was_put_there() {
    within(DEADLINE, || {
        let comms = all(2);
        let streams = [stream(), stream(), stream(), stream()];
        let mut values = [[1i32], [10], [2], [20]];
        let places: Vec<*mut c_void> = values.iter_mut().map(|value| to(value)).collect();
        for rank in 0..2 {
            ok!(ncclGroupStart());
            for call in 0..2 {
                let place = places[rank * 2 + call];
                ok!(ncclAllReduce(place, place, 1, INT32, SUM, comms[rank], streams[rank * 2 + call]));
            }
            ok!(ncclGroupEnd());
        }
        for stream in streams {
            assert_eq!(consortStreamSynchronize(stream), OK, "{}", last_error());
            assert_eq!(consortStreamDestroy(stream), OK);
        }
        assert_eq!(values, [[3], [30], [3], [30]]);
        destroy_all(&comms);
    });
}

#[test]
fn a_call_without_a_stream_is_over_at_the_end_of_its_group() {
    ranks(2, |rank, comm| {
        let stream = stream();
        let (mut queued, mut waited) = ([rank + 1; 1000], [rank + 1; 1000]);
        ok!(ncclGroupStart());
        assert_eq!(reduce(&mut queued, SUM, comm, stream), OK);
        assert_eq!(reduce(&mut waited, SUM, comm, NO_STREAM), OK);
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(50));
        }
        ok!(ncclGroupEnd());
        assert_eq!(waited, [3; 1000]);
        assert_eq!(consortStreamDestroy(stream), OK);
        assert_eq!(queued, [3; 1000]);
    });
}

#[test]
fn an_error_of_an_operation_waits_in_its_stream() {
    within(DEADLINE, || {
        let comms = all(2);
        let stream = stream();
        let mut sum = [1];
        // An error that is found at once is returned at once and is not in the stream.
        refused(c!(ncclAllReduce(from(&sum), to(&mut sum), 1, 12, SUM, comms[0], stream)), "no data type 12");
        assert_eq!(consortStreamSynchronize(stream), OK);
        assert_eq!(reduce(&mut sum, SUM, comms[0], stream), OK);
        assert_eq!(destroy(comms[1]), OK);
        failed(consortStreamSynchronize(stream), REMOTE, "rank 1");
        assert_eq!(consortStreamSynchronize(stream), OK, "returned once");
        assert_eq!(state(comms[0]), REMOTE, "the communicator keeps it");
        assert_eq!(reduce(&mut sum, SUM, comms[0], stream), REMOTE);
        assert_eq!(consortStreamDestroy(stream), OK);
        assert_eq!(destroy(comms[0]), OK);
    });
}

#[test]
fn destroying_a_communicator_waits_for_its_streams() {
    within(DEADLINE, || {
        let comms = all(2);
        let stream = stream();
        let mut sums = [[1], [2]];
        let [here, there] = &mut sums;
        assert_eq!(reduce(here, SUM, comms[0], stream), OK);
        let (comm, (begun, is_begun)) = (Sent(comms[0]), channel());
        std::thread::scope(|threads| {
            threads.spawn(move || {
                begun.send(()).expect("the main thread waits");
                assert_eq!(destroy(comm.get()), OK);
            });
            is_begun.recv().expect("it begins");
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(reduce(there, SUM, comms[1], NO_STREAM), OK, "{}", last_error());
        });
        assert_eq!(consortStreamDestroy(stream), OK);
        assert_eq!(sums, [[3], [3]]);
        assert_eq!(destroy(comms[1]), OK);
    });
}
