//! The interfaces at which ranks meet and connect: `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY`.
//!
//! Invariant: a pure choice among names and addresses. Absent: listing them (`bootstrap::interfaces`).

use std::net::IpAddr;

use super::{Environment, names};

/// The kind of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

/// The interfaces that a variable names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interfaces {
    /// The variable's text, for errors.
    text: String,
    exclude: bool,
    /// Whether names are whole, not prefixes.
    exact: bool,
    names: Vec<String>,
    family: Option<Family>,
}

impl Interfaces {
    /// The interfaces that the environment names; `None` where it names none.
    pub fn asked(environment: &Environment<'_>) -> Option<Self> {
        let set = |name| environment.text(name).map(|(text, _)| text.trim().to_owned());
        let family = set("NCCL_SOCKET_FAMILY").and_then(|text| match text.as_str() {
            "AF_INET" => Some(Family::V4),
            "AF_INET6" => Some(Family::V6),
            // As in NCCL, any other text leaves it open.
            _ => None,
        });
        let named = set("NCCL_SOCKET_IFNAME").unwrap_or_default();
        let exclude = named.starts_with('^');
        let rest = named.strip_prefix('^').unwrap_or(&named);
        let exact = rest.starts_with('=');
        let (_, list) = names(rest.strip_prefix('=').unwrap_or(rest));
        let listed: Vec<String> = list.map(str::to_owned).collect();
        let mut text = Vec::new();
        if !listed.is_empty() {
            text.push(format!("NCCL_SOCKET_IFNAME={named}"));
        }
        if let Some(family) = family {
            text.push(format!(
                "NCCL_SOCKET_FAMILY={}",
                if family == Family::V4 { "AF_INET" } else { "AF_INET6" }
            ));
        }
        (!text.is_empty()).then(|| Interfaces {
            text: text.join(" and "),
            exclude,
            exact,
            names: listed,
            family,
        })
    }

    /// Whether this address of this interface is one of them.
    pub fn has(&self, interface: &str, ip: &IpAddr) -> bool {
        let listed = self
            .names
            .iter()
            .any(|name| if self.exact { interface == name } else { interface.starts_with(name.as_str()) });
        let family = match self.family {
            None => true,
            Some(Family::V4) => ip.is_ipv4(),
            Some(Family::V6) => ip.is_ipv6(),
        };
        family && (self.names.is_empty() || listed != self.exclude)
    }

    /// Whether interfaces are named, not left out or chosen by their family alone: a job then uses all of them.
    pub fn names_them(&self) -> bool {
        !self.exclude && !self.names.is_empty()
    }

    /// The variable's text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(interfaces: &str, family: &str) -> Option<Interfaces> {
        let lookup = |name: &str| {
            let text = match name {
                "NCCL_SOCKET_IFNAME" => interfaces,
                "NCCL_SOCKET_FAMILY" => family,
                _ => "",
            };
            (!text.is_empty()).then(|| text.to_owned())
        };
        Interfaces::asked(&Environment::from_lookup(lookup))
    }

    fn chosen(interfaces: &str, family: &str) -> Vec<&'static str> {
        let all = [
            ("eth0", "10.0.0.1"),
            ("eth01", "10.0.0.2"),
            ("eth0", "fd00::1"),
            ("ib0", "10.1.0.1"),
            ("lo", "127.0.0.1"),
        ];
        let asked = asked(interfaces, family).expect("something was asked for");
        let has = |(name, ip): &(&str, &str)| asked.has(name, &ip.parse().expect("an address"));
        all.into_iter().filter(has).map(|(_, ip)| ip).collect()
    }

    #[test]
    fn prefixes_exclusion_and_whole_names() {
        assert_eq!(chosen("eth0", ""), ["10.0.0.1", "10.0.0.2", "fd00::1"]);
        assert_eq!(chosen("=eth0", ""), ["10.0.0.1", "fd00::1"]);
        assert_eq!(chosen("^eth", ""), ["10.1.0.1", "127.0.0.1"]);
        assert_eq!(chosen("^=eth0,lo", ""), ["10.0.0.2", "10.1.0.1"]);
        assert_eq!(chosen("ib, lo", ""), ["10.1.0.1", "127.0.0.1"]);
        assert_eq!(chosen("eth0", "AF_INET6"), ["fd00::1"]);
        assert_eq!(chosen("", "AF_INET"), ["10.0.0.1", "10.0.0.2", "10.1.0.1", "127.0.0.1"]);
        assert!(chosen("wlan", "").is_empty());
    }

    #[test]
    fn nothing_is_asked_for_by_nothing() {
        assert_eq!(asked("", ""), None);
        assert_eq!(asked(" , ", "AF_UNIX"), None);
        let both = asked("^lo", "AF_INET").expect("something");
        assert_eq!(both.text(), "NCCL_SOCKET_IFNAME=^lo and NCCL_SOCKET_FAMILY=AF_INET");
    }
}
