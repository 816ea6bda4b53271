//! Ranks that do not make the same calls.

use consort::{Call, Communicator, DataType, ReduceOp, Result, Span, SpanMut};

use crate::{join, say, stay, stay_until_failed, sum_ones, tell};

const GRADIENTS: usize = 1 << 20;

/// Rank 0 reduces a metric of its own.
pub(crate) fn skipped(how: &str) -> Result<()> {
    let comm = join()?;
    tell(&comm, "gradients", || sum_ones(&comm, GRADIENTS));
    if how == "shifted" {
        // Rank 0 sends its metric (1000), the others their loss (1): the calls look the same.
        let mut value = [if comm.rank() == 0 { 1000.0f32 } else { 1.0 }];
        comm.all_reduce(&mut value, ReduceOp::Sum)?;
        say(&format!("the sum of all losses is {}", value[0]));
        if comm.rank() == 0 {
            tell(&comm, "loss", || sum_ones(&comm, 1));
        }
        return Ok(());
    }
    if comm.rank() == 0 {
        tell(&comm, "metric", || sum_ones(&comm, 1));
        return Ok(());
    }
    match how {
        "stays" => {
            stay_until_failed(&comm);
            tell(&comm, "next call", || sum_ones(&comm, GRADIENTS));
        }
        "goes-on" => _ = tell(&comm, "gradients", || sum_ones(&comm, GRADIENTS)),
        "closes" => {
            drop(comm);
            stay(1.0);
        }
        other => panic!("no variant {other:?}"),
    }
    Ok(())
}

/// Rank 2 makes another call than the others.
pub(crate) fn differs(how: &str) -> Result<()> {
    const COUNT: usize = 409_600;
    let comm = join()?;
    comm.barrier()?;
    let other = comm.rank() == 2;
    let all_reduce = |count: usize| tell(&comm, "gradients", || sum_ones(&comm, count)).map(drop);
    let untyped = |data_type: DataType, count: usize| {
        let mut bytes = vec![0u8; count * 2];
        let both = SpanMut::of(&mut bytes);
        let call = Call::all_reduce(data_type, ReduceOp::Sum, count);
        tell(&comm, "gradients", || comm.execute(&call, both.read(), both))
    };
    match how {
        _ if !other && how != "root" => _ = all_reduce(COUNT),
        "shorter" => _ = all_reduce(COUNT - 2),
        "longer" => _ = all_reduce(8 << 20),
        "bf16-same-count" => _ = untyped(DataType::Bfloat16, COUNT),
        "bf16-same-bytes" => _ = untyped(DataType::Bfloat16, 2 * COUNT),
        "max" => {
            let mut buffer = vec![1.0f32; COUNT];
            tell(&comm, "gradients", || comm.all_reduce(&mut buffer, ReduceOp::Max));
        }
        "reduce-scatter" => {
            let input = vec![1.0f32; COUNT];
            let mut output = vec![0.0f32; COUNT / comm.size() as usize];
            let call = Call::reduce_scatter(DataType::Float32, ReduceOp::Sum, output.len());
            let spans = (Span::of(&input), SpanMut::of(&mut output));
            tell(&comm, "gradients", || comm.execute(&call, spans.0, spans.1));
        }
        "root" => {
            let mut buffer = vec![comm.rank() as f32; COUNT];
            tell(&comm, "broadcast", || comm.broadcast(&mut buffer, u32::from(other)));
            tell(&comm, "barrier", || comm.barrier());
        }
        unknown => panic!("no variant {unknown:?}"),
    }
    Ok(())
}

/// Two communicators, used in another order on some ranks.
pub(crate) fn order(how: &str) -> Result<()> {
    let world = join()?;
    let me = world.rank();
    if how == "grid" {
        let row = world.split(Some(me / 2), 0)?.expect("a row");
        let column = world.split(Some(me % 2), 0)?.expect("a column");
        // Ranks 0 and 3 begin with their row, 1 and 2 with their column.
        let row_first = me == 0 || me == 3;
        let (first, second) = if row_first { (&row, &column) } else { (&column, &row) };
        let names =
            if row_first { ("row barrier", "column barrier") } else { ("column barrier", "row barrier") };
        tell(first, names.0, || first.barrier());
        tell(second, names.1, || second.barrier());
        return Ok(());
    }
    let a = world.split(Some(0), 0)?.expect("a colour");
    let b = world.split(Some(0), 0)?.expect("a colour");
    let (first, second) = if me == 0 { (&a, &b) } else { (&b, &a) };
    if how == "started" {
        let works = [first, second].map(|comm| comm.start_all_reduce(vec![1.0f32; GRADIENTS], ReduceOp::Sum));
        for work in works {
            let sums = work?.wait()?;
            assert!(sums.iter().all(|value| *value == world.size() as f32));
        }
        say("both are done");
        return Ok(());
    }
    let names = if me == 0 { ["a", "b"] } else { ["b", "a"] };
    tell(first, names[0], || sum_ones(first, GRADIENTS));
    tell(second, names[1], || sum_ones(second, GRADIENTS));
    Ok(())
}

/// Messages in an order in which they cannot arrive.
pub(crate) fn messages(how: &str) -> Result<()> {
    let comm = join()?;
    let (me, size) = (comm.rank(), comm.size());
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    let elements = if how == "small" { 2 } else { 4 << 20 };
    let (output, mut input) = (vec![me as f32; elements], vec![-1.0f32; elements]);
    match how {
        // Two ranks, or a ring of more.
        "send-first" | "small" => {
            tell(&comm, "send", || comm.send(&output, next));
            tell(&comm, "receive", || comm.receive(&mut input, previous));
        }
        "receive-first" => {
            tell(&comm, "receive", || comm.receive(&mut input, previous));
            tell(&comm, "send", || comm.send(&output, next));
        }
        "receive-alone" if me == 1 => _ = tell(&comm, "receive", || comm.receive(&mut input, 0)),
        "receive-alone" => {
            stay_until_failed(&comm);
            tell(&comm, "barrier", || comm.barrier());
        }
        "lengths" if me == 0 => _ = tell(&comm, "send", || comm.send(&output, 1)),
        "lengths" => _ = tell(&comm, "receive", || comm.receive(&mut input[..elements / 2], 0)),
        "exchange" => {
            for elements in [2, 4 << 20] {
                let exchange = |input: &mut Vec<f32>, comm: &Communicator| {
                    comm.exchange_into(&output[..elements], next, &mut input[..elements], previous)
                };
                exchange(&mut input, &comm)?;
                assert!(input[..elements].iter().all(|value| *value == previous as f32));
                say(&format!("exchanged {elements} elements"));
            }
        }
        other => panic!("no variant {other:?}"),
    }
    Ok(())
}
