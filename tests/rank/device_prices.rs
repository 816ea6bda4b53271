//! What the plans of an all-reduce take on devices, for `scripts/gpu-check`: each algorithm that a call can name on the
//! path, and the one that the library takes unasked.
//!
//! Invariant: a line says the plan that ran, as the library's event has it, beside the algorithm that was named.
//! Absent: results of the calls, which other scenarios compare.

use std::time::{Duration, Instant};

use consort::device::{DeviceBuffer, group};
use consort::planning::{Algorithm, Collective};
use consort::{Call, DataType, ReduceOp, Result};

use super::devices::seats;
use crate::devices::Seat;
use crate::heard::{self, Heard};
use crate::rank::Context;

/// Samples of a time; the middle one counts.
const SAMPLES: usize = 3;
/// How long the calls of a sample take, about, and how many there are at most.
const SAMPLE: Duration = Duration::from_millis(8);
const CALLS_MAX: usize = 100;

/// A rank with an input and an output.
type Place<'a> = (&'a Seat, DeviceBuffer<f32>, DeviceBuffer<f32>);

/// All-reduces of `bytes=N,...` bytes among ranks of one thread; prints an object of JSON for each algorithm.
pub(crate) fn prices(context: &Context) -> Result<()> {
    heard::listen();
    let seats = seats(context)?;
    for bytes in context.text("bytes").split(',').map(|word| word.parse::<usize>().expect("bytes")) {
        let count = bytes / size_of::<f32>();
        let places: Vec<Place<'_>> = seats.iter().map(|seat| place(seat, count)).collect::<Result<_>>()?;
        let path = seats[0].comm.path();
        let mut all = vec![None];
        for candidate in seats[0].comm.explain(Collective::AllReduce, bytes)?.candidates {
            // Packets, which no call names, are the carrier of another.
            if candidate.name().starts_with(path.name()) {
                all.push(Some(candidate.algorithm));
            }
        }
        for algorithm in all {
            println!("{}", price(&places, count, algorithm)?);
        }
    }
    Ok(())
}

/// The rank with buffers of whatever is in them: no time depends on it.
fn place(seat: &Seat, count: usize) -> Result<Place<'_>> {
    Ok((seat, seat.device.buffer(count)?, seat.device.buffer(count)?))
}

/// Makes `calls` calls of all ranks and waits for them; returns the time of one.
fn sample(places: &[Place<'_>], call: &Call, calls: usize) -> Result<Duration> {
    let begun = Instant::now();
    for _ in 0..calls {
        group(|group| {
            let mut all = places.iter();
            all.try_for_each(|(seat, from, to)| group.execute(&seat.comm, call, from, to, &seat.streams[0]))
        })?;
    }
    places.iter().try_for_each(|(seat, ..)| seat.finish())?;
    Ok(begun.elapsed() / calls as u32)
}

fn price(places: &[Place<'_>], count: usize, algorithm: Option<Algorithm>) -> Result<String> {
    let call = Call { algorithm, ..Call::all_reduce(DataType::Float32, ReduceOp::Sum, count) };
    heard::plans(0);
    // The first makes the plan.
    sample(places, &call, 1)?;
    let ran = heard::plans(0).pop().unwrap_or_default();
    let one = sample(places, &call, 1)?;
    let calls = (SAMPLE.as_nanos() / one.as_nanos().max(1)).clamp(1, CALLS_MAX as u128) as usize;
    let mut times = (0..SAMPLES).map(|_| sample(places, &call, calls)).collect::<Result<Vec<Duration>>>()?;
    times.sort();
    let Heard { algorithm: plan, instances, slot_bytes } = ran;
    let named = algorithm.map_or("none".into(), |algorithm| algorithm.to_string());
    Ok(format!(
        r#"{{"what":"plan","ranks":{},"bytes":{},"named":"{named}","ran":"{plan}","instances":{instances},"slot_bytes":{slot_bytes},"calls":{calls},"us":{:.2}}}"#,
        places.len(),
        count * size_of::<f32>(),
        times[SAMPLES / 2].as_secs_f64() * 1e6
    ))
}
