//! The threads that call ranks of sparse jobs when there is something to say to them.
//!
//! A call waits for the other side, which the control thread may not. A few threads make the calls that are due and end when
//! there are none: a job whose ranks are all linked has no such thread.
//!
//! Invariant: a thread ends within [`ATTEMPT`] of the process's state being dropped, which waits for it; a rank that does not
//! answer keeps the others waiting no longer than an attempt, since it goes to the end of the queue.

use std::io::ErrorKind;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use consort_memory::sync::Ordering;

use super::dial::{self, Call};
use super::lock;
use super::member::Member;
use super::patience::Patience;
use super::process::Shared;
use consort_types::Rank;

/// Threads that call at the same time, at most.
const CALLERS_MAX: usize = 8;
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// The stack of such a thread, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// The threads of a process that call.
#[derive(Default)]
pub(super) struct Callers {
    /// Those that look for calls.
    running: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Callers {
    /// All threads, to be waited for.
    pub(super) fn take(&mut self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.threads)
    }
}

impl Shared {
    /// A call is due: another thread makes it, unless as many as may be are at it.
    pub(super) fn call_out(self: &Arc<Self>) {
        let mut callers = lock(&self.callers);
        if callers.running >= CALLERS_MAX || self.stop.load(Ordering::Relaxed) {
            return;
        }
        callers.threads.retain(|thread| !thread.is_finished());
        let shared = self.clone();
        let builder = std::thread::Builder::new().name("consort-call".into()).stack_size(STACK_BYTES);
        match builder.spawn(move || run(&shared)) {
            Ok(thread) => {
                callers.running += 1;
                callers.threads.push(thread);
            }
            // One that runs makes the call later, or the next one that can be started.
            Err(error) => tracing::error!("starting a thread that calls another rank: {error}"),
        }
    }

    /// Whether a thread looks for calls.
    pub(super) fn has_callers(&self) -> bool {
        lock(&self.callers).running > 0
    }

    /// The next call of these members that is due, or else when one is.
    fn next_call(members: &[Arc<Member>]) -> Result<(Arc<Member>, Rank), Option<Instant>> {
        let mut next = None;
        for member in members {
            match member.next_call(member.clock.now()) {
                Ok(rank) => return Ok((member.clone(), rank)),
                Err(at) => next = next.into_iter().chain(at).min(),
            }
        }
        Err(next)
    }
}

/// Makes calls until none is due any more.
fn run(shared: &Arc<Shared>) {
    while !shared.stop.load(Ordering::Relaxed) {
        // The last hold of one may be this, and its end takes a while: it comes after the lock.
        let members;
        let next = {
            let mut callers = lock(&shared.callers);
            members = shared.all_members();
            let next = Shared::next_call(&members);
            if let Err(None) = next {
                callers.running -= 1;
                return;
            }
            next
        };
        drop(members);
        match next {
            Ok((member, rank)) => call(shared, member, rank),
            Err(Some(at)) => std::thread::sleep(at.saturating_duration_since(Instant::now())),
            Err(None) => {}
        }
    }
    lock(&shared.callers).running -= 1;
}

fn call(shared: &Arc<Shared>, member: Arc<Member>, rank: Rank) {
    let mut call = Call::new(&member, rank);
    // The member may go meanwhile: its last words are for the thread that closes it.
    let member = {
        let weak = Arc::downgrade(&member);
        drop(member);
        weak
    };
    let patience = Patience::until(Instant::now() + ATTEMPT, Some(&shared.stop));
    let attempt = call.attempt(shared, patience);
    let Some(member) = member.upgrade() else { return };
    let linked = attempt.and_then(|stream| dial::adopt(shared, &member, rank, stream));
    if let Err(error) = linked {
        tracing::debug!(rank = member.rank, peer = rank, "a call came to nothing yet: {error}");
        member.call_failed(rank, error.kind() == ErrorKind::ConnectionRefused, &error.to_string());
    }
}

#[cfg(test)]
mod tests;
