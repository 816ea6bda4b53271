//! Every variable of NCCL's, with what it does here.
//!
//! Invariant: no name twice; every variable has a reason, either how it acts or why it does not. Absent: the
//! values.

mod hardware;
mod host;

/// How a variable's text is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// 0 or 1.
    Flag,
    /// A whole number.
    Integer,
    /// Anything.
    Text,
    /// Names separated by commas.
    List,
}

/// What a variable does here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It acts.
    Honoured {
        /// What it does.
        how: &'static str,
    },
    /// It does nothing.
    Ignored {
        /// Why.
        why: &'static str,
    },
}

impl State {
    /// Why it does nothing, if that is so.
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            State::Honoured { .. } => None,
            State::Ignored { why } => Some(why),
        }
    }

    /// How it acts, or why it does not.
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
    /// The value that counts where it is not set, as NCCL has it; empty for none.
    pub default: &'static str,
    /// What it does here.
    pub state: State,
}

const fn honoured(name: &'static str, kind: Kind, default: &'static str, how: &'static str) -> Variable {
    Variable { name, kind, default, state: State::Honoured { how } }
}

/// Variables that do nothing, for one reason.
struct Idle {
    why: &'static str,
    kind: Kind,
    variables: &'static [(&'static str, &'static str)],
}

const fn idle(why: &'static str, kind: Kind, variables: &'static [(&'static str, &'static str)]) -> Idle {
    Idle { why, kind, variables }
}

/// All of them: first those that act, then the others.
pub fn variables() -> impl Iterator<Item = Variable> {
    let idle = host::IDLE.iter().chain(hardware::IDLE).flat_map(|group| {
        let state = State::Ignored { why: group.why };
        let variable = move |&(name, default)| Variable { name, kind: group.kind, default, state };
        group.variables.iter().map(variable)
    });
    host::HONOURED.iter().chain(hardware::HONOURED).copied().chain(idle)
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
    fn every_variable_once_with_a_reason() {
        let mut names = BTreeSet::new();
        for Variable { name, kind, default, state } in variables() {
            assert!(names.insert(name), "{name} twice");
            assert!(name.starts_with("NCCL_") && !state.text().is_empty(), "{name}");
            assert!(!state.text().ends_with('.') && !state.text().contains('|'), "{name}: {}", state.text());
            // NCCL's own words for "by itself" and "what the config says" are numbers too.
            let number = default.is_empty() || consort_settings::environment::integer(default).is_some();
            assert!(
                !matches!(kind, Kind::Flag | Kind::Integer) || number,
                "{name} is {default:?} by default"
            );
        }
        assert!(names.len() > 250, "{}", names.len());
        assert_eq!(find("NCCL_ALGO").map(|variable| variable.kind), Some(Kind::List));
        assert!(find("NCCL_IB_HCA").is_some_and(|variable| variable.state.reason().is_some()));
        assert_eq!(find("NCCL_FROB"), None);
    }
}
