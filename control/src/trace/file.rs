//! One file of trace events that all ranks of a host write to.
//!
//! Invariant: a writer that has the lock finds a JSON array and leaves one, longer by its own events. What a writer left
//! that was killed in between is cut back to the last whole line. A file that is no array is left alone. The lock
//! is waited for a bounded time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

const PAUSE: Duration = Duration::from_millis(2);
const END: &str = "\n]\n";

/// Adds lines of events, with commas between them, to the array in the file, which is made if there is none.
pub(super) fn append(path: &Path, events: &str, patience: Duration) -> io::Result<()> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory)?;
    }
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    lock(&file, patience)?;
    let written = extend(&mut file, events);
    // A child that was forked meanwhile has a copy of the descriptor, which would keep the lock.
    let _ = file.unlock();
    written
}

fn lock(file: &File, patience: Duration) -> io::Result<()> {
    let until = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "others keep it locked"));
            }
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

fn extend(file: &mut File, events: &str) -> io::Result<()> {
    let (at, between) = end_of_events(file)?;
    let text = format!("{between}{events}{END}");
    let written = file.write_all_at(text.as_bytes(), at).and_then(|()| file.set_len(at + text.len() as u64));
    if written.is_err() {
        // There was room for this before.
        let whole = if at == 0 { "[\n]\n" } else { END };
        let _ = file.set_len(at).and_then(|()| file.write_all_at(whole.as_bytes(), at));
    }
    written
}

/// Where the next event goes, and what comes between it and what is there.
fn end_of_events(file: &mut File) -> io::Result<(u64, &'static str)> {
    let length = file.metadata()?.len();
    let mut tail = [0; 64];
    let kept = length.min(tail.len() as u64) as usize;
    file.read_exact_at(&mut tail[..kept], length - kept as u64)?;
    let tail = tail[..kept].trim_ascii_end();
    let Some(tail) = tail.strip_suffix(b"]").map(<[u8]>::trim_ascii_end) else {
        return mend(file);
    };
    let at = length - kept as u64 + tail.len() as u64;
    match tail.last() {
        // An array without events, or just a bracket that nothing opened.
        Some(b'[') if at == 1 => Ok((1, "\n")),
        Some(b'}') => {
            let mut first = [0];
            file.read_exact_at(&mut first, 0)?;
            if first == *b"[" { Ok((at, ",\n")) } else { Err(no_array()) }
        }
        _ => mend(file),
    }
}

/// The same for a file whose last writer did not finish.
fn mend(file: &mut File) -> io::Result<(u64, &'static str)> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok((0, "[\n"));
    }
    if bytes.first() != Some(&b'[') {
        return Err(no_array());
    }
    let mut end = bytes.len();
    loop {
        let start = bytes[..end].iter().rposition(|byte| *byte == b'\n').map_or(1, |newline| newline + 1);
        let line = bytes[start..end].trim_ascii_end();
        let line = line.strip_suffix(b",").unwrap_or(line);
        if serde_json::from_slice::<Value>(line).is_ok_and(|value| value.is_object()) {
            return Ok(((start + line.len()) as u64, ",\n"));
        }
        if start <= 1 {
            return Ok((1, "\n"));
        }
        end = start - 1;
    }
}

fn no_array() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "there is a file that is no JSON array of events")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Longer than the others keep the lock, all together.
    const SOON: Duration = Duration::from_secs(60);

    /// A file of a test's own, gone afterwards.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let name = format!("consort-{name}-{}", std::process::id());
            Place(std::env::temp_dir().join(name).join("deep").join("trace.json"))
        }

        fn events(&self) -> Vec<u64> {
            let text = std::fs::read_to_string(&self.0).expect("a file");
            let values: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            values.iter().map(|value| value["n"].as_u64().expect("a number")).collect()
        }

        fn put(&self, text: &str) {
            std::fs::write(&self.0, text).expect("written");
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = self.0.ancestors().nth(2).map(std::fs::remove_dir_all);
        }
    }

    #[test]
    fn many_writers_leave_one_array() {
        let place = Place::new("writers");
        std::thread::scope(|threads| {
            for writer in 0..8 {
                let path = &place.0;
                threads.spawn(move || {
                    for turn in 0..20 {
                        let n = writer * 100 + turn;
                        append(path, &format!("{{\"n\":{n}}},\n{{\"n\":{n}}}"), SOON).expect("written");
                    }
                });
            }
        });
        let mut events = place.events();
        assert_eq!(events.len(), 320);
        events.sort_unstable();
        events.dedup();
        assert_eq!(events.len(), 160);
    }

    #[test]
    fn what_a_killed_writer_left_is_mended() {
        let place = Place::new("mended");
        append(&place.0, "{\"n\":1}", SOON).expect("written");
        for (left, kept) in [
            ("[\n{\"n\":1},\n{\"n\":2", vec![1, 3]),
            ("[\n{\"n\":1},\n{\"n\":2},\n", vec![1, 2, 3]),
            ("[\n{\"n\":1},\n{\"n\":2}", vec![1, 2, 3]),
            ("[\n{\"n\":", vec![3]),
            ("[\n", vec![3]),
            ("[", vec![3]),
            ("", vec![3]),
            ("[]", vec![3]),
            ("[\n]\n", vec![3]),
            ("[{\"n\":1}, {\"n\":2}]", vec![1, 2, 3]),
        ] {
            place.put(left);
            append(&place.0, "{\"n\":3}", SOON).unwrap_or_else(|error| panic!("{left:?}: {error}"));
            assert_eq!(place.events(), kept, "{left:?}");
        }
    }

    #[test]
    fn other_files_are_left_alone_and_a_lock_is_not_waited_for_ever() {
        let place = Place::new("alone");
        append(&place.0, "{\"n\":1}", SOON).expect("written");
        for text in ["a letter", "{\"traceEvents\":[{}]}", "x]", "{}]"] {
            place.put(text);
            append(&place.0, "{\"n\":2}", SOON).expect_err(text);
            assert_eq!(std::fs::read_to_string(&place.0).ok().as_deref(), Some(text));
        }
        place.put("");
        let other = File::open(&place.0).expect("opened");
        other.lock().expect("locked");
        let error = append(&place.0, "{\"n\":2}", Duration::from_millis(20)).expect_err("locked");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
