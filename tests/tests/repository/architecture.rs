//! The house as drawn in `docs/ARCHITECTURE.md`: arrows point one way, `unsafe` is fenced, files stay short, and
//! nothing of one person's machine is in the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use consort_tests::compiler::root;
use serde_json::Value;

use crate::floors::FLOORS;

/// The packages on which each package may depend, from the ground up.
const ARROWS: [(&str, &[&str]); 21] = [
    ("consort-algorithms", &[]),
    ("consort-memory", &[]),
    ("consort-cuda", &["consort-memory"]),
    ("consort-kernels", &["consort-cuda", "consort-memory"]),
    ("consort-transports", &["consort-cuda", "consort-memory"]),
    ("consort-types", &["consort-algorithms", "consort-cuda", "consort-kernels", "consort-memory"]),
    ("consort-settings", &["consort-algorithms", "consort-types"]),
    ("consort-topology", &["consort-memory", "consort-settings"]),
    ("consort-probing", &["consort-algorithms", "consort-cuda"]),
    (
        "consort-control",
        &[
            "consort-algorithms",
            "consort-kernels",
            "consort-memory",
            "consort-settings",
            "consort-topology",
            "consort-transports",
            "consort-types",
        ],
    ),
    (
        "consort",
        &[
            "consort-algorithms",
            "consort-control",
            "consort-cuda",
            "consort-kernels",
            "consort-memory",
            "consort-probing",
            "consort-settings",
            "consort-topology",
            "consort-transports",
            "consort-types",
        ],
    ),
    (
        "consort-nccl",
        &[
            "consort",
            "consort-algorithms",
            "consort-control",
            "consort-cuda",
            "consort-kernels",
            "consort-memory",
            "consort-settings",
            "consort-types",
        ],
    ),
    ("consort-ffi", &["consort", "consort-nccl"]),
    ("consort-netplugin", &["consort-control", "consort-memory", "consort-transports"]),
    ("collbench", &["consort", "consort-nccl"]),
    ("consort-trainer", &["consort"]),
    // It shares no code with what it checks.
    ("consort-checker", &[]),
    // For tests only; they know nothing of the library.
    ("consort-standin-ptx", &[]),
    ("consort-standin-cuda", &["consort-standin-ptx"]),
    ("consort-standin-nvml", &[]),
    ("consort-testing", &[]),
];

/// Simulated jobs see the inside of the library by the feature `testing`; the shipped artefacts are built without it.
#[test]
fn what_is_shipped_has_no_door_for_tests() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let features = |package: &str, edges: &str| {
        let output = Command::new(&cargo)
            .args(["tree", "--offline", "-p", package, "-e", edges, "--prefix", "none", "-f", "{p} [{f}]"])
            .current_dir(root())
            .output()
            .expect("cargo tree");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let has_door = |line: &&str| line.starts_with("consort") && line.contains("testing]");
    for package in ["consort-ffi", "collbench"] {
        let tree = features(package, "normal,build");
        assert!(tree.contains("consort-control "), "{tree}");
        let found: Vec<_> = tree.lines().filter(has_door).collect();
        assert!(found.is_empty(), "{package} is built with the feature: {found:?}");
    }
    let tests = features("consort-tests-simulation", "normal,dev");
    assert!(tests.lines().any(|line| has_door(&line)), "the test sees none of them: {tests}");
}

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
        // They may depend on every package.
        if from.starts_with("consort-tests") {
            continue;
        }
        let Some((_, allowed)) = ARROWS.iter().find(|(package, _)| *package == from) else {
            panic!("{from} has no place in the map: add it to docs/ARCHITECTURE.md and here");
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let to = name(dependency);
            // A package may use itself with a feature for its own tests, and tests may use packages for tests.
            let is_for_tests = dependency["kind"] == "dev" || dependency["optional"] == true;
            let of_tests = ["consort-checker", "consort-standin-cuda", "consort-testing"]
                .contains(&to.as_str())
                && is_for_tests;
            let inside = ours.contains(&to) && to != from && !of_tests;
            assert!(from != "consort-checker", "{from} must depend on nothing, not even on {to}");
            assert!(!inside || allowed.contains(&to.as_str()), "{from} must not depend on {to}");
        }
    }
}

/// The first segments of a list in braces, or of one name: `{a::B, c}` gives `a` and `c`.
fn heads(list: &str) -> impl Iterator<Item = &str> {
    let list = list.strip_prefix('{').map_or_else(
        || list.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default(),
        |list| list.split('}').next().unwrap_or_default(),
    );
    list.split(',')
        .map(|name| name.trim().split("::").next().unwrap_or_default())
        .filter(|name| !name.is_empty())
}

/// The names that a crate's root has from its modules, with the module of each.
fn root_names(lib: &str) -> BTreeMap<String, String> {
    let code: String =
        lib.lines().map(|line| format!("{}\n", line.split("//").next().unwrap_or_default())).collect();
    let mut names = BTreeMap::new();
    for statement in code.split(';').filter_map(|statement| statement.split("use ").nth(1)) {
        let Some((path, list)) = statement.rsplit_once("::{").or_else(|| statement.rsplit_once("::")) else {
            continue;
        };
        let module = path.trim_start_matches("self::").trim_start_matches("crate::").split("::").next();
        for name in list.trim_end_matches('}').split(',') {
            let name = name.trim().rsplit(" as ").next().unwrap_or_default();
            names.insert(name.to_owned(), module.unwrap_or_default().to_owned());
        }
    }
    names
}

/// The imports of a file from its crate's root, without tests, by `crate::` or by enough `super::`: the name and the
/// line.
fn imports(text: &str, depth: usize) -> Vec<(&str, usize)> {
    let above = "super::".repeat(depth);
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let next_is = |end| text.lines().nth(number + 1).is_some_and(|next: &str| next.ends_with(end));
        let is_of_tests = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,");
        if is_of_tests && next_is('{') {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        let is_start = |at: usize| {
            code[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && !"_:".contains(c))
        };
        for path in ["crate::", &above] {
            for (at, _) in code.match_indices(path).filter(|(at, _)| is_start(*at)) {
                let rest = &code[at + path.len()..];
                if !rest.starts_with("super::") {
                    found.extend(heads(rest).map(|name| (name, number + 1)));
                }
            }
        }
    }
    found
}

#[test]
fn no_module_imports_from_a_floor_above() {
    let files = files();
    for (root, floors) in FLOORS {
        let floor = |module: &str| floors.iter().position(|floor| *floor == module);
        let inside = |name: &str| Some(name.strip_prefix(root)?.strip_prefix('/')?.to_owned());
        let is_root = |within: &str| within == "lib.rs" || within == "main.rs";
        let names = files.iter().find(|(name, _)| inside(name).is_some_and(|name| is_root(&name)));
        let names = names.map(|(_, lib)| root_names(lib)).unwrap_or_default();
        let mut seen = BTreeSet::new();
        for (name, text) in &files {
            let Some(within) = inside(name).filter(|within| within.ends_with(".rs") && !is_root(within))
            else {
                continue;
            };
            let module = within.split(['/', '.']).next().unwrap_or_default();
            if within.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "fuzz.rs" | "fuzz")) {
                continue;
            }
            let Some(own) = floor(module) else {
                panic!("{name}: the module {module} has no floor: add it to FLOORS and docs/ARCHITECTURE.md");
            };
            seen.insert(module.to_owned());
            let depth = within.split('/').count() - usize::from(within.ends_with("mod.rs"));
            for (other, line) in imports(text, depth) {
                let other = names.get(other).map_or(other, String::as_str);
                let above = floor(other).filter(|floor| *floor > own);
                assert!(
                    above.is_none(),
                    "{name}:{line}: {module} must not import from {other}, which is above it"
                );
            }
        }
        if !seen.is_empty() {
            let unused: Vec<_> = floors.iter().filter(|floor| !seen.contains(**floor)).collect();
            assert!(unused.is_empty(), "{root}: these floors have no module: {unused:?}");
        }
    }
}

/// Files that git knows or would take, with their text.
pub(crate) fn files() -> Vec<(String, String)> {
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

/// Whether a line of code has the word, without comments.
fn has_word(line: &str, word: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let boundary = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    code.match_indices(word).any(|(at, _)| {
        boundary(code[..at].chars().next_back()) && boundary(code[at + word.len()..].chars().next())
    })
}

#[test]
fn unsafe_is_fenced() {
    // A client of the C interface calls it as any program would.
    let fence = [
        "cuda/",
        "memory/",
        "transports/",
        "kernels/",
        "ffi/",
        "netplugin/",
        "standins/",
        "tests/",
        "clients/",
        // The products of matrices, and no other module of the trainer.
        "trainer/src/products.rs",
    ];
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
