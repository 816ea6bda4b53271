//! The ports at which this process listens for other hosts: `CONSORT_PORTS`.
//!
//! Invariant: a range is not empty, and port 0, which leaves the choice to the system, is in none. Absent: listening
//! (`consort_transports::listen_within`).

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::settings::bad;
use crate::environment::Environment;
use consort_types::error::{Error, Result};

pub(super) const NAME: &str = "CONSORT_PORTS";
const RULE: &str =
    "two ports from 1 to 65535 with a hyphen between them, the lower one first, as 61000-61063";

/// A range of ports, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// The range that `CONSORT_PORTS` names; `None` where the variable is not set or empty.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the text is no range.
    pub fn asked(environment: &Environment<'_>) -> Result<Option<Self>> {
        environment.text(NAME).map_or(Ok(None), |(text, _)| Self::read(&text))
    }

    /// The range that a text names; `None` for an empty text.
    pub(super) fn read(text: &str) -> Result<Option<Self>> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Ok(None);
        }
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port != 0);
        let ends = trimmed.split_once('-').and_then(|(first, last)| Some((port(first)?, port(last)?)));
        let range = ends.filter(|(first, last)| first <= last);
        range.map(|(first, last)| Some(PortRange { first, last })).ok_or_else(|| bad(NAME, text, RULE))
    }

    /// Its ports, in order.
    pub fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }

    /// The error where the range is why this process cannot listen at `ip`: other sockets hold all of its ports, or this
    /// user may not have them. `None` for any other reason.
    pub fn refused(self, ip: IpAddr, error: &io::Error) -> Option<Error> {
        match error.kind() {
            ErrorKind::AddrInUse => Some(Error::invalid(
                format!("at {ip} all {} ports of {NAME}={self} are in use", self.ports().len()),
                format!(
                    "widen {NAME}: each process takes one port for control and one for data, so a host takes about two \
                     for each of its ranks and one for the meeting point"
                ),
            )),
            ErrorKind::PermissionDenied => Some(Error::invalid(
                format!("this user may not listen at {ip} at the ports of {NAME}={self}"),
                format!("give {NAME} ports above 1023"),
            )),
            _ => None,
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn asked(text: &str) -> Result<Option<PortRange>> {
        PortRange::asked(&Environment::from_lookup(|name: &str| (name == NAME).then(|| text.to_owned())))
    }

    #[test]
    fn a_range_is_two_ports_in_order() {
        for (text, shown) in
            [("61000-61063", "61000-61063"), (" 1 - 65535 ", "1-65535"), ("40000-40000", "40000-40000")]
        {
            let range = asked(text).expect(text).expect(text);
            assert_eq!(range.to_string(), shown);
        }
        assert_eq!(asked("7-9").expect("a range").expect("a range").ports().collect::<Vec<_>>(), [7, 8, 9]);
        for unset in ["", "  "] {
            assert_eq!(asked(unset).expect("unset"), None);
        }
        assert_eq!(PortRange::asked(&Environment::from_lookup(|_: &str| None)).expect("unset"), None);
    }

    #[test]
    fn what_is_no_range_is_refused_by_name() {
        for text in ["5", "9-3", "0-10", "70000-70001", "1-65536", "a-b", "ports", "1-2-3", "-5", "5-", "-"] {
            let error = asked(text).expect_err(text).to_string();
            assert!(error.contains(NAME) && error.contains(text) && error.contains("61000-61063"), "{error}");
        }
    }

    #[test]
    fn a_range_that_is_to_blame_says_where_why_and_what_to_do() {
        let range = asked("40000-40003").expect("a range").expect("a range");
        let refused = |kind: ErrorKind| range.refused(Ipv4Addr::LOCALHOST.into(), &kind.into());
        for (kind, parts) in [
            (ErrorKind::AddrInUse, ["all 4 ports", "widen CONSORT_PORTS"]),
            (ErrorKind::PermissionDenied, ["this user may not", "above 1023"]),
        ] {
            let error = refused(kind).expect("the range is to blame");
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
            let text = error.to_string();
            for part in parts.into_iter().chain(["127.0.0.1", "CONSORT_PORTS=40000-40003"]) {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        assert!(refused(ErrorKind::AddrNotAvailable).is_none());
    }
}
