//! Any ranks: through pinned memory and the host's links.
//!
//! Invariant: the host's engine moves the data between a copy to the host and a copy back, both in the caller's stream.
//! Where a stream can wait for the host without standing in another rank's way, the call does not; otherwise the call
//! returns when the host has moved the data. Absent: how the host moves it.

use std::sync::Arc;

use consort_cuda::{DeviceSpan, Event, RawStream};

use super::gpu::{Gpu, Pooled, Staging};
use super::placement::{Entry, Last, Placement};
use super::slots::Slot;
use super::table::Record;
use super::trouble::failed;
use crate::Rank;
use crate::engine::watched::{Fault, Standing, State, Watched};
use crate::engine::{Memory, Source};
use consort_types::error::Result;

/// The streams of this rank, as the path knows them.
pub(super) struct Host {
    /// Whether streams may wait for the host: no other rank of this process queues behind them.
    waits: bool,
    /// Whether streams can write words.
    writes: bool,
}

/// One call.
pub(super) struct HostCall {
    gpu: Arc<Gpu>,
    rank: Rank,
    stream: RawStream,
    phase: Phase,
    /// Recorded when the input is on the host.
    there: There,
    /// The slot that the stream waits for before it goes on; `None` where the call waits instead.
    go: Option<Slot>,
    /// Whether the call returns before the host has moved the data.
    waits: bool,
    /// Written when the output is on the device.
    over: Slot,
    output: DeviceSpan,
    back: Option<Pooled<Staging>>,
    last: Arc<Last>,
    input: Option<Pooled<Staging>>,
}

/// The sign that the input is on the host. A word is read without the driver.
enum There {
    Word(Slot),
    Event(Pooled<Event>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The input is on its way to the host.
    Coming,
    /// The host moves the data.
    Here,
    /// The output is on its way to the device.
    Going,
}

impl Host {
    pub(super) fn new(records: &[Record], rank: Rank) -> Self {
        let mine = &records[rank as usize];
        let beside = records.iter().filter(|of| of.process == mine.process && of.uuid == mine.uuid).count();
        let writes = mine.stream_memory_operations;
        Host { waits: beside == 1 && writes, writes }
    }

    /// Enqueues a call. The caller has entered the context.
    pub(super) fn call(&self, entry: &Entry<'_>) -> Result<(HostCall, Memory)> {
        let Placement { gpu, rank, last, .. } = &**entry.placement;
        let rank = *rank;
        let cuda = |error| failed(rank, entry.call.kind.name(), error);
        let stream = gpu.context().stream_ref(entry.stream);
        let staging = |span: DeviceSpan| match span.is_empty() {
            true => Ok(None),
            false => gpu.staging(span.len()).map(Some),
        };
        // A buffer for which the call has no use on this rank is not even read, and stays as it is.
        let (size, nothing) = (entry.communicator.size(), DeviceSpan::empty());
        let from = if entry.call.input_bytes(rank, size) == 0 { nothing } else { entry.input };
        let to = if entry.call.output_bytes(rank, size) == 0 { nothing } else { entry.output };
        let (input, back) = (staging(from).map_err(cuda)?, staging(to).map_err(cuda)?);
        if let Some((_, place)) = input.as_deref() {
            stream.copy(place.slice(0, from.len()), from).map_err(cuda)?;
        }
        // Gaps between the output's blocks come back as they were.
        if let Some((_, place)) = back.as_deref().filter(|_| entry.blocks.is_some()) {
            stream.copy(place.slice(0, to.len()), to).map_err(cuda)?;
        }
        let there = if self.writes {
            let slot = gpu.slots.take().map_err(cuda)?;
            let (word, number) = slot.word();
            stream.write_value(word, number).map_err(cuda)?;
            There::Word(slot)
        } else {
            let event = gpu.event().map_err(cuda)?;
            stream.record(&event).map_err(cuda)?;
            There::Event(event)
        };
        let source = input
            .as_deref()
            .map_or(Source::Elsewhere, |(held, _)| Source::Within(held.clone(), 0, from.len()));
        let target = back.as_deref().map(|(held, _)| held.part(0, to.len()));
        let mut call = HostCall {
            gpu: gpu.clone(),
            rank,
            stream: entry.stream,
            phase: Phase::Coming,
            there,
            go: None,
            waits: self.waits,
            over: gpu.slots.take().map_err(cuda)?,
            output: to,
            back,
            last: last.clone(),
            input,
        };
        // A call that brings no output back does not hold up the stream.
        if self.waits && call.back.is_some() {
            let go = gpu.slots.take().map_err(cuda)?;
            let (word, number) = go.word();
            stream.wait_value(word, number).map_err(cuda)?;
            call.go = Some(go);
            call.send_back()?;
        }
        Ok((call, Memory { input: source, output: target, _kept: entry.kept.clone() }))
    }
}

impl HostCall {
    /// Puts the copy back, and the word that says so, into the stream.
    fn send_back(&mut self) -> Result<()> {
        let cuda = |error| failed(self.rank, "a copy to its device", error);
        let context = self.gpu.context();
        let _entered = context.enter().map_err(cuda)?;
        let stream = context.stream_ref(self.stream);
        if let Some((_, place)) = self.back.as_deref() {
            stream.copy(self.output, place.slice(0, self.output.len())).map_err(cuda)?;
        }
        let (word, number) = self.over.word();
        stream.write_value(word, number).map_err(cuda)?;
        let after = Arc::new(self.gpu.event().map_err(cuda)?);
        stream.record(&after).map_err(cuda)?;
        self.last.set(after);
        Ok(())
    }

    fn is_there(&self) -> Result<bool> {
        let event = match &self.there {
            There::Word(slot) => return Ok(slot.is_done()),
            There::Event(event) => event,
        };
        let cuda = |error| failed(self.rank, "a copy from its device", error);
        let _entered = self.gpu.context().enter().map_err(cuda)?;
        event.query().map_err(cuda)
    }
}

impl Watched for HostCall {
    fn poll(&mut self) -> std::result::Result<State, Fault> {
        let enqueued = self.begins();
        match self.phase {
            Phase::Coming if self.is_there()? => {
                self.phase = Phase::Here;
                Ok(State::Ready)
            }
            Phase::Coming => Ok(enqueued),
            Phase::Here => Ok(State::Ready),
            Phase::Going if self.over.is_done() => Ok(State::Done),
            Phase::Going => Ok(State::Enqueued),
        }
    }

    fn begins(&self) -> State {
        if self.waits { State::Enqueued } else { State::Entered }
    }

    fn uses_links(&self) -> bool {
        true
    }

    fn device(&self) -> usize {
        self.gpu.number()
    }

    fn moved(&mut self) -> Result<()> {
        self.phase = Phase::Going;
        match &self.go {
            Some(go) => go.finish(),
            None if self.back.is_none() => self.over.finish(),
            None => self.send_back()?,
        }
        Ok(())
    }

    fn peers(&self) -> Vec<Rank> {
        Vec::new()
    }

    fn standing(&self) -> Option<Standing> {
        None
    }

    fn give_up(&mut self) {
        if let Some(go) = &self.go {
            go.finish();
        }
    }

    fn is_over(&self) -> bool {
        // A copy back that is not in the stream yet comes only if the engine goes on with the call.
        self.over.is_done() || (self.go.is_none() && self.phase != Phase::Going)
    }

    fn algorithm(&self) -> &str {
        "host"
    }
}

impl Drop for HostCall {
    fn drop(&mut self) {
        self.give_up();
        if !self.over.is_done() {
            // The device may still write to the staging memory: no other operation must have it.
            std::mem::forget((self.back.take(), self.input.take()));
        }
    }
}
