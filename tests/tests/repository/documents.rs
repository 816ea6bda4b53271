//! Everything that can be printed or set is described: every error, every verdict, every variable.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use consort_tests::compiler::root;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of a public enum's variants: words with a capital at the first level of indentation.
fn variants(text: &str, name: &str) -> BTreeSet<String> {
    let begin = text.find(&format!("pub enum {name} {{")).expect("the enum");
    let body = &text[begin..];
    let body = &body[..body.find("\n}").expect("its end")];
    let names = body.lines().skip(1).filter_map(|line| {
        let line = line.strip_prefix("    ").filter(|line| line.starts_with(char::is_uppercase))?;
        Some(line.chars().take_while(|c| c.is_alphanumeric()).collect())
    });
    names.collect()
}

#[test]
fn every_error_and_every_verdict_has_its_section() {
    let document = read("docs/TROUBLESHOOTING.md");
    let errors = variants(&read("types/src/error.rs"), "Error");
    assert!(errors.len() >= 16 && errors.contains("PeerLost"), "{errors:?}");
    let guilty = variants(&read("control/src/report/mod.rs"), "Guilty");
    assert!(guilty.len() >= 6 && guilty.contains("Cycle"), "{guilty:?}");
    let headings = errors.into_iter().chain(guilty.into_iter().map(|name| format!("Guilty::{name}")));
    for heading in headings {
        assert!(
            document.lines().any(|line| line == format!("### {heading}")),
            "docs/TROUBLESHOOTING.md has no section {heading}"
        );
    }
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_variable_is_documented() {
    let documents = read("README.md") + &read("docs/TROUBLESHOOTING.md");
    let words = |text: &str| -> BTreeSet<String> {
        let parts = text.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
        let named = parts.filter(|word| word.starts_with("CONSORT_") && word.len() > "CONSORT_".len());
        // By these a test's own processes know their role.
        let named = named.filter(|word| !word.starts_with("CONSORT_TEST_"));
        named.map(str::to_owned).collect()
    };
    let mut files = Vec::new();
    for place in ["src", "settings/src", "topology/src", "control/src", "nccl/src"] {
        sources(&root().join(place), &mut files);
    }
    let used: BTreeSet<String> =
        files.iter().flat_map(|path| words(&std::fs::read_to_string(path).expect("text"))).collect();
    assert!(used.contains("CONSORT_TIMEOUT"), "{used:?}");
    let documented = words(&documents);
    let missing: Vec<&String> = used.difference(&documented).collect();
    assert!(missing.is_empty(), "neither README.md nor docs/TROUBLESHOOTING.md names {missing:?}");
}
