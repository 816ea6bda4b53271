//! Trees that are damaged, or made to do harm: a probe ends, says what it did not believe, and keeps within its bounds.

use std::ffi::CString;
use std::os::unix::fs::symlink;

use consort_algorithms::hardware::exchange::read_hardware;
use consort_probing::{Probe, Recorded, Trouble};
use consort_testing::Random;
use consort_testing::machines::{ANSWERS, Entry, Tree, names, tree};

use crate::support::{Place, notes, probe};

/// Trees that are damaged.
const ROUNDS: usize = 60;

/// What a file says instead.
fn nonsense(random: &mut Random, text: &[u8]) -> Vec<u8> {
    let words: [&[u8]; 16] = [
        b"",
        b"-1\n",
        b"0\n",
        b"255\n",
        b"18446744073709551616\n",
        b"0x\n",
        b"0xffffffffffff\n",
        b"Unknown\n",
        b"0-4294967295\n",
        b"0-65535\n",
        b"10 10 10\n",
        b"\xff\xfe\x00\n",
        b"1e9\n",
        b"0,,0\n",
        b"   \n",
        b"max 0\n",
    ];
    match random.below(4) {
        0 => random.pick(&words).to_vec(),
        1 => {
            let mut bytes = text.to_vec();
            for _ in 0..1 + random.below(4) {
                if !bytes.is_empty() {
                    let at = random.below(bytes.len());
                    bytes[at] = random.draw() as u8;
                }
            }
            bytes
        }
        2 => text[..random.below(text.len() + 1)].to_vec(),
        _ => {
            let count = random.below(200);
            random.bytes(count)
        }
    }
}

fn damage(random: &mut Random, tree: &mut Tree) {
    let paths: Vec<String> = tree.entries.keys().cloned().collect();
    for _ in 0..1 + random.below(paths.len() / 4 + 1) {
        let path = &paths[random.below(paths.len())];
        let other = &paths[random.below(paths.len())];
        match (random.below(5), tree.entries.get(path).cloned()) {
            (0, _) => {
                tree.entries.remove(path);
            }
            (1, Some(Entry::Link(_))) => {
                let up = "../".repeat(path.matches('/').count());
                let target = random.pick(&["/", "..", ".", "../../../../../../../../etc", "missing"]);
                let target = if random.one_in(2) { target.to_owned() } else { format!("{up}{other}") };
                tree.entries.insert(path.clone(), Entry::Link(target));
            }
            (_, Some(Entry::File(bytes))) => {
                tree.entries.insert(path.clone(), Entry::File(nonsense(random, &bytes)));
            }
            _ => {}
        }
    }
}

#[test]
fn no_damage_ends_a_probe_or_gives_a_machine_without_sense() {
    let mut random = Random::announced("damage");
    let all = names();
    for round in 0..ROUNDS {
        let seed = random.seed();
        // Small machines are written faster.
        let name = if round % 6 == 0 {
            random.pick(&all)
        } else {
            random.pick(&["laptop", "cloud-flat", "container", "troubled"])
        };
        let mut tree = tree(name);
        damage(&mut random, &mut tree);
        println!("round {round}: {name}, seed {seed}");
        let probed = probe(&tree);
        probed.hardware.check().unwrap_or_else(|fault| panic!("{name}, seed {seed}: {fault}"));
        let is_empty = probed.hardware.nodes().len() == 1;
        let is_senseless = notes(&probed).iter().any(|note| note.contains("nothing is taken from this tree"));
        assert!(!is_senseless, "{name}, seed {seed}: {:?}", notes(&probed));
        assert!(!is_empty || round > 0, "{name}, seed {seed}");
        assert!(probed.notes.len() <= 1000 && probed.hardware.nodes().len() < 2000, "{name}, seed {seed}");
        let text = probed.hardware.to_string();
        let again = read_hardware(text.as_bytes())
            .unwrap_or_else(|error| panic!("{name}, seed {seed}: {error}\n{text}"));
        assert_eq!(again.0, probed.hardware, "{name}, seed {seed}");
        probed.hardware.warnings();
    }
}

#[test]
fn damaged_answers_are_refused_or_noted() {
    let mut random = Random::announced("answers");
    let text = tree("dgx-1").text(ANSWERS).expect("answers").to_owned();
    let place = Place::of(&tree("laptop"));
    for _ in 0..200 {
        let seed = random.seed();
        let bytes = nonsense(&mut random, text.as_bytes());
        let Ok(text) = String::from_utf8(bytes) else { continue };
        if let Ok(recorded) = Recorded::read(&text) {
            let probed = Probe::below(&place.0).with(&recorded).run();
            probed.hardware.check().unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        }
    }
    let endless = "nvmlDeviceGetCount_v2 = 4000000000\nnvmlDeviceGetPciInfo_v3 * = 00000000:01:00.0\nnvmlDeviceGetNvLinkState * * = 1\n\
                   nvmlDeviceGetNvLinkRemotePciInfo_v2 * * = 00000000:01:00.0";
    let probed = Probe::below(&place.0).with(&Recorded::read(endless).expect("answers")).run();
    assert_eq!(probed.hardware.gpus().len(), 1);
    let notes = notes(&probed);
    for part in ["only the first 256", "two GPUs are at 0000:01:00.0", "leads back to its GPU"] {
        assert!(notes.iter().any(|note| note.contains(part)), "{part}: {notes:?}");
    }
}

#[test]
fn links_cannot_leave_the_root_or_go_in_circles() {
    let outside = Place::of(&Tree::default());
    std::fs::write(outside.0.join("secret"), "0x4242\n").expect("a file");
    let mut tree = tree("laptop");
    let device = "sys/devices/pci0000:00/0000:00:02.1/0000:02:00.0";
    let up = "../".repeat(40);
    tree.link(format!("{device}/vendor"), format!("{up}{}", outside.0.join("secret").display()));
    tree.link(format!("{device}/device"), outside.0.join("secret").display().to_string());
    tree.link("sys/class/net/round", "round");
    tree.link("sys/class/net/deep", "deep/deep");
    tree.link("sys/devices/system/node/node7", ".");
    let probed = probe(&tree);
    assert!(!probed.hardware.to_string().contains("0x4242"), "{}", probed.hardware);
    let circles: Vec<_> = probed.notes.iter().filter(|note| note.trouble == Trouble::Cycle).collect();
    assert!(circles.len() >= 2, "{:?}", probed.notes);
}

#[test]
fn files_that_are_none_or_too_long_are_not_read() {
    let mut tree = tree("laptop");
    let device = "sys/devices/pci0000:00/0000:00:02.1/0000:02:00.0";
    for name in ["vendor", "class", "numa_node"] {
        tree.entries.remove(&format!("{device}/{name}"));
    }
    let place = Place::of(&tree);
    let at = |name: &str| place.0.join(device).join(name);
    // A pipe without a writer would hold a reader for ever.
    let pipe = CString::new(at("vendor").to_str().expect("a path")).expect("no zero");
    let made = std::process::Command::new("mkfifo").arg(pipe.to_str().expect("a path")).status();
    let has_pipe = made.is_ok_and(|status| status.success());
    std::fs::create_dir(at("class")).expect("a directory");
    // A file of a terabyte, all of it a hole.
    let long = std::fs::File::create(at("numa_node")).expect("a file");
    long.set_len(1 << 40).or_else(|_| long.set_len(1 << 30)).expect("a hole");
    symlink("/dev/zero", at("mtu")).expect("a link");
    let probed = Probe::below(&place.0).run();
    let of = |name: &str| {
        probed
            .notes
            .iter()
            .find(|note| note.place.ends_with(&format!("02:00.0/{name}")))
            .map(|note| &note.trouble)
    };
    if has_pipe {
        assert_eq!(of("vendor"), Some(&Trouble::NoFile));
    } else {
        eprintln!("SKIP: no mkfifo here");
    }
    assert_eq!(of("class"), Some(&Trouble::NoFile));
    assert!(matches!(of("numa_node"), Some(Trouble::TooLong { .. })), "{:?}", probed.notes);
}

#[test]
fn nothing_at_all_is_an_empty_host() {
    let probed = probe(&Tree::default());
    assert_eq!((probed.hardware.nodes().len(), probed.notes.len()), (1, 0), "{:?}", probed.notes);
    let missing = Probe::below(std::path::Path::new("does-not-exist")).run();
    assert_eq!(missing.hardware.nodes().len(), 1);
}
