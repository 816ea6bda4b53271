//! Every variable of NCCL's with its effect here: the reader of `variables.txt`.
//!
//! Invariant: no name appears twice; every variable has a text, either how it acts or why it does not. Absent: the
//! values.

/// How a variable's text is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// 0 or 1.
    Flag,
    /// A whole number.
    Integer,
    /// Any text.
    Text,
    /// Names separated by commas.
    List,
}

/// The effect of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It has an effect.
    Honoured {
        /// The effect.
        how: &'static str,
    },
    /// It has no effect.
    Ignored {
        /// The reason.
        why: &'static str,
    },
}

impl State {
    /// The reason why it has no effect; `None` where it has one.
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            State::Honoured { .. } => None,
            State::Ignored { why } => Some(why),
        }
    }

    /// Its effect, or the reason why it has none.
    pub const fn text(self) -> &'static str {
        match self {
            State::Honoured { how } => how,
            State::Ignored { why } => why,
        }
    }
}

/// A variable of NCCL's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// How its text is read.
    pub kind: Kind,
    /// NCCL's value where it is not set; empty for none.
    pub default: &'static str,
    /// Its effect here.
    pub state: State,
}

/// The table; its first lines explain its format.
const TABLE: &str = include_str!("variables.txt");

/// `[honoured] how` or `[ignored] why`: the effect of the variables below it.
fn heading(line: &'static str) -> Option<State> {
    let how = line.strip_prefix("[honoured] ").map(|how| State::Honoured { how });
    how.or_else(|| line.strip_prefix("[ignored] ").map(|why| State::Ignored { why }))
}

/// `KIND NAME = DEFAULT`.
fn variable(line: &'static str, state: State) -> Option<Variable> {
    let (head, default) = line.split_once(" =")?;
    let (kind, name) = head.split_once(' ')?;
    let kind = match kind {
        "flag" => Kind::Flag,
        "integer" => Kind::Integer,
        "text" => Kind::Text,
        "list" => Kind::List,
        _ => return None,
    };
    Some(Variable { name, kind, default: default.trim().trim_matches('"'), state })
}

/// All variables: first those that act, then the others.
pub fn variables() -> impl Iterator<Item = Variable> {
    let mut state = None;
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(move |line| {
        state = heading(line).or(state);
        variable(line, state?)
    })
}

/// The variable of this name.
pub fn find(name: &str) -> Option<Variable> {
    variables().find(|variable| variable.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_line_of_the_table_is_read() {
        let mut last: Option<&str> = None;
        for line in TABLE.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (title, state) = (heading(line).is_some(), State::Ignored { why: "" });
            let entry = last.is_some() && variable(line, state).is_some();
            assert!(title != entry, "neither a heading nor a variable below one: {line}");
            assert!(!title || last.is_none_or(|last| heading(last).is_none()), "nothing is below {last:?}");
            last = Some(line);
        }
        let acting = |variable: &Variable| variable.state.reason().is_none();
        assert!(
            variables().skip_while(acting).all(|variable| !acting(&variable)),
            "those that act come first"
        );
    }

    #[test]
    fn every_variable_once_with_a_reason() {
        let mut names = BTreeSet::new();
        for Variable { name, kind, default, state } in variables() {
            assert!(names.insert(name), "{name} twice");
            assert!(name.starts_with("NCCL_") && !state.text().is_empty(), "{name}");
            assert!(name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_'), "{name}");
            assert!(
                !state.text().ends_with(['.', ' ']) && !state.text().contains('|'),
                "{name}: {}",
                state.text()
            );
            // NCCL's own words for "by itself" and "what the config says" are numbers too.
            let number = default.is_empty() || consort_settings::environment::integer(default).is_some();
            assert!(
                !matches!(kind, Kind::Flag | Kind::Integer) || number,
                "{name} is {default:?} by default"
            );
        }
        assert!(names.len() > 250, "{}", names.len());
        assert_eq!(find("NCCL_ALGO").map(|variable| variable.kind), Some(Kind::List));
        assert_eq!(find("NCCL_DEBUG_TIMESTAMP_FORMAT").map(|variable| variable.default), Some("[%F %T] "));
        assert!(find("NCCL_IB_FIFO_TC").is_some_and(|variable| variable.state.reason().is_some()));
        assert_eq!(find("NCCL_FROB"), None);
    }
}
