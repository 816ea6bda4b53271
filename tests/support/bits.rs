//! All data types with all operators and scaled sums on random bits, as one number for each; the numbers must be the
//! same on every rank, in every run, over every transport.

use consort::{Call, Communicator, DataType, ReduceOp, Result, Scalar, Span, SpanMut};

use crate::system::Random;

/// Counts of elements: one, odd, not divisible by the ranks, longer than a vector register, longer than a slot.
const COUNTS: [usize; 5] = [1, 7, 65, 1030, 40_001];

/// Where FNV-1a begins.
const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, continued.
pub fn mix(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The input of one rank: bits of every kind, so also NaN, infinities and denormals, or values whose sum
/// depends on the order.
fn input(data_type: DataType, bytes: usize, rank: u32, tame: bool) -> Vec<u8> {
    let mut random = Random::new(u64::from(rank) << 32 | u64::from(data_type.code()));
    let mut data: Vec<u8> = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        match (data_type, tame) {
            (DataType::Float32, true) => {
                let value = (random.draw() as i32 as f32) * 10f32.powi((random.draw() % 9) as i32 - 4);
                data.extend_from_slice(&value.to_le_bytes());
            }
            (DataType::Float64, true) => {
                let value = (random.draw() as i64 as f64) * 10f64.powi((random.draw() % 17) as i32 - 8);
                data.extend_from_slice(&value.to_le_bytes());
            }
            _ => data.extend_from_slice(&random.draw().to_le_bytes()),
        }
    }
    data.truncate(bytes);
    data
}

/// The numbers, as `float/sum=0123456789abcdef` and so on. `offset` shifts all buffers away from their natural alignment.
///
/// # Errors
/// Those of the calls.
pub fn of_everything(comm: &Communicator, offset: usize) -> Result<Vec<String>> {
    let (rank, size) = (comm.rank(), comm.size() as usize);
    let mut all = Vec::new();
    for data_type in DataType::ALL {
        // A sum scaled by this rank's scalar last.
        let scalar = input(data_type, data_type.size(), !rank, true);
        let scalar = Scalar::from_bytes(data_type, &scalar).expect("one element");
        let plain = ReduceOp::ALL.into_iter().map(|op| (op, None));
        for (op, scalar) in plain.chain([(ReduceOp::Sum, Some(scalar))]) {
            let how = |call: Call| scalar.map_or(call, |scalar| call.scaled_by(scalar));
            let name = if scalar.is_some() { "mulsum" } else { op.name() };
            let mut hash = SEED;
            // Every rank has its own blocks; together they are one number too.
            let mut own = SEED;
            for count in COUNTS {
                for tame in [false, true] {
                    let bytes = count * data_type.size();
                    let mine = input(data_type, bytes * size, rank, tame);
                    let mut from = vec![0; offset];
                    from.extend_from_slice(&mine);
                    let mut to = vec![0xa5u8; offset + bytes + 3];
                    let whole = Span::of(&from);
                    let call = how(Call::all_reduce(data_type, op, count));
                    comm.execute(
                        &call,
                        whole.slice(offset, bytes),
                        SpanMut::of(&mut to).slice(offset, bytes),
                    )?;
                    assert!(
                        to[..offset].iter().chain(&to[offset + bytes..]).all(|byte| *byte == 0xa5),
                        "outside"
                    );
                    assert_eq!(from[offset..], mine, "the input of {data_type} {name} was written");
                    hash = mix(hash, &to[offset..offset + bytes]);
                    let call = how(Call::reduce_scatter(data_type, op, count));
                    let block = SpanMut::of(&mut to).slice(offset, bytes);
                    comm.execute(&call, whole.slice(offset, bytes * size), block)?;
                    own = mix(own, &to[offset..offset + bytes]);
                }
            }
            let mut blocks = vec![0u8; 8 * size];
            comm.all_gather(&own.to_le_bytes(), &mut blocks)?;
            all.push(format!("{data_type}/{name}={:016x}", mix(hash, &blocks)));
        }
    }
    Ok(all)
}

/// The numbers that differ between two lists.
pub fn differences(one: &[String], other: &[String]) -> Vec<String> {
    let differs = |(one, other): (&String, &String)| (one != other).then(|| format!("{one} or {other}"));
    one.iter().zip(other).filter_map(differs).collect()
}
