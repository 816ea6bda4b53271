//! `collbench trace OUT IN...`: one trace out of those of several hosts.
//!
//! Invariant: files are arrays of events that are not looked into; every event is kept, in order, and those that
//! only name things once. What was in OUT before is replaced, at once or not at all.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::failure::{Exit, Failure};

const USAGE: &str =
    "usage: collbench trace OUT IN...\n\nMerges trace files (CONSORT_TRACE) of several hosts into OUT.";

/// Runs the subcommand with the words behind its name.
pub(crate) fn run(words: &[OsString]) -> Result<Exit, Failure> {
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return Ok(Exit::Done);
    }
    let [out, inputs @ ..] = words else { return Err(Failure::usage(USAGE)) };
    if inputs.is_empty() {
        return Err(Failure::usage(USAGE));
    }
    let traces = inputs.iter().map(|path| read(Path::new(path))).collect::<Result<Vec<_>, _>>()?;
    write(Path::new(out), &merged(traces))?;
    Ok(Exit::Done)
}

fn read(path: &Path) -> Result<Vec<Value>, Failure> {
    let fail = |cause: &dyn std::fmt::Display| Failure::usage(format!("{}: {cause}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| fail(&error))?;
    serde_json::from_str(&text).map_err(|error| fail(&format!("this is no JSON array of events: {error}")))
}

fn merged(traces: Vec<Vec<Value>>) -> String {
    let mut named = HashSet::new();
    let events = traces.into_iter().flatten().filter_map(|event| {
        let line = event.to_string();
        (event["ph"] != "M" || named.insert(line.clone())).then_some(line)
    });
    let lines: Vec<String> = events.collect();
    if lines.is_empty() { "[\n]\n".into() } else { format!("[\n{}\n]\n", lines.join(",\n")) }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&unfinished);
        Failure::internal(format!("{}: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(paths: &[&Path]) -> Vec<OsString> {
        paths.iter().map(|path| path.as_os_str().to_owned()).collect()
    }

    #[test]
    fn traces_of_two_hosts_become_one() {
        let directory = std::env::temp_dir().join(format!("collbench-trace-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let [one, two, out] = ["one", "two", "out"].map(|name| directory.join(name));
        let name = r#"{"ph":"M","name":"process_name","pid":0,"args":{"name":"rank 0"}}"#;
        let event =
            |ts: u32| format!(r#"{{"ph":"X","name":"barrier","pid":0,"tid":1,"ts":{ts}.125,"dur":2}}"#);
        fs::write(&one, format!("[\n{name},\n{},\n{}\n]\n", event(1), event(1))).expect("written");
        fs::write(&two, format!("[{name}, {}]", event(3))).expect("written");
        assert_eq!(run(&words(&[&out, &one, &two])), Ok(Exit::Done));
        let events: Vec<Value> =
            serde_json::from_str(&fs::read_to_string(&out).expect("a file")).expect("an array");
        let times: Vec<Option<f64>> = events.iter().map(|event| event["ts"].as_f64()).collect();
        assert_eq!(times, [None, Some(1.125), Some(1.125), Some(3.125)]);
        // The result can be an input, and what is no trace is refused and leaves the result alone.
        assert_eq!(run(&words(&[&out, &out, &two])), Ok(Exit::Done));
        fs::write(&two, "[{").expect("written");
        let before = fs::read_to_string(&out).expect("a file");
        assert_eq!(run(&words(&[&out, &one, &two])).map_err(|failure| failure.exit), Err(Exit::Usage));
        assert_eq!(fs::read_to_string(&out).expect("a file"), before);
        assert_eq!(run(&words(&[&out])).map_err(|failure| failure.exit), Err(Exit::Usage));
        assert_eq!(fs::read_dir(&directory).expect("a directory").count(), 3);
        fs::remove_dir_all(&directory).expect("removed");
    }
}
