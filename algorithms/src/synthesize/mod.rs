//! Schedules made for one machine, at or near what is provably possible on it.
//!
//! [`rate()`] is what a schedule reaches with long messages: its bytes on each wire against what the wire carries. Makers of
//! schedules are held against [`bounds`](crate::bounds) by it. [`certificate`](certificate()) writes both down for a checker that
//! shares no code with them. [`packing`] packs trees of every root, [`trees`] those of an all-reduce and [`rooted`] those of one
//! whose links carry more one way; [`boxes`] lays them along the rails of many boxes, [`greedy`] has an answer on every machine,
//! [`exchange`] finds ways of all-to-alls, [`offer_between_hosts`] has trees for hosts of different numbers of ranks.
//!
//! Invariant: the same topology gives the same schedule on every rank: work is bounded by counted steps, never by time, and
//! nothing is random without a fixed seed. Absent: choosing (the planner prices what is made here); latency but as a number of
//! hops.

pub mod boxes;
mod certificate;
pub mod exchange;
pub mod greedy;
mod hosts;
mod offers;
pub mod packing;
mod rate;
pub mod rooted;
pub mod trees;

pub use certificate::{CertificateError, certificate};
pub use hosts::offer_between_hosts;
pub use offers::{MESSAGES_MAX, Offer, offer_over_boxes, offers, offers_are_defined};
pub use rate::{Loads, rate};
