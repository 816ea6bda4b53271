//! The text of a plan: its parts as values, and the lines where they begin.
//!
//! Invariant: parts are kept as text until they are read, so that an error anywhere names its line. Absent: what
//! operations mean.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::CORRECT;
use crate::hardware::exchange::{Place, ReadError};

#[derive(Deserialize)]
pub(super) struct Plan<'a> {
    pub(super) name: String,
    pub(super) collective: String,
    #[serde(default)]
    pub(super) inplace: bool,
    #[serde(borrow)]
    pub(super) gpus: Vec<&'a RawValue>,
    #[serde(default)]
    pub(super) min_message_size: u64,
    pub(super) max_message_size: Option<u64>,
}

#[derive(Deserialize)]
pub(super) struct Gpu<'a> {
    pub(super) id: u32,
    #[serde(default)]
    pub(super) input_chunks: u32,
    #[serde(default)]
    pub(super) output_chunks: u32,
    #[serde(borrow)]
    pub(super) threadblocks: Vec<&'a RawValue>,
    #[serde(default)]
    pub(super) channels: Vec<Channel>,
    #[serde(default)]
    pub(super) remote_buffers: Vec<Remote>,
    #[serde(default)]
    pub(super) semaphores: Vec<Semaphore>,
}

/// Channels of a GPU to peers, or over a switch.
#[derive(Deserialize)]
pub(super) struct Channel {
    pub(super) channel_type: String,
    #[serde(default)]
    pub(super) connected_to: Vec<u32>,
    /// Older plans have another name for it.
    #[serde(alias = "buff")]
    pub(super) buffer_type: Option<String>,
    #[serde(default)]
    pub(super) rank_groups: Vec<Group>,
}

#[derive(Deserialize)]
pub(super) struct Group {
    pub(super) ranks: Vec<u32>,
}

#[derive(Deserialize)]
pub(super) struct Remote {
    pub(super) rank: u32,
    #[serde(rename = "type")]
    pub(super) buffer: String,
}

#[derive(Deserialize)]
pub(super) struct Semaphore {
    #[serde(default)]
    pub(super) init_value: u32,
}

#[derive(Deserialize)]
pub(super) struct Threadblock<'a> {
    #[serde(borrow)]
    pub(super) ops: Vec<&'a RawValue>,
    #[serde(default)]
    pub(super) channels: Vec<Ids>,
    #[serde(default)]
    pub(super) remote_buffer_refs: Vec<References>,
}

/// The channels of a GPU that a threadblock names, by their order here.
#[derive(Deserialize)]
pub(super) struct Ids {
    pub(super) channel_type: String,
    #[serde(default)]
    pub(super) channel_ids: Vec<u32>,
}

#[derive(Deserialize)]
pub(super) struct References {
    pub(super) access_channel_type: String,
    #[serde(default)]
    pub(super) remote_buffer_ids: Vec<u32>,
}

#[derive(Deserialize)]
pub(super) struct Op<'a> {
    pub(super) name: String,
    #[serde(default)]
    pub(super) channel_type: String,
    #[serde(default)]
    pub(super) channel_ids: Vec<u32>,
    #[serde(default)]
    pub(super) src_buff: Vec<Chunks>,
    #[serde(default)]
    pub(super) dst_buff: Vec<Chunks>,
    pub(super) barrier_id: Option<u32>,
    pub(super) num_threadblocks: Option<u32>,
    #[serde(default)]
    pub(super) semaphore_ids: Vec<u32>,
    pub(super) tbg_info: Option<Slice>,
    #[serde(borrow, default)]
    pub(super) ops: Vec<&'a RawValue>,
}

/// Chunks of a buffer: of the own GPU, of a peer, or of a switch's group.
#[derive(Deserialize)]
pub(super) struct Chunks {
    #[serde(rename = "type")]
    pub(super) buffer: Option<String>,
    pub(super) buffer_id: Option<u32>,
    pub(super) switch_channel_id: Option<u32>,
    pub(super) index: u32,
    pub(super) size: u32,
}

/// The part of its chunks that an operation does as one of a group of threadblocks.
#[derive(Deserialize, Clone, Copy)]
pub(super) struct Slice {
    pub(super) tb_id: u32,
    pub(super) tbg_size: u32,
}

/// Parts of a text, with the lines where they begin.
pub(super) struct Text<'a> {
    pub(super) text: &'a str,
    pub(super) place: Place,
}

impl<'a> Text<'a> {
    pub(super) fn line(&self, part: &str) -> u32 {
        self.place.line(part.as_ptr().addr().saturating_sub(self.text.as_ptr().addr()))
    }

    pub(super) fn parse<T: Deserialize<'a>>(&self, part: &'a str) -> Result<T, ReadError> {
        serde_json::from_str(part).map_err(|error| {
            let line = (self.line(part) + error.line() as u32).saturating_sub(1).max(1);
            let reason = format!("the plan is damaged: {error}");
            self.place.error(line, reason, "write it again with the program that made it")
        })
    }

    pub(super) fn wrong(&self, part: &str, why: impl Into<String>) -> ReadError {
        self.place.error(self.line(part), why, CORRECT)
    }
}

/// The operations in their order, those of pipelines in place of the pipeline.
pub(super) fn flatten<'a>(
    text: &Text<'a>,
    ops: &[&'a RawValue],
    into: &mut Vec<(&'a str, Op<'a>)>,
    depth: u32,
) -> Result<(), ReadError> {
    for op in ops {
        let part = op.get();
        let op: Op<'_> = text.parse(part)?;
        if op.name != "pipeline" {
            into.push((part, op));
        } else if depth > 0 {
            return Err(text.wrong(part, "a pipeline in a pipeline"));
        } else {
            flatten(text, &op.ops, into, depth + 1)?;
        }
    }
    Ok(())
}
