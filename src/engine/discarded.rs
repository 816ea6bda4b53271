//! What operations in streams leave behind, until a thread frees it that may wait.
//!
//! To free memory of a device the driver waits for the device. So the thread that drives an engine frees nothing: the device may
//! wait for this engine. Nor does any thread while an operation is under way on the device: it may wait for a call that this
//! very thread is about to make, on this communicator, another one, or for another rank.
//!
//! Invariant: threads of the program free it, when they make a call or end one, and only what is of a device on which nothing is
//! under way. A program that is always ahead of its device, and so leaves [`LEFT_MAX`] operations behind, waits for the device
//! all the same. Absent: what it is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The most operations whose memory is kept while others are under way on the device.
const LEFT_MAX: usize = 64;

/// A device, by its number in this process.
#[derive(Default)]
struct OfDevice {
    /// Operations under way there.
    under_way: usize,
    left: Vec<Box<dyn Send>>,
}

static DEVICES: LazyLock<Mutex<HashMap<usize, OfDevice>>> = LazyLock::new(Mutex::default);
/// How much is kept, of all devices.
static LEFT: AtomicUsize = AtomicUsize::new(0);

fn devices() -> MutexGuard<'static, HashMap<usize, OfDevice>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An operation goes into a stream of the device.
pub(super) fn begins(device: usize) {
    devices().entry(device).or_default().under_way += 1;
}

/// These operations, `ended` of them, are over on the device, and left this for [`free`].
pub(super) fn keep(device: usize, ended: usize, value: impl Send + 'static) {
    let mut devices = devices();
    let of = devices.entry(device).or_default();
    of.under_way = of.under_way.saturating_sub(ended);
    of.left.push(Box::new(value));
    LEFT.fetch_add(1, Ordering::Relaxed);
}

/// Whether there is nothing to free.
#[inline]
pub(crate) fn is_empty() -> bool {
    LEFT.load(Ordering::Relaxed) == 0
}

/// Frees what there is of these devices, and may be freed. Not to be called by a thread that has an engine.
pub(crate) fn free(numbers: &[usize]) {
    let mut devices = devices();
    let may = |of: &&mut OfDevice| of.under_way == 0 || of.left.len() >= LEFT_MAX;
    let mut freed = Vec::new();
    for number in numbers {
        freed.extend(devices.get_mut(number).filter(may).map(|of| std::mem::take(&mut of.left)));
    }
    devices.retain(|_, of| of.under_way > 0 || !of.left.is_empty());
    LEFT.fetch_sub(freed.iter().map(Vec::len).sum::<usize>(), Ordering::Relaxed);
    drop(devices);
    drop(freed);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_left_is_freed_once_nothing_is_under_way_on_its_own_device() {
        // Of no real device.
        let (one, other) = (usize::MAX, usize::MAX - 1);
        let values = [Arc::new(()), Arc::new(())];
        let held = || values.each_ref().map(|value| Arc::strong_count(value) - 1);
        begins(one);
        begins(one);
        begins(other);
        keep(one, 1, values[0].clone());
        keep(other, 1, values[1].clone());
        free(&[one]);
        assert_eq!(held(), [1, 1], "one is under way there, and the other device was not named");
        keep(one, 1, ());
        free(&[one]);
        assert_eq!(held(), [0, 1]);
        free(&[one, other]);
        assert_eq!(held(), [0, 0]);
    }

    #[test]
    fn a_program_that_is_always_ahead_leaves_a_bounded_number_of_operations() {
        let (device, value) = (usize::MAX - 2, Arc::new(()));
        begins(device);
        for nth in 1..=LEFT_MAX {
            begins(device);
            keep(device, 1, value.clone());
            free(&[device]);
            assert_eq!(Arc::strong_count(&value) - 1, nth % LEFT_MAX);
        }
        keep(device, 1, ());
        free(&[device]);
    }
}
