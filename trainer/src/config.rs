//! Options from a file: each key of a TOML table is an option by its long name.
//!
//! Invariant: what stands on the command line comes after what the file says, and takes its place. A key that is no
//! option, and a value that no option can have, are named with the file.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::CommandFactory;
use toml::{Table, Value};

use crate::arguments::Arguments;
use crate::error::{Error, Result};

/// The option that names the file.
const OPTION: &str = "--config";

/// The arguments with those of the file that they name, if they do.
///
/// # Errors
/// [`Error::File`] where it cannot be read, [`Error::Configuration`] for what is no table of options.
pub fn expand(arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let Some(path) = named(&arguments) else { return Ok(arguments) };
    let path = Path::new(&path);
    let text = std::fs::read_to_string(path).map_err(|error| Error::File {
        path: path.display().to_string(),
        verb: "read",
        error,
    })?;
    let options = options(&text)
        .map_err(|(what, hint)| Error::configuration(format!("{}: {what}", path.display()), hint))?;
    let mut arguments = arguments.into_iter();
    Ok(arguments.next().into_iter().chain(options.into_iter().map(OsString::from)).chain(arguments).collect())
}

/// The file that the arguments name last.
fn named(arguments: &[OsString]) -> Option<OsString> {
    let with = |(at, argument): (usize, &OsString)| {
        let text = argument.to_str()?;
        if text == OPTION {
            return arguments.get(at + 1).cloned();
        }
        text.strip_prefix(OPTION)?.strip_prefix('=').map(OsStr::new).map(OsStr::to_owned)
    };
    arguments.iter().enumerate().filter_map(with).next_back()
}

/// The options that a table stands for, or what is wrong and what to do.
fn options(text: &str) -> std::result::Result<Vec<String>, (String, &'static str)> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        (error.to_string().trim_end().to_owned(), "make the file a table of options in TOML: steps = 100")
    })?;
    let command = Arguments::command();
    let option = |key: &str| {
        command.get_arguments().find(|option| option.get_long() == Some(key) && !option.is_hide_set())
    };
    let mut options = Vec::new();
    for (key, value) in table {
        let Some(option) = option(&key).filter(|_| OPTION.strip_prefix("--") != Some(&key)) else {
            return Err((
                format!("{key} is no option"),
                "use the names that --help lists, without the dashes",
            ));
        };
        let takes_value = option.get_action().takes_values();
        match value {
            Value::String(value) if takes_value => options.push(format!("--{key}={value}")),
            Value::Integer(value) if takes_value => options.push(format!("--{key}={value}")),
            Value::Float(value) if takes_value => options.push(format!("--{key}={value}")),
            Value::Boolean(true) if !takes_value => options.push(format!("--{key}")),
            Value::Boolean(false) if !takes_value => {}
            _ => {
                let hint = if takes_value { "give it a number or a text" } else { "give it true or false" };
                return Err((format!("{key} is {}", value.type_str()), hint));
            }
        }
    }
    let words = std::iter::once("consort-trainer").chain(options.iter().map(String::as_str));
    if let Err(error) = command.clone().try_get_matches_from(words) {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        return Err((line, "give values that --help names"));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_options() {
        let found = options("steps = 7\nrate = 1e-2\ntext = \"a b.txt\"\ntied = true\nsp = false").unwrap();
        assert_eq!(found, ["--rate=0.01", "--steps=7", "--text=a b.txt", "--tied"]);
    }

    #[test]
    fn what_is_no_option_is_named() {
        for (text, said) in [
            ("stepps = 7", "stepps is no option"),
            ("config = \"other.toml\"", "config is no option"),
            ("started-by = 1", "started-by is no option"),
            ("steps = [1]", "steps is array"),
            ("[run]\nsteps = 1", "run is no option"),
            ("steps = ", "TOML parse error"),
            ("steps = false", "steps is boolean"),
            ("tied = 1", "tied is integer"),
            ("steps = \"many\"", "invalid value 'many' for '--steps <N>'"),
        ] {
            let (what, _) = options(text).unwrap_err();
            assert!(what.contains(said), "{what}");
        }
    }

    #[test]
    fn the_file_comes_before_the_command_line() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("no such.toml");
        let all = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(expand(all(&["trainer", "--steps", "1"])).unwrap().len(), 3);
        assert_eq!(named(&all(&["trainer", "--config", "a", "--config=b"])), Some("b".into()));
        let error = expand(all(&["trainer", "--config", &path.display().to_string()])).unwrap_err();
        assert!(error.to_string().contains("no such.toml could not be read"), "{error}");
    }
}
