//! Ranks that die, leave, never come, or are slow.

use std::time::{Duration, Instant};

use consort::{ReduceOp, Result};

use crate::{join, say, show_report, stay, stay_until_failed, sum_ones, tell, variant};

/// The script kills rank 2 once all ranks are at it.
pub(crate) fn killed(how: &str) -> Result<()> {
    let comm = join()?;
    let mut buffer = vec![0.0f32; 4 << 20];
    for round in 1u64.. {
        if let Err(error) = comm.all_reduce(&mut buffer, ReduceOp::Sum) {
            say(&format!("round {round}: {}: {error}", variant(&error)));
            break;
        }
        if round == 3 && how == "between" {
            say("is between two calls");
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(20) {
                if let Err(error) = comm.status() {
                    say(&format!("status: {}: {error}", variant(&error)));
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if round == 3 {
            say("is in the loop");
        }
    }
    Ok(())
}

/// Joins, and makes one call.
pub(crate) fn joins() -> Result<()> {
    let began = Instant::now();
    let comm =
        join().inspect_err(|_| say(&format!("gave up after {:.1} s", began.elapsed().as_secs_f64())))?;
    tell(&comm, "barrier", || comm.barrier());
    Ok(())
}

/// Rank 0 is in its own code before its barrier.
pub(crate) fn slow(how: &str, path: &str) -> Result<()> {
    let comm = join()?;
    tell(&comm, "step", || sum_ones(&comm, 1 << 20));
    let late = comm.rank() == 0;
    match how {
        "saves" => {
            if late {
                stay_until_failed(&comm);
            }
            tell(&comm, "barrier", || comm.barrier());
            if comm.rank() == 1 {
                show_report(&comm);
            }
        }
        // A loader that waits for data that no process writes: the script ends it.
        "reads" if late => {
            say("reads a pipe that no process fills");
            let read = std::fs::read(path);
            say(&format!("read {:?}", read.map(|bytes| bytes.len())));
        }
        "reads" => {
            // A thread that watches while this rank waits.
            std::thread::scope(|threads| {
                let looks = threads.spawn(|| {
                    std::thread::sleep(Duration::from_secs_f64(1.0));
                    comm.report()
                });
                tell(&comm, "barrier", || comm.barrier());
                if comm.rank() == 1 {
                    let report = looks.join().expect("no panic")?;
                    say(&format!("asked meanwhile: {}", report.verdict));
                    say(&format!("blamed meanwhile: {:?}", report.guilty));
                }
                Ok(())
            })?;
        }
        "short" => {
            if late {
                stay(1.2);
            }
            tell(&comm, "barrier", || comm.barrier());
            if comm.rank() == 1 {
                show_report(&comm);
            }
        }
        "longer" => {
            if late {
                stay(2.5);
            }
            let patient = comm.with_timeout(Duration::from_secs(30));
            tell(&comm, "patient barrier", || patient.barrier());
        }
        other => panic!("no variant {other:?}"),
    }
    Ok(())
}

/// Rank 1 has one batch fewer than the others.
pub(crate) fn early(how: &str) -> Result<()> {
    let comm = join()?;
    let late = comm.rank() == 1;
    for batch in 1..=10 {
        if late && batch == 10 {
            match how {
                "closes" => {
                    drop(comm);
                    stay(1.0);
                    return Ok(());
                }
                "returns" => return Ok(()),
                "goes-on" => {
                    tell(&comm, "final barrier", || comm.barrier());
                    return Ok(());
                }
                "panics" => panic!("the file of batch {batch} is damaged"),
                "exits" => std::process::exit(1),
                other => panic!("no variant {other:?}"),
            }
        }
        if batch < 10 {
            sum_ones(&comm, 1000)?;
        } else {
            tell(&comm, "batch 10", || sum_ones(&comm, 1000));
        }
    }
    Ok(())
}
