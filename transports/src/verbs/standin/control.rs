//! What a test does to the stand-in's queue pairs and ports, and asks of them.

use super::super::sys::{Context, Gid, QpAttr};
use super::{QueuePair, with};

/// The queue pair of this number is there no longer, as after the end of its process.
pub(crate) fn vanish(number: u32) {
    with(|world| world.queues.get_mut(&number).expect("a queue pair").peer = 0);
}

/// The port of this address carries nothing from now on, or does again.
pub(crate) fn cut(gid: Gid, is_cut: bool) {
    with(|world| {
        world.cut.retain(|of| *of != gid);
        world.cut.extend(is_cut.then_some(gid));
    });
}

/// What comes is there after this many looks at most.
pub(crate) fn delay(looks: usize) {
    with(|world| world.delay = looks);
}

/// An open device hands out some completions twice.
pub(crate) fn double(context: *mut Context) {
    with(|world| world.double(context));
}

/// How many it has handed out for a second time.
pub(crate) fn doubled(context: *mut Context) -> u64 {
    with(|world| world.doubled(context))
}

/// The address of a queue pair, as events have it.
pub(crate) fn object(number: u32) -> u64 {
    with(|world| world.queues[&number].object as u64)
}

/// A queue pair takes only the first of what it is given next.
pub(crate) fn fill_up(number: u32) {
    with(|world| world.queues.get_mut(&number).expect("a queue pair").is_full = true);
}

/// Whether a queue pair was given these bytes to send, among the last.
pub(crate) fn was_posted(number: u32, start: usize, bytes: usize) -> bool {
    with(|world| world.queues[&number].posted.contains(&(start, bytes)))
}

/// Whether a byte at this address was read by a read, among the last; it is forgotten.
pub(crate) fn was_read(address: u64) -> bool {
    with(|world| {
        let before = world.reads.len();
        world.reads.retain(|read| *read != address);
        world.reads.len() < before
    })
}

/// How a queue pair was last connected: the way to its peer, and what of the connection was chosen.
pub(crate) fn connected(number: u32) -> QpAttr {
    with(|world| world.queues[&number].attr)
}

/// The queue pairs whose peers are at this address, and how many packets one of them has sent.
pub(crate) fn leading_to(gid: Gid) -> Vec<u32> {
    with(|world| {
        let leads = |of: &&QueuePair| of.attr.ah_attr.grh.dgid == gid;
        world.queues.iter().filter(|(_, of)| leads(of)).map(|(number, _)| *number).collect()
    })
}

pub(crate) fn sends(number: u32) -> u32 {
    with(|world| world.queues[&number].next)
}

/// Whether writes to the memory of this key may come late.
pub(crate) fn is_relaxed(key: u32) -> bool {
    with(|world| world.regions[&key].is_relaxed)
}
