//! Schedules out of files, as `collbench plan --format json` writes them.
//!
//! Invariant: what is read is what was written; whether it is right is for the library's verifier to say. Absent: other
//! formats.

use std::path::Path;

use consort::planning::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};
use serde_json::Value;

use crate::failure::Failure;

/// The schedule of a file: an object of a schedule, or one that has it as `schedule`.
pub(crate) fn read(path: &Path) -> Result<Schedule, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let read = text.and_then(|text| parse(&text));
    read.map_err(|why| Failure::usage(format!("the schedule {} cannot be read: {why}", path.display())))
}

fn parse(text: &str) -> Result<Schedule, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let json = json.get("schedule").unwrap_or(&json);
    let text = |key: &str| json[key].as_str().ok_or_else(|| format!("it has no {key}"));
    let rounds = items(json, "rounds")?.iter().enumerate().map(|(round, json)| {
        let transfers = json.as_array().ok_or_else(|| format!("round {round} is no array"))?.iter();
        let at = |(number, json)| {
            transfer(json).map_err(|why| format!("transfer {number} of round {round}: {why}"))
        };
        let transfers = transfers.enumerate().map(at).collect::<Result<_, String>>()?;
        Ok(Round { transfers })
    });
    Ok(Schedule {
        name: text("name")?.to_owned(),
        collective: collective(text("collective")?)?,
        ranks: within(number(json, "ranks")?, "ranks")?,
        switches: number(json, "switches")?,
        partition: Partition { parts: within(number(json, "parts")?, "parts")? },
        rounds: rounds.collect::<Result<_, String>>()?,
    })
}

fn collective(name: &str) -> Result<Collective, String> {
    let known = Collective::ALL.into_iter().find(|known| known.name() == name);
    known.ok_or_else(|| format!("'{name}' is no collective"))
}

/// The most ranks, and the most parts of a block, of a schedule that is read.
const MOST: u32 = 1 << 16;

/// A number of ranks or of parts that a plan of each rank can be made for.
fn within(number: u32, what: &str) -> Result<u32, String> {
    if number > MOST {
        return Err(format!("it has {number} {what}, {MOST} at most"));
    }
    Ok(number)
}

fn transfer(json: &Value) -> Result<Transfer, String> {
    Ok(Transfer {
        from: Rank(number(json, "from")?),
        to: Rank(number(json, "to")?),
        channel: Channel(number(json, "channel")?.try_into().map_err(|_| "its channel is too high")?),
        source: place(&json["source"], "source")?,
        target: place(&json["target"], "target")?,
        fold: if json["fold"].is_null() { None } else { Some(place(&json["fold"], "fold")?) },
        own_first: json["own_first"].as_bool().ok_or("it has no own_first")?,
    })
}

/// `{"input": 2}`.
fn place(json: &Value, key: &str) -> Result<Place, String> {
    if json.as_object().is_some_and(|object| object.len() > 1) {
        return Err(format!("its {key} is in more than one buffer"));
    }
    let chunk = |name: &str| number(json, name).map(Chunk);
    let known = chunk("input").map(Place::Input).or_else(|_| chunk("output").map(Place::Output));
    known
        .or_else(|_| chunk("scratch").map(Place::Scratch))
        .map_err(|_| format!("its {key} is no input, output or scratch"))
}

fn items<'a>(json: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    json[key].as_array().ok_or_else(|| format!("it has no {key}"))
}

fn number(json: &Value, key: &str) -> Result<u32, String> {
    let number = json[key].as_u64().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| format!("it has no {key}"))
}

#[cfg(test)]
mod tests {
    use consort::planning::{Algorithm, Collective, export};

    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let grid = Algorithm::BlueConnect { dimensions: [2, 3, 1, 1] };
        for (algorithm, collective, ranks) in [
            (Algorithm::Ring { channels: 2, bidirectional: true }, Collective::AllReduce, 5),
            (Algorithm::Bruck { radix: 2 }, Collective::AllToAll, 6),
            (grid, Collective::ReduceScatter, 6),
        ] {
            let schedule = algorithm.schedule(collective, ranks);
            let text = export::schedule_json(&schedule);
            assert_eq!(parse(&text).as_ref(), Ok(&schedule));
            assert_eq!(parse(&format!("{{\"explanation\":{{}},\n\"schedule\":{text}}}")), Ok(schedule));
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let text = export::schedule_json(&Algorithm::RING.schedule(Collective::AllReduce, 2));
        for (from, to, says) in [
            ("{", "", "trailing characters"),
            ("\"ranks\"", "\"rank\"", "it has no ranks"),
            ("all_reduce", "all_sum", "no collective"),
            ("\"own_first\": false", "\"own_first\": 2", "transfer 0 of round 0: it has no own_first"),
            ("{\"input\":", "{\"inputs\":", "its source is no input"),
            ("\"channel\": 0", "\"channel\": 65536", "too high"),
            ("\"ranks\": 2", "\"ranks\": 65537", "65537 ranks"),
            ("{\"input\":", "{\"output\": 0, \"input\":", "in more than one buffer"),
        ] {
            let error = parse(&text.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(says), "{error}");
        }
    }
}
