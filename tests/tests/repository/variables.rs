//! `docs/ENVIRONMENT.md` agrees with the tables in the code. `CONSORT_SNAPSHOTS=write cargo test -p consort-tests
//! --test repository` writes it anew.

use std::fmt::Write;

use consort_nccl::environment::{State, ours, variables};
use consort_tests::compiler::root;

const HEAD: &str = "\
# Variables

Precedence, highest first: the call itself, `CONSORT_*` in the environment, `NCCL_*` in the environment, the
config struct (`ncclConfig_t`) or `Options`, a file, the tuning table, the default.

A file holds lines `NAME=value`, blank lines, and comments that begin with `#`; the first line that sets a name holds. The
file is the one that `NCCL_CONF_FILE` names or else `~/.nccl.conf`, and then `/etc/nccl.conf`. NCCL puts files before
the config struct, because it copies them into the environment; here they come after it.

Variables are read when a communicator is made; those of the log (`NCCL_DEBUG*`) when its first line is due, and again
after `ncclResetDebugInit`. `collbench env` shows every value now and where it came from, and which of NCCL's variables
are set and do nothing. With `NCCL_DEBUG=INFO` the log says the same.

This file is made of the tables `settings/src/environment/ours.rs` and `nccl/src/environment/variables.txt`
(`CONSORT_SNAPSHOTS=write cargo test -p consort-tests --test repository`).
";

fn cell(text: &str) -> String {
    if text.is_empty() { "–".into() } else { text.replace('|', "\\|") }
}

fn code(text: &str) -> String {
    if text.is_empty() { "–".into() } else { format!("`{}`", text.replace('|', "\\|")) }
}

fn document() -> String {
    let mut out = HEAD.to_owned();
    // Writing to a string does not fail.
    let _ = writeln!(out, "\n## This library's own\n\n| variable | default | what it does |\n|---|---|---|");
    for variable in ours() {
        let _ = writeln!(
            out,
            "| `{}` | {} | {} |",
            variable.name,
            cell(variable.default),
            cell(variable.meaning)
        );
    }
    let _ = writeln!(
        out,
        "\n## NCCL's, that act\n\n| variable | NCCL's default | what it does here |\n|---|---|---|"
    );
    for variable in variables() {
        if let State::Honoured { how } = variable.state {
            let _ = writeln!(out, "| `{}` | {} | {} |", variable.name, code(variable.default), cell(how));
        }
    }
    let _ = writeln!(
        out,
        "\n## NCCL's, without effect\n\nThey can be set, and nothing happens.\n\n| variable | NCCL's default | why |\n\
         |---|---|---|"
    );
    for variable in variables() {
        if let State::Ignored { why } = variable.state {
            let _ = writeln!(out, "| `{}` | {} | {} |", variable.name, code(variable.default), cell(why));
        }
    }
    out
}

#[test]
fn the_document_is_what_the_tables_say() {
    let path = root().join("docs/ENVIRONMENT.md");
    let text = document();
    if std::env::var_os("CONSORT_SNAPSHOTS").is_some_and(|value| value == "write") {
        std::fs::write(&path, &text).expect("the document can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/ENVIRONMENT.md differs from the tables; CONSORT_SNAPSHOTS=write cargo test -p consort-tests --test repository \
         writes it anew"
    );
}

#[test]
fn every_setting_is_in_the_table() {
    let environment = consort_nccl::environment::Environment::from_lookup(|_| None);
    let settings = consort_nccl::environment::settings(&consort::Options::default(), &environment);
    for setting in settings.expect("defaults make sense") {
        let known = ours().iter().find(|known| known.name == setting.name);
        let known = known.unwrap_or_else(|| panic!("{} is in no table", setting.name));
        assert_eq!(setting.value, known.default, "the default of {}", setting.name);
    }
}
