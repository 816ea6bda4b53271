//! What joining a job costs: a rank of a job that a launcher started, where all ranks begin to join at the same instant.
//!
//! `scripts/hosts run "0 1" -- target/release/examples/joining $(($(date +%s) + 2)) [BYTES]`: at that second of the clock
//! every rank joins; with BYTES, all-reduces of 8 bytes and of BYTES follow. Each rank says in one line how long each
//! took, how many sockets the process holds and how many bytes it has in memory beyond those before the join.

use std::error::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use consort::{Communicator, ReduceOp};

/// Bytes of this process in memory that no file backs, shared memory included.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    (of("RssAnon:").unwrap_or(0) + of("RssShmem:").unwrap_or(0)) << 10
}

fn sockets() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|to| to.to_string_lossy().starts_with("socket:"))
        .count()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let begin = arguments.next().ok_or("usage: joining SECOND [BYTES]")?.parse()?;
    let bytes: Option<usize> = arguments.next().map(|text| text.parse()).transpose()?;
    let values = bytes.unwrap_or(0).div_ceil(4);
    let (input, mut output) = (vec![1f32; values], vec![0f32; values]);
    let before = resident();
    let beyond = || resident().saturating_sub(before);
    std::thread::sleep((UNIX_EPOCH + Duration::from_secs(begin)).duration_since(SystemTime::now())?);

    let begun = Instant::now();
    let comm = Communicator::from_launcher()?;
    let mut line = format!("joined {:.1?}, {} sockets, {} bytes", begun.elapsed(), sockets(), beyond());
    if bytes.is_some() {
        for (name, count) in [("8 B", values.min(2)), ("all", values)] {
            comm.barrier()?;
            let begun = Instant::now();
            comm.all_reduce_into(&input[..count], &mut output[..count], ReduceOp::Sum)?;
            let took = begun.elapsed();
            assert!(output[..count].iter().all(|sum| *sum == comm.size() as f32), "the sums are right");
            // What the caller's own output takes since it was written is not the library's.
            let library = beyond().saturating_sub(count as u64 * 4);
            line += &format!("; {name} {took:.1?}, {} sockets, {library} bytes", sockets());
        }
        line += &format!(", {} in connections", comm.memory_bytes()?);
        comm.barrier()?;
    }
    println!("{line}");
    Ok(())
}
