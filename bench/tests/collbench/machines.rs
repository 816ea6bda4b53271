//! `collbench topo` of captured trees: the text for each machine, as it is beside this file. `CONSORT_SNAPSHOTS=write` writes the files anew;
//! what has changed is then for a person to read.

use std::path::{Path, PathBuf};
use std::process::Command;

use consort_testing::machines::{Tree, names, tree};

/// A directory of this test process that is removed at the end.
struct Place(PathBuf);

impl Place {
    fn of(tree: &Tree, name: &str) -> Place {
        // Trees have thousands of files, which memory takes faster than a disk.
        let memory = PathBuf::from("/dev/shm");
        let room = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let place = Place(room.join(format!("collbench-{}-{name}", std::process::id())));
        std::fs::create_dir(&place.0).expect("a directory");
        tree.write_below(&place.0).expect("a tree");
        place
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A directory that cannot be removed is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the program prints, and whether it succeeds. It starts no rank and waits for none.
fn topo(root: Option<&Path>, words: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_collbench"));
    command.arg("topo").args(words).env_clear();
    if let Some(root) = root {
        command.arg("--root").arg(root);
    }
    let output = command.output().expect("the program starts");
    let text = String::from_utf8(output.stdout).expect("text") + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
fn each_machine_is_shown_as_it_was() {
    let snapshots = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/collbench/machines");
    let writes = std::env::var("CONSORT_SNAPSHOTS").is_ok_and(|value| value == "write");
    let mut different = Vec::new();
    for name in names() {
        let place = Place::of(&tree(name), name);
        let (ends_well, text) = topo(Some(&place.0), &[]);
        assert!(ends_well, "{name}: {text}");
        let file = snapshots.join(format!("{name}.txt"));
        if writes {
            std::fs::write(&file, &text).expect("a snapshot");
        }
        let known = std::fs::read_to_string(&file).unwrap_or_default();
        if known != text {
            let changed = text.lines().zip(known.lines()).find(|(now, before)| now != before);
            different.push(format!("{name}: {changed:?}"));
        }
    }
    assert!(different.is_empty(), "shown otherwise than in {}: {different:#?}", snapshots.display());
}

#[test]
fn this_machine_and_wrong_places_are_answered() {
    let (ends_well, text) = topo(None, &[]);
    assert!(ends_well && text.contains(" NUMA domain"), "{text}");
    let (ends_well, text) = topo(None, &["--json", "-"]);
    assert!(ends_well && text.starts_with('{') && text.contains("\"nvswitches\""), "{text}");
    let (ends_well, text) = topo(Some(Path::new("does-not-exist")), &[]);
    assert!(!ends_well && text.contains("there is no such directory"), "{text}");
    let (ends_well, text) = topo(Some(Path::new(".")), &["--file", "machine.xml"]);
    assert!(!ends_well && text.contains("cannot be used with"), "{text}");
    let mut wrong = tree("laptop");
    wrong.put("nvml.script", "nvmlDeviceGetCount_v2 1");
    let place = Place::of(&wrong, "wrong");
    let (ends_well, text) = topo(Some(&place.0), &[]);
    assert!(!ends_well && text.contains("nvml.script: line 1"), "{text}");
}
