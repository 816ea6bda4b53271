//! The head of a log line.
//!
//! Invariant: a text of several lines becomes as many whole lines, so that a reader of lines understands each.
//! Absent: times (`stamp`).

use std::fmt::{self, Write};

use super::Level;

/// The kind of a line, with the facts of its kind besides the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line<'a> {
    /// The text alone.
    Plain,
    Warn {
        device: i32,
        file: &'a str,
        line: u32,
    },
    Info {
        device: i32,
    },
    Call,
}

impl Line<'_> {
    pub(super) fn level(&self) -> Level {
        match self {
            Line::Plain => Level::Version,
            Line::Warn { .. } => Level::Warn,
            Line::Info { .. } => Level::Info,
            Line::Call => Level::Trace,
        }
    }

    /// The line with `stamp` and `place` (`host:pid:tid`) in front and a newline at the end.
    pub(super) fn render(&self, stamp: &str, place: &str, text: &dyn fmt::Display) -> String {
        let head = match self {
            Line::Plain => String::new(),
            Line::Warn { device, file, line } => {
                format!("{stamp}{place} [{device}] {file}:{line} NCCL WARN ")
            }
            Line::Info { device } => format!("{stamp}{place} [{device}] NCCL INFO "),
            Line::Call => format!("{stamp}{place} NCCL CALL "),
        };
        let text = text.to_string();
        let mut out = String::with_capacity(head.len() + text.len() + 1);
        for line in text.trim_end_matches('\n').split('\n') {
            // Writing to a string does not fail.
            let _ = writeln!(out, "{head}{line}");
        }
        out
    }
}
