//! The names of places and counters, in listings and in refusals alike.

use std::fmt;

use crate::Place;
use crate::plan::{CounterId, CounterRole};

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Input(chunk) => write!(f, "input {chunk}"),
            Place::Output(chunk) => write!(f, "output {chunk}"),
            Place::Scratch(chunk) => write!(f, "scratch {chunk}"),
        }
    }
}

impl fmt::Display for CounterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CounterId { owner, writer, channel, role } = self;
        match role {
            CounterRole::Ready => write!(f, "ready[{owner} <- {writer} {channel}]"),
            CounterRole::Credit => write!(f, "credit[{owner} <- {writer} {channel}]"),
            CounterRole::Flag(flag) => write!(f, "flag{flag}[{owner} <- {writer} {channel}]"),
        }
    }
}
