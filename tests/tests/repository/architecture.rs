//! The house as drawn in `docs/ARCHITECTURE.md`: arrows point one way, `unsafe` is fenced, files stay short, and
//! nothing of one person's machine is in the tree.

use std::collections::BTreeSet;
use std::process::Command;

use consort_tests::compiler::root;
use serde_json::Value;

/// Who may depend on whom within the workspace.
const ARROWS: [(&str, &[&str]); 11] = [
    (
        "consort",
        &["consort-algorithms", "consort-transports", "consort-kernels", "consort-cuda", "consort-memory"],
    ),
    ("consort-algorithms", &[]),
    ("consort-memory", &[]),
    ("consort-cuda", &["consort-memory"]),
    ("consort-transports", &["consort-cuda", "consort-memory"]),
    ("consort-kernels", &["consort-cuda", "consort-memory"]),
    ("consort-ffi", &["consort", "consort-memory"]),
    ("collbench", &["consort"]),
    ("trainer", &["consort"]),
    // Of tests only, and they know nothing of the library.
    ("consort-standin-ptx", &[]),
    ("consort-standin-cuda", &["consort-standin-ptx"]),
];

#[test]
fn arrows_point_one_way() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("json");
    let packages = metadata["packages"].as_array().expect("packages");
    let name = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    assert!(ours.len() >= 8, "the workspace has {ours:?}");
    for package in packages {
        let from = name(package);
        // They see everything.
        if from.starts_with("consort-tests") {
            continue;
        }
        let Some((_, allowed)) = ARROWS.iter().find(|(package, _)| *package == from) else {
            panic!("{from} has no place in the map: add it to docs/ARCHITECTURE.md and here");
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let to = name(dependency);
            // A package may use itself with a feature for its own tests.
            let inside = ours.contains(&to) && to != from;
            assert!(!inside || allowed.contains(&to.as_str()), "{from} must not depend on {to}");
        }
    }
}

/// The floors of the crate `consort`, from the ground up: a module imports from its own floor and those below.
const FLOORS: [&str; 25] = [
    "lib",
    "stretch",
    "error",
    "blocks",
    "clock",
    "call",
    "recorder",
    "varying",
    "report",
    "settings",
    "options",
    "topology",
    "bootstrap",
    "eager",
    "planner",
    "control",
    "trace",
    "wait",
    "ticket",
    "engine",
    "communicator",
    "planning",
    "device",
    "nccl",
    "simulation",
];

/// What a file of `src` imports from other modules of its crate, tests apart: the module and the line.
fn imports(text: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("#[cfg(test)]")
            && text.lines().nth(number + 1).is_some_and(|next| next.ends_with('{'))
        {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        for (at, path) in code.match_indices("crate::") {
            let before = code[..at].chars().next_back();
            let names = &code[at + path.len()..];
            // One path, or several in braces.
            let names = names.strip_prefix('{').map_or_else(|| vec![names], |list| list.split(',').collect());
            for name in names.into_iter().map(str::trim_start) {
                let end = name.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(name.len());
                if before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '$') {
                    found.push((&name[..end], number + 1));
                }
            }
        }
    }
    found
}

#[test]
fn no_module_imports_from_a_floor_above() {
    let floor = |module: &str| FLOORS.iter().position(|floor| *floor == module);
    let mut seen = BTreeSet::new();
    for (name, text) in files().iter().filter(|(name, _)| name.starts_with("src/") && name.ends_with(".rs")) {
        let module = name["src/".len()..].split(['/', '.']).next().unwrap_or_default();
        let is_test = name.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "fuzz.rs"));
        let Some(own) = floor(module) else {
            panic!("{name}: the module {module} has no floor: add it to FLOORS and docs/ARCHITECTURE.md");
        };
        seen.insert(module.to_owned());
        if is_test || module == "lib" {
            continue;
        }
        for (other, line) in imports(text) {
            // What begins with a capital is of the crate's root.
            let above = floor(other).filter(|floor| *floor > own);
            assert!(
                above.is_none(),
                "{name}:{line}: {module} must not import from {other}, which is above it"
            );
        }
    }
    if !seen.is_empty() {
        let unused: Vec<_> = FLOORS.iter().filter(|floor| !seen.contains(**floor)).collect();
        assert!(unused.is_empty(), "these floors have no module: {unused:?}");
    }
}

/// Files that git knows or would take, with their text.
fn files() -> Vec<(String, String)> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root())
        .output();
    let names: Vec<String> = match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).split('\0').map(str::to_owned).collect()
        }
        _ => {
            consort_tests::system::skip("this is no git checkout");
            return Vec::new();
        }
    };
    let text = |name: String| Some((name.clone(), std::fs::read_to_string(root().join(name)).ok()?));
    names.into_iter().filter(|name| !name.is_empty()).filter_map(text).collect()
}

#[test]
fn files_stay_short() {
    for (name, text) in files().iter().filter(|(name, _)| name.ends_with(".rs")) {
        let lines = text.lines().count();
        assert!(lines <= 600, "{name} has {lines} lines: split it by subject");
    }
}

/// Whether a line of code has the word, comments apart.
fn has_word(line: &str, word: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let boundary = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    code.match_indices(word).any(|(at, _)| {
        boundary(code[..at].chars().next_back()) && boundary(code[at + word.len()..].chars().next())
    })
}

#[test]
fn unsafe_is_fenced() {
    // A client of the C interface calls it, as anybody's program would.
    let fence = ["cuda/", "memory/", "transports/", "kernels/", "ffi/", "standins/", "tests/", "clients/"];
    for (name, text) in files().iter().filter(|(name, _)| name.ends_with(".rs")) {
        if fence.iter().any(|place| name.starts_with(place)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            assert!(!has_word(line, "unsafe"), "{name}:{}: unsafe outside of {fence:?}", number + 1);
        }
    }
}

#[test]
fn nothing_of_one_machine_is_in_the_tree() {
    // Put together here so that this file does not contain them.
    let homes = ["work", "home", "root", "Users", "mnt"].map(|place| format!("/{place}/"));
    let index = ["registry+https://github.com/rust-lang", "crates.io-index"].join("/");
    for (name, text) in files() {
        for (number, line) in text.lines().enumerate() {
            let place = format!("{name}:{}: {line}", number + 1);
            let starts = |at: usize| line[..at].chars().next_back().is_none_or(|c| " \"'`(=:<".contains(c));
            for home in &homes {
                let found = line.match_indices(home.as_str()).any(|(at, _)| starts(at));
                assert!(!found, "a path of one machine: {place}");
            }
            if name == "Cargo.lock" && line.starts_with("source = ") {
                assert!(line.contains(&index), "not the public index: {place}");
            }
            if name.ends_with(".toml") {
                let configured = ["replace-with", "[source", "[registries", "index ="];
                assert!(
                    !configured.iter().any(|word| line.trim_start().starts_with(word)),
                    "a registry: {place}"
                );
            }
        }
    }
}
