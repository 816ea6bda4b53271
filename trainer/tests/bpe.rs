//! Tokens that are pairs of bytes: a file of ranks is read, and a run of the program trains on its tokens and writes text.
#![cfg(feature = "bpe")]

use std::path::{Path, PathBuf};
use std::process::Command;

use consort_trainer::text::Text;
use consort_trainer::vocabulary::Vocabulary;

/// Of the bundled text, by `scripts/make-vocabulary.py`.
fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/small.tiktoken")
}

#[test]
fn a_text_has_fewer_tokens_and_the_same_bytes() {
    let vocabulary = Vocabulary::read(&file()).expect("a vocabulary");
    assert_eq!((vocabulary.size(), vocabulary.unit()), (320, "token"));
    let text = include_bytes!("../text/training.txt");
    let tokens = vocabulary.encode(text);
    assert!(tokens.len() * 3 < text.len() * 2, "{} tokens of {} bytes", tokens.len(), text.len());
    assert_eq!(vocabulary.decode(&tokens.of(0..tokens.len())), text);
    let shorter = Text::open(None, &vocabulary, 32).expect("a text");
    let bytes = Text::bundled(32).expect("a text");
    assert!(shorter.training_tokens() < bytes.training_tokens() && shorter.checksum() != bytes.checksum());
}

#[test]
fn ranks_train_on_tokens_and_write_text() {
    let picture = |name: &str| {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bpe-{name}-{}", std::process::id()))
    };
    let pictures = ["loss", "step"].map(picture);
    let output = Command::new(env!("CARGO_BIN_EXE_consort-trainer"))
        .args(
            "--ranks 2 --tp 2 --sequence 16 --width 16 --layers 1 --heads 2 --batch 4 --sample 20 --steps 10"
                .split(' '),
        )
        .arg("--bpe")
        .arg(file())
        .args(["--chart".as_ref(), pictures[0].as_os_str(), "--timeline".as_ref(), pictures[1].as_os_str()])
        .output()
        .expect("the program");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let chart = std::fs::read_to_string(&pictures[0]).expect("a picture");
    pictures.iter().for_each(|picture| drop(std::fs::remove_file(picture)));
    assert!(text.contains("nats a token, ") && chart.contains("nats a token"), "{text}");
    let (_, sample) = text.split_once("\n\nA rank ").expect("the sample begins with the prompt");
    // Twenty tokens; that all are one byte, and valid, is not to be expected.
    assert!(sample.trim_end().len() > 10, "{sample:?}");
}
