//! Files of variables: `NCCL_CONF_FILE` or else `~/.nccl.conf`, then `/etc/nccl.conf`.
//!
//! Invariant: lines are `NAME=value`, blank, or comments that begin with `#`; the first line that sets a name holds; a file
//! that has not changed is not read again in this process. Absent: including other files, quoting.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

const SYSTEM: &str = "/etc/nccl.conf";
/// The longest file that is read: a longer one is no list of variables.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file as it was when it was last read.
#[derive(Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    values: HashMap<String, String>,
}

impl File {
    fn parse(path: &Path, text: &str) -> Self {
        let mut values = HashMap::new();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if let Some((name, value)) = line.split_once('=') {
                values.entry(name.trim().to_owned()).or_insert_with(|| value.trim().to_owned());
            }
        }
        File { path: path.to_owned(), values }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }
}

/// The file's time of modification and length: a change of either shows that the file has changed.
type Stamp = (Option<SystemTime>, u64);

static READ: Mutex<Vec<(Stamp, Arc<File>)>> = Mutex::new(Vec::new());

/// The files that exist, in order of precedence, and why the file that a variable names is not among them.
pub(super) fn all(set: &dyn Fn(&str) -> Option<String>) -> (Vec<Arc<File>>, Option<String>) {
    let named = set("NCCL_CONF_FILE").filter(|path| !path.trim().is_empty());
    let mut trouble = None;
    let own = match &named {
        Some(path) => match read(Path::new(path.trim())) {
            Ok(file) => Some(file),
            Err(error) => {
                trouble = Some(format!("NCCL_CONF_FILE is {path:?}, which cannot be read: {error}"));
                None
            }
        },
        None => set("HOME").and_then(|home| read(&Path::new(&home).join(".nccl.conf")).ok()),
    };
    // Most hosts have no such file.
    let system = read(Path::new(SYSTEM)).ok();
    (own.into_iter().chain(system).collect(), trouble)
}

fn read(path: &Path) -> std::io::Result<Arc<File>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(std::io::Error::other("it is no file of variables"));
    }
    let stamp = (metadata.modified().ok(), metadata.len());
    let mut known = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, file)) = known.iter().find(|(then, file)| *then == stamp && file.path == path) {
        return Ok(file.clone());
    }
    let file = Arc::new(File::parse(path, &std::fs::read_to_string(path)?));
    known.retain(|(_, other)| other.path != path);
    known.push((stamp, file.clone()));
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_with_comments_between() {
        let text = "# a comment\n\n NCCL_ALGO = ring,tree\nNCCL_ALGO=tree\nNCCL_X=a=b # kept\n#NCCL_Y=1\nnothing\n=\n";
        let file = File::parse(Path::new("f"), text);
        assert_eq!(file.get("NCCL_ALGO"), Some("ring,tree"), "the first holds");
        assert_eq!(file.get("NCCL_X"), Some("a=b # kept"));
        assert_eq!((file.get("NCCL_Y"), file.get("nothing")), (None, None));
    }

    #[test]
    fn a_file_that_did_not_change_is_read_once() {
        let path = std::env::temp_dir().join(format!("consort-conf-{}.conf", std::process::id()));
        std::fs::write(&path, "A=1\n").expect("a file");
        let first = read(&path).expect("readable");
        assert!(Arc::ptr_eq(&first, &read(&path).expect("readable")));
        std::fs::write(&path, "A=22\n").expect("a file");
        assert_eq!(read(&path).expect("readable").get("A"), Some("22"));
        std::fs::remove_file(&path).expect("removed");
        let lookup = |name: &str| (name == "NCCL_CONF_FILE").then(|| path.display().to_string());
        let (_, trouble) = all(&lookup);
        assert!(trouble.is_some_and(|text| text.contains("NCCL_CONF_FILE") && text.contains(".conf")));
        assert!(read(Path::new("/dev/zero")).is_err(), "a device is no file");
    }
}
