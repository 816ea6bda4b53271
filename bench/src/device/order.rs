//! What one rank calls for a piece of work on its device.
//!
//! Invariant: all ranks of a work have the same number of rounds; what is called in a round is called together. Absent:
//! who calls it.

use consort::device::{DeviceBuffer, DeviceGroup};
use consort::{Call, Rank};

use super::team::Seat;
use crate::backend::{self, Lengths};
use crate::collective::{Collective, Work};

/// Bytes on a device, of whatever type.
type Bytes = DeviceBuffer<u8>;

/// One rank's calls.
#[derive(Clone)]
pub(super) struct Order {
    form: Form,
    input: Bytes,
    output: Bytes,
}

#[derive(Clone)]
enum Form {
    Whole(Call),
    Blocks(Work, std::sync::Arc<Lengths>),
    /// Messages, in rounds.
    Messages(Vec<Vec<Message>>),
}

#[derive(Clone)]
enum Message {
    Send(Bytes, Rank),
    Receive(Bytes, Rank),
}

impl Order {
    /// The calls of `rank` of `size`.
    pub(super) fn new(work: &Work, rank: Rank, size: u32, input: Bytes, output: Bytes) -> Self {
        let form = match backend::call(work, rank) {
            Some(call) => Form::Whole(call),
            None if work.collective.varies() => {
                Form::Blocks(*work, std::sync::Arc::new(Lengths::new(work, rank, size)))
            }
            None if work.collective == Collective::HyperCube => {
                Form::Messages(hypercube(rank, size, &input, &output))
            }
            None => {
                let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
                let both = vec![Message::Send(input.clone(), to), Message::Receive(output.clone(), from)];
                Form::Messages(vec![both])
            }
        };
        Order { form, input, output }
    }

    /// How many rounds there are.
    pub(super) fn rounds(&self) -> usize {
        match &self.form {
            Form::Messages(rounds) => rounds.len(),
            _ => 1,
        }
    }

    /// Calls for a round.
    ///
    /// # Errors
    /// The library's.
    pub(super) fn call<'env>(
        &'env self,
        round: usize,
        seat: &'env Seat,
        group: &DeviceGroup<'env>,
    ) -> consort::Result<()> {
        let (comm, stream) = (&seat.comm, &seat.stream);
        match &self.form {
            Form::Whole(call) => group.execute(comm, call, &self.input, &self.output, stream),
            Form::Blocks(work, lengths) => {
                group.execute_v(comm, &lengths.call(work), &self.input, &self.output, stream)
            }
            Form::Messages(rounds) => rounds[round].iter().try_for_each(|message| match message {
                Message::Send(bytes, to) => group.send(comm, bytes, *to, stream),
                Message::Receive(bytes, from) => group.receive(comm, bytes, *from, stream),
            }),
        }
    }
}

/// An all-gather as nccl-tests makes it: see the host's.
fn hypercube(rank: Rank, size: u32, input: &Bytes, output: &Bytes) -> Vec<Vec<Message>> {
    let bytes = input.len();
    let blocks = |first: Rank, count: u32| {
        let start = first as usize * bytes;
        output.slice(start..start + count as usize * bytes)
    };
    let mut rounds: Vec<Vec<Message>> = (0..size.ilog2())
        .map(|dimension| {
            let across: u32 = 1 << dimension;
            let first = rank & !(across - 1);
            // What the first round sends is on its way to the output only now.
            let mine = if dimension == 0 { input.clone() } else { blocks(first, across) };
            let peer = rank ^ across;
            vec![Message::Send(mine, peer), Message::Receive(blocks(first ^ across, across), peer)]
        })
        .collect();
    let own = blocks(rank, 1);
    if own.address() != input.address() {
        let home = [Message::Send(input.clone(), rank), Message::Receive(own, rank)];
        match rounds.first_mut() {
            Some(first) => first.extend(home),
            None => rounds.push(home.into()),
        }
    }
    rounds
}
