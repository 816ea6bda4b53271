//! Copies and fills.
//!
//! As with the driver: a synchronous copy goes through the legacy default stream and is over when the call returns; an
//! asynchronous one from pageable memory has read it when the call returns, and one to pageable memory is over then.

use std::sync::Arc;
use std::time::Duration;

use crate::boundary::exports;
use crate::code::{Answer, Code};
use crate::context::{Context, StreamKey, stream, working};
use crate::driver;
use crate::memory::Intent;
use crate::queue::Work;
use crate::settings::Peers;
use crate::span::Span;

/// The kind of memory that an argument has to name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Device,
    Host,
    Either,
}

fn span(context: &Context, address: u64, bytes: u64, intent: Intent, side: Side) -> Answer<Span> {
    let span = Span::of(context, address, bytes, intent)?;
    // Pinned memory has addresses that are a device's too.
    if side == Side::Device && !span.is_known() {
        return Err(Code::INVALID_VALUE);
    }
    Ok(span)
}

fn copy(
    context: &Arc<Context>,
    key: StreamKey,
    to: (u64, Side),
    from: (u64, Side),
    bytes: usize,
    is_synchronous: bool,
) -> Answer {
    let bytes = bytes as u64;
    let target = span(context, to.0, bytes, Intent::Write, to.1)?;
    let source = span(context, from.0, bytes, Intent::Read, from.1)?;
    let wait = is_synchronous || !target.is_known();
    if driver::get()?.settings.peers == Peers::Hang
        && [&target, &source].iter().any(|span| span.is_of_peer(context.device))
    {
        // The copy leaves its queue, as work that a bus has lost leaves the engine, and ends with its context.
        let task = move |context: &Arc<Context>| {
            while !context.is_broken() {
                std::thread::sleep(Duration::from_millis(20));
            }
            drop((target, source));
            Ok(())
        };
        let end = context.submit(key, None, Work::Beside(Box::new(task)))?;
        if wait {
            end.wait();
        }
        return context.check();
    }
    let task: crate::queue::Task = if wait || source.is_known() {
        Box::new(move |_| {
            target.copy_from(&source);
            Ok(())
        })
    } else {
        let staged = source.staged();
        Box::new(move |_| {
            target.copy_from_staged(&staged);
            Ok(())
        })
    };
    let end = context.submit(key, None, Work::InQueue(task))?;
    if wait {
        end.wait();
        context.check()?;
    }
    Ok(())
}

fn copy_now(to: (u64, Side), from: (u64, Side), bytes: usize) -> Answer {
    let context = working()?;
    copy(&context, context.legacy_stream(), to, from, bytes, true)
}

fn copy_later(to: (u64, Side), from: (u64, Side), bytes: usize, handle: u64) -> Answer {
    let (context, key) = stream(handle)?;
    copy(&context, key, to, from, bytes, false)
}

fn fill(context: &Arc<Context>, key: StreamKey, address: u64, pattern: &[u8], count: usize) -> Answer {
    let bytes = (count as u64).checked_mul(pattern.len() as u64).ok_or(Code::INVALID_VALUE)?;
    if !address.is_multiple_of(pattern.len() as u64) {
        return Err(Code::INVALID_VALUE);
    }
    let target = span(context, address, bytes, Intent::Write, Side::Device)?;
    let pattern = pattern.to_vec();
    let task = move |_: &Arc<Context>| {
        target.fill(&pattern);
        Ok(())
    };
    context.submit(key, None, Work::InQueue(Box::new(task))).map(drop)
}

fn fill_now(address: u64, pattern: &[u8], count: usize) -> Answer {
    let context = working()?;
    // As documented: the host does not wait, unless the memory is its own.
    let is_host = !Span::of(&context, address, 1, Intent::Write)?.is_device();
    fill(&context, context.legacy_stream(), address, pattern, count)?;
    if is_host {
        context.last(context.legacy_stream()).iter().for_each(|end| end.wait())
    }
    Ok(())
}

fn fill_later(address: u64, pattern: &[u8], count: usize, handle: u64) -> Answer {
    let (context, key) = stream(handle)?;
    fill(&context, key, address, pattern, count)
}

use Side::{Device, Either, Host};

exports! {
    /// Copies between any two addresses.
    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        copy_now((to, Either), (from, Either), bytes)
    }

    /// Copies between any two addresses, in the order of a stream.
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) {
        copy_later((to, Either), (from, Either), bytes, stream)
    }

    /// Copies from the host to a device.
    fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) {
        copy_now((to, Device), (from, Host), bytes)
    }

    /// Copies from a device to the host.
    fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) {
        copy_now((to, Host), (from, Device), bytes)
    }

    /// Copies within a device or between two.
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        copy_now((to, Device), (from, Device), bytes)
    }

    /// Copies from the host to a device, in the order of a stream.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        copy_later((to, Device), (from, Host), bytes, stream)
    }

    /// Copies from a device to the host, in the order of a stream.
    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        copy_later((to, Host), (from, Device), bytes, stream)
    }

    /// Copies within a device or between two, in the order of a stream.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        copy_later((to, Device), (from, Device), bytes, stream)
    }

    /// Copies between contexts. The contexts are taken from the addresses.
    fn cuMemcpyPeer(to: u64, _to_context: u64, from: u64, _from_context: u64, bytes: usize) {
        copy_now((to, Device), (from, Device), bytes)
    }

    /// Copies between contexts, in the order of a stream.
    fn cuMemcpyPeerAsync(to: u64, _to_context: u64, from: u64, _from_context: u64, bytes: usize, stream: u64) {
        copy_later((to, Device), (from, Device), bytes, stream)
    }

    /// Fills with bytes.
    fn cuMemsetD8_v2(address: u64, value: u8, count: usize) {
        fill_now(address, &[value], count)
    }

    /// Fills with 16-bit values.
    fn cuMemsetD16_v2(address: u64, value: u16, count: usize) {
        fill_now(address, &value.to_le_bytes(), count)
    }

    /// Fills with 32-bit values.
    fn cuMemsetD32_v2(address: u64, value: u32, count: usize) {
        fill_now(address, &value.to_le_bytes(), count)
    }

    /// Fills with bytes, in the order of a stream.
    fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: u64) {
        fill_later(address, &[value], count, stream)
    }

    /// Fills with 16-bit values, in the order of a stream.
    fn cuMemsetD16Async(address: u64, value: u16, count: usize, stream: u64) {
        fill_later(address, &value.to_le_bytes(), count, stream)
    }

    /// Fills with 32-bit values, in the order of a stream.
    fn cuMemsetD32Async(address: u64, value: u32, count: usize, stream: u64) {
        fill_later(address, &value.to_le_bytes(), count, stream)
    }
}
