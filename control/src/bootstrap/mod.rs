//! How the ranks of a job find each other: from what a launcher said to a table of who is where and a session key.
//!
//! ```text
//! launch   what the launcher said: rank, size ──► rendezvous: the id travels by a 0700 Unix socket or is configured
//! UniqueId addresses + secret + job number; the process that made it runs the root
//! join     connect ► both sides prove the secret ► hello ► (root: all here? all agree?) ► table, or of a large job which ranks
//!          hand it on
//!          said by `joiner` and `root::gathering`, which know no socket and no clock; carried by `join` and `root::service`
//! ```
//!
//! Invariants: a caller is heard once it has proved the secret (see `handshake`), and the secret itself never travels over the
//! network; every rank that was heard gets the same answer, the table or the same error; nothing waits without a
//! deadline; no length read from a peer is believed before it is bounded.
//!
//! Deliberately absent: the connections between ranks (see `membership`), collectives, retries after a rank was accepted,
//! encryption (what is said after the proof is authenticated, but can be read on the wire).

mod adapters;
mod distance;
mod door;
mod host;
mod interfaces;
mod join;
mod joiner;
mod launch;
mod relay;
mod root;
mod stream;
mod unique_id;
mod wire;

#[cfg(test)]
mod tests;

pub use crate::proof::{host_id, name, random, veil};
pub use adapters::{AdapterPort, turn};
pub use distance::RoundTrip;
pub(crate) use host::sockets;
pub use host::{boot_id, host_key, host_name};
pub(crate) use interfaces::common_bits;
pub use interfaces::{
    asked as asked_interfaces, further as further_interfaces, usable as usable_interfaces, wire_mbits,
};
#[cfg(any(test, feature = "testing"))]
pub use join::join;
pub use join::{cancelled_join as cancelled, join_unless};
pub use joiner::{Joined, Joiner, VERDICT_GRACE};
pub use launch::Launch;
pub(crate) use relay::relay_name;
pub use relay::{Reference, Spread, Tree};
pub use root::{Gathering, Limits};
pub use stream::{Dial, Stream};
pub(crate) use stream::{connect, connected, is_ready, patience};
pub use unique_id::UniqueId;
pub use wire::{Hello, Member, Table};
