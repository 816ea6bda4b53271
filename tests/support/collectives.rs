//! Every collective once, compared with sums computed directly.

use consort::{Call, Communicator, DataType, ReduceOp, Result, Span, SpanMut};

fn input(rank: u32, index: usize) -> i64 {
    (i64::from(rank) + 1) * 1_000_003 + index as i64 * 7
}

/// One rank's input.
pub fn vector(rank: u32, count: usize) -> Vec<i64> {
    (0..count).map(|index| input(rank, index)).collect()
}

/// The sum of all ranks' inputs at an index.
pub fn sum(size: u32, index: usize) -> i64 {
    (0..size).map(|rank| input(rank, index)).sum()
}

/// A rank's scalar, so large that products wrap.
pub fn scalar(rank: u32) -> i64 {
    (i64::from(rank) + 3).wrapping_mul(0x1f3a_9c55_7b21_e64d)
}

/// The sum at an index of all ranks' inputs, each by its scalar.
pub fn scaled_sum(size: u32, index: usize) -> i64 {
    (0..size).map(|rank| input(rank, index).wrapping_mul(scalar(rank))).fold(0, i64::wrapping_add)
}

/// All collectives of one count on one communicator.
///
/// # Errors
/// Those of the calls.
///
/// # Panics
/// If a result is wrong.
pub fn everything(comm: &Communicator, count: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let whole = vector(rank, count);
    let reduced: Vec<i64> = (0..count).map(|index| sum(size, index)).collect();

    let mut buffer = whole.clone();
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    assert_eq!(buffer, reduced, "all_reduce in place of {count} on {size}");
    let mut output = vec![0; count];
    comm.all_reduce_into(&whole, &mut output, ReduceOp::Sum)?;
    assert_eq!(output, reduced, "all_reduce of {count} on {size}");

    let scaled: Vec<i64> = (0..count * size as usize).map(|index| scaled_sum(size, index)).collect();
    let scales = comm.scaled_by(scalar(rank));
    let mut buffer = whole.clone();
    scales.all_reduce(&mut buffer)?;
    assert_eq!(buffer, scaled[..count], "scaled all_reduce of {count} on {size}");
    for root in 0..size {
        let mut buffer = whole.clone();
        scales.reduce(&mut buffer, root)?;
        assert_eq!(buffer, if rank == root { &scaled[..count] } else { &whole[..] }, "scaled, to {root}");
        let mut buffer = whole.clone();
        comm.reduce(&mut buffer, ReduceOp::Sum, root)?;
        assert_eq!(buffer, if rank == root { &reduced[..] } else { &whole[..] }, "reduce to {root}");
        let mut buffer = whole.clone();
        comm.broadcast(&mut buffer, root)?;
        assert_eq!(buffer, vector(root, count), "broadcast from {root}");
        let mut output = vec![0; count];
        let from = if rank == root { &whole[..] } else { &[] };
        comm.broadcast_into(from, &mut output, root)?;
        assert_eq!(output, vector(root, count), "broadcast from {root} into another buffer");
    }

    let gathered: Vec<i64> = (0..size).flat_map(|rank| vector(rank, count)).collect();
    let mut output = vec![0; count * size as usize];
    comm.all_gather(&whole, &mut output)?;
    assert_eq!(output, gathered, "all_gather of {count} on {size}");
    let mut buffer = vec![-1; count * size as usize];
    let mine = rank as usize * count..(rank as usize + 1) * count;
    buffer[mine.clone()].copy_from_slice(&whole);
    comm.all_gather_in_place(&mut buffer)?;
    assert_eq!(buffer, gathered, "all_gather in place");

    let long = vector(rank, count * size as usize);
    let block: Vec<i64> = mine.clone().map(|index| sum(size, index)).collect();
    let mut output = vec![0; count];
    comm.reduce_scatter(&long, &mut output, ReduceOp::Sum)?;
    assert_eq!(output, block, "reduce_scatter of {count} on {size}");
    scales.reduce_scatter(&long, &mut output)?;
    assert_eq!(output, scaled[mine.clone()], "scaled reduce_scatter of {count} on {size}");
    let mut buffer = long.clone();
    comm.reduce_scatter_in_place(&mut buffer, ReduceOp::Sum)?;
    assert_eq!(buffer[mine.clone()], block, "reduce_scatter in place");

    let mut output = vec![0; count * size as usize];
    comm.all_to_all(&long, &mut output)?;
    let exchanged: Vec<i64> =
        (0..size).flat_map(|from| mine.clone().map(move |index| input(from, index))).collect();
    assert_eq!(output, exchanged, "all_to_all of {count} on {size}");

    for root in 0..size {
        let mut output = vec![-1; if rank == root { gathered.len() } else { 0 }];
        comm.gather(&whole, &mut output, root)?;
        assert_eq!(output, &gathered[..output.len()], "gather of {count} on {size} to {root}");
        let mut buffer = if rank == root { vec![-1; gathered.len()] } else { whole.clone() };
        if rank == root {
            buffer[mine.clone()].copy_from_slice(&whole);
        }
        comm.gather_in_place(&mut buffer, root)?;
        assert_eq!(
            buffer,
            if rank == root { &gathered[..] } else { &whole[..] },
            "gather in place to {root}"
        );

        let spread = vector(root, count * size as usize);
        let mut output = vec![0; count];
        comm.scatter(if rank == root { &spread } else { &[] }, &mut output, root)?;
        assert_eq!(output, spread[mine.clone()], "scatter of {count} on {size} from {root}");
        let mut buffer = if rank == root { spread.clone() } else { vec![-1; count] };
        comm.scatter_in_place(&mut buffer, root)?;
        let stays = if rank == root { &spread[..] } else { &spread[mine.clone()] };
        assert_eq!(buffer, stays, "scatter in place from {root}");
    }

    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut output = vec![0; count];
    comm.exchange_into(&whole, to, &mut output, from)?;
    assert_eq!(output, vector(from, count), "exchange");
    if size > 1 {
        match rank {
            0 => comm.send(&whole, 1)?,
            1 => {
                let mut output = vec![0; count];
                comm.receive(&mut output, 0)?;
                assert_eq!(output, vector(0, count), "send and receive");
            }
            _ => {}
        }
    }
    comm.barrier()
}

/// Sums of 32-bit integers in buffers at every odd byte offset, untyped.
///
/// # Errors
/// Those of the calls.
///
/// # Panics
/// If a result is wrong or a byte outside of the output was written.
pub fn at_odd_offsets(comm: &Communicator, count: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let bytes = count * 4;
    for (from_at, to_at) in [(1, 1), (1, 2), (3, 0), (0, 5), (7, 3)] {
        let value = |rank: u32, index: usize| (rank + 1) * 1000 + index as u32;
        let mut from = vec![0u8; from_at];
        (0..count).for_each(|index| from.extend_from_slice(&value(rank, index).to_le_bytes()));
        let mut to = vec![0xa5u8; to_at + bytes + 5];
        let call = Call::all_reduce(DataType::Uint32, ReduceOp::Sum, count);
        let output = SpanMut::of(&mut to).slice(to_at, bytes);
        comm.execute(&call, Span::of(&from).slice(from_at, bytes), output)?;
        for (index, word) in to[to_at..to_at + bytes].chunks_exact(4).enumerate() {
            let expected: u32 = (0..size).map(|rank| value(rank, index)).sum();
            assert_eq!(word, expected.to_le_bytes(), "element {index} at offsets {from_at} and {to_at}");
        }
        assert!(to[..to_at].iter().chain(&to[to_at + bytes..]).all(|byte| *byte == 0xa5), "written outside");
        let mut place = from.clone();
        let both = SpanMut::of(&mut place).slice(from_at, bytes);
        comm.execute(&call, both.read(), both)?;
        assert_eq!(place[from_at..], to[to_at..to_at + bytes], "in place at offset {from_at}");
    }
    Ok(())
}
