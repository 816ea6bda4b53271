//! The library's trace events about the plans that ran.
//!
//! Invariant: installed once in a process of a test, which has no other subscriber. Absent: spans.

use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static HEARD: Mutex<Vec<(u32, Heard)>> = Mutex::new(Vec::new());

/// A plan that ran; of a program in a stream, without the numbers.
#[derive(Clone, Default, Debug)]
pub struct Heard {
    /// The plan's name.
    pub algorithm: String,
    /// Blocks that share the work of a lane.
    pub instances: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
}

/// Notes the events that have `rank` and `algorithm`.
struct Listener;

#[derive(Default)]
struct Said {
    rank: Option<u64>,
    heard: Heard,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "algorithm" {
            self.heard.algorithm = format!("{value:?}");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "algorithm" {
            value.clone_into(&mut self.heard.algorithm);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "rank" => self.rank = Some(value),
            "instances" => self.heard.instances = value,
            "slot_bytes" => self.heard.slot_bytes = value,
            _ => {}
        }
    }
}

impl Subscriber for Listener {
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
        if let Some(rank) = said.rank {
            HEARD.lock().unwrap_or_else(PoisonError::into_inner).push((rank as u32, said.heard));
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
    tracing::subscriber::set_global_default(Listener).expect("no other subscriber");
}

/// The plans in the events of a rank since the last question.
pub fn plans(rank: u32) -> Vec<Heard> {
    let mut heard = HEARD.lock().unwrap_or_else(PoisonError::into_inner);
    heard.extract_if(.., |(of, _)| *of == rank).map(|(_, plan)| plan).collect()
}

/// Their names.
pub fn of(rank: u32) -> Vec<String> {
    plans(rank).into_iter().map(|plan| plan.algorithm).collect()
}
