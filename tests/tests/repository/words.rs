//! Comments and documents name their subjects: a word that names none fails the test, with its file and line.

use crate::architecture::files;

/// Words that stand where a rank, a thread, a process or another noun of the glossary belongs.
const WORDS: [&[&str]; 7] =
    [&["told"], &["nobody"], &["somebody"], &["whoever"], &["everybody"], &["so", "many"], &["of", "which"]];

/// Names of the verdict of a report that finds no rank guilty.
const NAMES: [&str; 2] = ["Guilty::Nobody", "`nobody`"];

/// How a file marks its comments.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// All of it is text.
    Document,
    /// `//`, and `/*` to `*/`.
    Slashes,
    /// `#`, and strings of three quotes in Python.
    Hash,
}

/// The form of a file; `None` where the file has no comments, as data and output have none.
fn form(name: &str, text: &str) -> Option<Form> {
    let file = name.rsplit('/').next().unwrap_or_default();
    match file.rsplit_once('.').map(|(_, extension)| extension) {
        Some("md") => Some(Form::Document),
        Some("rs" | "c" | "cc" | "cpp" | "h" | "hpp" | "cu" | "cuh") => Some(Form::Slashes),
        Some("py" | "sh" | "toml") => Some(Form::Hash),
        _ if text.starts_with("#!") => Some(Form::Hash),
        _ => None,
    }
}

/// The text behind the first `mark` of a line that is in no string.
fn behind<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    let is_outside = |at: usize| {
        let quotes = line[..at].matches('"').count() - line[..at].matches("\\\"").count();
        quotes.is_multiple_of(2)
    };
    let is_begin = |at: usize| mark != "#" || line[..at].chars().next_back().is_none_or(char::is_whitespace);
    line.match_indices(mark).find(|(at, _)| is_outside(*at) && is_begin(*at)).map(|(at, _)| &line[at..])
}

/// For each line of a file the comment in it, empty where there is none.
fn comments(form: Form, text: &str) -> Vec<&str> {
    let mut is_inside = false;
    let one = |line| match form {
        Form::Document => line,
        Form::Slashes => {
            let begins = behind(line, "/*").filter(|comment| !is_inside && !comment.starts_with("//"));
            let comment =
                if is_inside { line } else { begins.or_else(|| behind(line, "//")).unwrap_or_default() };
            let (comment, end) =
                comment.split_once("*/").map_or((comment, false), |(comment, _)| (comment, true));
            is_inside = (is_inside || begins.is_some()) && !end;
            comment
        }
        Form::Hash => {
            let is_text = is_inside || line.contains("\"\"\"");
            is_inside ^= !line.matches("\"\"\"").count().is_multiple_of(2);
            if is_text { line } else { behind(line, "#").unwrap_or_default() }
        }
    };
    text.lines().map(one).collect()
}

/// The lines of a text that have one of the words in a comment, with the word. Two words may be on two lines.
fn found(form: Form, text: &str) -> Vec<(usize, String)> {
    let mut read: Vec<(usize, String)> = Vec::new();
    for (number, comment) in comments(form, text).into_iter().enumerate() {
        let comment = NAMES.iter().fold(comment.to_owned(), |text, name| text.replace(name, ""));
        let words = comment.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        read.extend(words.map(|word| (number + 1, word.to_lowercase())));
    }
    let matches = |at: usize| {
        let is_here = |word: &&&[&str]| {
            let end = at + word.len();
            end <= read.len()
                && read[at..end].iter().zip(**word).all(|((_, read), word)| read == word)
                && read[end - 1].0 - read[at].0 <= 1
        };
        WORDS.iter().find(is_here).map(|word| (read[at].0, word.join(" ")))
    };
    (0..read.len()).filter_map(matches).collect()
}

#[test]
fn comments_and_documents_name_their_subjects() {
    let mut faults = Vec::new();
    for (name, text) in &files() {
        let Some(form) = form(name, text) else { continue };
        faults.extend(found(form, text).into_iter().map(|(line, word)| format!("{name}:{line}: \"{word}\"")));
    }
    assert!(faults.is_empty(), "name the rank, thread or process that is meant:\n{}", faults.join("\n"));
}

#[test]
fn words_are_found_in_comments_alone() {
    let rust = "let told = \"// nobody\"; // Whoever asks\n/// waits for so\n/// many ranks, of\ncode();\n// which one\n";
    let expected = [(1, "whoever"), (2, "so many")].map(|(line, word)| (line, word.to_owned()));
    assert_eq!(found(Form::Slashes, rust), expected);
    let c = "int told; /* of\n * which nobody\n */ int somebody;\n";
    let expected = [(1, "of which"), (2, "nobody")].map(|(line, word)| (line, word.to_owned()));
    assert_eq!(found(Form::Slashes, c), expected);
    let python = "told = 1  # told\n\"\"\"Everybody.\n\nNobody\n\"\"\"\nx = '#nobody'\n";
    let expected = [(1, "told"), (2, "everybody"), (4, "nobody")].map(|(line, word)| (line, word.to_owned()));
    assert_eq!(found(Form::Hash, python), expected);
    let expected = [(2, "nobody".to_owned())];
    assert_eq!(found(Form::Document, "### Guilty::Nobody, kind `nobody`\nnobody\n"), expected);
}
