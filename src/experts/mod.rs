//! Mixtures of experts: tokens go to the ranks of the experts that were chosen for them, and come back as weighted sums.
//!
//! ```text
//! dispatch          tokens ─► one copy to a rank, or to a host and then to its ranks ─► rows by expert
//! combine           tokens ◄─ sums of hosts ◄─ sums of ranks ◄─ rows × weights
//! ```
//!
//! Invariant: the order of rows, and of everything that is added, follows from the choices and from where ranks are; the route and the
//! way in which counts are exchanged change neither rows nor bits. A handle remembers the way of each row, so that what follows a
//! dispatch exchanges no counts. Absent: the experts themselves, the router, and rows on devices.
//!
//! Sources: GShard (arXiv 2006.16668) and Switch (arXiv 2101.03961) for dispatch and combine; DeepEP for one copy to a host,
//! weights that travel with the choices, and handles; HierMoE for rows that cross once.

mod combine;
mod dispatch;
mod layout;
mod leg;
mod refusal;
mod stage;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use consort_kernels::rows::Real;
use consort_memory::sync::{AtomicU64, Ordering};

use crate::communicator::Communicator;
use crate::planner::Machine;
use consort_types::error::{Error, Result, list};

pub use dispatch::Dispatched;
use layout::Layout;
use leg::Buffers;
use refusal::{Cause, Refusal, Refused};

/// Which way rows go between ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// From the source to each rank that has a chosen expert: one copy for each such rank.
    Direct,
    /// One copy for each host that has a chosen expert, to the rank there whose number in its host is the source's; from there to the
    /// ranks of the host.
    Hierarchical,
}

impl Route {
    /// The name in explanations.
    pub fn name(self) -> &'static str {
        match self {
            Route::Direct => "direct",
            Route::Hierarchical => "hierarchical",
        }
    }
}

/// How a rank learns how many rows come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exchange {
    /// By an exchange of lengths; the messages then have exactly these.
    Counted,
    /// From the message itself, which is as long as it could ever be: one exchange in place of two, for small batches.
    Slots,
}

/// What rows are in messages of a dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// The elements.
    Element,
    /// E4M3 codes with an `f32` scale for each 128 of them: a value changes by up to a sixteenth. What is combined, and what goes
    /// again along a handle, stays in the element type.
    EightBit,
}

/// What ranks agree on before they dispatch tokens; the same on all ranks.
///
/// ```
/// use consort::experts::{ExpertOptions, Route};
/// let options = ExpertOptions::new(8, 1024, 2, 4096).route(Route::Direct);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct ExpertOptions {
    experts: u32,
    hidden: usize,
    top_k: usize,
    tokens_max: usize,
    route: Option<Route>,
    exchange: Option<Exchange>,
    payload: Payload,
}

impl ExpertOptions {
    /// `experts` experts of all ranks together, which lie contiguously, as many on each rank; rows of `hidden` elements; `top_k`
    /// choices of a token; at most `tokens_max` tokens of a rank in a call.
    pub fn new(experts: u32, hidden: usize, top_k: usize, tokens_max: usize) -> Self {
        let (route, exchange, payload) = (None, None, Payload::Element);
        ExpertOptions { experts, hidden, top_k, tokens_max, route, exchange, payload }
    }

    /// Pins the route. Default: hierarchical where that is expected to save a fifth of the copies between hosts.
    pub fn route(mut self, route: Route) -> Self {
        self.route = Some(route);
        self
    }

    /// Pins how counts are exchanged. Default: slots where a rank's longest message has 16 KiB at most.
    pub fn exchange(mut self, exchange: Exchange) -> Self {
        self.exchange = Some(exchange);
        self
    }

    /// What rows are in messages of a dispatch (default: the elements).
    pub fn payload(mut self, payload: Payload) -> Self {
        self.payload = payload;
        self
    }

    /// What must be equal on all ranks, with names.
    fn words<T: Real>(&self) -> [(&'static str, u64); 8] {
        [
            ("experts", self.experts.into()),
            ("hidden", self.hidden as u64),
            ("top_k", self.top_k as u64),
            ("tokens_max", self.tokens_max as u64),
            ("route", self.route.map_or(0, |route| 1 + route as u64)),
            ("exchange", self.exchange.map_or(0, |exchange| 1 + exchange as u64)),
            ("payload", self.payload as u64),
            ("element type", T::DATA_TYPE.code().into()),
        ]
    }

    fn check(&self, size: u32) -> Result<()> {
        let refuse = |what: String, hint: &str| Err(Error::invalid(format!("Experts::new: {what}"), hint));
        if self.experts == 0 || !self.experts.is_multiple_of(size) {
            let text = format!("{} experts on {size} ranks", self.experts);
            return refuse(text, "let the number of ranks divide the number of experts");
        }
        if self.hidden == 0 || self.tokens_max == 0 {
            let text = format!("rows of {} elements, {} tokens at most", self.hidden, self.tokens_max);
            return refuse(text, "pass at least 1 of each");
        }
        if self.top_k == 0 || self.top_k > self.experts as usize {
            let text = format!("{} choices of a token among {} experts", self.top_k, self.experts);
            return refuse(text, "let a token choose at least one expert and at most all");
        }
        if self.hidden > u32::MAX as usize {
            return refuse(format!("rows of {} elements", self.hidden), "pass shorter rows");
        }
        // Places of rows and choices are words of 32 bits.
        let most = self.tokens_max.checked_mul(self.top_k).and_then(|all| all.checked_mul(size as usize));
        if most.is_none_or(|most| most > u32::MAX as usize / 2) {
            let text = format!("{} tokens of {} choices on {size} ranks", self.tokens_max, self.top_k);
            return refuse(text, "dispatch fewer tokens in a call");
        }
        Ok(())
    }
}

/// Bytes that a rank gave to its communicator for other ranks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// To all other ranks.
    pub bytes: u64,
    /// To ranks of other hosts, among them.
    pub bytes_between_hosts: u64,
}

impl Traffic {
    /// Adds messages of these lengths, by rank.
    fn add(&mut self, layout: &Layout, lengths: &[usize]) {
        for (to, bytes) in (0..).zip(lengths).filter(|(to, _)| *to != layout.rank) {
            self.bytes += *bytes as u64;
            self.bytes_between_hosts += if layout.crosses(to) { *bytes as u64 } else { 0 };
        }
    }

    fn and(self, other: Traffic) -> Traffic {
        Traffic {
            bytes: self.bytes + other.bytes,
            bytes_between_hosts: self.bytes_between_hosts + other.bytes_between_hosts,
        }
    }
}

/// How the tokens of all ranks lie on the experts; the same on all ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// Rows of each expert.
    pub rows: Vec<u64>,
    /// The rows of the fullest expert through the mean; 1 where all have as many, 0 where there are none.
    pub largest_over_mean: f64,
    /// Choices that were absent.
    pub absent: u64,
    /// Tokens that no expert got.
    pub dropped_tokens: u64,
}

/// A group of experts over the ranks of a communicator.
///
/// ```
/// use consort::Communicator;
/// use consort::experts::{ExpertOptions, Experts};
///
/// let ranks = Communicator::local(2)?;
/// std::thread::scope(|threads| {
///     for comm in &ranks {
///         threads.spawn(move || {
///             // Four experts, two on each rank; rows of 3 elements, two choices, at most 16 tokens.
///             let mut experts = Experts::<f32>::new(comm, ExpertOptions::new(4, 3, 2, 16)).expect("all ranks agree");
///             let tokens = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
///             let (indices, weights) = ([0, 3, 2, -1], [0.25, 0.75, 1.0, 0.0]);
///             let mut rows = Vec::new();
///             let handle = experts.dispatch(&tokens, &indices, &weights, &mut rows).expect("both call it");
///             assert_eq!(handle.counts(), if comm.rank() == 0 { [2, 0] } else { [2, 2] });
///             // Experts that change nothing.
///             let mut sums = [0.0; 6];
///             experts.combine(&handle, &rows, &mut sums).expect("both call it");
///             assert_eq!(sums, tokens);
///         });
///     }
/// });
/// # consort::Result::Ok(())
/// ```
///
/// Its calls are calls of the communicator: all ranks make them in the same order, with handles of the same dispatch. Between them other
/// calls can be made.
///
/// # Failure
/// As of every collective. What is wrong with one rank's arguments is an error of all ranks, which names it; a dispatch that is refused
/// leaves the communicator as it is. Where ranks pass handles of different dispatches the communicator is [aborted](Communicator::abort)
/// with the ranks and both numbers, as soon as rows of the two meet.
#[derive(Debug)]
pub struct Experts<T: Real> {
    comm: Communicator,
    layout: Arc<Layout>,
    /// The number of the last dispatch; above 32 bits that of these experts.
    number: u64,
    /// For each leg of the route.
    buffers: Vec<Buffers<T>>,
    /// Tokens in 8-bit form, where they are sent so.
    eight_bit: Vec<u8>,
}

impl<T: Real> Experts<T> {
    /// Makes experts over all ranks of a communicator; all ranks call it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when ranks pass different options, with the ranks and their values, or when the number of ranks
    /// does not divide the number of experts, or a number is 0 or too large; otherwise as every collective.
    pub fn new(comm: &Communicator, options: ExpertOptions) -> Result<Self> {
        /// Experts that ranks of this process have made as rank 0.
        static MADE: AtomicU64 = AtomicU64::new(0);
        let words = options.words::<T>();
        // Relaxed: a number that no other group of experts of this process has.
        let made = if comm.rank() == 0 { 1 + MADE.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let mine: Vec<u64> = words.iter().map(|(_, word)| *word).chain([made]).collect();
        let mut all = vec![0u64; mine.len() * comm.size() as usize];
        comm.all_gather(&mine, &mut all)?;
        for (at, (name, _)) in words.iter().enumerate() {
            let said: Vec<u64> = all.chunks_exact(mine.len()).map(|words| words[at]).collect();
            differ(name, &said)?;
        }
        options.check(comm.size())?;
        let host_of = Machine::hosts_of(comm.core().group.infos());
        let layout = Layout::new::<T>(comm.rank(), host_of, options);
        let buffers = layout.stretches().iter().map(|_| Buffers::new()).collect();
        let number = all[mine.len() - 1] << 32;
        Ok(Experts { comm: comm.shared(), layout: Arc::new(layout), number, buffers, eight_bit: Vec::new() })
    }

    /// Why rows go as they do, in a sentence.
    pub fn explain(&self) -> String {
        self.layout.explain()
    }

    /// Which way rows go.
    pub fn route(&self) -> Route {
        self.layout.route
    }

    /// The host of each rank, counted in the order in which they come.
    pub fn host_of(&self) -> &[u32] {
        &self.layout.host_of
    }

    /// How a rank learns how many rows come.
    pub fn exchange(&self) -> Exchange {
        self.layout.exchange
    }

    /// How the tokens of a dispatch lie on the experts of all ranks: an all-gather of a number for each expert, so that only callers who
    /// want it pay for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on all ranks where one passes the handle of other experts; otherwise as every collective.
    pub fn load(&mut self, handle: &Dispatched<T>) -> Result<Load> {
        let rank = self.layout.rank;
        let refused = self.check_handle(handle).err();
        let refused = refused.map(|error| Refused { refusal: Refusal::new(rank, Cause::Handle, 0), error });
        let mut mine = vec![0u64; self.layout.experts_per_rank as usize];
        match &refused {
            Some(refused) => mine[0] = refused.refusal.word(),
            None => mine.iter_mut().zip(handle.counts()).for_each(|(word, count)| *word = *count as u64),
        }
        mine.extend([handle.absent() as u64, handle.dropped_tokens() as u64]);
        let mut all = vec![0u64; mine.len() * self.comm.size() as usize];
        self.comm.all_gather(&mine, &mut all)?;
        let refusal = all.chunks_exact(mine.len()).find_map(|words| Refusal::of(words[0]));
        refusal::end(refused, refusal, "load", &self.layout.options)?;
        let (mut rows, mut absent, mut dropped_tokens) = (Vec::new(), 0, 0);
        for said in all.chunks_exact(mine.len()) {
            let (counts, rest) = said.split_at(mine.len() - 2);
            rows.extend_from_slice(counts);
            absent += rest[0];
            dropped_tokens += rest[1];
        }
        let (largest, total) = (rows.iter().copied().max().unwrap_or(0), rows.iter().sum::<u64>());
        let largest_over_mean = largest as f64 * rows.len() as f64 / total.max(1) as f64;
        Ok(Load { rows, largest_over_mean, absent, dropped_tokens })
    }
}

/// That all ranks said the same.
fn differ(name: &str, said: &[u64]) -> Result<()> {
    if said.iter().all(|word| *word == said[0]) {
        return Ok(());
    }
    let mut values = said.to_vec();
    values.sort_unstable();
    values.dedup();
    let part = |value: &u64| {
        let ranks: Vec<u32> =
            (0..).zip(said).filter(|(_, word)| *word == value).map(|(rank, _)| rank).collect();
        format!("rank{} {}: {value}", if ranks.len() == 1 { "" } else { "s" }, list(&ranks))
    };
    let parts: Vec<String> = values.iter().map(part).collect();
    Err(Error::invalid(
        format!("Experts::new: ranks disagree about {name}: {}", parts.join("; ")),
        "pass the same options and element type on all ranks",
    ))
}
