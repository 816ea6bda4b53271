//! The library's trace events about the plans that ran.
//!
//! Invariant: installed once in a process of a test, which has no other subscriber. Absent: spans.

use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static HEARD: Mutex<Vec<(u32, String)>> = Mutex::new(Vec::new());

/// Notes `rank` and `algorithm` of the events that have both.
struct Heard;

#[derive(Default)]
struct Said {
    rank: Option<u64>,
    algorithm: Option<String>,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "algorithm" {
            self.algorithm = Some(format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "algorithm" {
            self.algorithm = Some(value.to_owned());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "rank" {
            self.rank = Some(value);
        }
    }
}

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.fields().field("algorithm").is_some()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        if let (Some(rank), Some(algorithm)) = (said.rank, said.algorithm) {
            HEARD.lock().unwrap_or_else(PoisonError::into_inner).push((rank as u32, algorithm));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Listens from now on.
///
/// # Panics
/// If the process has a subscriber.
pub fn listen() {
    tracing::subscriber::set_global_default(Heard).expect("no other subscriber");
}

/// The algorithms in the events of a rank since the last question.
pub fn of(rank: u32) -> Vec<String> {
    let mut heard = HEARD.lock().unwrap_or_else(PoisonError::into_inner);
    heard.extract_if(.., |(of, _)| *of == rank).map(|(_, algorithm)| algorithm).collect()
}
