//! Messages between two ranks.

use consort_kernels::{DataType, Element};
use consort_memory::{Held, HeldRead, Span, SpanMut};

use super::Communicator;
use crate::Rank;
use crate::engine::{Buffers, Memory, Source, Start};
use consort_types::blocks::Blocks;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};
use consort_types::stretch::Stretch;
use consort_types::varying::CallV;

/// A call with its blocks, where they differ, and with its buffers.
pub(crate) type Part<'a, I, O> = (Call, Option<Blocks<'a>>, I, O);

/// A message to be started.
pub(super) fn message(call: Call, input: Source, output: Option<Held>) -> Start<'static> {
    Start { call, blocks: None, memory: Memory { input, output, _kept: Vec::new() } }
}

/// The messages of an exchange to be started.
pub(super) fn exchanged(calls: Option<[Call; 2]>, input: HeldRead, output: Held) -> Vec<Start<'static>> {
    let Some([send, receive]) = calls else { return Vec::new() };
    vec![message(send, Source::Apart(input), None), message(receive, Source::Elsewhere, Some(output))]
}

impl Communicator {
    /// Sends `input` to rank `to`, which must [`receive`](Communicator::receive) as many elements of the same
    /// type. Messages between two ranks arrive in the order in which they are sent. Returns when the bytes
    /// have left `input`; that may be before the other side has asked for them, or not: two ranks that both
    /// send first may wait for each other, so let them [`exchange`](Communicator::exchange_into).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank that does not exist or is this one; otherwise see [`Error`].
    pub fn send<T: Element>(&self, input: &[T], to: Rank) -> Result<()> {
        self.send_bytes(T::DATA_TYPE, Span::of(input), to)
    }

    /// Receives what rank `from` sends. See [`Communicator::send`].
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn receive<T: Element>(&self, output: &mut [T], from: Rank) -> Result<()> {
        self.receive_bytes(T::DATA_TYPE, SpanMut::of(output), from)
    }

    /// Sends `input` to rank `to` and receives `output` from rank `from` at the same time; neither side waits
    /// for the other's order of calls. The two lengths may differ.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn exchange_into<T: Element>(
        &self,
        input: &[T],
        to: Rank,
        output: &mut [T],
        from: Rank,
    ) -> Result<()> {
        self.exchange(T::DATA_TYPE, Span::of(input), to, SpanMut::of(output), from)
    }

    /// [`Communicator::send`] of untyped memory.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    #[inline]
    pub fn send_bytes(&self, data_type: DataType, input: Span<'_>, to: Rank) -> Result<()> {
        self.to_or_from(Kind::Send, data_type, to, Buffers { input, output: SpanMut::empty() })
    }

    /// [`Communicator::receive`] of untyped memory.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    #[inline]
    pub fn receive_bytes(&self, data_type: DataType, output: SpanMut<'_>, from: Rank) -> Result<()> {
        self.to_or_from(Kind::Receive, data_type, from, Buffers { input: Span::empty(), output })
    }

    /// A message to or from another rank.
    #[inline(always)]
    fn to_or_from(&self, kind: Kind, data_type: DataType, peer: Rank, buffers: Buffers<'_>) -> Result<()> {
        let bytes = if kind == Kind::Send { buffers.input.len() } else { buffers.output.len() };
        // Sizes of elements are powers of two, and a division is what takes longest here.
        let (shift, rest) = (data_type.size().trailing_zeros(), bytes & (data_type.size() - 1));
        if peer < self.size() && peer != self.rank() && rest == 0 {
            let call = Call::new(kind, data_type, None, peer, bytes >> shift);
            return self.core().message(&call, &self.timeout, buffers);
        }
        self.to_or_from_fully(kind, data_type, peer, buffers)
    }

    #[inline(never)]
    fn to_or_from_fully(
        &self,
        kind: Kind,
        data_type: DataType,
        peer: Rank,
        buffers: Buffers<'_>,
    ) -> Result<()> {
        self.core().check()?;
        let bytes = if kind == Kind::Send { buffers.input.len() } else { buffers.output.len() };
        let call = self.alone(kind, data_type, bytes, peer)?;
        self.core().exchange_on(None, &[call], self.timeout(), &[buffers])
    }

    /// [`Communicator::exchange_into`] on untyped memory. A rank may exchange with itself.
    ///
    /// # Errors
    /// As [`Communicator::send`]; the two buffers must not overlap.
    pub fn exchange(
        &self,
        data_type: DataType,
        input: Span<'_>,
        to: Rank,
        output: SpanMut<'_>,
        from: Rank,
    ) -> Result<()> {
        self.core().check()?;
        match self.both(data_type, input, to, output, from)? {
            Some(calls) => self.core().exchange(&calls, &self.timeout, Buffers { input, output }),
            None => Ok(()),
        }
    }

    /// The two messages of an exchange; none where the rank is both of its ends, whose bytes are moved then.
    #[inline]
    pub(super) fn both(
        &self,
        data_type: DataType,
        input: Span<'_>,
        to: Rank,
        output: SpanMut<'_>,
        from: Rank,
    ) -> Result<Option<[Call; 2]>> {
        let (start, end) = (input.as_ptr() as usize, output.as_mut_ptr() as usize);
        if !input.is_empty() && !output.is_empty() && start < end + output.len() && end < start + input.len()
        {
            return Err(Error::invalid(
                "exchange: input and output overlap",
                "use separate buffers; there is no in-place form for point-to-point",
            ));
        }
        let me = self.rank();
        self.check_peer("exchange", to)?;
        self.check_peer("exchange", from)?;
        if (to == me) != (from == me) {
            return Err(Error::invalid(
                "exchange: a message from a rank to itself needs both ends in the same call",
                "pass this rank as both `to` and `from`, or as neither",
            ));
        }
        if to == me {
            if input.len() != output.len() {
                return Err(Error::invalid(
                    format!("exchange: {} bytes cannot be received into {}", input.len(), output.len()),
                    "pass buffers of the same length",
                ));
            }
            output.copy_from(input);
            return Ok(None);
        }
        let send = self.message(Kind::Send, data_type, input.len(), to)?;
        let receive = self.message(Kind::Receive, data_type, output.len(), from)?;
        Ok(Some([send, receive]))
    }

    /// A message that is not part of a group, which has been checked.
    pub(super) fn alone(&self, kind: Kind, data_type: DataType, bytes: usize, peer: Rank) -> Result<Call> {
        let call = self.message(kind, data_type, bytes, peer)?;
        self.check_other(kind, peer)?;
        Ok(call)
    }

    fn check_peer(&self, name: &str, peer: Rank) -> Result<()> {
        if peer < self.size() {
            return Ok(());
        }
        Err(Error::invalid(
            format!("{name}: rank {peer} does not exist in a communicator of {}", self.size()),
            format!("pass a rank between 0 and {}", self.size() - 1),
        ))
    }

    /// A message of a rank to itself has no other end outside of a group.
    fn check_other(&self, kind: Kind, peer: Rank) -> Result<()> {
        if peer != self.rank() {
            return Ok(());
        }
        Err(Error::invalid(
            format!("{}: rank {peer} is this rank", kind.name()),
            "a rank can exchange with itself, not send or receive alone",
        ))
    }

    /// A message that has been checked.
    #[doc(hidden)]
    pub fn message(&self, kind: Kind, data_type: DataType, bytes: usize, peer: Rank) -> Result<Call> {
        self.check_peer(kind.name(), peer)?;
        if !bytes.is_multiple_of(data_type.size()) {
            return Err(Error::invalid(
                format!("{}: {bytes} bytes are no whole number of {data_type} elements", kind.name()),
                "pass whole elements",
            ));
        }
        Ok(Call::new(kind, data_type, None, peer, bytes / data_type.size()))
    }

    /// The parts of a call whose blocks differ, with their buffers, which have been checked: one planned call with its
    /// blocks, or messages. One of a message's two buffers is empty.
    #[doc(hidden)]
    pub fn parts<'a, I: Stretch, O: Stretch>(
        &self,
        call: &CallV<'a>,
        input: I,
        output: O,
    ) -> Result<Vec<Part<'a, I, O>>> {
        if let Some((call, blocks)) = call.planned() {
            return Ok(vec![(call, Some(blocks), input, output)]);
        }
        let message = |kind, bytes, peer| self.message(kind, call.data_type(), bytes, peer);
        let (no_input, no_output) = (input.part(0, 0), output.part(0, 0));
        let (sent, received) = call.messages(self.rank(), input, output);
        let sends =
            sent.into_iter().map(|(to, of)| Ok((message(Kind::Send, of.bytes(), to)?, None, of, no_output)));
        let receives = received
            .into_iter()
            .map(|(from, of)| Ok((message(Kind::Receive, of.bytes(), from)?, None, no_input, of)));
        sends.chain(receives).collect()
    }
}
